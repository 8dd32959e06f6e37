"""What Nextflow asks PREFLIGHT: a run as it was launched, its subjects and their files."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast
from urllib.parse import unquote

from octane.config.validation import NEXTFLOW, unlinkable
from octane.core.errors import InputError, collecting
from octane.processes.n4.parameters import MASK_WORDS
from octane.processes.stitch.parameters import FLAT_WORDS, GAIN_WORDS

WORDS = {"n4_mask": MASK_WORDS, "stitch_flat_field": FLAT_WORDS, "stitch_gain": GAIN_WORDS}
"""Words that a parameter accepts in place of a file."""
FILES = ("input", "positions", "tile_table", "displacements", *WORDS)
"""Parameters of a subject that name a file."""
SESSION_ID = re.compile(r"last|[0-9a-f]{8}-[0-9a-f-]+")
IDLE_SWITCHES = ("-bg", "-q", "-quiet", "-resume")
NEXTFLOW_PAGES = ("dag", "notification", "report", "timeline", "tower", "trace", "weblog")
IDLE_OPTIONS = ("-N", "-ansi-log", "-log", "-name", *(f"-with-{page}" for page in NEXTFLOW_PAGES))
"""Options of Nextflow that change no result, alone or before a value."""


@dataclass(frozen=True)
class Subject:
    """A subject of a run.

    Attributes
    ----------
    name
        Its name.
    given
        Its own parameters.
    files
        Files by parameter, and the ``truth`` of a phantom.
    row
        File and line of its row in a samplesheet.
    problems
        Sentences on files that tasks cannot get; these are not among ``files``.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    row: str = ""
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """A run as it was launched.

    Attributes
    ----------
    parameters
        Those of the run, without the name and the input of a single subject.
    asked
        The subjects as Nextflow has them: name (``id``), own parameters (``given``), ``row``,
        ``input`` and ``truth``. One without an input is that of --input; without any, the run has
        a samplesheet or makes a phantom.
    command
        The command line.
    folder, work
        Where it was launched, and its work directory.
    is_contained
        Tasks run in containers.
    is_published
        Results are put into outdir, and not by another workflow that includes this one.
    """

    parameters: Mapping[str, object]
    asked: Sequence[Mapping[str, object]]
    command: str
    folder: Path
    work: Path
    is_contained: bool
    is_resumed: bool
    is_stub: bool
    is_published: bool

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Read a request, JSON with these attributes.

        Raises an InputError if the user gave one of Nextflow's own options with two dashes.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        content |= {name: Path(content[name]) for name in ("folder", "work")}
        given = content["parameters"]
        if dashed := [name for name in given if name in NEXTFLOW]:
            raise InputError(
                f"Unknown parameter --{dashed[0]}; did you mean -{dashed[0]}, with one dash?"
            )
        for name in ("outdir", "samplesheet"):
            if given.get(name):
                given[name] = str(content["folder"] / str(given[name]))
        return cls(**content)

    @property
    def is_cohort(self) -> bool:
        """True if a samplesheet names the subjects."""
        return bool(self.parameters.get("samplesheet"))

    def is_on(self, switch: str) -> bool:
        """True if a switch is on, which Nextflow may hand over as text."""
        return str(self.parameters.get(switch)).strip().lower() == "true"

    def text_of(self, name: str) -> str:
        """A name or path as it was written, or "": Nextflow reads 01 as the number 1.

        Raises an InputError if only the number is left.
        """
        value = self.parameters.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return str(value or "").strip()
        texts = re.findall(rf"\s--{name}[=\s]([0-9.]+)(?=\s|$)", self.command)
        if not texts:
            raise InputError(
                f"--{name} was read as the number {value}, which loses leading zeros; quote it in "
                f'the params file or config: {name}: "01".'
            )
        return texts[-1]

    def subjects(self) -> list[Subject]:
        """The subjects with their files."""
        return [self._subject(asked) for asked in self.asked]

    def _subject(self, asked: Mapping[str, object]) -> Subject:
        given = cast("Mapping[str, object]", asked.get("given") or {})
        values = {name: given.get(name) or self.parameters.get(name) for name in FILES[1:]}
        values |= {
            "input": asked.get("input") or self.text_of("input"),
            "truth": asked.get("truth"),
        }
        if self.is_on("skip_n4"):
            values["n4_mask"] = None
        files, problems = dict[str, Path](), list[str]()
        for name, value in values.items():
            text = str(value or "").strip()
            if not text or text.lower() in WORDS.get(name, ("none", "null")):
                continue
            with collecting(problems):
                files[name] = self._file(name, text)
        source = files.get("input", Path(str(values["input"])))
        name = str(asked.get("id") or self.text_of("subject") or source.name.partition(".")[0])
        return Subject(name, given, files, str(asked.get("row") or ""), problems)

    def _file(self, name: str, text: str) -> Path:
        """The file that a parameter names; raise an InputError if tasks cannot get it."""
        path = file_at(self.folder, name, text)
        if not os.access(path, os.F_OK):
            words = WORDS.get(name)
            accepted = f", which accepts a file, {words[0]} or none" if words else ""
            raise InputError(f"{path} does not exist; check --{name}{accepted}.")
        if problem := unlinkable(path, is_mounted=self.is_contained):
            raise InputError(problem)
        # The script of a task has it, which Nextflow writes into its pages unescaped. Those of and
        # in inputs are checked later.
        if name != "input" and (signs := [sign for sign in "<>&" if sign in path.name]):
            raise InputError(f"{path} has a {signs[0]} in its name; rename it.")
        return path


