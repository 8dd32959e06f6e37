"""Ratios of what neighbouring tiles show of the same tissue, and the light that explains them.

Where two tiles overlap, the ratio of their values is one of how they were imaged: of the flat
field at two places of a tile, and of the tiles' gains.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.polynomial.legendre import legvander2d

from octane.compare.correlation import coarse
from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections, overlap

HIGHEST = 6
"""Order of the polynomial in y and x that models the logarithm of a flat field."""
ORDER = np.add.outer(np.arange(HIGHEST + 1), np.arange(HIGHEST + 1))
TERMS = (ORDER > 0) & (ORDER <= HIGHEST)
EXPECTED = np.where(ORDER <= 2, 0.3, 0.02 * 0.5 ** (ORDER - 3.0))[TERMS]
"""Expected size of its coefficients: the fall-off of light is mostly quadratic."""
TILTS = [
    int(np.flatnonzero(np.argwhere(TERMS)[:, axis] * (ORDER[TERMS] == 1))[0]) for axis in (0, 1)
]
"""Terms that are linear in y and in x."""
EXPECTED_GAIN = 0.3
"""Expected size of the logarithm of a gain."""
CELLS = 32
"""Maximum number of compared blocks along a tile."""
SMALL_BLOCK = 4
"""Edge of a block in small tiles, pixels: a mean has less speckle."""
ACROSS = 6
"""Minimum number of blocks across an overlap."""
APART = 8
"""Least edge of the squares of blocks that belong to one half, pixels: interpolated speckle reaches
two pixels."""
DIM = 0.1
"""Brightness relative to bright tissue below which a block counts less: it may not be tissue."""
OUTLIER = 3.0
"""Standard deviations at which Tukey's biweight rejects a ratio: if tiles are slightly misplaced,
many are wrong."""
SUBTLE = 0.01
"""Minimum error of a ratio, such as that of interpolation."""
ALIKE = 3.0
"""Errors of the fit relative to those of independent blocks: neighbouring blocks share errors if
tiles are slightly misplaced."""
ROUNDS = 30
"""Maximum iterations of the fit."""
STEADY = 1e-4
"""Change of the coefficients below which the fit ends."""

Values = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]
"""Groups of tiles that overlaps connect: one number for the tiles of each."""


class ComparedBlocks(NamedTuple):
    """Blocks of pixels that two tiles saw.

    ``one`` and ``other`` are the tiles' means above the grey level without light, (n,);
    ``difference`` is that of the flat field's terms, (n, terms), and ``half`` is 0 or 1.
    """

    first: Tile
    second: Tile
    one: Values
    other: Values
    difference: Values
    half: npt.NDArray[np.int64]

    @property
    def ratio(self) -> Values:
        """Logarithms of the blocks' ratios."""
        return np.log(self.one / self.other)

    def part(self, kept: npt.NDArray[np.bool_]) -> "ComparedBlocks":
        """Some of the blocks."""
        shown = self.one[kept], self.other[kept]
        return ComparedBlocks(
            self.first, self.second, *shown, self.difference[kept], self.half[kept]
        )


class Fit(NamedTuple):
    """Coefficients of a flat field's terms, and logarithms of the tiles' gains."""

    coefficients: Values
    gains: Mapping[Tile, float]

    def residues(self, blocks: ComparedBlocks) -> Values:
        """What the fit leaves of the blocks' ratios."""
        apart = self.gains.get(blocks.first, 0.0) - self.gains.get(blocks.second, 0.0)
        return blocks.ratio - blocks.difference @ self.coefficients - apart


