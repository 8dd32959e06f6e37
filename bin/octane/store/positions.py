"""Tile positions as a table: what a stage logged, in place of a nominal overlap."""

import csv
from pathlib import Path

import numpy as np

from octane.core.errors import OctaneError
from octane.store.mosaic_grid import Position, Tile, Tiling

__all__ = ["COLUMNS", "read_positions"]

COLUMNS = ("section", "row", "column", "y", "x")
"""Section number, place in the grid from 0, and the tile's first edge in micrometres."""


def read_positions(path: Path, section: int | None, tiling: Tiling) -> dict[Tile, Position]:
    """Tile positions of one section from a CSV table, micrometres.

    Raises
    ------
    OctaneError
        When columns, a tile or numbers are missing; names the file and the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError) as error:
        raise OctaneError(f"{path} cannot be read as a table; give a CSV file.") from error
    if not rows or set(COLUMNS) - set(rows[0]):
        raise OctaneError(f"{path} must have the columns {', '.join(COLUMNS)}; correct its header.")
    found: dict[Tile, Position] = {}
    for line, row in enumerate(rows, start=2):
        try:
            if int(row["section"]) == section:
                place = (float(row["y"]), float(row["x"]))
                if not np.isfinite(place).all():
                    raise ValueError("a position must be finite")
                tile = (int(row["row"]), int(row["column"]))
                if tile in found:
                    raise ValueError("a tile has one position")
                found[tile] = place
        except (TypeError, ValueError) as error:
            raise OctaneError(
                f"{path}, line {line}: no row of numbers, or the second of its tile; correct it."
            ) from error
    missing = [tile for tile in tiling.tiles if tile not in found]
    if missing:
        row, column = missing[0]
        raise OctaneError(
            f"{path} has no position for row {row}, column {column} of section {section} "
            f"({len(missing)} tiles in all); add them."
        )
    return {tile: found[tile] for tile in tiling.tiles}
