"""Orientation of a section's grid: whether rows, columns or both run against the images.

The best displacement of neighbours is measured under all eight orientations; only under the right
one do most of them agree.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from octane.layout.mosaic import Tile
from octane.stitch.comparison import FAR, LIKELY, CoarseTiles, Images, compared

OVERLAP = 0.1
"""Overlap from which the search starts, fraction of a tile; it also finds much larger ones."""
MOST = 0.5
"""Fraction of neighbours that must agree."""


class Orientation(NamedTuple):
    """Changes of a grid, in this order: rows and columns exchanged, then flipped axes."""

    transpose: bool = False
    flip: str = ""

    def of(self, tile: Tile) -> Tile:
        """Row and column of a tile after the changes; negative along a flipped axis."""
        row, column = reversed(tile) if self.transpose else tile
        return (-row if "y" in self.flip else row, -column if "x" in self.flip else column)


EVERY = [Orientation(*changes) for changes in product((False, True), ("", "y", "x", "yx"))]


class FoundOrientation(NamedTuple):
    """Orientation under which most neighbours fit.

    ``agreeing`` is the fraction of compared neighbours that correlate at the same displacement,
    along the axis where it is lower; ``as_given`` is the same without changes. ``overlap`` is a
    fraction of a tile in y and x, None along an axis where no neighbours fit.
    """

    best: Orientation
    agreeing: float
    as_given: float
    overlap: tuple[float | None, float | None]

    @property
    def is_clear(self) -> bool:
        """True if most neighbours fit."""
        return self.agreeing >= MOST

    @property
    def is_other(self) -> bool:
        """True if most neighbours fit only after changes."""
        return self.is_clear and self.as_given <= self.agreeing / 2


def find_orientation(tiles: Images) -> FoundOrientation | None:
    """Compare neighbouring tiles under all orientations; None if they cannot be as given.

    ``tiles`` are images (y, x), such as means over depth, by row and column.
    """
    found = {orientation: _fit(tiles, orientation) for orientation in EVERY}
    best = max(EVERY, key=lambda orientation: found[orientation][0])
    agreeing, overlap = found[best]
    as_given = found[Orientation()][0]
    if as_given < 0:
        return None
    return FoundOrientation(best, agreeing, as_given, overlap)


def _fit(
    tiles: Images, orientation: Orientation
) -> tuple[float, tuple[float | None, float | None]]:
    """Fraction of neighbours that agree, -1 without any, and their overlap along y and x."""
    moved = {orientation.of(tile): image for tile, image in tiles.items()}
    size = np.max([image.shape for image in tiles.values()], axis=0)
    pitch = size * (1 - OVERLAP)
    starts = {(row, column): (row * pitch[0], column * pitch[1]) for row, column in moved}
    coarse = CoarseTiles.of(moved, starts)
    shares: list[float] = []
    overlaps: list[float | None] = [None, None]
    for axis, pairs in enumerate(compared(coarse)):
        moves = [(pair, pair.moved) for pair in pairs if pair.moved is not None]
        if not moves:
            continue
        usual = np.median([move for _, move in moves], axis=0)
        agree = [
            coarse.offset(pair.first, pair.second)[axis] + move[axis]
            for pair, move in moves
            if pair.best >= LIKELY and np.abs(move - usual).max() <= FAR
        ]
        shares.append(len(agree) / len(moves))
        if agree:
            overlaps[axis] = 1 - float(np.median(agree)) * coarse.factor / float(size[axis])
    return min(shares, default=-1.0), (overlaps[0], overlaps[1])