def compare_blocks(
    projections: Projections,
    placement: TilePlacement,
    pairs: Iterable[tuple[Tile, Tile]],
    shape: tuple[int, int],
    dark: float,
) -> list[ComparedBlocks]:
    """Compare blocks of pixels that two tiles saw, in tiles of at most ``shape``."""
    places = placement.places
    size = max(SMALL_BLOCK, max(shape) // CELLS)
    compared: list[ComparedBlocks] = []
    for pair in pairs:
        images = overlap(placement, projections, *pair)
        if images is None:
            continue
        # The change of the ratio across an overlap shows the curvature of the flat field.
        edge = max(1, min(size, min(images[0].shape) // ACROSS))
        means = [coarse(image, edge).astype(np.float64) for image in images]
        lit = np.all([np.isfinite(m) & (m > dark) for m in means], axis=0)
        if not lit.any():
            continue
        corner = [max(a.first, b.first) for a, b in zip(*(places[t] for t in pair), strict=True)]
        blocks = np.nonzero(lit)
        at = [start + (k + 0.5) * edge for start, k in zip(corner, blocks, strict=True)]
        first, second = (
            legvander2d(
                *(
                    2 * (v - place.shift) / n - 1
                    for v, place, n in zip(at, places[t], shape, strict=True)
                ),
                (HIGHEST, HIGHEST),
            )[:, TERMS.ravel()]
            for t in pair
        )
        square = -(-APART // edge)
        half = np.add(*(k // square for k in blocks)) % 2
        shown = (means[0][lit] - dark, means[1][lit] - dark)
        compared.append(ComparedBlocks(*pair, *shown, first - second, half))
    return compared


def fit_light(pairs: Sequence[ComparedBlocks], tiles: Sequence[Tile] = ()) -> Fit:
    """Fit a flat field, and gains of ``tiles``, to ratios by robust least squares.

    The noise of the ratios, estimated from the residuals, weighs them against the expected sizes.
    The logarithms of the gains add up to 0 in each group of tiles that overlaps connect.
    """
    a, b, difference = (np.concatenate([pair[k] for pair in pairs]) for k in (2, 3, 4))
    dim = DIM * np.percentile(np.concatenate([a, b]), 95)
    trust = 1 / (1 + (dim / a) ** 2 + (dim / b) ** 2)
    ratio = np.log(a / b)
    coefficients, gains = np.zeros(len(EXPECTED)), np.zeros(len(tiles))
    graph = _Graph(pairs, tiles) if tiles else None
    # A tile far brighter than the others is no outlier.
    apart = graph.medians(ratio) if graph else 0.0
    for _ in range(ROUNDS):
        left = np.abs(ratio - difference @ coefficients - apart) * np.sqrt(trust)
        noise = SUBTLE + 1.4826 * float(np.median(left))
        fits = np.clip(1 - (left / (OUTLIER * noise)) ** 2, 0, None) ** 2
        weights = trust * fits
        weighted = difference * weights[:, None]
        normal = weighted.T @ difference + np.diag(np.square(ALIKE * noise / EXPECTED))
        right, before = weighted.T @ ratio, np.concatenate([coefficients, gains])
        if graph:
            sums = graph.sums(np.column_stack([weights, weighted, weights * ratio]))
            least = (ALIKE * noise / EXPECTED_GAIN) ** 2
            coefficients, gains = graph.solve(normal, right, sums, least)
            apart = graph.apart(gains)
        else:
            coefficients = np.linalg.solve(normal, right)
        change = np.abs(np.concatenate([coefficients, gains]) - before)
        if change.max() < STEADY:
            break
    return Fit(coefficients, dict(zip(tiles, map(float, gains), strict=True)))


def groups(pairs: Sequence[ComparedBlocks], tiles: Sequence[Tile]) -> Groups:
    """Groups of ``tiles`` that pairs connect."""
    at = {tile: k for k, tile in enumerate(tiles)}
    group = np.arange(len(tiles))
    for pair in pairs:
        one, other = group[at[pair.first]], group[at[pair.second]]
        group[group == other] = one
    return group


class _Graph:
    """Tiles and the pairs of them that were compared."""

    def __init__(self, pairs: Sequence[ComparedBlocks], tiles: Sequence[Tile]) -> None:
        at = {tile: k for k, tile in enumerate(tiles)}
        self._first = np.array([at[pair.first] for pair in pairs])
        self._second = np.array([at[pair.second] for pair in pairs])
        self._counts = np.array([len(pair.one) for pair in pairs])
        self._starts = np.cumsum(self._counts) - self._counts
        self._tiles = len(tiles)

    def medians(self, values: Values) -> Values:
        """Median of each pair, at each of its blocks."""
        parts = np.split(values, self._starts[1:])
        return np.repeat([float(np.median(part)) for part in parts], self._counts)

    def sums(self, values: Values) -> Values:
        """Sum of each pair's blocks."""
        return np.add.reduceat(values, self._starts, axis=0)

    def apart(self, gains: Values) -> Values:
        """Difference of the logarithms of two tiles' gains, at each block."""
        return np.repeat(gains[self._first] - gains[self._second], self._counts)

    def solve(
        self, normal: Values, right: Values, sums: Values, least: float
    ) -> tuple[Values, Values]:
        """Solve the equations of a flat field and those of the gains at once.

        ``sums`` of each pair are those of the weights, of the weighted terms, and of the weighted
        ratios; ``least`` is added to the weight of each gain.
        """
        ends = np.concatenate([self._first, self._second])
        matrix = least * np.eye(self._tiles)
        np.add.at(matrix, (ends, ends), np.tile(sums[:, 0], 2))
        np.add.at(matrix, (ends, np.roll(ends, len(self._first))), -np.tile(sums[:, 0], 2))
        mixed = np.zeros((self._tiles, sums.shape[1] - 1))
        np.add.at(mixed, ends, np.concatenate([sums[:, 1:], -sums[:, 1:]]))
        # The gains are eliminated, and the flat field is what remains.
        solved = np.linalg.solve(matrix, mixed)
        terms = mixed[:, :-1].T
        coefficients = np.linalg.solve(
            normal - terms @ solved[:, :-1], right - terms @ solved[:, -1]
        )
        return coefficients, solved[:, -1] - solved[:, :-1] @ coefficients
