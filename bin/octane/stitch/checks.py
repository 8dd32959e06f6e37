"""Checks of a section: tiles must correlate with their neighbours where they are placed.

Tiles are compared coarse and band-passed, so that the checks cost little and see neither speckle
nor shading. Correlations are compared as Fisher's z, whose spread is the same for low and high
ones. One pair of tiles proves nothing: a finding needs several that agree.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from octane.core.records import EXPOSED, MisplacedFigures, OverlapFigures, UnevenFigures
from octane.layout.mosaic import Position, Tile
from octane.stitch.blending import seam
from octane.stitch.registration import band_passed, correlation, neighbours, overlap_shift

EDGE = 96
"""Longest edge of a tile as it is compared, pixels."""
REACH, ASIDE = 0.65, 0.3
"""Largest overlap and displacement sideways that are looked for, fractions of a tile."""
LEAST = 4
"""Narrowest overlap that is compared, pixels: less correlates by chance."""
WIDE = 10
"""Narrowest overlap that is believed where tiles share less than ``LEAST`` as they are placed:
tissue looks much like that a few pixels beside it."""
SEARCHED = 8
"""Pairs with most structure along an axis, which are searched for a better displacement; of the
others, as many of those that do not correlate as they are placed."""
CLOSE, FAR = 1.5, 2.0
"""Pixels up to which displacements agree, and beyond which one is an error."""
LIKELY, SURE = 0.4, 0.6
"""Correlation of tiles that fit if others agree, and of those that certainly do."""
CLEAR, ENOUGH = 0.3, 0.8
"""Advantage in Fisher's z, and that times the root of the number of pairs that show it: a narrow
overlap full of speckle gives less by chance, and a wrong one more."""
MANY, LITTLE = 5, 0.1
"""Pairs in agreement, three quarters of all, for which this advantage is enough: in good phantoms
so many do not agree elsewhere by chance."""
APART = 0.3
"""Seam without speckle from which two tiles that do not correlate show something else."""
TISSUE = 0.5
"""Brightness over the section's mean from which an overlap shows tissue."""
BLOCK = 4
"""Edge in pixels of the blocks by which speckle is distinguished from a mismatch."""
MOST_TRIED = 6
"""Tiles that are tried in each other's place, those that fit worst."""

Images = Mapping[Tile, npt.NDArray[np.float32]]
Findings = tuple[list[OverlapFigures], list[MisplacedFigures], list[UnevenFigures]]
"""Overlaps along y and x, the tiles out of place, and those of another brightness."""


