"""Sheets that people write: samplesheets in CSV or YAML, a row a subject, and tables in CSV.

Every cell stays the text that was written, so that a subject 01 stays "01".
"""

import csv
import io
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

from octane.core.errors import InputError
from octane.core.files import read_regular

SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal sign."""


@dataclass
class Sheet:
    """Line and cells of each row, without empty ones; lines of the columns; problems, as sentences.

    A column belongs to the line that it first stands in.
    """

    name: str
    columns: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, line: int, sentence: str) -> None:
        """Note a problem."""
        self.problems.append(f"{self.name}, line {line}: {sentence}")


def read_samplesheet(path: Path, name: str) -> Sheet:
    """Read a samplesheet in CSV (separated by commas, semicolons or tabs) or YAML, in UTF-8.

    Sentences call it by ``name``. An OctaneError says that it is no table.
    """
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".yml": _read_yaml, ".yaml": _read_yaml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{name} is no samplesheet that octane knows; save it as .csv, .tsv or .yaml."
        )
    sheet = Sheet(name)
    reader(_text(path, name), sheet)
    return sheet


def read_table(path: Path) -> Sheet:
    """Read a table in CSV whatever its name ends in; an OctaneError names its problems."""
    return _table(_text(path, str(path)), str(path))


# A run asks for a table of positions once for each of its sections.
@lru_cache(maxsize=1)
def _table(text: str, name: str) -> Sheet:
    sheet = Sheet(name)
    _read_csv(text, sheet)
    if sheet.problems:
        raise InputError("\n".join(sheet.problems))
    return sheet


def _text(path: Path, name: str) -> str:
    try:
        return read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "it is no text")
        raise InputError(
            f"{name} cannot be read ({reason}); check your rights, or save it as CSV in UTF-8."
        ) from error


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
                header, sheet.columns = cells, dict.fromkeys(cells, line)
                if "" in header or len(sheet.columns) < len(header):
                    sheet.problem(line, "a column has no name or that of another; name each once.")
            elif len(cells) != len(header):
                sheet.problem(
                    line,
                    f"there are {len(cells)} cells and {len(header)} columns; fill it up, and put "
                    "a cell that holds the separator in quotes.",
                )
            else:
                texts = zip(header, cells, strict=True)
                sheet.rows.append((line, {column: text for column, text in texts if text}))
    except csv.Error as error:
        raise InputError(
            f"{sheet.name}, line {reader.line_num}: this is no row of a CSV table ({error}); "
            "correct the quotes."
        ) from error


def _read_yaml(text: str, sheet: Sheet) -> None:
    try:
        # Its nodes know their lines, and every value is the text that it is: 01 is no number.
        node = yaml.compose(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{sheet.name}, line {mark.line + 1}" if mark is not None else sheet.name
        reason = getattr(error, "problem", None) or "signs of no text, or nested too deeply"
        raise InputError(f"{where}: this is no YAML ({reason}); correct it.") from error
    if not isinstance(node, yaml.SequenceNode | None):
        raise InputError(f"{sheet.name} is no list of subjects; begin each with '- subject: NAME'.")
    for subject in node.value if node else []:
        cells: dict[str, str] = {}
        if isinstance(subject, yaml.MappingNode):
            for key, value in subject.value:
                _add(key, value, cells, sheet)
            sheet.rows.append((_line(subject), cells))
        else:
            sheet.problem(_line(subject), "this is no subject; begin it with '- subject: NAME'.")


def _add(key: yaml.Node, value: yaml.Node, cells: dict[str, str], sheet: Sheet) -> None:
    """Add a parameter of a subject in YAML to its cells."""
    values = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(node, yaml.ScalarNode) for node in (key, *values)):
        sheet.problem(_line(key), "this is neither a value nor a list of values; correct it.")
        return
    if key.value in cells:
        sheet.problem(_line(key), f"{key.value} is there twice in one subject; remove one.")
    sheet.columns.setdefault(key.value, _line(key))
    text = " ".join(node.value for node in values).strip()
    if text not in ("", "~", "null"):
        cells[key.value] = text


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
