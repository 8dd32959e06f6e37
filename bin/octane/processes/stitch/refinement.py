"""Refinement of the places of tiles: by overlaps whose peak is certain, and only if halves agree.

Under heavy speckle the highest correlation of an overlap may be chance. How likely each shift is
follows from its correlation, the number of independent pixels, and how far the stage is off, which
all overlaps show together. Places that were fitted to one half of the overlaps must then hold on
the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import (
    TilePair,
    band_pass,
    correlations,
    fisher,
    neighbours,
    shift_at,
    split_correlations,
)
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections, overlap
from octane.processes.stitch.registration import solve_positions

BLOCK = 8
"""Edge in pixels of the blocks of which the halves of an overlap consist: larger than speckle, and
small enough that both halves see all of a narrow overlap."""
NEAR = 4
"""Pixels around a peak that belong to it: structure is wider than speckle."""
CERTAIN = 0.9
"""Probability from which a peak counts in full."""
STRAY = 0.05
"""Share of pairs that may lie anywhere, such as one with a tile that is out of place."""
LEAST_SPREAD = 1.0
"""Least standard deviation of the stage's errors, pixels: correlations tell no less than that."""
ROUNDS = 8
"""Iterations in which the spread of the stage's errors settles."""
AGREEING = 1 / 3
"""Least part of a refinement's variance that both halves show: the rest is error. Where it is half,
tiles are on average as far off as stated; a half of few pixels shows less than all of them."""
APART = 2.0
"""Largest distance of a tile's places by either half over the largest move: beyond it, half of the
distance, which is about the tile's error, exceeds all that is to be corrected."""
GAINING = 1.55
"""Least sum of the halves' gains over the root of the sum of their squares: chance exceeds it in 6
of 100."""
ALL_GAIN = 0.95
"""The same over the root of their number, where a few pairs cannot reach ``GAINING``."""

Places = Mapping[Tile, Position]
"""Positions of tiles, pixels."""


@dataclass(frozen=True)
class Match:
    """How well two tiles fit at each shift of the second's content; no shift is in the middle.

    ``scores`` are the correlations (y, x), ``likelihood`` is relative to the most likely shift,
    in float32: a section keeps all its pairs in memory.
    """

    first: Tile
    second: Tile
    scores: npt.NDArray
    likelihood: npt.NDArray

    @classmethod
    def of(cls, first: Tile, second: Tile, scores: npt.NDArray, pixels: npt.NDArray) -> "Match":
        """``pixels`` is the number of independent ones at each shift."""
        exponent = -pixels / 2 * np.log1p(-(np.clip(scores, 0, 0.999) ** 2))
        likelihood = np.exp(exponent - exponent.max()).astype(np.float32)
        return cls(first, second, scores, likelihood)

    def gain(self, places: Places, stated: Places) -> float:
        """Advantage in Fisher's z of ``places`` over the ``stated`` ones."""
        one, other = (np.subtract(places[t], stated[t]) for t in (self.first, self.second))
        return float(fisher(_at(self.scores, one - other)) - fisher(_at(self.scores, np.zeros(2))))


@dataclass(frozen=True)
class Refinement:
    """Positions in micrometres; ``reason`` says why they are the stated ones, if they are."""

    positions: dict[Tile, Position]
    reason: str = ""