def fisher(correlations: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Fisher's z of correlations."""
    return np.arctanh(np.clip(correlations, -0.999, 0.999))


def gain(before: float, after: float) -> float:
    """Difference of two correlations in Fisher's z."""
    return float(fisher(after) - fisher(before))


def finite(image: npt.NDArray) -> npt.NDArray:
    """Replace NaN and Inf by 0, so that they do not spread."""
    return np.nan_to_num(image, posinf=0, neginf=0)


def coarse(image: npt.NDArray, factor: int) -> npt.NDArray:
    """Mean of every ``factor`` x ``factor`` pixels; those beyond the last whole block are left."""
    rows, columns = (n // factor for n in image.shape)
    whole = image[: rows * factor, : columns * factor]
    return whole.reshape(rows, factor, columns, factor).mean(axis=(1, 3))


def seam_without_speckle(first: npt.NDArray, second: npt.NDArray, fine: float) -> float:
    """Mismatch of two tiles where both saw the same, less what differs from pixel to pixel.

    ``fine`` is their :func:`octane.stitch.blending.seam`.
    The mean of a block of pixels keeps a mismatch of structure or brightness, and of the variance
    of speckle one part in as many as it has pixels.
    """
    blocks = seam(coarse(first, BLOCK), coarse(second, BLOCK)) ** 2
    return float(np.sqrt(max(0.0, (BLOCK**2 * blocks - fine**2) / (BLOCK**2 - 1))))


def block_seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of two tiles where both saw the same, by the means of blocks of pixels."""
    return seam(coarse(first, BLOCK), coarse(second, BLOCK))


def speckle_seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch that the speckle of two tiles gives to the means of blocks, however they fit.

    ``first`` and ``second`` are their pixels as they were imaged: between pixels, speckle is less.
    """
    images = (first, second)
    level = sum(float(np.abs(image).mean()) for image in images) / 2
    # Pixels with alternating signs keep the speckle of a block and none of its structure.
    signs = ((-1.0) ** np.add.outer(*map(np.arange, image.shape)) for image in images)
    means = (coarse(image * sign, BLOCK) for image, sign in zip(images, signs, strict=True))
    return sum(float(np.mean(own**2)) for own in means) ** 0.5 / level if level > 0 else 0.0


def _shared(
    first: npt.NDArray, second: npt.NDArray, offset: npt.NDArray
) -> tuple[npt.NDArray, npt.NDArray] | None:
    """The area that two tiles share where the second lies at ``offset``; None if too little."""
    by = np.round(offset).astype(int)
    low, high = np.maximum(by, 0), np.minimum(first.shape, by + second.shape)
    if (high - low).min() < LEAST:
        return None
    return (
        first[low[0] : high[0], low[1] : high[1]],
        second[low[0] - by[0] : high[0] - by[0], low[1] - by[1] : high[1] - by[1]],
    )


@dataclass(frozen=True)
class ComparedPair:
    """Two neighbours, compared.

    ``placed`` is their correlation as placed; ``best`` the highest one, where ``second`` is moved
    by ``moved`` (y, x) coarse pixels. ``moved`` is None where no other place was looked for.
    """

    first: Tile
    second: Tile
    placed: float
    best: float = 0.0
    moved: Position | None = None

    @property
    def stays(self) -> bool:
        """True where both fit as they are placed."""
        if self.moved is None:
            return self.placed >= SURE
        return self.best >= LIKELY and max(map(abs, self.moved)) <= FAR

    @property
    def elsewhere(self) -> bool:
        """True where both fit clearly better at another displacement."""
        # Of two that share too little as they are placed, nothing is known: that is a zero.
        far = self.moved is not None and self.placed != 0 and max(map(abs, self.moved)) > FAR
        return far and self.best >= SURE and gain(self.placed, self.best) >= CLEAR


def _without(pairs: Iterable[ComparedPair], odd: Iterable[Tile]) -> list[ComparedPair]:
    """Pairs with none of these tiles."""
    left_out = {*odd}
    return [p for p in pairs if p.first not in left_out and p.second not in left_out]


class Neighbours:
    """Neighbouring tiles of a section, compared; all is (y, x).

    ``tiles`` are their means over depth; ``starts`` the indices of their first voxels in the
    section, which need not be whole; ``positions`` those of their edges, ``extent`` the size of a
    full tile and ``spacing`` that of a voxel, in micrometres.
    """

    def __init__(
        self,
        tiles: Images,
        starts: Mapping[Tile, Position],
        positions: Mapping[Tile, Position],
        extent: Position,
        spacing: Position,
    ) -> None:
        self.positions, self.extent, self.spacing = positions, extent, spacing
        longest = np.max([tile.shape for tile in tiles.values()], axis=0)
        self.factor = max(1, -(-int(longest.max()) // EDGE))
        self.longest = longest // self.factor
        small = {tile: coarse(finite(image), self.factor) for tile, image in tiles.items()}
        small = {tile: image for tile, image in small.items() if min(image.shape) >= LEAST}
        # Variances of what is small or large as it is stored might leave the range of float32.
        scale = max((float(np.abs(image).max()) for image in small.values()), default=0) or 1
        self.coarse = {tile: image / scale for tile, image in small.items()}
        self.tiles: dict[Tile, npt.NDArray[np.float32]] = {
            tile: band_passed(image).astype(np.float32) for tile, image in self.coarse.items()
        }
        means = [float(image.mean()) for image in self.coarse.values() if image.any()]
        self.tissue = TISSUE * float(np.mean(means)) if means else 0.0
        self.starts = {tile: np.asarray(starts[tile]) / self.factor for tile in self.tiles}
        structure = {tile: float(image.std()) for tile, image in self.tiles.items()}
        self.pairs: tuple[list[ComparedPair], ...] = ([], [])
        for a, b in neighbours(list(self.tiles)):
            axis = int(a[0] == b[0])
            # Rows and columns may be numbered against the axis.
            a, b = sorted((a, b), key=lambda tile: self.starts[tile][axis])
            self.pairs[axis].append(ComparedPair(a, b, self._placed(a, b, self.tiles)))
        self.of: dict[Tile, list[ComparedPair]] = {tile: [] for tile in self.tiles}
        for axis, own in enumerate(self.pairs):
            own.sort(key=lambda pair: -min(structure[pair.first], structure[pair.second]))
            doubtful = [k for k, p in enumerate(own) if k >= SEARCHED and p.placed < SURE]
            for k in (*range(min(SEARCHED, len(own))), *doubtful[:SEARCHED]):
                own[k] = self._searched(own[k], axis)
            for pair in own:
                self.of[pair.first].append(pair)
                self.of[pair.second].append(pair)

    def findings(self) -> Findings:
        """Compare all tiles with their neighbours."""
        swapped = self.swapped()
        shifted = {} if swapped else self.shifted()
        odd = {*shifted, *(tile for pair in swapped for tile in pair)}
        overlaps = [self._overlap(axis, odd) for axis in (0, 1) if self.pairs[axis]]
        if any(overlap.better for overlap in overlaps):
            # Where all tiles lie wrong in the same way, none is out of place.
            shifted = {}
        misplaced = [
            MisplacedFigures(row=a[0], column=a[1], swapped=b)
            for pair in swapped
            for a, b in (pair, pair[::-1])
        ]
        for (row, column), (y, x) in shifted.items():
            shift = (y * self.factor * self.spacing[0], x * self.factor * self.spacing[1])
            misplaced.append(MisplacedFigures(row=row, column=column, shift=shift))
        uneven = self.uneven(odd)
        if not any(overlap.better for overlap in overlaps):
            odd |= {(own.row, own.column) for own in uneven}
            misplaced += [MisplacedFigures(row=y, column=x) for y, x in self.lost(odd)]
        return overlaps, misplaced, uneven

    def uneven(self, odd: Collection[Tile]) -> list[UnevenFigures]:
        """Tiles that most of their neighbours, and two at least, find of another brightness.

        Also those without any light where a neighbour saw tissue. Pairs with one of the ``odd``
        tiles, which are out of place, say nothing.
        """
        ratios: dict[tuple[Tile, Tile], float] = {}
        found: dict[Tile, float] = {}
        for pairs in self.pairs:
            seen = {}
            for p in _without(pairs, odd):
                shared = self._common(p.first, p.second, self.coarse)
                sums = [float(part.sum()) for part in shared or ()]
                if sums and min(sums) > 0:
                    seen[p.first, p.second] = float(np.log(sums[0] / sums[1]))
                for tile, other in zip((p.second, p.first), shared or (), strict=False):
                    if not self.coarse[tile].any() and other.mean() > self.tissue:
                        found[tile] = -np.inf
            # Light that falls off over a tile gives all pairs along an axis the same ratio. Of two
            # pairs, one may be wrong.
            order, n = sorted(seen.values()), len(seen)
            usual = min(order[(n - 1) // 2 : n // 2 + 1], key=abs, default=0.0)
            ratios |= {pair: ratio - usual for pair, ratio in seen.items()}
        while True:
            marked: dict[Tile, float] = {}
            for tile, pairs in self.of.items():
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

    def _common(
        self, first: Tile, second: Tile, tiles: Images
    ) -> tuple[npt.NDArray, npt.NDArray] | None:
        """What two tiles share as they are placed; None where that is too little."""
        return _shared(tiles[first], tiles[second], self.starts[second] - self.starts[first])

    def _placed(self, first: Tile, second: Tile, tiles: Images) -> float:
        """Correlation of what two tiles share as they are placed; 0 where that is too little."""
        shared = self._common(first, second, tiles)
        if shared is None:
            return 0.0
        one, other = (part - part.mean() for part in shared)
        norm = float(np.sqrt(np.vdot(one, one) * np.vdot(other, other)))
        return float(np.vdot(one, other)) / norm if norm > 0 else 0.0

    def lost(self, odd: Collection[Tile]) -> list[Tile]:
        """Tiles that correlate with none of their neighbours and differ from most of them.

        These are two at least, without the ``odd`` ones.
        """
        of = {tile: _without(pairs, odd) for tile, pairs in self.of.items()}
        return [
            tile
            for tile, own in of.items()
            if len(own) > 1
            and max(pair.placed for pair in own) < LIKELY
            and sorted(map(self._apart, own))[(len(own) - 1) // 2] > APART
        ]

    def _apart(self, pair: ComparedPair) -> float:
        """Seam of two tiles in even light, less speckle and chance; 0 where neither has tissue."""
        shared = self._common(pair.first, pair.second, self.coarse)
        if shared is None or max(float(part.mean()) for part in shared) <= self.tissue:
            return 0.0
        sums = [float(part.sum()) for part in shared]
        shared = (shared[0], shared[1] * (sums[0] / sums[1] if min(sums) > 0 else 1.0))
        fine = seam(*shared)
        least = seam_without_speckle(*shared, fine) ** 2 - 2 * fine**2 / shared[0].size ** 0.5
        return max(0.0, least) ** 0.5

    def _searched(self, pair: ComparedPair, axis: int) -> ComparedPair:
        """Find the displacement at which two neighbours along an axis correlate best."""
        a, b = (np.moveaxis(self.tiles[t], axis, 0) for t in (pair.first, pair.second))
        most = min(int(self.longest[axis] * REACH), len(a), len(b))
        side = min(a.shape[1], b.shape[1])
        wide = int(side * ASIDE)
        if most < LEAST:
            return pair
        overlaps, sideways = np.arange(LEAST, most + 1), np.arange(-wide, wide + 1)
        by_shift = correlation(a[-most:, :side], b[:most, :side])
        scores = fisher(by_shift[np.ix_(overlaps - most, sideways)])
        # A narrow overlap correlates by chance; only samples some pixels apart are independent.
        samples = overlaps[:, None] * (side - np.abs(sideways)) / 16
        scores -= 0.5 / np.sqrt(samples)
        row, column = np.unravel_index(int(scores.argmax()), scores.shape)
        place = np.array([len(a) - overlaps[row], -sideways[column]])[[axis, 1 - axis]]
        start = self.starts[pair.second] - self.starts[pair.first]
        first, second = self.coarse[pair.first], self.coarse[pair.second]
        if overlaps[row] < WIDE and _shared(first, second, start) is None:
            return pair
        # The filter saw beyond the borders of what both tiles share; that alone is compared fairly.
        fine, best = self._exact(pair, place)
        moved = place - fine - start
        placed = self._exact(pair, start)[1] if np.abs(moved).max() > CLOSE else best
        return replace(pair, placed=placed, best=best, moved=(float(moved[0]), float(moved[1])))

    def _exact(self, pair: ComparedPair, offset: npt.NDArray) -> tuple[Position, float]:
        """Displacement and correlation of what two tiles share, near an offset of the second."""
        shared = _shared(self.coarse[pair.first], self.coarse[pair.second], offset)
        return overlap_shift(*shared, (1, 1)) if shared is not None else ((0.0, 0.0), 0.0)

    def _overlap(self, axis: int, odd: Collection[Tile]) -> OverlapFigures:
        """Find the overlap along an axis on which most pairs agree, without those of odd tiles."""
        pairs, positions, extent = self.pairs[axis], self.positions, self.extent
        unit = self.factor * self.spacing[axis] / extent[axis]
        # Of edges: first voxels of tiles of another size lie otherwise within theirs.
        pitches = [positions[p.second][axis] - positions[p.first][axis] for p in pairs]
        given = 1 - float(np.median(pitches)) / extent[axis]
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
        # Where they share too little as they are placed, most of all pairs must say the same.
        alone = most and len(own) >= 0.75 * min(len(pairs), SEARCHED)
        known = alone if placed == 0 else len(own) > 2 or placed > 0
        found.better = known and abs(middle) > FAR and gain(placed, best) >= clear
        # Far from the given one and hardly better, it is what speckle makes of the given one.
        if found.better or abs(middle) <= FAR:
            found.found = round(given - middle * unit, 3)
        found.certain = found.better and most and best >= SURE and placed < best / 2
        return found

    def swapped(self) -> list[tuple[Tile, Tile]]:
        """Pairs of tiles that fit in each other's place, and not in their own."""
        tiles = dict(self.tiles)
        fit = {t: np.median([p.placed for p in own]) for t, own in self.of.items() if own}
        tried = sorted((t for t in fit if fit[t] < SURE), key=lambda t: fit[t])[:MOST_TRIED]
        found: list[tuple[Tile, Tile]] = []
        while True:
            gains: list[tuple[float, Tile, Tile]] = []
            for one, other in combinations(tried, 2):
                changed = {**tiles, one: tiles[other], other: tiles[one]}
                both = {(p.first, p.second) for p in self.of[one] + self.of[other]}
                before, after = (
                    float(np.median([self._placed(*pair, images) for pair in both]))
                    for images in (tiles, changed)
                )
                if len(both) > 1 and after >= SURE and gain(before, after) >= 2 * CLEAR:
                    gains.append((gain(before, after), one, other))
            if not gains:
                return found
            _, one, other = max(gains)
            tiles[one], tiles[other] = tiles[other], tiles[one]
            tried = [tile for tile in tried if tile not in (one, other)]
            found.append((one, other))

    def shifted(self) -> dict[Tile, Position]:
        """Coarse pixels (y, x) by which most of a tile's neighbours, and two at least, move it."""
        found: dict[Tile, Position] = {}
        while True:
            moved: dict[Tile, tuple[int, Position]] = {}
            for tile, pairs in self.of.items():
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
