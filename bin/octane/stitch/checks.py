"""Checks of a section: tiles must correlate with their neighbours as placed.

One pair of tiles proves nothing: a finding needs several that agree.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, combinations

import numpy as np

from octane.core.records import EXPOSED, MisplacedFigures, OverlapFigures, UnevenFigures
from octane.layout.mosaic import Position, Tile
from octane.stitch.columns import Columns
from octane.stitch.comparison import (
    CLEAR,
    CLOSE,
    FAR,
    LIKELY,
    SEARCHED,
    SURE,
    CoarseTiles,
    ComparedPair,
    Images,
    compared,
    gain,
    placed_pairs,
)
from octane.stitch.planes import shifted_along_z
from octane.stitch.seams import seam, seam_without_speckle

ENOUGH = 0.8
"""Minimum advantage in Fisher's z, times the root of the number of pairs that show it: speckle in a
narrow overlap stays below it, a wrong overlap exceeds it."""
MANY = 5
"""Agreeing pairs, three quarters of all, for which ``LITTLE`` is enough: so many do not agree
elsewhere by chance in good phantoms."""
LITTLE = 0.1
"""Minimum advantage in Fisher's z of ``MANY`` pairs."""
UNLIKE = 0.3
"""Seam without speckle above which uncorrelated tiles show different tissue."""
TISSUE = 0.5
"""Brightness relative to the section's mean above which an overlap shows tissue."""
MOST_TRIED = 6
"""Number of worst-fitting tiles tried in each other's place."""

Findings = tuple[list[OverlapFigures], list[MisplacedFigures], list[UnevenFigures]]
"""Overlaps along y and x, misplaced tiles, and tiles of another brightness."""
Pairs = Mapping[Tile, list[ComparedPair]]
"""Each tile's pairs with its neighbours."""


def compare(
    projections: Images,
    profiles: Mapping[Tile, Columns],
    starts: Mapping[Tile, Position],
    positions: Mapping[Tile, Position],
    extent: Position,
    spacing: Position,
) -> Findings:
    """Compare all tiles of a section with their neighbours; all in (y, x).

    ``projections`` are means over depth, ``profiles`` columns along it; ``starts`` are the
    fractional indices of the tiles' first voxels in the section. ``positions`` of the tiles' edges,
    ``extent`` of a full tile and ``spacing`` of voxels are in micrometres.
    """
    tiles = CoarseTiles.of(projections, starts)
    along = compared(tiles)
    of = _by_tile(tiles, along)
    swaps = swapped(tiles, of)
    shifts = {} if swaps else shifted(of)
    odd = {*shifts, *(tile for pair in swaps for tile in pair)}
    overlaps = []
    for axis, own in enumerate(along):
        if own:
            # Between edges: first voxels lie differently in tiles of different size.
            pitches = [positions[p.second][axis] - positions[p.first][axis] for p in own]
            given = 1 - float(np.median(pitches)) / extent[axis]
            unit = tiles.factor * spacing[axis] / extent[axis]
            overlaps.append(overlap_along(axis, own, odd, given, unit))
    are_wrong = any(overlap.better for overlap in overlaps)
    if are_wrong:
        # If the overlap is wrong for all tiles, single ones are not out of place.
        shifts = {}
    misplaced = [
        MisplacedFigures(row=a[0], column=a[1], swapped=b)
        for pair in swaps
        for a, b in (pair, pair[::-1])
    ]
    for (row, column), (y, x) in shifts.items():
        shift = (y * tiles.factor * spacing[0], x * tiles.factor * spacing[1])
        misplaced.append(MisplacedFigures(row=row, column=column, shift=shift))
    tissue = _tissue(tiles)
    uneven = of_other_brightness(tiles, along, of, odd, tissue)
    if not are_wrong:
        odd |= {(own.row, own.column) for own in uneven}
        misplaced += [MisplacedFigures(row=y, column=x) for y, x in lost(tiles, of, odd, tissue)]
        known = {(own.row, own.column) for own in misplaced}
        misplaced += [
            MisplacedFigures(row=y, column=x, planes=planes)
            for (y, x), planes in shifted_along_z(profiles, starts, known).items()
        ]
    return overlaps, misplaced, uneven


