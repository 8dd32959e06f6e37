"""Process sections while the microscope images them, and warn of faults."""

import shlex
import sys
from pathlib import Path

from octane.config import cli
from octane.config.parameters import StepParameters, parameter
from octane.core.errors import InputError

WATCH_FLAGS = ("--outdir", "--settle", "--complete", "--last", "--on_alert")
"""Flags that are the watcher's own; all others are the workflow's."""
REFUSED_WORDS = {
    "--input": "FOLDER is the input",
    "--samplesheet": "a folder is one subject",
    "--until": "the watcher sets it",
    "--only_sections": "the watcher sets it",
    "-resume": "the watcher sets it",
    "-name": "the watcher sets it",
    "-bg": "let systemd or tmux run the watcher in the background",
}
"""Words that would contradict the watcher's."""


class WatchOptions(StepParameters):
    """How a folder is watched."""

    settle: float = parameter(
        60.0,
        "Seconds without a change after which a file is complete: more than the microscope takes "
        "from one write to the next.",
        gt=0,
        unit="second",
    )
    complete: str | None = parameter(
        None,
        "Name of a file by which the microscope says that a section is complete, in FOLDER, such "
        "as '{section}/done.txt'; it replaces --settle.",
    )
    last: int | None = parameter(
        None,
        "Number of the last section: once it is taken, the whole run follows. Unset: watch until "
        "interrupted.",
    )
    on_alert: str = parameter(
        "",
        "Shell command for each alert, such as to send mail or to stop the microscope. It gets the "
        "alert as JSON on its standard input.",
    )


def split_words(words: list[str]) -> list[str]:
    """Words with those of the workflow, and FOLDER before them, behind ``--``."""
    flags: list[str] = []
    others: list[str] = []
    target = others
    for word in words:
        name, equals, _ = word.partition("=")
        if word in ("--help", "--version"):
            flags.append(word)
        elif name in WATCH_FLAGS:
            flags.append(word)
            target = others if equals else flags
        else:
            if (why := REFUSED_WORDS.get(name)) is not None:
                raise InputError(f"{name} is not for bin/watch.py: {why}; omit it.")
            target.append(word)
            target = others
    if others and others[0].startswith("-"):
        raise InputError(f"{others[0]} comes before FOLDER; give the folder first.")
    return [*flags, "--", *others] if others else flags


def main() -> None:
    """Run the command; all words that are not its own go to the workflow."""
    words = sys.argv[1:]
    try:
        sys.argv[1:] = split_words(words)
    except InputError as error:
        sys.exit(f"error: {error}")
    try:
        cli.run(_watch)
    except SystemExit as error:
        if error.code in (130, 128 + 15):
            again = shlex.join([sys.argv[0], *words])
            sys.stderr.write(f"To go on: {again}\n")
            if not any(word.startswith("--last") for word in words):
                sys.stderr.write(
                    "Add --last NUMBER for the whole run on the sections until then.\n"
                )
        raise


def _watch(folder: list[str], /, *, outdir: Path, options: WatchOptions) -> None:
    """Process sections while the microscope images them, and warn of faults.

    Each section is stitched and judged as soon as it is complete; after the last one the whole
    workflow runs, which repeats nothing. All other words go to the workflow, such as -profile slurm
    or --resolution 10.

    Parameters
    ----------
    folder
        Folder that the microscope writes to; then any words of nextflow run.
    outdir
        Folder for the results, with live.html and watch.jsonl.
    """
    from octane.tools.watch.judge import begin
    from octane.tools.watch.step import watch

    watch(begin(Path(folder[0]), outdir, folder[1:], options))
