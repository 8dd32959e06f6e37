"""Tiles that fit their neighbours better some planes deeper or higher.

The columns that two tiles share are compared at each shift along z. Logarithms less their mean are
compared, so that neither light that differs between tiles nor a steady decay along z counts. One
pair of tiles proves nothing: at least two neighbours must agree.

Refinement moves such a tile if each of two interleaved halves of the columns shows the same shift.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from octane.compare.columns import COLUMN_EDGE, Columns, columns
from octane.compare.correlation import neighbours
from octane.layout.mosaic import Depths, Position, Tile

FEWEST = 24
"""Planes of a tile; fewer do not tell a shift from speckle."""
EDGE = 24
"""Longest edge of a compared tile, columns."""
DEEPEST = 0.25
"""Largest shift searched, as a fraction of the planes."""
LEAST_BRIGHTNESS = 0.01
"""Brightness relative to the section's mean below which differences do not count."""
ASIDE = (0, -1, 1)
"""Columns along y and x by which tiles may be off: slanted tissue then seems shifted along z."""
BORDER = 2
"""Columns by which a tile is continued at its border, as these places reach beyond it."""
CERTAIN = 3.0
"""Standard deviations by which a shift must fit better, or worse, to count."""
ROUNDS = 4
"""Passes in which tiles are moved: a moved one shows where its neighbours lie."""
CLEAR = 1.25
"""Ratio of the mean square differences without and with a shift that fits clearly better."""

Values = npt.NDArray[np.float64]


def find_depth_shifts(
    profiles: Mapping[Tile, Columns],
    starts: Mapping[Tile, Position],
    odd: Collection[Tile],
    depths: Depths = MappingProxyType({}),
) -> dict[Tile, int]:
    """Tiles that fit most of their neighbours, at least two, that many planes deeper.

    ``profiles`` are the columns of tiles; ``starts`` are the fractional indices (y, x) of the
    tiles' first voxels in the section, and ``depths`` how deep they are placed. ``odd`` tiles,
    which are out of place, are ignored. A tile that fits higher has negative planes.
    """
    tiles = _profile_tiles(profiles, starts, odd, depths)
    return {} if tiles is None else agreeing_shifts(tiles, compare_neighbours(tiles))


def refine_depths(
    profiles: Mapping[Tile, Columns],
    starts: Mapping[Tile, Position],
    odd: Collection[Tile],
    depths: Depths,
) -> tuple[Depths, list[Tile]]:
    """Depths at which tiles fit their neighbours, and the tiles that two halves leave in doubt.

    Arguments are as for :func:`find_depth_shifts`. Tiles in doubt stay at their ``depths``, as does
    one that would show less than half of the planes.
    """
    refined, doubtful = dict(depths), set[Tile]()
    for _ in range(ROUNDS):
        tiles = _profile_tiles(profiles, starts, odd, refined)
        if tiles is None:
            break
        shifts = agreeing_shifts(tiles, compare_neighbours(tiles))
        if not shifts:
            break
        halves = [compare_neighbours(replace(tiles, half=half)) for half in (0, 1)]
        deeper = {
            tile: refined.get(tile, 0) + by
            for tile, by in shifts.items()
            if all(_best_shift(tile, _pairs_of(tile, half, shifts)) == by for half in halves)
        }
        deeper = {t: by for t, by in deeper.items() if 2 * abs(by) < len(profiles[t])}
        doubtful |= shifts.keys()
        if not deeper:
            break
        refined |= deeper
    stay = {tile for tile in doubtful if refined.get(tile, 0) == depths.get(tile, 0)}
    return {tile: by for tile, by in refined.items() if by}, sorted(stay)


def _profile_tiles(
    profiles: Mapping[Tile, Columns],
    starts: Mapping[Tile, Position],
    odd: Collection[Tile],
    depths: Depths,
) -> "ProfiledTiles | None":
    """Tiles with light, but ``odd`` ones; None if there are none, or too few planes."""
    lit = {
        t: profile
        for t, profile in profiles.items()
        if t not in odd and np.nan_to_num(profile).any()
    }
    if not lit or len(next(iter(lit.values()))) < FEWEST:
        return None
    return replace(ProfiledTiles.of(lit, starts), depths=depths)


