"""Tiles that were imaged otherwise than their neighbours: brighter, darker, or out of focus.

Two tiles that overlap saw the same tissue there, so that the ratio of what they show is a ratio of
how they were imaged. A factor of one tile is in all of its ratios; a pattern that all tiles share,
such as their shading, gives all pairs along an axis the same one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.compare.comparison import CoarseTiles, ComparedPair, Images, common_area
from octane.compare.correlation import neighbours
from octane.layout.mosaic import Position, Tile
from octane.processes.stitch.record import BlurredFigures, UnevenFigures

SEGMENTS = 8
"""Parts of an overlap whose ratios are compared: each is wider than most structure."""
CERTAIN = 3.0
"""Standard errors beyond which two tiles differ."""
SWEEPS = 64
"""Passes in which the tiles' factors approach those that fit all ratios best: differences between
neighbours settle within a few."""
DIM = 0.1
"""Brightness relative to the section's mean below which a ratio says little: stray light and a
camera's offset count there."""
BLURRED = 2.0
"""Ratio of squared contrasts between adjacent pixels above which a tile is out of focus: a blur of
two pixels exceeds it, and sound tiles with much speckle stay below it."""
FAINT = 0.2
"""Contrast between adjacent pixels, relative to the median of all overlaps, below which an overlap
shows no structure to compare."""

Image = npt.NDArray[np.floating]


class Ratio(NamedTuple):
    """Logarithm of what a tile shows over what its neighbour shows of the same area."""

    first: Tile
    second: Tile
    value: float
    error: float


def _ratio(first: Tile, second: Tile, shown: Sequence[Image]) -> Ratio | None:
    """Compare two tiles by the sums of what they show; None if one of them shows nothing."""
    # Along its longer edge, an overlap has more parts that are independent.
    one, other = (np.moveaxis(image, np.argmax(image.shape), 0).sum(axis=1) for image in shown)
    if min(one.sum(), other.sum()) <= 0:
        return None
    value = float(np.log(one.sum() / other.sum()))
    # Weighted by light, residues of the parts add up to 0.
    parts = np.arange(len(one)) * SEGMENTS // len(one)
    residues = np.bincount(parts, one / one.sum() - other / other.sum())
    n = len(residues)
    error = float(np.sqrt(np.sum(residues**2) * n / max(1, n - 1)))
    return Ratio(first, second, value, error)


