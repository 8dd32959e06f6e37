"""A new subject's row in a samplesheet, in place of a config of its own."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from octane.config.samplesheet import read_samplesheet, separator_of
from octane.config.schema import entries, plain
from octane.config.subject import Setting
from octane.core.errors import OctaneError
from octane.core.files import writing

__all__ = ["add_row"]

COLUMNS = ("subject", "input", "resolution", "overlap", "positions", "section_thickness")
"""Of a sheet that is made; others where a subject needs them."""

MARK = "\ufeff"
"""The byte order mark."""


def add_row(sheet: Path, settings: Mapping[str, Setting]) -> None:
    """Append what is stated of a subject to a samplesheet, which is made if it is not there.

    Parameters
    ----------
    sheet
        A CSV file.
    settings
        What is known of the subject. What concerns the whole run is left out.

    Raises
    ------
    OctaneError
        When it cannot be read, has the subject already, or lacks a column; it stays as it was.
    """
    own = {entry.name for entry in entries() if entry.per_subject}
    row = {
        name: str(plain(setting.value))
        for name, setting in settings.items()
        if setting.stated and name in own
    }
    if sheet.suffix.lower() != ".csv":
        raise OctaneError(f"{sheet} is not CSV, and a row is added to that alone; add it by hand.")
    if sheet.exists():
        text, columns = _before(sheet, row)
        separator = separator_of(text)
    else:
        text, columns, separator = "", [], ","
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator="\n")
    if not columns:
        # Of blanks nothing is kept but the mark by which a spreadsheet knows UTF-8.
        text = text[:1] if text.startswith(MARK) else ""
        columns = [*COLUMNS, *(name for name in row if name not in COLUMNS)]
        writer.writerow(columns)
    writer.writerow(row.get(column, "") for column in columns)
    with writing(sheet, overwrite=True) as partial:
        end = "" if text in ("", MARK) or text.endswith("\n") else "\n"
        partial.write_bytes((text + end + stream.getvalue()).encode())


def _before(sheet: Path, row: Mapping[str, str]) -> tuple[str, list[str]]:
    """The sheet's text and columns, if the row fits it; no columns where it is still empty."""
    found = read_samplesheet(sheet, may_be_empty=True)
    if found.problems:
        raise OctaneError("\n".join(found.problems))
    for other in found.rows:
        if other.cells.get("subject", "").casefold() == row["subject"].casefold():
            raise OctaneError(
                f"{found.where(other.line)}: the subject {row['subject']} is there already; "
                "correct that row, or give another --name."
            )
    lacking = [name for name in row if name not in found.columns]
    if found.columns and lacking:
        raise OctaneError(
            f"{sheet} has no column {', '.join(lacking)}; add it to the first line, and a "
            "separator to the others."
        )
    # As it stands, a byte order mark included.
    return sheet.read_bytes().decode(), list(found.columns)
