"""Tiles in rows and columns: the list of files from which mosaic grids are written."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TileEntry:
    """One file: its tile's section, row and column, from 0.

    ``plane`` is the number of the file's first plane in the tile and ``channel`` its channel, each
    None if the file holds all of them. ``z``, ``y`` and ``x`` are the tile's place in micrometres,
    None if unknown; only differences between tiles count.
    """

    file: Path
    section: int
    row: int
    column: int
    plane: int | None = None
    channel: str | None = None
    z: float | None = None
    y: float | None = None
    x: float | None = None
