"""Tables in CSV that people write: samplesheets, a row a subject, and positions of tiles.

Every cell stays the text that was written, so that a subject 01 stays "01".
"""

import csv
import io
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from octane.core.errors import InputError
from octane.core.files import read_regular

SEPARATORS = ",;\t"
"""Spreadsheets write semicolons where the comma is the decimal sign: the most frequent one counts.

As ``rowsOf`` in subworkflows/prepare.nf.
"""


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
    """Read a samplesheet in CSV, separated by commas, semicolons or tabs, in UTF-8.

    Sentences call it by ``name``. An OctaneError says that it is not a table.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{name} is not a samplesheet in CSV; save it as .csv or .tsv.")
    sheet = Sheet(name)
    _read_csv(_text(path, name), sheet)
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
        reason = getattr(error, "strerror", "not a text file")
        raise InputError(
            f"{name} cannot be read ({reason}); check your rights, or save it as CSV in UTF-8."
        ) from error


def _read_csv(text: str, sheet: Sheet) -> None:
    first = next((line for line in text.splitlines() if line.strip()), "")
    # A quote counts also after a blank.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=max(SEPARATORS, key=first.count),
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
                    sheet.problem(line, "name every column, each once.")
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
            f"{sheet.name}, line {reader.line_num}: invalid CSV row ({error}); correct the quotes."
        ) from error