def reason_not_to_compare(profiles: Mapping[Tile, Columns], overlap: float) -> str:
    """Reason why tiles are not compared along z, empty if they are; ``overlap`` is in pixels."""
    if not profiles or len(next(iter(profiles.values()))) < FEWEST:
        return f"fewer than {FEWEST} planes"
    # A column reaches half of its width beyond its centre.
    return "narrow overlaps" if overlap < COLUMN_EDGE * _width(profiles) / 2 else ""


def _width(profiles: Mapping[Tile, Columns]) -> int:
    """Width of the compared columns: larger tiles get wider ones."""
    return -(-max(max(profile.shape[1:]) for profile in profiles.values()) // EDGE)


@dataclass(frozen=True)
class SharedColumns:
    """Logarithms of the columns that two tiles share.

    ``first`` are those of one tile (z, n), ``second`` those of the other (places, z, n): as placed,
    then up to a column aside.
    """

    first: Values
    second: Values

    def deeper(self, planes: int) -> "SharedColumns":
        """The planes in common if the second tile lies that many planes deeper."""
        n = abs(planes)
        if planes > 0:
            return SharedColumns(self.first[n:], self.second[:, :-n])
        return SharedColumns(self.first[:-n], self.second[:, n:]) if n else self

    @cached_property
    def _running(self) -> tuple[Values, Values]:
        """Sums of the differences above each plane, and of their squares, (places, z + 1, n)."""
        apart = self.first - self.second
        places, depth, n = apart.shape
        sums, squares = np.zeros((2, places, depth + 1, n))
        np.cumsum(apart, axis=1, out=sums[:, 1:])
        np.cumsum(apart**2, axis=1, out=squares[:, 1:])
        return sums, squares

    def _differences_in_place(self, n: int) -> Values:
        """Differences without a shift and without ``n`` planes, where they are least.

        A shift leaves ``n`` planes of each tile without a partner. They may be spoilt, so that only
        a comparison without the first ones, or without the last, is fair.
        """
        depth = len(self.first)
        spans, residues = ((n, depth), (0, depth - n)), []
        for start, stop in spans:
            total, square = (sums[:, stop] - sums[:, start] for sums in self._running)
            residues.append((square - total**2 / (stop - start)).sum(axis=1))
        span, place = np.unravel_index(int(np.argmin(residues)), np.shape(residues))
        planes = slice(*spans[span])
        return self.first[planes] - self.second[place, planes]

    def _differences_at(self, planes: int) -> Values:
        """Differences with the second tile moved deeper."""
        pair = self.deeper(planes)
        return pair.first - pair.second[0]

    def gains(self, most: int) -> Values:
        """Logarithm of the ratio of residues without and with each shift of the second tile.

        From ``-most`` to ``most`` planes deeper; 0 without a shift.
        """
        gains = np.zeros(2 * most + 1)
        for n in range(1, most + 1):
            stays = _residue(self._differences_in_place(n))
            for planes in (-n, n):
                gains[most + planes] = np.log(stays / _residue(self._differences_at(planes)))
        return gains

    def certainty(self, planes: int) -> float:
        """Standard deviations by which the second tile fits better if moved that much deeper."""
        if planes == 0:
            return 0.0
        better = _squares(self._differences_in_place(abs(planes))) - _squares(
            self._differences_at(planes)
        )
        spread = float(np.sqrt(np.einsum("zc,zc->", better, better)))
        return float(better.sum()) / spread if spread > 0 else 0.0


def _squares(apart: Values) -> Values:
    """Squares of differences (z, n) less each column's mean."""
    return (apart - apart.mean(axis=0)) ** 2


def _residue(apart: Values) -> float:
    """Sum of :func:`_squares`, at least a positive value that changes no other."""
    square = float(np.einsum("zc,zc->", apart, apart))
    return max(square - float((apart.sum(axis=0) ** 2).sum()) / len(apart), 1e-9 * apart.size)


@dataclass(frozen=True)
class ProfiledTiles:
    """Logarithms of the columns of a section's tiles, (z, y, x).

    ``starts`` are the positions (y, x) of the first columns in the section, fractional columns, and
    ``depths`` those of their first planes. ``half`` is the half of shared columns that is compared,
    as on a chequerboard, 0 or 1; None for all.
    """

    logarithms: Mapping[Tile, Columns]
    starts: Mapping[Tile, Values]
    depths: Depths = field(default_factory=dict)
    half: int | None = None

    @classmethod
    def of(
        cls, profiles: Mapping[Tile, Columns], starts: Mapping[Tile, Position]
    ) -> "ProfiledTiles":
        """Those of tiles with light; ``starts`` are in voxels."""
        width = _width(profiles)
        least = LEAST_BRIGHTNESS * float(
            np.mean([np.nanmean(profile) for profile in profiles.values()])
        )
        wide = {
            t: profile if width == 1 else columns(profile, width) for t, profile in profiles.items()
        }
        logs = {
            tile: np.log(np.maximum(profile, np.float32(least))) for tile, profile in wide.items()
        }
        return cls(logs, {tile: np.asarray(starts[tile]) / (COLUMN_EDGE * width) for tile in logs})

    @property
    def most(self) -> int:
        """Largest shift searched, planes."""
        return int(DEEPEST * len(next(iter(self.logarithms.values()))))

    def shared_columns(self, first: Tile, second: Tile) -> SharedColumns | None:
        """Columns that two tiles share; None if they share no known one, or too few planes."""
        deeper = self.depths.get(second, 0) - self.depths.get(first, 0)
        if abs(deeper) > self.most:
            return None
        one, other = self.logarithms[first], self.logarithms[second]
        near = np.pad(other, ((0, 0), (BORDER, BORDER), (BORDER, BORDER)), mode="edge")
        spans: list[tuple[int, int, int]] = []
        offset = self.starts[second] - self.starts[first]
        for axis, (by, n, m) in enumerate(zip(offset, one.shape[1:], other.shape[1:], strict=True)):
            # A column reaches half of its width beyond its centre.
            start, stop = max(0, int(np.ceil(by - 0.5))), min(n, int(np.floor(by + m + 0.5)))
            if start >= stop:
                return None
            whole = int(np.floor(-by))
            near = _between(near, -by - whole, axis + 1)
            spans.append((start, stop, whole + BORDER))
        (top, bottom, dy), (left, right, dx) = spans
        here = one[:, top:bottom, left:right].reshape(len(one), -1)
        there = np.array(
            [
                near[:, top + y : bottom + y, left + x : right + x].reshape(here.shape)
                for y in np.add(ASIDE, dy)
                for x in np.add(ASIDE, dx)
            ]
        )
        known = np.isfinite(here).all(axis=0) & np.isfinite(there).all(axis=(0, 1))
        if self.half is not None:
            row, column = np.indices((bottom - top, right - left)).reshape(2, -1)
            known &= (row + column) % 2 == self.half
        if not known.any():
            return None
        return SharedColumns(
            here[:, known].astype(np.float64), there[:, :, known].astype(np.float64)
        ).deeper(deeper)


def _between(logarithms: Columns, part: float, axis: int) -> Columns:
    """Columns interpolated linearly at the same part of the way to their next along an axis."""
    low = np.moveaxis(logarithms, axis, 0)
    return np.moveaxis((1 - part) * low[:-1] + part * low[1:], 0, axis)


@dataclass(frozen=True)
class PlanePair:
    """Two neighbours, and the :meth:`~SharedColumns.gains` of moving ``second`` deeper.

    They are relative to ``usual``, the shift of most neighbours along the axis; ``columns`` is the
    number of columns that the two share.
    """

    first: Tile
    second: Tile
    usual: int
    columns: int
    gains: Values

    def of(self, tile: Tile) -> Values:
        """Gains of moving ``tile``, one of the two."""
        return self.gains if tile == self.second else self.gains[::-1]

    def fit(self, tiles: ProfiledTiles, tile: Tile, planes: int) -> int:
        """1 if both fit clearly better with ``tile`` moved deeper, -1 if worse, 0 if neither."""
        shared = tiles.shared_columns(self.first, self.second)
        if shared is None:
            return 0
        certainty = shared.deeper(self.usual).certainty(planes if tile == self.second else -planes)
        clear = self.of(tile)[len(self.gains) // 2 + planes] >= np.log(CLEAR)
        return int(certainty >= CERTAIN and clear) - int(certainty <= -CERTAIN)


def compare_neighbours(tiles: ProfiledTiles) -> list[PlanePair]:
    """Compare all neighbours along y, then along x."""
    along: tuple[list[tuple[Tile, Tile]], list[tuple[Tile, Tile]]] = ([], [])
    for first, second in neighbours([*tiles.logarithms]):
        along[first[0] == second[0]].append((first, second))
    compared: list[PlanePair] = []
    for pairs in along:
        along_axis = _compare_pairs(tiles, pairs, 0)
        usual = _usual_shift(tiles, along_axis)
        compared += _compare_pairs(tiles, pairs, usual) if usual else along_axis
    return compared


def _compare_pairs(
    tiles: ProfiledTiles, pairs: Sequence[tuple[Tile, Tile]], usual: int
) -> list[PlanePair]:
    compared = []
    for first, second in pairs:
        shared = tiles.shared_columns(first, second)
        if shared is not None:
            gains = shared.deeper(usual).gains(tiles.most)
            compared.append(PlanePair(first, second, usual, shared.first.shape[1], gains))
    return compared


def _usual_shift(tiles: ProfiledTiles, pairs: Sequence[PlanePair]) -> int:
    """The shift that most neighbours along an axis share: the scan is tilted against the stage."""
    shifts = []
    for pair in pairs:
        best = int(pair.gains.argmax()) - len(pair.gains) // 2
        # The certainty, which takes longer, is only needed of a clear gain.
        clear = pair.gains.max() >= np.log(CLEAR) and pair.fit(tiles, pair.second, best) > 0
        shifts.append(best if clear else 0)
    order, n = sorted(shifts), len(shifts)
    middle = order[(n - 1) // 2 : n // 2 + 1]
    return 0 if min(middle, default=0) * max(middle, default=0) <= 0 else min(middle, key=abs)


def _pairs_of(
    tile: Tile, pairs: Collection[PlanePair], without: Collection[Tile]
) -> list[PlanePair]:
    """Pairs of a tile, but those with other tiles to leave out."""
    left_out = {*without} - {tile}
    both = ((pair, {pair.first, pair.second}) for pair in pairs)
    return [pair for pair, tiles in both if tile in tiles and not tiles & left_out]


def _best_shift(tile: Tile, pairs: Sequence[PlanePair]) -> int:
    """Planes by which pairs of a tile fit best with it moved deeper; 0 without any."""
    if not pairs:
        return 0
    gains = np.sum([pair.columns * pair.of(tile) for pair in pairs], axis=0)
    return int(gains.argmax()) - len(gains) // 2


def agreeing_shifts(tiles: ProfiledTiles, pairs: Sequence[PlanePair]) -> dict[Tile, int]:
    """Planes by which tiles lie too high, on which most neighbours of each, at least two, agree."""
    pairs_of: dict[Tile, list[PlanePair]] = {tile: [] for tile in tiles.logarithms}
    for pair in pairs:
        pairs_of[pair.first].append(pair)
        pairs_of[pair.second].append(pair)
    shifts: dict[Tile, int] = {}
    while True:
        moved: dict[Tile, tuple[int, int]] = {}
        for tile, every in pairs_of.items():
            remaining = [
                pair for pair in every if pair.first not in shifts and pair.second not in shifts
            ]
            if len(remaining) < 2:
                continue
            planes = _best_shift(tile, remaining)
            index = planes + len(remaining[0].gains) // 2
            if sum(pair.of(tile)[index] >= np.log(CLEAR) for pair in remaining) < 2:
                continue
            fits = [pair.fit(tiles, tile, planes) for pair in remaining]
            if fits.count(1) > max(1, fits.count(-1)):
                moved[tile] = fits.count(1), planes
        if not moved:
            return shifts
        worst = max(moved, key=lambda tile: moved[tile][0])
        shifts[worst] = moved[worst][1]
