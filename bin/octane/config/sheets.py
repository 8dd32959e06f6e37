"""CSV tables that users write: samplesheets, with one row per subject, and tables of tiles.

Cells stay text, so that a subject 01 stays "01".
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from octane.core.errors import InputError, first_lines
from octane.core.files import read_regular

SEPARATORS = ",;\t"
"""Column separators; the most frequent one in the first line counts.

Spreadsheets write semicolons if the comma is the decimal sign.
"""

MOST_BYTES = 100_000_000
"""Largest table: more than any of so many rows needs, and small enough to be read as a whole."""
MOST_ROWS = 500_000
"""Most lines of a table, which take some 500 bytes of memory each: a hundred sections of 5000
tiles."""
MOST_CELLS = 10 * MOST_ROWS
"""Most cells of a table, and elements and attributes of XML, which take some 100 bytes each."""
MOST_SUBJECTS = 10_000
"""Most lines of a samplesheet: for each subject the run keeps some tasks in Nextflow's memory."""

POSITION_COLUMNS = ("section", "row", "column", "y", "x")
"""Columns of tile positions: section number, row and column from 0, and the tile's first edge in
micrometres."""
DEPTH = "z"
"""Optional column of tile positions: how much deeper a tile lies than the section's first plane, in
micrometres; 0 in empty cells."""
GAIN_COLUMNS = (*POSITION_COLUMNS[:3], "gain")
"""Columns of tile gains: a tile as for positions, and the factor by which it is too bright."""


@dataclass
class Sheet:
    """Rows of a table as (line, cells), without empty rows and cells, and the problems found.

    ``columns`` maps each column to the line of the header.
    """

    name: str
    columns: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, line: int, sentence: str) -> None:
        """Add a problem on a line."""
        self.problems.append(f"{self.name}, line {line}: {sentence}")


def read_samplesheet(path: Path) -> Sheet:
    """Read a samplesheet: CSV in UTF-8, separated by commas, semicolons or tabs.

    Raises an InputError if it is not a CSV table.
    """
    name = str(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise InputError(f"{name} is not a samplesheet in CSV; save it as .csv or .tsv.")
    sheet = Sheet(name)
    _read_csv(_text(path, name), sheet, MOST_SUBJECTS)
    return sheet


def read_table(path: Path) -> Sheet:
    """Read a CSV table whatever its suffix; an InputError lists its problems."""
    return _table(_text(path, str(path)), str(path))


def read_rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of each row of a CSV table; raise if it lacks rows or ``columns``."""
    table = read_table(path)
    if not table.rows or set(columns) - set(table.columns):
        raise InputError(f"{path} must have the columns {', '.join(columns)}; correct its header.")
    return table.rows


# A run reads the same tables, of positions and of gains, once per section.
@lru_cache(maxsize=2)
def _table(text: str, name: str) -> Sheet:
    sheet = Sheet(name)
    _read_csv(text, sheet, MOST_ROWS)
    if sheet.problems:
        raise InputError("\n".join(first_lines(sheet.problems)))
    return sheet


def _text(path: Path, name: str) -> str:
    try:
        return read_small(path, name).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "not a text file")
        raise InputError(
            f"{name} cannot be read ({reason}); check your permissions, or save it as CSV in UTF-8."
        ) from error


def read_small(path: Path, name: str) -> bytes:
    """Read a table, which messages call ``name``; raise an InputError if it is too large for one.

    Other errors as in :func:`read_regular`.
    """
    content = read_regular(path, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InputError(
            f"{name} is larger than {MOST_BYTES // 1_000_000} MB; check that it is the right file, "
            "or divide it."
        )
    return content


def require_few(name: str, count: int, most: int = MOST_ROWS, what: str = "lines") -> None:
    """Raise an InputError if a table has more than ``most`` lines, or ``what`` it counts."""
    if count > most:
        raise InputError(
            f"{name} has more than {most} {what}; check that it is the right file, or divide it."
        )


def _read_csv(text: str, sheet: Sheet, most: int) -> None:
    first = next((line for line in io.StringIO(text, newline=None) if line.strip()), "")
    delimiter = max(SEPARATORS, key=first.count)
    require_few(sheet.name, text.count(delimiter), MOST_CELLS, "cells")
    # With skipinitialspace a quote may follow a blank.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=True,
    )
    header: list[str] = []
    try:
        for row in reader:
            cells, line = [cell.strip() for cell in row], reader.line_num
            require_few(sheet.name, line, most + 1)
            while cells and not cells[-1] and len(cells) != len(header):
                cells.pop()
            if not any(cells):
                continue
            if not header:
                header, sheet.columns = cells, dict.fromkeys(cells, line)
                if "" in header or len(sheet.columns) < len(header):
                    sheet.problem(line, "give every column a unique name.")
            elif len(cells) != len(header):
                sheet.problem(
                    line,
                    f"there are {len(cells)} cells but {len(header)} columns; add missing "
                    "cells, or quote cells that contain the separator.",
                )
            else:
                texts = zip(header, cells, strict=True)
                sheet.rows.append((line, {column: text for column, text in texts if text}))
    except csv.Error as error:
        raise InputError(
            f"{sheet.name}, line {reader.line_num}: invalid CSV row ({error}); correct the quotes."
        ) from error
