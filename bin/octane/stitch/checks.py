"""Checks of a section: tiles must correlate with their neighbours where they are placed.

Tiles are compared coarse and band-passed, so that the checks cost little and see neither speckle
nor shading. Correlations are compared as Fisher's z, whose spread is the same for low and high
ones. One pair of tiles proves nothing: a finding needs several that agree.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from octane.stitch.blending import seam
from octane.stitch.registration import band_passed, correlation, neighbours, overlap_shift
from octane.store.mosaic_grid import Position, Tile

EDGE = 96
"""Longest edge of a tile as it is compared, pixels."""
REACH, ASIDE = 0.65, 0.3
"""Largest overlap and displacement sideways that are looked for, fractions of a tile."""
LEAST = 4
"""Narrowest overlap that is compared, pixels: less correlates by chance."""
SEARCHED = 12
"""Pairs with most structure along an axis, which are searched for a better displacement; of the
others, as many of those that do not correlate as they are placed."""
CLOSE = 1.5
"""Pixels within which displacements agree: those of good phantoms are wrong by up to one."""
LIKELY, SURE = 0.4, 0.6
"""Correlation of tiles that fit if others agree, and of those that certainly do: chance gives up to
0.5 in a narrow overlap."""
CLEAR = 0.3
"""Advantage in Fisher's z: in good phantoms, no pair fits elsewhere by more than 0.2 better."""
BLOCK = 4
"""Edge in pixels of the blocks by which speckle is told from a mismatch."""
MOST_TRIED = 10
"""Tiles that are tried in each other's place, those that fit worst."""

Images = Mapping[Tile, npt.NDArray[np.float32]]


