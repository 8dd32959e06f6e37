"""Runs of the workflow, all in one session of Nextflow, and what they left."""

import csv
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from octane.config.validation import as_ranges
from octane.core.errors import InputError, OctaneError

MAIN = Path(__file__).resolve().parents[4] / "main.nf"
"""The workflow, in the checkout that this file is in."""
SESSION_COLUMN = 5
"""Column of a run's session in Nextflow's history."""
NEXTFLOW_LINES = re.compile(
    r"octane stopped: |^(?:\[../.{6}\]|Launching|N E X T F L O W|ERROR ~).*\n", re.MULTILINE
)
"""What is before the words by which a failed run says why."""
MOST_LINES = 5
"""Most lines of these words that a sentence repeats."""
END_SECONDS = 120.0
"""Seconds in which an interrupted run ends."""
SECTION_FLAGS = ("--until", "stitch", "--skip_report")
"""Parameters of a run on some sections."""


@dataclass(frozen=True)
class RunEnd:
    """A run that has ended: its exit code, and what it said."""

    code: int
    output: str

    @property
    def sentence(self) -> str:
        """Why it failed."""
        *_, words = NEXTFLOW_LINES.split(self.output)
        lines = [line.strip() for line in words.splitlines()]
        kept = [line for line in lines if line and not line.startswith("-- Check")]
        return " ".join(kept[:MOST_LINES]) or f"Nextflow ended with exit code {self.code}."


@dataclass(frozen=True)
class Workflow:
    """The workflow on a folder.

    Attributes
    ----------
    folder, outdir
        Its input and its results.
    words
        What the user gives to ``nextflow run`` besides.
    launch
        Folder in which Nextflow runs.
    log
        File with the output of the last run.
    """

    folder: Path
    outdir: Path
    words: Sequence[str]
    launch: Path
    log: Path

    @property
    def work(self) -> Path:
        """Nextflow's work folder, unless a config names another."""
        for name in ("-work-dir", "-w"):
            if name in self.words[:-1]:
                return self.launch / self.words[self.words.index(name) + 1]
        return self.launch / "work"

    def command(self, key: str, number: int, sections: Sequence[int] | None) -> list[str]:
        """Command of a run on some sections, or of the whole run."""
        given = ["--input", str(self.folder), "--outdir", str(self.outdir), *self.words]
        some = [] if sections is None else [*SECTION_FLAGS, "--only_sections", as_ranges(sections)]
        session = session_of(self.launch / ".nextflow" / "history", key)
        resumed = [] if session is None else ["-resume", session]
        name_words = ["-name", f"watch-{key}-{number}"]
        return ["nextflow", "run", str(MAIN), *given, *some, *name_words, *resumed]

    def run(self, key: str, number: int, sections: Sequence[int] | None) -> RunEnd:
        """Run it to its end; an interrupt is passed on, and the run ends first."""
        if not MAIN.exists():
            raise InputError(f"{MAIN} does not exist; run bin/watch.py of a checkout of octane.")
        command = self.command(key, number, sections)
        with self.log.open("wb") as stream:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self.launch,
                    env={**os.environ, "NXF_ANSI_LOG": "false"},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_heed_interrupts,
                )
            except FileNotFoundError as error:
                raise OctaneError(
                    "nextflow is not on the PATH; source tools/env.sh first."
                ) from error
            try:
                code = process.wait()
            except BaseException:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                raise
        return RunEnd(code, self.log.read_text(encoding="utf-8", errors="replace"))

    def is_busy(self) -> bool:
        """Tell whether another run writes into outdir, such as one whose watcher was killed."""
        lock = self.outdir / "pipeline_info" / ".lock"
        # No lock, or a file system without locks.
        with suppress(OSError), lock.open("r+b") as stream:
            try:
                fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def stitch_folders(self) -> dict[str, Path]:
        """Folders of the last run's tasks that stitched the reference channel, by section."""
        with (self.outdir / "pipeline_info" / "trace.txt").open(newline="") as stream:
            rows = [*csv.DictReader(stream, delimiter="\t")]
        matches = ((re.fullmatch(r".*\bSTITCH \([^:]+:(.+)\)", r["name"]), r) for r in rows)
        return {
            match[1]: Path(row["workdir"])
            for match, row in matches
            if match and row["status"] in ("COMPLETED", "CACHED")
        }


def _heed_interrupts() -> None:
    """A shell starts background commands with SIGINT ignored, and Java would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def session_of(history: Path, key: str) -> str | None:
    """Session of the last run that a watcher began, from Nextflow's history."""
    with suppress(FileNotFoundError):
        for line in reversed(history.read_text(encoding="utf-8").splitlines()):
            columns = line.split("\t")
            if len(columns) > SESSION_COLUMN and columns[2].startswith(f"watch-{key}-"):
                return columns[SESSION_COLUMN]
    return None


def read_parameters(words: Sequence[str]) -> Mapping[str, str]:
    """Parameters of the workflow in a command line; a switch without a value is true."""
    parameters: dict[str, str] = {}
    for word, after in pairwise([*words, "--"]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            is_switch = after.startswith("--") or re.fullmatch(r"-[A-Za-z].*", after)
            parameters[name] = value if equals else "true" if is_switch else after
    return parameters
