"""Samplesheet of a cohort: one row for each subject, as CSV or YAML.

Every cell stays the text that was written, so that a subject 01 stays "01". Problems are gathered:
each is a sentence that names the file and the line.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from octane.core.errors import OctaneError

SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal sign."""
MOST_BYTES = 1_000_000
"""Size of a samplesheet: some thousand subjects."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Row:
    """A subject's row: its line in the file, and its cells that are not empty, by column."""

    line: int
    cells: dict[str, str]


@dataclass
class Sheet:
    """Rows of a file, the lines of its columns, and its problems, one sentence each."""

    name: str
    rows: list[Row] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def where(self, line: int) -> str:
        """A line as sentences name it."""
        return f"{self.name}, line {line}"

    def problem(self, line: int, sentence: str) -> None:
        """Note a problem."""
        self.problems.append(CONTROL.sub("?", f"{self.where(line)}: {sentence}"))

    def add(self, line: int, cells: Mapping[str, str]) -> None:
        """Add a row; a column belongs to the line that it first stands in."""
        for column, text in cells.items():
            self.columns.setdefault(column, line)
            if CONTROL.search(text):
                self.problem(line, f"{column} has a control character or a line break; remove it.")
        self.rows.append(Row(line, {column: text for column, text in cells.items() if text}))


def is_subject_name(name: str) -> bool:
    """Tell whether a name can be a folder and part of file names, also in a shell's command."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    return bool(name) and signs and name[0] not in ".-"


def read_samplesheet(path: Path, name: str | None = None, *, may_be_empty: bool = False) -> Sheet:
    """Read a samplesheet in CSV (separated by commas, semicolons or tabs) or YAML, in UTF-8.

    Sentences call it by ``name``, or by its path.

    Raises
    ------
    OctaneError
        When it cannot be read as a table at all, or holds no subject where it must.
    """
    sheet = Sheet(name or str(path))
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".yml": _read_yaml, ".yaml": _read_yaml}
    try:
        reader = readers[path.suffix.lower()]
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise OctaneError(f"{sheet.name} is no file of up to {MOST_BYTES} bytes; correct it.")
        text = path.read_bytes().decode("utf-8-sig")
    except KeyError as error:
        raise OctaneError(
            f"{sheet.name} is no samplesheet that octane knows; save it as .csv, .tsv or .yaml."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise OctaneError(
            f"{sheet.name} cannot be read as text; save it as CSV in UTF-8."
        ) from error
    reader(text, sheet)
    if not (sheet.rows or sheet.problems or may_be_empty):
        raise OctaneError(f"{sheet.name} holds no subject; add a row for each.")
    return sheet


def separator_of(text: str) -> str:
    """Separator of the cells of a CSV table: the most frequent one of its first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(SEPARATORS, key=first.count)


def _read_csv(text: str, sheet: Sheet) -> None:
    # A quote counts also after a blank.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator_of(text),
        strict=True,
        skipinitialspace=True,
    )
    header: list[str] = []
    try:
        for row in reader:
            cells, line = [cell.strip() for cell in row], reader.line_num
            while cells and not cells[-1] and len(cells) != len(header):
                cells.pop()
            if not any(cells):
                continue
            if not header:
                header = cells
                sheet.columns.update(dict.fromkeys(header, line))
                if "" in header or len(sheet.columns) < len(header):
                    sheet.problem(line, "a column has no name or that of another; name each once.")
            elif len(cells) != len(header):
                sheet.problem(
                    line,
                    f"there are {len(cells)} cells and {len(header)} columns; fill it up, and put "
                    "a cell that holds the separator in quotes.",
                )
            else:
                sheet.add(line, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise OctaneError(
            f"{sheet.where(reader.line_num)}: this is no row of a CSV table ({error}); correct the "
            "quotes."
        ) from error


def _read_yaml(text: str, sheet: Sheet) -> None:
    try:
        # Leaves every value the text that it is: 01 is no number.
        loader = yaml.BaseLoader(text)
        node = loader.get_single_node()
        entries = loader.construct_document(node) if node else []
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = sheet.where(mark.line + 1) if mark is not None else sheet.name
        reason = getattr(error, "problem", None) or "signs of no text, or nested too deeply"
        raise OctaneError(f"{where}: this is no YAML ({reason}); correct it.") from error
    if not isinstance(entries, list):
        raise OctaneError(
            f"{sheet.name} is no list of subjects; begin each with '- subject: NAME'."
        )
    for entry, place in zip(entries, node.value if node else [], strict=True):
        line = place.start_mark.line + 1
        if not isinstance(entry, dict):
            sheet.problem(line, "this is no subject; begin it with '- subject: NAME'.")
            continue
        if len(entry) < len(place.value):
            sheet.problem(line, "a parameter is there twice in one subject; remove one.")
        lists = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
        for key, values in lists.items():
            if not all(isinstance(value, str) for value in values):
                sheet.problem(line, f"{key} is neither a value nor a list of values; correct it.")
        texts = {key: " ".join(map(str, values)).strip() for key, values in lists.items()}
        sheet.add(line, {key: "" if text in ("~", "null") else text for key, text in texts.items()})