def _at(scores: npt.NDArray, shift: npt.NDArray) -> float:
    """Correlation at a shift of fractional pixels, by parabolas through the nearest three."""
    weights, spans = [], []
    for by, n in zip(shift, scores.shape, strict=True):
        place = float(np.clip(by + n // 2, 1, n - 2))
        near = round(place)
        t = place - near
        weights.append((t * (t - 1) / 2, 1 - t * t, t * (t + 1) / 2))
        spans.append(slice(near - 1, near + 2))
    return float(np.asarray(weights[0]) @ scores[tuple(spans)] @ np.asarray(weights[1]))


def _distances(shape: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Shifts along y and x, as a column and a row."""
    y, x = (np.arange(n) - n // 2 for n in shape)
    return y[:, None], x[None, :]


def grain(first: npt.NDArray, second: npt.NDArray, shift: tuple[int, int]) -> float:
    """Number of pixels that vary as one in what two views do not share.

    By Bartlett's formula the correlation of two such images varies by chance as if only one of so
    many pixels were independent; a spectrum of one image doubles the number, which is on the safe
    side. ``second`` is moved by ``shift`` (y, x) pixels.
    """
    parts = []
    for image, way in ((first, 1), (second, -1)):
        pairs = zip(shift, image.shape, strict=True)
        area = tuple(slice(max(0, -way * by), n - max(0, way * by)) for by, n in pairs)
        part = image[area] - image[area].mean()
        parts.append(part / max(part.std(), 1e-30))
    power = np.abs(np.fft.fft2(parts[0] - parts[1])) ** 2
    total = float(power.sum()) ** 2
    return max(1.0, power.size * float(np.sum(power**2)) / total) if total > 0 else 1.0


def matches(
    first: Tile,
    second: Tile,
    views: tuple[npt.NDArray, npt.NDArray],
    max_shift: tuple[float, float],
    *,
    halves: bool,
) -> list[Match]:
    """Match of two views of an overlap, and those of its halves, blocks of a chequerboard."""
    # Variances of very small stored values would vanish. A power of two rounds nothing.
    highest = max(float(np.abs(view).max()) for view in views)
    one, other = (band_pass(np.ldexp(view, -np.frexp(highest)[1])) for view in views)
    rows, columns = np.indices(one.shape) // BLOCK
    even, parts = (rows + columns) % 2 == 0, list[npt.NDArray]()
    if halves:
        # The speckle of one tile in each half is enough for independent correlations.
        scores, *parts = split_correlations(one, other, max_shift, even)
    else:
        scores = correlations(one, other, max_shift)
    y, x = _distances(scores.shape)
    peak = np.unravel_index(int(scores.argmax()), scores.shape)
    size = grain(one, other, (int(y[peak[0], 0]), int(x[0, peak[1]])))
    pixels = (one.shape[0] - np.abs(y)) * (one.shape[1] - np.abs(x)) / size
    made = [Match.of(first, second, scores, pixels)]
    for score, half in zip(parts, (even, ~even), strict=False):
        made.append(Match.of(first, second, score.astype(np.float32), pixels * half.mean()))
    return made


def _overlaps(
    tiling: MosaicGrid, positions: Mapping[Tile, Position], projections: Projections
) -> Iterator[tuple[Tile, Tile, tuple[npt.NDArray, npt.NDArray]]]:
    """Neighbours, and the area that they share as each saw it."""
    placement = TilePlacement(tiling, dict(positions))
    for first, second in neighbours([*positions]):
        views = overlap(placement, projections, first, second)
        if views is not None:
            yield first, second, views


def _prior(shape: tuple[int, ...], spread: float) -> tuple[npt.NDArray, float]:
    """Probabilities of shifts: of a stage's errors, and of a stray pair."""
    y, x = _distances(shape)
    near = np.exp((y**2 + x**2) / (-4 * spread**2))
    return (1 - STRAY) * near / near.sum(), STRAY / near.size


def stage_spread(pairs: Sequence[Match], start: float) -> float:
    """Standard deviation of the stage's errors along an axis that fits all pairs best, pixels."""
    spread = start
    for _ in range(ROUNDS):
        squares = weight = 0.0
        for pair in pairs:
            near, stray = _prior(pair.likelihood.shape, spread)
            likely = pair.likelihood * near
            total = likely.sum() + stray * pair.likelihood.sum()
            y, x = _distances(likely.shape)
            squares += float((likely * (y**2 + x**2)).sum() / total)
            weight += float(likely.sum() / total)
        # A pair has the errors of two tiles along two axes.
        spread = max(LEAST_SPREAD, (squares / (4 * weight)) ** 0.5)
    return spread


def measure_shift(pair: Match, spread: float) -> TilePair:
    """Most likely shift of a pair; its weight is the correlation, as far as the peak is certain."""
    near, stray = _prior(pair.likelihood.shape, spread)
    likely = pair.likelihood * (near + stray)
    scores, peak = pair.scores, np.unravel_index(int(likely.argmax()), likely.shape)
    while True:
        start = [max(0, int(p) - 1) for p in peak]
        around = scores[tuple(slice(a, int(p) + 2) for a, p in zip(start, peak, strict=True))]
        higher = np.unravel_index(int(around.argmax()), around.shape)
        if around[higher] <= scores[peak]:
            break
        peak = tuple(np.intp(a + b) for a, b in zip(start, higher, strict=True))
    peak_area = likely[tuple(slice(max(0, int(p) - NEAR), int(p) + NEAR + 1) for p in peak)]
    certainty = min(1.0, float(peak_area.sum() / likely.sum()) / CERTAIN)
    weight = float(max(scores[peak], 0.0)) * certainty
    return TilePair(pair.first, pair.second, shift_at(scores, peak), weight)


def doubt(
    stated: Places,
    places: Places,
    halves: Sequence[Places],
    pairs: Sequence[Sequence[Match]],
) -> str:
    """Reason not to refine ``stated`` places; empty if the halves of the overlaps confirm it.

    ``places`` were fitted to the overlaps, ``halves`` to the half of each in ``pairs``.
    """
    whole, one, other = (_moves(stated, moved) for moved in (places, *halves))
    gains = np.array(
        [
            pair.gain(fitted, stated)
            for fitted, judge in zip(halves, pairs[::-1], strict=True)
            for pair in judge
        ]
    )
    size = float(np.sqrt(np.sum(gains**2)))
    least = min(GAINING, ALL_GAIN * len(gains) ** 0.5)
    if size == 0 or gains.sum() < least * size:
        return "places that one half of the overlaps shows correlate no better in the other"
    farthest, largest = (float(np.hypot(*moved.T).max()) for moved in (one - other, whole))
    shown = float(np.sum(one * other))
    if shown < AGREEING * float(np.sum(whole**2)) or farthest > APART * largest:
        return "two halves of the overlaps show other places"
    return ""


def _moves(stated: Places, places: Places) -> npt.NDArray[np.float64]:
    """Moves of all tiles but for the common one."""
    moves = np.array([np.subtract(places[tile], place) for tile, place in stated.items()])
    return moves - moves.mean(axis=0)


def refine_positions(
    tiling: MosaicGrid,
    nominal: Mapping[Tile, Position],
    projections: Projections,
    max_shift: float,
) -> Refinement:
    """Positions that best fit the overlaps, which are measured again once they are better aligned.

    ``projections`` are the tiles' means over depth. Lengths are in micrometres; a tile moves at
    most ``max_shift`` from its ``nominal`` position in y and in x. Where the overlaps are too
    uncertain, all tiles stay.
    """
    sy, sx = tiling.spacing[1:]
    reach = (max_shift / sy, max_shift / sx)
    # Two tiles may each be off by max_shift, to opposite sides.
    most = (2 * reach[0], 2 * reach[1])
    start = {tile: (y / sy, x / sx) for tile, (y, x) in nominal.items()}
    each = [
        matches(*pair, views, most, halves=True)
        for *pair, views in _overlaps(tiling, nominal, projections)
    ]
    if not each:
        return Refinement(dict(nominal), "no tiles overlap" if len(nominal) > 1 else "")
    every, *halves = zip(*each, strict=True)
    del each
    spread = stage_spread(every, max(reach) / 2)
    pixels = solve_positions(start, [measure_shift(pair, spread) for pair in every], reach)
    fitted = []
    for half in halves:
        by = stage_spread(half, max(reach) / 2)
        fitted.append(solve_positions(start, [measure_shift(pair, by) for pair in half], reach))
    if why := doubt(start, pixels, fitted, halves):
        return Refinement(dict(nominal), why)
    positions = {tile: (y * sy, x * sx) for tile, (y, x) in pixels.items()}
    # A third pass gains little.
    pairs = [
        measure_shift(*matches(*pair, views, most, halves=False), spread)
        for *pair, views in _overlaps(tiling, positions, projections)
    ]
    solved = solve_positions(pixels, pairs, reach)
    for tile, place in solved.items():
        y, x = np.clip(place, np.subtract(start[tile], reach), np.add(start[tile], reach))
        positions[tile] = (float(y) * sy, float(x) * sx)
    return Refinement(positions)
