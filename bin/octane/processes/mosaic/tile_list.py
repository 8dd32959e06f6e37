"""Tile list: the files of a section as a table, which PREFLIGHT writes for the section's task."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from octane.config.sheets import read_table
from octane.core.errors import InputError
from octane.processes.mosaic.tile_grid import TileEntry

COLUMNS = ("file", "section", "row", "column", "plane", "channel", "z", "y", "x")
"""Columns: what :class:`TileEntry` holds."""


def tile_list(files: Iterable[tuple[str, TileEntry]]) -> str:
    """Write a tile list as CSV; each entry comes with the path of its file in the task."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for file, e in files:
        table.writerow((file, e.section, e.row, e.column, e.plane, e.channel, e.z, e.y, e.x))
    return text.getvalue()


def read_tile_list(path: Path, folder: Path) -> list[TileEntry]:
    """Read a tile list, whose files are in ``folder``; an InputError names an invalid line."""
    return [_entry(path, folder, line, cells) for line, cells in read_table(path).rows]


def _entry(path: Path, folder: Path, line: int, cells: dict[str, str]) -> TileEntry:
    try:
        section, row, column = (int(cells[name]) for name in ("section", "row", "column"))
        plane = int(cells["plane"]) if "plane" in cells else None
        place = [float(cells[axis]) if axis in cells else None for axis in "zyx"]
        channel = cells.get("channel")
        return TileEntry(folder / cells["file"], section, row, column, plane, channel, *place)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{path}, line {line}: not a tile, with {', '.join(COLUMNS)}; run PREFLIGHT again."
        ) from error
