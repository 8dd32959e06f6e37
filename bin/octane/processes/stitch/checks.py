"""Checks of a section: tiles must correlate with their neighbours as placed.

One pair of tiles proves nothing: a finding needs several that agree.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain, combinations

import numpy as np

from octane.compare.comparison import (
    AGREEING_PIXELS,
    CLEAR_ADVANTAGE,
    ERROR_PIXELS,
    LIKELY_CORRELATION,
    SEARCHED_PAIRS,
    SURE_CORRELATION,
    CoarseTiles,
    ComparedPair,
    Images,
    compare_tiles,
    gain,
    placed_pairs,
)
from octane.core.records import OverlapFigures
from octane.layout.mosaic import Position, Tile
from octane.processes.stitch.exposure import uneven_tiles, unlit_tiles
from octane.processes.stitch.record import EXPOSED, STRONG, MisplacedFigures, UnevenFigures
from octane.processes.stitch.seams import seam, seam_without_speckle

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
APART = 0.04
"""The same of two pairs of a tile, in a section whose other tiles fit."""
WORSE = 0.4
"""Correlation, relative to the section's other pairs, below which a tile fits nowhere: one that is
transposed stays below it."""
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
    starts: Mapping[Tile, Position],
    positions: Mapping[Tile, Position],
    extent: Position,
    spacing: Position,
    saturated: Collection[Tile] = (),
) -> Findings:
    """Compare all tiles of a section with their neighbours; all in (y, x).

    ``projections`` are means over depth, ``starts`` the fractional indices of the tiles' first
    voxels in the section. ``positions`` of the tiles' edges, ``extent`` of a full tile and
    ``spacing`` of voxels are in micrometres. The brightness of ``saturated`` tiles is not compared.
    """
    tiles = CoarseTiles.of(projections, starts)
    along = compare_tiles(tiles)
    pairs_of = _by_tile(tiles, along)
    same = find_copies(projections, pairs_of)
    swaps = [pair for pair in find_swaps(tiles, pairs_of) if same.keys().isdisjoint(pair)]
    shifts = {} if swaps else {t: by for t, by in find_shifts(pairs_of).items() if t not in same}
    odd = {*same, *shifts, *(tile for pair in swaps for tile in pair)}
    overlaps = []
    for axis, pairs in enumerate(along):
        if pairs:
            # Between edges: first voxels lie differently in tiles of different size.
            pitches = [positions[p.second][axis] - positions[p.first][axis] for p in pairs]
            given = 1 - float(np.median(pitches)) / extent[axis]
            unit = tiles.factor * spacing[axis] / extent[axis]
            overlaps.append(overlap_along(axis, pairs, odd, given, unit))
    are_wrong = any(overlap.better for overlap in overlaps)
    if are_wrong:
        # If the overlap is wrong for all tiles, single ones are not out of place.
        shifts = {}
    misplaced = [MisplacedFigures(row=y, column=x, copy_of=b) for (y, x), b in same.items()]
    misplaced += [
        MisplacedFigures(row=a[0], column=a[1], swapped=b)
        for pair in swaps
        for a, b in (pair, pair[::-1])
    ]
    for (row, column), (y, x) in shifts.items():
        shift = (y * tiles.factor * spacing[0], x * tiles.factor * spacing[1])
        misplaced.append(MisplacedFigures(row=row, column=column, shift=shift))
    tissue = _tissue(tiles)
    others = unlit_tiles(tiles, along, odd, tissue)
    odd |= {(tile.row, tile.column) for tile in others}
    # A tile with hardly any light shows no structure, but is in its place.
    others += uneven_tiles(tiles, along, {*odd, *saturated}, STRONG)
    odd |= {(tile.row, tile.column) for tile in others}
    if are_wrong:
        # Tiles show different tissue where they seem to overlap.
        return overlaps, misplaced, others
    gone = find_misfits(tiles, pairs_of, odd, tissue)
    misplaced += [MisplacedFigures(row=row, column=column) for row, column in gone]
    others += uneven_tiles(tiles, along, {*odd, *gone, *saturated}, EXPOSED)
    return overlaps, misplaced, others


def compare_brightness(
    projections: Images, starts: Mapping[Tile, Position], odd: Collection[Tile]
) -> list[UnevenFigures]:
    """Compare only the brightness of a section's tiles, without ``odd`` ones.

    ``projections`` and ``starts`` are as in :func:`compare`.
    """
    tiles = CoarseTiles.of(projections, starts)
    along = placed_pairs(tiles)
    dark = unlit_tiles(tiles, along, odd, _tissue(tiles))
    left_out = {*odd, *((tile.row, tile.column) for tile in dark)}
    return [*dark, *uneven_tiles(tiles, along, left_out, EXPOSED)]


def _by_tile(tiles: CoarseTiles, along: Iterable[Sequence[ComparedPair]]) -> Pairs:
    """Pairs of each tile."""
    pairs_of: dict[Tile, list[ComparedPair]] = {tile: [] for tile in tiles.structure}
    for pair in chain(*along):
        pairs_of[pair.first].append(pair)
        pairs_of[pair.second].append(pair)
    return pairs_of


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
    figures = OverlapFigures(axis="yx"[axis], given=round(given, 3))
    comparable = _without(pairs, odd)
    likely = [p for p in comparable if p.moved and p.best >= LIKELY_CORRELATION]
    if len(likely) < 3:
        likely = [p for p in likely if p.best >= SURE_CORRELATION]
    if len(likely) < 2:
        return figures
    moves = np.array([p.moved[axis] for p in likely if p.moved])
    middle = float(np.median(moves))
    agree = float((np.abs(moves - middle) <= AGREEING_PIXELS).mean())
    if agree <= 0.5:
        return figures
    best, placed = (float(np.median([getattr(p, k) for p in likely])) for k in ("best", "placed"))
    most = len(likely) >= 4 and agree >= 0.75
    many = most and len(likely) * agree >= MANY
    clear = LITTLE if many else max(CLEAR_ADVANTAGE, ENOUGH / len(likely) ** 0.5)
    # If they share too little as placed, most of all pairs must agree.
    alone = most and len(likely) >= 0.75 * min(len(pairs), SEARCHED_PAIRS)
    known = alone if placed == 0 else len(likely) > 2 or placed > 0
    figures.better = known and abs(middle) > ERROR_PIXELS and gain(placed, best) >= clear
    # Far from the given overlap and hardly better, it is due to speckle.
    if figures.better or abs(middle) <= ERROR_PIXELS:
        figures.found = round(given - middle * unit, 3)
    figures.certain = figures.better and most and best >= SURE_CORRELATION and placed < best / 2
    return figures


def find_swaps(tiles: CoarseTiles, pairs_of: Pairs) -> list[tuple[Tile, Tile]]:
    """Pairs of tiles that fit in each other's place, but not in their own."""
    images = dict(tiles.structure)
    fit = {t: np.median([p.placed for p in pairs]) for t, pairs in pairs_of.items() if pairs}
    tried = sorted((t for t in fit if fit[t] < SURE_CORRELATION), key=lambda t: fit[t])[:MOST_TRIED]
    swaps: list[tuple[Tile, Tile]] = []
    while True:
        gains: list[tuple[float, Tile, Tile]] = []
        for one, other in combinations(tried, 2):
            changed = {**images, one: images[other], other: images[one]}
            both = {(p.first, p.second) for p in pairs_of[one] + pairs_of[other]}
            before, after = (
                float(np.median([tiles.correlation(*pair, seen) for pair in both]))
                for seen in (images, changed)
            )
            if (
                len(both) > 1
                and after >= SURE_CORRELATION
                and gain(before, after) >= 2 * CLEAR_ADVANTAGE
            ):
                gains.append((gain(before, after), one, other))
        if not gains:
            return swaps
        _, one, other = max(gains)
        images[one], images[other] = images[other], images[one]
        tried = [tile for tile in tried if tile not in (one, other)]
        swaps.append((one, other))


