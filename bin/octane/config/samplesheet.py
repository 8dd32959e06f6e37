"""A cohort's table: one row for each subject, as CSV, YAML or JSON.

Every cell stays the text that was written, so that a subject 01 stays "01" and a parameter is
understood as it is on a command line. What is wrong is gathered, so that a sheet is corrected once:
each problem is a sentence that names the file and the line.
"""

import csv
import io
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from octane.core.errors import OctaneError

FORMATS = (".csv", ".tsv", ".txt", ".yml", ".yaml", ".json")
"""Suffixes of samplesheets; the last three are read as YAML, which JSON is a part of."""

SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal sign."""

NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class Row:
    """A subject's row: its line in the file, and its cells that are not empty, by column."""

    line: int
    cells: dict[str, str]


@dataclass
class Sheet:
    """Rows of a file, and its problems.

    Attributes
    ----------
    name
        The file, as its problems name it.
    rows
        Those that could be read.
    columns
        Column names with the line that each first stands in.
    problems
        One sentence each.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def where(self, line: int) -> str:
        """A line as sentences name it."""
        return f"{self.name}, line {line}"

    def problem(self, line: int, sentence: str) -> None:
        """Note a problem."""
        self.problems.append(f"{self.where(line)}: {sentence}")


def is_subject_name(name: str) -> bool:
    """Tell whether a name can be a folder and part of file names, also in a shell's command."""
    signs = all(unicodedata.category(sign)[0] in "LMN" or sign in " ._()-" for sign in name)
    return bool(name) and signs and name[0] not in ".-"


def read_samplesheet(path: Path, name: str | None = None, *, may_be_empty: bool = False) -> Sheet:
    """Read a samplesheet.

    Parameters
    ----------
    path
        CSV (separated by commas, semicolons or tabs), YAML or JSON, in UTF-8.
    name
        How sentences name it; unset: its path.
    may_be_empty
        Whether it may hold no subject yet.

    Returns
    -------
    Sheet
        With rows in the file's order and the problems that were found.

    Raises
    ------
    OctaneError
        When it cannot be read as a table at all, or holds no subject and is to.
    """
    sheet = Sheet(name or str(path))
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise OctaneError(
            f"{sheet.name} is no samplesheet that octane knows; save it as .csv, .yaml or .json."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OctaneError(
            f"{sheet.name} cannot be read as text; save it as CSV in UTF-8."
        ) from error
    if suffix in (".yml", ".yaml", ".json"):
        _read_yaml(text, sheet)
    else:
        _read_csv(text, sheet)
    if not (sheet.rows or sheet.problems or may_be_empty):
        raise OctaneError(f"{sheet.name} holds no subject; add a row for each.")
    return sheet


def separator_of(text: str) -> str:
    """Separator of the cells of a CSV table: the most frequent one of its first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(SEPARATORS, key=first.count)


def _read_csv(text: str, sheet: Sheet) -> None:
    separator = separator_of(text)
    reader = csv.reader(
        # A quote counts also after a blank.
        io.StringIO(text, newline=""),
        delimiter=separator,
        strict=True,
        skipinitialspace=True,
    )
    header: list[str] | None = None
    try:
        # A quoted cell may span lines: a row begins after the last one's end.
        begins = 1
        for cells in reader:
            line, begins = begins, reader.line_num + 1
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if header is None:
                header = cells
                _read_header(header, line, sheet)
                continue
            while len(cells) > len(header) and not cells[-1]:
                cells.pop()
            if len(cells) != len(header):
                sheet.problem(
                    line,
                    f"there are {len(cells)} cells and {len(header)} columns; fill it up, and put "
                    "a cell that holds the separator in quotes.",
                )
                continue
            if any(cell and not column for cell, column in zip(cells, header, strict=True)):
                sheet.problem(line, "a cell stands below no column name; name its column.")
            named = zip(header, cells, strict=True)
            sheet.rows.append(
                Row(line, {column: cell for column, cell in named if column and cell})
            )
    except csv.Error as error:
        raise OctaneError(
            f"{sheet.where(reader.line_num)}: this is no row of a CSV table ({error}); correct the "
            "quotes."
        ) from error


def _read_header(header: list[str], line: int, sheet: Sheet) -> None:
    for column, count in Counter(header).items():
        if column:
            sheet.columns[column] = line
        if column and count > 1:
            sheet.problem(line, f"the column {column} is there {count} times; leave one.")


def _read_yaml(text: str, sheet: Sheet) -> None:
    try:
        # The nodes and not the values: they know their lines, and 01 is not yet a number.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = sheet.where(mark.line + 1) if mark is not None else sheet.name
        reason = getattr(error, "problem", None) or "it has signs that no text has"
        raise OctaneError(f"{where}: this is no YAML ({reason}); correct it.") from error
    if root is None:
        return
    if not isinstance(root, yaml.SequenceNode):
        raise OctaneError(
            f"{sheet.name} is no list of subjects; begin each with '- subject: NAME'."
        )
    for entry in root.value:
        line = entry.start_mark.line + 1
        if isinstance(entry, yaml.MappingNode):
            sheet.rows.append(_yaml_row(entry, line, sheet))
        else:
            sheet.problem(line, "this is no subject; begin it with '- subject: NAME'.")


def _yaml_row(entry: yaml.MappingNode, line: int, sheet: Sheet) -> Row:
    cells: dict[str, str] = {}
    for key, value in entry.value:
        column, at = str(key.value).strip(), key.start_mark.line + 1
        sheet.columns.setdefault(column, at)
        if column in cells:
            sheet.problem(at, f"{column} is there twice in one subject; leave one.")
        members = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(member, yaml.ScalarNode) for member in members):
            sheet.problem(at, f"{column} is neither a value nor a list of values; correct it.")
            continue
        text = " ".join(member.value.strip() for member in members if member.tag != NULL)
        if text:
            cells[column] = text
    return Row(line, cells)