def compare_brightness(
    projections: Images, starts: Mapping[Tile, Position], odd: Collection[Tile]
) -> list[UnevenFigures]:
    """Compare only the brightness of a section's tiles, those out of place (``odd``) left out.

    ``projections`` and ``starts`` are as in :func:`compare`.
    """
    tiles = CoarseTiles.of(projections, starts)
    along = placed_pairs(tiles)
    return of_other_brightness(tiles, along, _by_tile(tiles, along), odd, _tissue(tiles))


def _by_tile(tiles: CoarseTiles, along: Iterable[Sequence[ComparedPair]]) -> Pairs:
    """Pairs of each tile."""
    of: dict[Tile, list[ComparedPair]] = {tile: [] for tile in tiles.structure}
    for pair in chain(*along):
        of[pair.first].append(pair)
        of[pair.second].append(pair)
    return of


def _tissue(tiles: CoarseTiles) -> float:
    """Brightness above which an overlap shows tissue."""
    means = [float(image.mean()) for image in tiles.values.values() if image.any()]
    return TISSUE * float(np.mean(means)) if means else 0.0


def _without(pairs: Iterable[ComparedPair], odd: Iterable[Tile]) -> list[ComparedPair]:
    """Pairs without any of these tiles."""
    left_out = {*odd}
    return [p for p in pairs if p.first not in left_out and p.second not in left_out]


def overlap_along(
    axis: int, pairs: Sequence[ComparedPair], odd: Collection[Tile], given: float, unit: float
) -> OverlapFigures:
    """Find the overlap along an axis on which most pairs agree, without those of odd tiles.

    ``given`` is the overlap as placed, and ``unit`` a pixel, as fractions of a tile.
    """
    found = OverlapFigures(axis="yx"[axis], given=round(given, 3))
    even = _without(pairs, odd)
    own = [p for p in even if p.moved and p.best >= LIKELY]
    if len(own) < 3:
        own = [p for p in own if p.best >= SURE]
    if len(own) < 2:
        return found
    moves = np.array([p.moved[axis] for p in own if p.moved])
    middle = float(np.median(moves))
    agree = float((np.abs(moves - middle) <= CLOSE).mean())
    if agree <= 0.5:
        return found
    best, placed = (float(np.median([getattr(p, k) for p in own])) for k in ("best", "placed"))
    most = len(own) >= 4 and agree >= 0.75
    many = most and len(own) * agree >= MANY
    clear = LITTLE if many else max(CLEAR, ENOUGH / len(own) ** 0.5)
    # If they share too little as placed, most of all pairs must agree.
    alone = most and len(own) >= 0.75 * min(len(pairs), SEARCHED)
    known = alone if placed == 0 else len(own) > 2 or placed > 0
    found.better = known and abs(middle) > FAR and gain(placed, best) >= clear
    # Far from the given overlap and hardly better, it is due to speckle.
    if found.better or abs(middle) <= FAR:
        found.found = round(given - middle * unit, 3)
    found.certain = found.better and most and best >= SURE and placed < best / 2
    return found


def swapped(tiles: CoarseTiles, of: Pairs) -> list[tuple[Tile, Tile]]:
    """Pairs of tiles that fit in each other's place, but not in their own."""
    images = dict(tiles.structure)
    fit = {t: np.median([p.placed for p in own]) for t, own in of.items() if own}
    tried = sorted((t for t in fit if fit[t] < SURE), key=lambda t: fit[t])[:MOST_TRIED]
    found: list[tuple[Tile, Tile]] = []
    while True:
        gains: list[tuple[float, Tile, Tile]] = []
        for one, other in combinations(tried, 2):
            changed = {**images, one: images[other], other: images[one]}
            both = {(p.first, p.second) for p in of[one] + of[other]}
            before, after = (
                float(np.median([tiles.correlated(*pair, seen) for pair in both]))
                for seen in (images, changed)
            )
            if len(both) > 1 and after >= SURE and gain(before, after) >= 2 * CLEAR:
                gains.append((gain(before, after), one, other))
        if not gains:
            return found
        _, one, other = max(gains)
        images[one], images[other] = images[other], images[one]
        tried = [tile for tile in tried if tile not in (one, other)]
        found.append((one, other))