def find_shifts(pairs_of: Pairs) -> dict[Tile, Position]:
    """Shifts (y, x) in coarse pixels on which most of a tile's neighbours, at least two, agree."""
    shifts: dict[Tile, Position] = {}
    while True:
        moved: dict[Tile, tuple[int, Position]] = {}
        for tile, pairs in pairs_of.items():
            others = _without(pairs, shifts)
            moves = [
                np.multiply(p.moved, 1 if p.second == tile else -1)
                for p in others
                if p.elsewhere and p.moved
            ]
            if len(moves) < 2:
                continue
            y, x = (float(v) for v in np.median(moves, axis=0))
            agree = sum(bool(np.abs(move - (y, x)).max() <= AGREEING_PIXELS) for move in moves)
            if agree > max(1, sum(p.stays for p in others)) and max(abs(y), abs(x)) > ERROR_PIXELS:
                moved[tile] = agree, (y, x)
        if not moved:
            return shifts
        worst = max(moved, key=lambda tile: moved[tile][0])
        shifts[worst] = moved[worst][1]


def find_copies(images: Images, pairs_of: Pairs) -> dict[Tile, Tile]:
    """Tiles that hold the very image of another, and that other, which fits its place better."""
    same: dict[bytes, list[Tile]] = {}
    for tile, image in images.items():
        if np.ptp(image) > 0:
            same.setdefault(sha256(image.tobytes()).digest(), []).append(tile)
    fit = {
        t: float(np.mean([p.placed for p in pairs])) if pairs else 0.0
        for t, pairs in pairs_of.items()
    }
    copies: dict[Tile, Tile] = {}
    for tiles in same.values():
        original, *others = sorted(tiles, key=lambda tile: -fit.get(tile, 0.0))
        copies |= dict.fromkeys(others, original)
    return copies