def _subtract_usual(along: Iterable[Sequence[Ratio]]) -> list[Ratio]:
    """Ratios relative to the usual one along their axis."""
    relative: list[Ratio] = []
    for ratios in along:
        order, n = sorted(ratio.value for ratio in ratios), len(ratios)
        # Of two pairs, one may be wrong.
        usual = min(order[(n - 1) // 2 : n // 2 + 1], key=abs, default=0.0)
        relative += [ratio._replace(value=ratio.value - usual) for ratio in ratios]
    return relative


def _fit_factors(ratios: Sequence[Ratio], at: Mapping[Tile, int]) -> npt.NDArray[np.float64]:
    """Logarithms of the tiles' factors that fit their ratios best."""
    first, second = (
        np.array([at[tile] for tile in column]) for column in list(zip(*ratios, strict=True))[:2]
    )
    values = np.array([ratio.value for ratio in ratios])
    ends = np.concatenate([first, second])
    count = np.bincount(ends, minlength=len(at))
    factors = np.zeros(len(at))
    for _ in range(SWEEPS):
        seen = np.concatenate([factors[second] + values, factors[first] - values])
        # Half of the way: a grid of tiles would alternate.
        factors = (factors + np.bincount(ends, seen, len(at)) / np.maximum(count, 1)) / 2
    return factors


def odd_tiles(along: Iterable[Sequence[Ratio]], limit: float) -> dict[Tile, float]:
    """Tiles that differ from the section's others by more than ``limit``, as logarithms.

    ``along`` holds the ratios along y and along x. Neighbours that differ by less belong together,
    and the largest such group is as tiles should be; another needs at least two pairs that show it.
    """
    ratios = _subtract_usual(along)
    if not ratios:
        return {}
    tiles = sorted({tile for ratio in ratios for tile in ratio[:2]})
    factors = _fit_factors(ratios, {tile: k for k, tile in enumerate(tiles)})
    of = dict(zip(tiles, factors, strict=True))
    # The error of a single pair is known badly.
    usual = float(np.median([ratio.error for ratio in ratios]))
    group = {tile: tile for tile in tiles}

    def head(tile: Tile) -> Tile:
        while group[tile] != tile:
            group[tile] = tile = group[group[tile]]
        return tile

    for first, second, _, error in ratios:
        if abs(of[first] - of[second]) <= max(limit, CERTAIN * max(error, usual)):
            group[head(first)] = head(second)
    members: dict[Tile, list[Tile]] = {}
    for tile in tiles:
        members.setdefault(head(tile), []).append(tile)
    largest = max(members, key=lambda tile: len(members[tile]))
    away: dict[Tile, list[float]] = {tile: [] for tile in members}
    for first, second, value, _ in ratios:
        if head(first) != head(second):
            away[head(first)].append(value)
            away[head(second)].append(-value)
    level = {
        head_tile: float(np.mean([of[tile] for tile in members[head_tile]]))
        for head_tile in members
    }
    odd: dict[Tile, float] = {}
    for head_tile, values in away.items():
        # Odd tiles may also separate groups that are alike.
        is_odd = abs(level[head_tile] - level[largest]) > limit and len(values) > 1
        middle = float(np.median(values)) if is_odd else 0.0
        agree = sum(value * np.sign(middle) > limit / 2 for value in values)
        if abs(middle) > limit and agree > max(1, len(values) / 2):
            odd |= dict.fromkeys(members[head_tile], middle)
    return odd


def unlit_tiles(
    tiles: CoarseTiles,
    along: Iterable[Sequence[ComparedPair]],
    odd: Collection[Tile],
    tissue: float,
) -> list[UnevenFigures]:
    """Tiles without any light where a neighbour is brighter than ``tissue``, but ``odd`` ones."""
    unlit: set[Tile] = set()
    for first, second, *shared in _shared_areas(tiles, along, odd):
        for tile, other in zip((second, first), shared, strict=True):
            if not tiles.values[tile].any() and other.mean() > tissue:
                unlit.add(tile)
    return [UnevenFigures(row=row, column=column, brightness=0.0) for row, column in sorted(unlit)]


def uneven_tiles(
    tiles: CoarseTiles,
    along: Iterable[Sequence[ComparedPair]],
    odd: Collection[Tile],
    limit: float,
) -> list[UnevenFigures]:
    """Tiles whose brightness differs from their neighbours' by more than a factor, ``limit``.

    Pairs with ``odd`` tiles, whose grey levels or places say nothing, are ignored.
    """
    means = [float(image.mean()) for image in tiles.values.values() if image.any()]
    least = DIM * float(np.mean(means)) if means else 0.0
    ratios = [
        [
            ratio
            for first, second, *shown in _shared_areas(tiles, [pairs], odd)
            if max(float(part.mean()) for part in shown) > least
            and (ratio := _ratio(first, second, shown)) is not None
        ]
        for pairs in along
    ]
    return [
        UnevenFigures(row=row, column=column, brightness=float(np.exp(ratio)))
        for (row, column), ratio in odd_tiles(ratios, float(np.log(limit))).items()
    ]


def _shared_areas(
    tiles: CoarseTiles, along: Iterable[Sequence[ComparedPair]], odd: Collection[Tile]
) -> Iterator[tuple[Tile, Tile, Image, Image]]:
    """Pairs without ``odd`` tiles, and what both show of their common area."""
    for pair in chain(*along):
        shared = tiles.overlap_values(pair.first, pair.second)
        if shared is not None and pair.first not in odd and pair.second not in odd:
            yield pair.first, pair.second, *shared


def blurred_tiles(
    images: Images, starts: Mapping[Tile, Position], odd: Collection[Tile]
) -> list[BlurredFigures]:
    """Tiles with less contrast between adjacent pixels than their neighbours have in common areas.

    ``images`` are the tiles' means over depth, and ``starts`` the fractional indices (y, x) of
    their first voxels in the section. ``odd`` tiles are ignored.
    """
    shown: dict[tuple[Tile, Tile], tuple[Image, Image]] = {}
    for first, second in neighbours([tile for tile in images if tile not in odd]):
        offset = np.subtract(starts[second], starts[first])
        shared = common_area(images[first], images[second], offset)
        if shared is not None and min(float(part.mean()) for part in shared) > 0:
            shown[first, second] = _contrast(shared[0]), _contrast(shared[1])
    most = {
        pair: max(float(part.mean()) for part in contrasts) for pair, contrasts in shown.items()
    }
    least = FAINT**2 * float(np.median([*most.values()])) if most else 0.0
    ratios: tuple[list[Ratio], list[Ratio]] = ([], [])
    for pair, contrasts in shown.items():
        if most[pair] > least and (ratio := _ratio(*pair, contrasts)) is not None:
            ratios[pair[0][0] == pair[1][0]].append(ratio)
    return [
        BlurredFigures(row=tile[0], column=tile[1], contrast=float(np.exp(ratio / 2)))
        for tile, ratio in odd_tiles(ratios, float(np.log(BLURRED))).items()
        if ratio < 0
    ]


def _contrast(image: Image) -> Image:
    """Squares of the differences between adjacent pixels over the mean."""
    down, right = (np.diff(image, axis=axis) for axis in (0, 1))
    return (down[:, :-1] ** 2 + right[:-1] ** 2) / (2 * float(image.mean()) ** 2)