def fisher(correlations: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Fisher's z of correlations."""
    return np.arctanh(np.clip(correlations, -0.999, 0.999))


def coarse(image: npt.NDArray, factor: int) -> npt.NDArray:
    """Mean of every ``factor`` x ``factor`` pixels; those beyond the last whole block are left."""
    rows, columns = (n // factor for n in image.shape)
    whole = image[: rows * factor, : columns * factor]
    return whole.reshape(rows, factor, columns, factor).mean(axis=(1, 3))


def seam_without_speckle(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of two tiles where both saw the same, less what differs from pixel to pixel.

    The mean of a block of pixels keeps a mismatch of structure or brightness, and of the variance
    of speckle one part in as many as it has pixels.
    """
    fine = seam(first, second) ** 2
    blocks = seam(coarse(first, BLOCK), coarse(second, BLOCK)) ** 2
    return float(np.sqrt(max(0.0, (BLOCK**2 * blocks - fine) / (BLOCK**2 - 1))))


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
class Pair:
    """Two neighbours along an axis, compared.

    ``placed`` is their correlation as placed; ``best`` the highest one, where ``second`` is moved
    by ``moved`` (y, x) coarse pixels. ``moved`` is None where no other place was looked for.
    """

    first: Tile
    second: Tile
    axis: int
    structure: float
    placed: float
    best: float = 0.0
    moved: tuple[float, float] | None = None

    @property
    def elsewhere(self) -> bool:
        """True where both fit clearly better at another displacement."""
        return (
            self.moved is not None
            and max(map(abs, self.moved)) > CLOSE
            and self.best >= SURE
            and bool(fisher(self.best) - fisher(self.placed) >= CLEAR)
        )


@dataclass(frozen=True)
class FoundOverlap:
    """Overlap at which the neighbours along an axis correlate.

    ``moved`` are voxels by which each tile must move away from the one before it, ``better`` says
    that it then fits clearly better, ``certain`` that most do not fit as they are placed.
    """

    moved: float
    pairs: int
    better: bool
    certain: bool


class Neighbours:
    """Neighbouring tiles of a section, compared.

    Parameters
    ----------
    tiles
        Mean over depth of each tile, (y, x).
    starts
        Index of each tile's first voxel in the section, (y, x); need not be whole.
    """

    def __init__(self, tiles: Images, starts: Mapping[Tile, Position]) -> None:
        longest = np.max([tile.shape for tile in tiles.values()], axis=0)
        self.factor = max(1, -(-int(longest.max()) // EDGE))
        self.longest = longest // self.factor
        self.coarse = {tile: coarse(image, self.factor) for tile, image in tiles.items()}
        self.tiles: dict[Tile, npt.NDArray[np.float32]] = {
            tile: band_passed(image).astype(np.float32) for tile, image in self.coarse.items()
        }
        self.starts = {tile: np.asarray(starts[tile]) / self.factor for tile in tiles}
        self.pairs: list[Pair] = []
        for axis in (0, 1):
            found = [
                Pair(a, b, axis, self._structure(a, b), self._placed(a, b, self.tiles))
                for a, b in neighbours(list(tiles))
                if b[axis] > a[axis]
            ]
            found.sort(key=lambda pair: -pair.structure)
            doubtful = [k for k, p in enumerate(found) if k >= SEARCHED and p.placed < SURE]
            for k in (*range(min(SEARCHED, len(found))), *doubtful[:SEARCHED]):
                found[k] = self._searched(found[k])
            self.pairs += found

    def _structure(self, *tiles: Tile) -> float:
        return min(float(self.tiles[tile].std()) for tile in tiles)

    def _placed(self, first: Tile, second: Tile, tiles: Images) -> float:
        """Correlation of what two tiles share as they are placed; 0 where that is too little."""
        shared = _shared(tiles[first], tiles[second], self.starts[second] - self.starts[first])
        if shared is None:
            return 0.0
        one, other = (part - part.mean() for part in shared)
        norm = float(np.sqrt((one**2).sum() * (other**2).sum()))
        return float((one * other).sum()) / norm if norm > 0 else 0.0

    def _searched(self, pair: Pair) -> Pair:
        """Find the displacement at which a pair correlates best."""
        across = 1 - pair.axis
        a, b = (np.moveaxis(self.tiles[t], pair.axis, 0) for t in (pair.first, pair.second))
        most = min(int(self.longest[pair.axis] * REACH), len(a), len(b))
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
        place = np.array([len(a) - overlaps[row], -sideways[column]])[[pair.axis, across]]
        best = float(by_shift[overlaps[row] - most, sideways[column]])
        # The filter sees the borders of whole tiles; what both share alone gives the exact place.
        shared = _shared(self.coarse[pair.first], self.coarse[pair.second], place)
        fine = overlap_shift(*shared, (2, 2))[0] if shared is not None else (0.0, 0.0)
        y, x = place - fine - (self.starts[pair.second] - self.starts[pair.first])
        return replace(pair, best=best, moved=(float(y), float(x)))

    def overlap(self, axis: int, without: Collection[Tile] = ()) -> FoundOverlap | None:
        """Find the overlap along an axis on which most pairs agree; None without such.

        Pairs of the tiles ``without`` are left out.
        """
        pairs = [p for p in self.pairs if p.axis == axis and not {p.first, p.second} & {*without}]
        own = [p for p in pairs if p.moved is not None and p.best >= LIKELY]
        if len(own) < 3:
            own = [p for p in own if p.best >= SURE]
        if len(own) < 2:
            return None
        moves = np.array([p.moved[axis] for p in own if p.moved is not None])
        middle = float(np.median(moves))
        agree = float((np.abs(moves - middle) <= CLOSE).mean())
        if agree <= 0.5:
            return None
        best, placed = (float(np.median([getattr(p, k) for p in own])) for k in ("best", "placed"))
        better = abs(middle) > CLOSE and bool(fisher(best) - fisher(placed) >= CLEAR)
        certain = better and len(own) >= 4 and agree >= 0.75 and placed < best / 2
        return FoundOverlap(middle * self.factor, len(own), better, certain and best >= SURE)

    def swapped(self) -> list[tuple[Tile, Tile]]:
        """Pairs of tiles that fit in each other's place, and not in their own."""
        tiles = dict(self.tiles)
        of = {t: [p for p in self.pairs if t in (p.first, p.second)] for t in tiles}
        fit = {t: float(np.median([p.placed for p in own])) for t, own in of.items() if own}
        tried = sorted((t for t in fit if fit[t] < SURE), key=lambda t: fit[t])[:MOST_TRIED]
        found: list[tuple[Tile, Tile]] = []
        while True:
            gains: list[tuple[float, Tile, Tile]] = []
            for one, other in combinations(tried, 2):
                changed = {**tiles, one: tiles[other], other: tiles[one]}
                both = {(p.first, p.second) for p in of[one] + of[other]}
                before, after = (
                    float(np.median([self._placed(*pair, images) for pair in both]))
                    for images in (tiles, changed)
                )
                gain = float(fisher(after) - fisher(before))
                if len(both) > 1 and after >= SURE and gain >= 2 * CLEAR:
                    gains.append((gain, one, other))
            if not gains:
                return found
            _, one, other = max(gains)
            tiles[one], tiles[other] = tiles[other], tiles[one]
            tried = [tile for tile in tried if tile not in (one, other)]
            found.append((one, other))

    def shifted(self) -> dict[Tile, Position]:
        """Voxels (y, x) by which most of a tile's neighbours, and at least two, would move it."""
        left = list(self.pairs)
        found: dict[Tile, Position] = {}
        while True:
            votes: dict[Tile, tuple[int, Position]] = {}
            for tile in self.tiles:
                own = [p for p in left if tile in (p.first, p.second)]
                moves = [
                    np.multiply(p.moved, 1 if p.second == tile else -1)
                    for p in own
                    if p.elsewhere and p.moved is not None
                ]
                if len(moves) < 2:
                    continue
                y, x = np.median(moves, axis=0)
                agree = sum(np.abs(move - (y, x)).max() <= CLOSE for move in moves)
                known = sum(p.elsewhere or p.placed >= SURE for p in own)
                if agree >= 2 and 2 * agree > known and max(abs(y), abs(x)) > CLOSE:
                    votes[tile] = (int(agree), (float(y * self.factor), float(x * self.factor)))
            if not votes:
                return found
            worst = max(votes, key=lambda tile: votes[tile][0])
            found[worst] = votes[worst][1]
            left = [p for p in left if worst not in (p.first, p.second)]