def find_misfits(
    tiles: CoarseTiles, pairs_of: Pairs, odd: Collection[Tile], tissue: float
) -> list[Tile]:
    """Tiles that hardly correlate with their neighbours, at least two, and differ from them.

    Pairs with ``odd`` tiles are ignored, and those with a tile that was found.
    """
    every = list({(p.first, p.second): p for pairs in pairs_of.values() for p in pairs}.values())
    misfits: list[Tile] = []
    while True:
        remaining = _without(every, {*odd, *misfits})
        fits: dict[Tile, float] = {}
        for tile in pairs_of:
            pairs = _without(pairs_of[tile], {*odd, *misfits})
            fit = float(np.mean([pair.placed for pair in pairs])) if len(pairs) > 1 else 1.0
            others = [pair for pair in remaining if tile not in (pair.first, pair.second)]
            if fit < LIKELY_CORRELATION and _fits_nowhere(tiles, pairs, others, tissue):
                fits[tile] = fit
        if not fits:
            return misfits
        misfits.append(min(fits, key=lambda tile: fits[tile]))


def _fits_nowhere(
    tiles: CoarseTiles, pairs: Sequence[ComparedPair], others: Sequence[ComparedPair], tissue: float
) -> bool:
    """Tell whether a tile's ``pairs`` fit far worse than the section's ``others``."""
    usual = float(np.median([p.placed for p in others])) if len(others) > 1 else 0.0
    if usual >= LIKELY_CORRELATION and np.mean([p.placed for p in pairs]) > WORSE * usual:
        return False
    apart = sorted(_mismatch(tiles, pair, tissue) for pair in pairs)
    if usual < LIKELY_CORRELATION:
        # The others show too little structure to tell how well tiles can fit.
        return (
            max(p.placed for p in pairs) < LIKELY_CORRELATION
            and apart[(len(pairs) - 1) // 2] > UNLIKE
        )
    alike = float(np.median([_mismatch(tiles, pair, tissue) for pair in others]))
    return apart[-2] > max(APART, 2 * alike)


def _mismatch(tiles: CoarseTiles, pair: ComparedPair, tissue: float) -> float:
    """Seam of two tiles at equal brightness, less speckle and chance; 0 if neither shows tissue."""
    shared = tiles.overlap_values(pair.first, pair.second)
    if shared is None or max(float(part.mean()) for part in shared) <= tissue:
        return 0.0
    sums = [float(part.sum()) for part in shared]
    shared = (shared[0], shared[1] * (sums[0] / sums[1] if min(sums) > 0 else 1.0))
    fine = seam(*shared)
    least = seam_without_speckle(*shared, fine) ** 2 - 2 * fine**2 / shared[0].size ** 0.5
    return max(0.0, least) ** 0.5