def file_at(folder: Path, name: str, text: str) -> Path:
    """The file that a parameter names, relative to ``folder``.

    Raises an InputError for an address, which tasks could not read.
    """
    if re.match(r"(?!file:)[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
        raise InputError(
            f"--{name} {text} is an address, but octane reads and writes files only: mount or copy "
            "it, as in docs/faq.md#remote."
        )
    if address := re.match(r"file:(//)?(?=/)", text, re.IGNORECASE):
        text = unquote(text[address.end() :])
    return folder / text


def _split_words(command: str) -> list[str]:
    """The words of a command line, as Nextflow quotes them."""
    return re.findall(r"(?:\\.|'[^']*'|[^\s\\'])+", command)


def stray_words(command: str) -> list[str]:
    """Words of a command line that belong to no parameter, such as b in ``--input a b``."""
    plain = [re.sub(r"'([^']*)'|\\(.)", r"\1\2", word) for word in _split_words(command)]
    words = plain[plain.index("run") :] if "run" in plain else []
    alone = [
        word
        for before, word in pairwise(words)
        if not re.fullmatch(r"-[^=]*", before) and not word.startswith("-")
    ]
    # The first one is the script.
    return alone[1:]


def stable_command(command: str) -> str:
    """A command line without those options of Nextflow that change no result.

    So that tasks that depend on it stay cached.
    """
    words = _split_words(command)

    def is_idle(before: str, word: str) -> bool:
        return (
            word in (*IDLE_SWITCHES, *IDLE_OPTIONS)
            or (before in IDLE_OPTIONS and not word.startswith("-"))
            or (before == "-resume" and SESSION_ID.fullmatch(word) is not None)
        )

    pairs = zip(["", *words], words, strict=False)
    return " ".join(word for before, word in pairs if not is_idle(before, word))


def check_launch(run: Run) -> None:
    """Raise an InputError if the command line does not name one input or one cohort."""
    if further := stray_words(run.command):
        raise InputError(
            f"'{further[0]}' does not belong to a parameter; put quotes around a value with "
            "blanks, and give several subjects with --samplesheet."
        )
    single, phantom = run.text_of("input") or run.text_of("subject"), run.is_on("phantom")
    if run.is_cohort and (single or phantom):
        raise InputError(
            "--samplesheet names the subjects and their inputs; omit --input, --subject and "
            "--phantom."
        )
    if not (run.is_cohort or run.text_of("input") or phantom):
        raise InputError(
            "--input is missing; give a folder of tiles or mosaics, a mosaic or a volume, or "
            "--samplesheet, or try -profile test. See --help."
        )
