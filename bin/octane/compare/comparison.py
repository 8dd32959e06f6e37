"""Comparison of neighbouring tiles: their correlation as placed, and where it is highest.

Tiles are shrunk and band-passed, which is cheap and removes speckle and shading. Correlations are
compared as Fisher's z, whose spread is the same for low and high ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import (
    band_pass,
    coarse,
    correlation,
    finite,
    fisher,
    neighbours,
    overlap_shift,
)
from octane.layout.mosaic import Position, Tile

COARSE_EDGE = 96
"""Longest edge of a compared tile, pixels."""
LARGEST_OVERLAP = 0.65
"""Largest overlap searched, fraction of a tile."""
LARGEST_SHIFT = 0.3
"""Largest sideways displacement searched, fraction of a tile."""
NARROWEST_OVERLAP = 4
"""Narrowest compared overlap, pixels: less correlates by chance."""
WIDE_OVERLAP = 10
"""Narrowest overlap accepted if tiles share less than ``NARROWEST_OVERLAP`` as placed: tissue
resembles itself a few pixels away."""
SEARCHED_PAIRS = 8
"""Pairs per axis, those with most structure, searched for a better displacement; of the others, as
many that do not correlate as placed."""
AGREEING_PIXELS = 1.5
"""Pixels up to which displacements agree."""
ERROR_PIXELS = 2.0
"""Pixels beyond which a displacement is an error."""
LIKELY_CORRELATION = 0.4
"""Correlation above which tiles fit if others agree."""
SURE_CORRELATION = 0.6
"""Correlation above which tiles certainly fit."""
CLEAR_ADVANTAGE = 0.3
"""Advantage in Fisher's z of a displacement that fits clearly better."""

Images = Mapping[Tile, npt.NDArray[np.float32]]


def gain(before: float, after: float) -> float:
    """Difference of two correlations in Fisher's z."""
    return float(fisher(after) - fisher(before))


