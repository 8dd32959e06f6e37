"""Overlap of the tiles of a grid, measured to a fraction of a voxel.

Neighbours are found on shrunk tiles, under all orientations, and then compared at finer and finer
pixels; the overlap is that of the level at which they agree best. Tiles of several sections count
together, since they share a stage: one with few tiles, or with little tissue, proves nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.compare.comparison import (
    ERROR_PIXELS,
    NARROWEST_OVERLAP,
    WIDE_OVERLAP,
    Images,
    common_area,
    shrink_factor,
)
from octane.compare.correlation import coarse, finite, overlap_shift
from octane.compare.orientation import (
    LEAST_PAIRS,
    FoundOrientation,
    Neighbour,
    Orientation,
    find_orientation,
)
from octane.layout.mosaic import MosaicGrid, Position, Tile

ENOUGH_PAIRS = 6
"""Neighbours along each axis that show the overlap well; more gain little."""
CERTAIN_ERROR = 0.01
"""Largest standard error of an overlap that is certain, fraction of a tile."""
MIDDLE_TILES = 9
"""Tiles of a section that are compared with their neighbours: 3 x 3 where there are so many."""
MIDDLE_BYTES = 1e9
"""Most bytes of tiles that are read to compare neighbours, unless ``FEWEST_TILES`` are larger."""
FEWEST_TILES = 4
"""Tiles that have neighbours along both axes."""
WINDOW_EDGE = 768
"""Longest edge of the part of an overlap that is compared, pixels."""
PLACE_ERROR = 3.0
"""Pixels by which a place that was found on pixels twice as large may be off."""
MOST_ROUNDS = 5
"""Most steps in which a place settles on pixels of one size."""
LEAST_ERROR = 0.1
"""Least error of a place, pixels."""
SIGMA = 1.4826
"""Standard deviation over median deviation, of a normal distribution."""
OVERLAP_DECIMALS = 5
"""Decimals of an overlap."""


class AxisOverlap(NamedTuple):
    """Overlap along an axis, and its standard error, as fractions of a tile.

    ``pairs`` of neighbours agree on it.
    """

    fraction: float
    error: float
    pairs: int


class GridOverlap(NamedTuple):
    """Overlaps along y and x; None along an axis on which no neighbours fit, or none exist.

    ``orientation`` is how the tiles fit, None if none are neighbours or they are small.
    ``is_certain`` if so many neighbours fit so well, and only as given, that it is no chance.
    """

    orientation: FoundOrientation | None = None
    axes: tuple[AxisOverlap | None, AxisOverlap | None] = (None, None)
    is_certain: bool = False

    @property
    def is_exact(self) -> bool:
        """True if it is certain, and further sections would hardly make it more exact."""
        return self.is_certain and all(
            overlap is None or overlap.pairs >= ENOUGH_PAIRS for overlap in self.axes
        )


def middle_tiles(grid: MosaicGrid, tile_bytes: int = 1) -> list[Tile]:
    """The tiles that are compared: those around the middle that were imaged, it first.

    Large ones of ``tile_bytes`` are fewer.
    """
    centre = grid.rows // 2, grid.columns // 2

    def distance(tile: Tile) -> tuple[int, int]:
        rows, columns = (abs(tile[axis] - centre[axis]) for axis in (0, 1))
        return max(rows, columns), rows + columns

    count = max(FEWEST_TILES, int(MIDDLE_BYTES // tile_bytes))
    return sorted(grid.imaged_tiles, key=distance)[: min(count, MIDDLE_TILES)]


def depth_mean(voxels: npt.NDArray) -> npt.NDArray[np.float32]:
    """Mean over depth (y, x) of the magnitudes of a tile (z, y, x)."""
    values = voxels if voxels.dtype.kind == "u" else np.abs(voxels)
    return finite(values.mean(0, np.float32))


def grid_overlap(sections: Sequence[Images], shape: tuple[int, int]) -> GridOverlap:
    """Measure how the tiles of a grid overlap.

    Parameters
    ----------
    sections
        Means over depth (y, x) of neighbouring tiles, by row and column, of each section.
    shape
        Pixels of a full tile (y, x).
    """
    # Side by side, sections are one grid without neighbours in two of them, even across a corner.
    rows = 2 + max(row for tiles in sections for row, _ in tiles)
    every = {
        (row + k * rows, column): image
        for k, tiles in enumerate(sections)
        for (row, column), image in tiles.items()
    }
    orientation = find_orientation(every)
    if orientation is None or orientation.best != Orientation():
        return GridOverlap(orientation)
    levels = [shrink_factor(shape)]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // 2))
    y, x = (
        _along([_places(every, pair, axis, levels) for pair in pairs], axis, levels, shape[axis])
        for axis, pairs in enumerate(orientation.fit.neighbours)
    )
    are_known = all(
        overlap is not None and overlap.pairs >= LEAST_PAIRS and overlap.error <= CERTAIN_ERROR
        for axis, overlap in enumerate((y, x))
        if any(len({tile[axis] for tile in tiles}) > 1 for tiles in sections)
    )
    return GridOverlap(orientation, (y, x), orientation.is_proof and are_known)


def _flatten_lines(image: npt.NDArray, axis: int) -> npt.NDArray:
    """Divide each line at the same distance from the seam by its mean: shading draws places."""
    means = np.mean(image, axis=1 - axis, keepdims=True)
    return np.divide(image, means, out=np.zeros(image.shape), where=means > 0)


def _places(
    tiles: Images, pair: Neighbour, axis: int, levels: Sequence[int]
) -> list[Position | None]:
    """Place of the second tile relative to the first in pixels, at finer and finer levels.

    None at a level at which the two fit nowhere near the place that was found before.
    """
    places: list[Position | None] = []
    place = pair.apart
    for factor in levels:
        images = [coarse(finite(tiles[tile]), factor) for tile in (pair.first, pair.second)]
        start = np.divide(place, factor)
        # The filter sees the border of what is compared, and draws the best place towards it.
        for _ in range(MOST_ROUNDS):
            before = np.round(start)
            start = _nearby(*images, before, axis)
            if start is None or (np.round(start) == before).all():
                break
        if start is None:
            places.append(None)
            continue
        y, x = (factor * start).tolist()
        place = (y, x)
        places.append(place)
    return places


def _nearby(
    first: npt.NDArray, second: npt.NDArray, start: npt.NDArray, axis: int
) -> npt.NDArray | None:
    """Place (y, x) of the second image near ``start``; None if they fit nowhere near it."""
    shared = common_area(first, second, start)
    if shared is None:
        return None
    window = tuple(
        slice((n - min(n, WINDOW_EDGE)) // 2, (n + min(n, WINDOW_EDGE)) // 2)
        for n in shared[0].shape
    )
    parts = [image[window] for image in shared]
    # The edge of a black border fits that of another one, not the tissue.
    lit = np.all([part.any(axis=1 - axis) for part in parts], axis=0)
    if np.count_nonzero(lit) < NARROWEST_OVERLAP:
        return None
    one, other = (_flatten_lines(np.compress(lit, part, axis), axis) for part in parts)
    shift, _ = overlap_shift(one, other, (PLACE_ERROR, PLACE_ERROR))
    # At the end of the range, the best place may lie beyond it.
    if any(abs(by) >= min(PLACE_ERROR, n // 2) for by, n in zip(shift, one.shape, strict=True)):
        return None
    return start - shift


def _along(
    places: Sequence[Sequence[Position | None]], axis: int, levels: Sequence[int], size: int
) -> AxisOverlap | None:
    """Overlap along an axis from the places of neighbours at each level, where it is surest."""
    every: list[AxisOverlap] = []
    for factor, at_level in zip(levels, zip(*places, strict=True), strict=False):
        apart = [place[axis] for place in at_level if place is not None]
        near = [
            value for value in apart if abs(value - np.median(apart)) <= ERROR_PIXELS * levels[0]
        ]
        # At a finer level, chance must not replace what most neighbours showed before.
        if 2 * len(near) <= len(at_level):
            continue
        distance = float(np.median(near))
        # Narrower, the filter sees beyond the overlap and draws the best place to its border.
        if size - distance < WIDE_OVERLAP * factor:
            continue
        spread = SIGMA * float(np.median(np.abs(np.subtract(near, distance))))
        error = max(spread, LEAST_ERROR * factor) / len(near) ** 0.5
        fraction, error = (
            round(value / size, OVERLAP_DECIMALS) for value in (size - distance, error)
        )
        every.append(AxisOverlap(fraction, error, len(near)))
    return min(every, key=lambda overlap: overlap.error, default=None)