def shifted(of: Pairs) -> dict[Tile, Position]:
    """Shifts (y, x) in coarse pixels on which most of a tile's neighbours, at least two, agree."""
    found: dict[Tile, Position] = {}
    while True:
        moved: dict[Tile, tuple[int, Position]] = {}
        for tile, pairs in of.items():
            own = _without(pairs, found)
            moves = [
                np.multiply(p.moved, 1 if p.second == tile else -1)
                for p in own
                if p.elsewhere and p.moved
            ]
            if len(moves) < 2:
                continue
            y, x = (float(v) for v in np.median(moves, axis=0))
            agree = sum(bool(np.abs(move - (y, x)).max() <= CLOSE) for move in moves)
            if agree > max(1, sum(p.stays for p in own)) and max(abs(y), abs(x)) > FAR:
                moved[tile] = agree, (y, x)
        if not moved:
            return found
        worst = max(moved, key=lambda tile: moved[tile][0])
        found[worst] = moved[worst][1]


def of_other_brightness(
    tiles: CoarseTiles,
    along: Iterable[Sequence[ComparedPair]],
    of: Pairs,
    odd: Collection[Tile],
    tissue: float,
) -> list[UnevenFigures]:
    """Tiles whose brightness differs from that of most neighbours, at least two.

    Also tiles without any light where a neighbour is brighter than ``tissue``. Pairs with ``odd``
    tiles, which are out of place, are ignored.
    """
    ratios: dict[tuple[Tile, Tile], float] = {}
    found: dict[Tile, float] = {}
    for pairs in along:
        seen = {}
        for p in _without(pairs, odd):
            shared = tiles.shared(p.first, p.second)
            sums = [float(part.sum()) for part in shared or ()]
            if sums and min(sums) > 0:
                seen[p.first, p.second] = float(np.log(sums[0] / sums[1]))
            for tile, other in zip((p.second, p.first), shared or (), strict=False):
                if not tiles.values[tile].any() and other.mean() > tissue:
                    found[tile] = -np.inf
        # Light that falls off over a tile gives all pairs along an axis the same ratio. Of two
        # pairs, one may be wrong.
        order, n = sorted(seen.values()), len(seen)
        usual = min(order[(n - 1) // 2 : n // 2 + 1], key=abs, default=0.0)
        ratios |= {pair: ratio - usual for pair, ratio in seen.items()}
    while True:
        marked: dict[Tile, float] = {}
        for tile, pairs in of.items():
            own = [
                ratios[p.first, p.second] * (1 if p.first == tile else -1)
                for p in _without(pairs, found)
                if (p.first, p.second) in ratios
            ]
            middle = float(np.median(own)) if len(own) > 1 else 0.0
            far = sum(ratio * np.sign(middle) > np.log(EXPOSED) for ratio in own)
            if far > max(1, len(own) / 2):
                marked[tile] = middle
        if not marked:
            return [
                UnevenFigures(row=tile[0], column=tile[1], brightness=float(np.exp(ratio)))
                for tile, ratio in found.items()
            ]
        worst = max(marked, key=lambda tile: abs(marked[tile]))
        found[worst] = marked[worst]


def lost(tiles: CoarseTiles, of: Pairs, odd: Collection[Tile], tissue: float) -> list[Tile]:
    """Tiles that correlate with none of their neighbours and differ from most of them.

    Only tiles with at least two neighbours that are not ``odd`` count.
    """
    left = {tile: _without(pairs, odd) for tile, pairs in of.items()}
    return [
        tile
        for tile, own in left.items()
        if len(own) > 1
        and max(pair.placed for pair in own) < LIKELY
        and sorted(_mismatch(tiles, p, tissue) for p in own)[(len(own) - 1) // 2] > UNLIKE
    ]


def _mismatch(tiles: CoarseTiles, pair: ComparedPair, tissue: float) -> float:
    """Seam of two tiles at equal brightness, less speckle and chance; 0 if neither shows tissue."""
    shared = tiles.shared(pair.first, pair.second)
    if shared is None or max(float(part.mean()) for part in shared) <= tissue:
        return 0.0
    sums = [float(part.sum()) for part in shared]
    shared = (shared[0], shared[1] * (sums[0] / sums[1] if min(sums) > 0 else 1.0))
    fine = seam(*shared)
    least = seam_without_speckle(*shared, fine) ** 2 - 2 * fine**2 / shared[0].size ** 0.5
    return max(0.0, least) ** 0.5