def shrink_factor(shape: Sequence[int]) -> int:
    """Number of voxels along a pixel of compared tiles, of which a full one has this shape."""
    return max(1, -(-max(shape) // COARSE_EDGE))


@dataclass(frozen=True)
class ComparedPair:
    """Two neighbours, compared.

    ``placed`` is their correlation as placed; ``best`` the highest one, with ``second`` moved by
    ``moved`` (y, x) coarse pixels. ``moved`` is None if no other place was searched.
    """

    first: Tile
    second: Tile
    placed: float
    best: float = 0.0
    moved: Position | None = None

    @property
    def stays(self) -> bool:
        """True if both fit as placed."""
        if self.moved is None:
            return self.placed >= SURE_CORRELATION
        return self.best >= LIKELY_CORRELATION and max(map(abs, self.moved)) <= ERROR_PIXELS

    @property
    def elsewhere(self) -> bool:
        """True if both fit clearly better at another displacement."""
        # A correlation of 0 as placed means that they share too little to tell.
        far = (
            self.moved is not None and self.placed != 0 and max(map(abs, self.moved)) > ERROR_PIXELS
        )
        return (
            far
            and self.best >= SURE_CORRELATION
            and gain(self.placed, self.best) >= CLEAR_ADVANTAGE
        )


@dataclass(frozen=True)
class CoarseTiles:
    """Shrunk tiles of a section, (y, x), as they are compared.

    A pixel is ``factor`` voxels wide. ``values`` are means over depth relative to the highest,
    ``structure`` these band-passed; ``starts`` are the positions of first pixels in the section, in
    fractional pixels, and ``longest`` the edges of a full tile.
    """

    factor: int
    values: Images
    structure: Images
    starts: Mapping[Tile, npt.NDArray[np.float64]]
    longest: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tiles: Images, starts: Mapping[Tile, Position]) -> "CoarseTiles":
        """Shrink the means over depth of tiles; ``starts`` are in voxels."""
        longest = np.max([tile.shape for tile in tiles.values()], axis=0)
        factor = shrink_factor(longest.tolist())
        small = {tile: coarse(finite(image), factor) for tile, image in tiles.items()}
        small = {
            tile: image for tile, image in small.items() if min(image.shape) >= NARROWEST_OVERLAP
        }
        # Variances of very small or large stored values could leave the range of float32.
        scale = max((float(np.abs(image).max()) for image in small.values()), default=0) or 1
        values = {tile: image / scale for tile, image in small.items()}
        structure = {t: band_pass(image).astype(np.float32) for t, image in values.items()}
        places = {tile: np.asarray(starts[tile]) / factor for tile in structure}
        return cls(factor, values, structure, places, longest // factor)

    def offset(self, first: Tile, second: Tile) -> npt.NDArray[np.float64]:
        """Position of the second tile relative to the first, pixels."""
        return self.starts[second] - self.starts[first]

    def overlap_values(self, first: Tile, second: Tile) -> tuple[npt.NDArray, npt.NDArray] | None:
        """Values that two tiles share as placed; None if these are too few."""
        return common_area(self.values[first], self.values[second], self.offset(first, second))

    def correlation(self, first: Tile, second: Tile, images: Images) -> float:
        """Correlation of two tiles' ``images`` where they overlap; 0 if that is too small."""
        shared = common_area(images[first], images[second], self.offset(first, second))
        if shared is None:
            return 0.0
        one, other = (part - part.mean() for part in shared)
        norm = float(np.sqrt(np.vdot(one, one) * np.vdot(other, other)))
        return float(np.vdot(one, other)) / norm if norm > 0 else 0.0


def common_area(
    first: npt.NDArray, second: npt.NDArray, offset: npt.NDArray
) -> tuple[npt.NDArray, npt.NDArray] | None:
    """What two tiles show of the area that they share with the second at ``offset`` (y, x), pixels.

    None if it is too small to compare.
    """
    by = np.round(offset).astype(int)
    low, high = np.maximum(by, 0), np.minimum(first.shape, by + second.shape)
    if (high - low).min() < NARROWEST_OVERLAP:
        return None
    return (
        first[low[0] : high[0], low[1] : high[1]],
        second[low[0] - by[0] : high[0] - by[0], low[1] - by[1] : high[1] - by[1]],
    )


def placed_pairs(tiles: CoarseTiles) -> tuple[list[ComparedPair], list[ComparedPair]]:
    """Neighbours along y and along x, compared only as placed."""
    pairs: tuple[list[ComparedPair], list[ComparedPair]] = ([], [])
    for a, b in neighbours([*tiles.structure]):
        axis = int(a[0] == b[0])
        # Rows and columns may be numbered against the axis.
        a, b = sorted((a, b), key=lambda tile: tiles.starts[tile][axis])
        pairs[axis].append(ComparedPair(a, b, tiles.correlation(a, b, tiles.structure)))
    return pairs


def compare_tiles(tiles: CoarseTiles) -> tuple[list[ComparedPair], list[ComparedPair]]:
    """Compare neighbours along y and along x; those with most structure come first."""
    pairs = placed_pairs(tiles)
    contrast = {tile: float(image.std()) for tile, image in tiles.structure.items()}
    for axis, along in enumerate(pairs):
        along.sort(key=lambda pair: -min(contrast[pair.first], contrast[pair.second]))
        doubtful = [
            k for k, p in enumerate(along) if k >= SEARCHED_PAIRS and p.placed < SURE_CORRELATION
        ]
        for k in (*range(min(SEARCHED_PAIRS, len(along))), *doubtful[:SEARCHED_PAIRS]):
            along[k] = _search_pair(tiles, along[k], axis)
    return pairs


def _search_pair(tiles: CoarseTiles, pair: ComparedPair, axis: int) -> ComparedPair:
    """Find the displacement at which two neighbours along an axis correlate best."""
    a, b = (np.moveaxis(tiles.structure[t], axis, 0) for t in (pair.first, pair.second))
    most = min(int(tiles.longest[axis] * LARGEST_OVERLAP), len(a), len(b))
    side = min(a.shape[1], b.shape[1])
    wide = int(side * LARGEST_SHIFT)
    if most < NARROWEST_OVERLAP:
        return pair
    overlaps, sideways = np.arange(NARROWEST_OVERLAP, most + 1), np.arange(-wide, wide + 1)
    by_shift = correlation(a[-most:, :side], b[:most, :side])
    scores = fisher(by_shift[np.ix_(overlaps - most, sideways)])
    # A narrow overlap correlates by chance; only samples some pixels apart are independent.
    samples = overlaps[:, None] * (side - np.abs(sideways)) / 16
    scores -= 0.5 / np.sqrt(samples)
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    place = np.array([len(a) - overlaps[row], -sideways[column]])[[axis, 1 - axis]]
    if overlaps[row] < WIDE_OVERLAP and tiles.overlap_values(pair.first, pair.second) is None:
        return pair
    start = tiles.offset(pair.first, pair.second)
    # The filter saw beyond the overlap; only a comparison within it is fair.
    fine, best = _exact(tiles, pair, place)
    moved = place - fine - start
    placed = _exact(tiles, pair, start)[1] if np.abs(moved).max() > AGREEING_PIXELS else best
    return replace(pair, placed=placed, best=best, moved=(float(moved[0]), float(moved[1])))


def _exact(tiles: CoarseTiles, pair: ComparedPair, offset: npt.NDArray) -> tuple[Position, float]:
    """Displacement and correlation of two tiles' overlap, near an offset of the second."""
    shared = common_area(tiles.values[pair.first], tiles.values[pair.second], offset)
    return overlap_shift(*shared, (1, 1)) if shared is not None else ((0.0, 0.0), 0.0)
