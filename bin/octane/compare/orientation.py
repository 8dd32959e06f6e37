"""Orientation of a section's grid: whether rows, columns or both run against the images.

The best displacement of neighbours is measured under all eight orientations; only under the right
one do most of them agree.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from octane.compare.comparison import (
    CLEAR_ADVANTAGE,
    ERROR_PIXELS,
    LIKELY_CORRELATION,
    SURE_CORRELATION,
    CoarseTiles,
    Images,
    compare_tiles,
    gain,
)
from octane.core.records import OverlapFigures
from octane.layout.mosaic import Position, Tile

Number = TypeVar("Number", int, float)

FIRST_OVERLAP = 0.1
"""Overlap from which the search starts, fraction of a tile; it also finds much larger ones."""
AGREEING_FRACTION = 0.5
"""Fraction of neighbours that must agree."""
LEAST_PAIRS = 3
"""Fewest agreeing pairs that prove an orientation: one or two agree by chance where tiles show
little."""
ENOUGH_AS_GIVEN = 5
"""Pairs that agree as given, if most do, so that no other orientation is tried: fewer agree by
chance on another overlap."""
PATTERN_CORRELATION = 0.2
"""Correlation of tiles pixel by pixel above which they show a pattern that draws any place."""
RESULT_DECIMALS = 4
"""Decimals of results, without which the same pairs in another order would differ."""


class Orientation(NamedTuple):
    """Changes of a grid, in this order: rows and columns exchanged, then flipped axes."""

    transpose: bool = False
    flip: str = ""

    def of(self, place: tuple[Number, Number]) -> tuple[Number, Number]:
        """Row and column, or place in y and x, after the changes; negative along a flipped axis."""
        y, x = reversed(place) if self.transpose else place
        return (-y if "y" in self.flip else y, -x if "x" in self.flip else x)

    @property
    def said(self) -> str:
        """The changes in words."""
        words = ["rows and columns are exchanged"] * self.transpose
        words += [f"{' and '.join(self.flip)} run the other way"] * bool(self.flip)
        return ", and then ".join(words)

    def instead(self, overlaps: Sequence[OverlapFigures]) -> list[OverlapFigures]:
        """Overlaps of tiles that fit after the changes; what was found as placed is by chance."""
        return [
            OverlapFigures(axis=overlap.axis, given=overlap.given, turned=self.said)
            if self.transpose or overlap.axis in self.flip
            else overlap
            for overlap in overlaps
        ]


ORIENTATIONS = [Orientation(*changes) for changes in product((False, True), ("", "y", "x", "yx"))]


class Neighbour(NamedTuple):
    """Two neighbouring tiles; ``apart`` is the second's place relative to the first, pixels."""

    first: Tile
    second: Tile
    apart: Position


class Fit(NamedTuple):
    """How well neighbours fit under one orientation.

    ``agreeing`` is the fraction of compared neighbours that correlate at the same displacement,
    along the axis where it is lower, -1 if none could be compared; ``pairs`` is the number of those
    that agree along both axes, and ``best`` their median correlation. Along y and along x,
    ``overlap`` is what they share and ``further`` by how much they lie further apart than placed,
    as fractions of a tile, None along an axis where no neighbours fit. ``neighbours`` are those
    that agree, with the second's place relative to the first, in pixels.
    """

    agreeing: float = -1.0
    pairs: int = 0
    best: float = 0.0
    overlap: tuple[float | None, float | None] = (None, None)
    further: tuple[float | None, float | None] = (None, None)
    neighbours: tuple[tuple[Neighbour, ...], tuple[Neighbour, ...]] = ((), ())


class FoundOrientation(NamedTuple):
    """Orientation under which most neighbours fit, how well, and which fraction fits as given.

    ``rival`` is the highest correlation of neighbours under another orientation, under which more
    than half as many agree, 0 without one; ``alike`` is that of tiles pixel by pixel, which only
    dust, fringes or frames that all of them show raise.
    """

    best: Orientation
    fit: Fit
    as_given: float
    rival: float = 0.0
    alike: float = 0.0

    @property
    def overlap(self) -> tuple[float | None, float | None]:
        """Fraction of a tile that neighbours share in y and x; None where none fit."""
        return self.fit.overlap

    @property
    def is_clear(self) -> bool:
        """True if most neighbours fit."""
        return self.fit.agreeing >= AGREEING_FRACTION

    @property
    def is_other(self) -> bool:
        """True if most neighbours fit only after changes, or clearly better."""
        fewer = self.as_given <= self.fit.agreeing / 2
        better = gain(self.rival, self.fit.best) >= 2 * CLEAR_ADVANTAGE
        return self.is_clear and self.best != Orientation() and (fewer or better)

    @property
    def is_certain(self) -> bool:
        """True if so many fit so well, and not under another orientation, that it is no chance."""
        alone = gain(self.rival, self.fit.best) >= CLEAR_ADVANTAGE
        return self.is_several and alone and self.fit.best >= SURE_CORRELATION

    @property
    def is_proof(self) -> bool:
        """True if it is certain, and no pattern that all tiles show."""
        return self.is_certain and not self.has_pattern

    @property
    def has_pattern(self) -> bool:
        """True if all tiles show a pattern that does not move with the stage."""
        return self.alike > PATTERN_CORRELATION

    @property
    def is_several(self) -> bool:
        """True if several neighbours fit, and more than half of those along each axis."""
        return self.fit.pairs >= LEAST_PAIRS and self.fit.agreeing > AGREEING_FRACTION


def find_orientation(
    tiles: Images,
    places: Mapping[Tile, Position] | None = None,
    spacing: Position = (1.0, 1.0),
) -> FoundOrientation | None:
    """Compare neighbouring tiles under all orientations; None if they cannot be as given.

    ``tiles`` are images (y, x), such as means over depth, by row and column. ``places`` in y and x
    are in micrometres, like the ``spacing`` of the images' pixels; without them, tiles lie on a
    regular grid. If most pairs, and ``ENOUGH_AS_GIVEN``, fit as given, no other is tried.
    """
    given = Orientation()
    fits = {given: _fit(tiles, given, places, spacing)}
    as_given = fits[given].agreeing
    if as_given < 0:
        return None
    if as_given <= AGREEING_FRACTION or fits[given].pairs < ENOUGH_AS_GIVEN:
        fits |= {other: _fit(tiles, other, places, spacing) for other in ORIENTATIONS[1:]}
    best = max(fits, key=lambda orientation: (fits[orientation].agreeing, fits[orientation].best))
    # Along a single row or column, some orientations are the same.
    half = fits[best].agreeing / 2
    rivals = [fit.best for fit in fits.values() if fit != fits[best] and fit.agreeing > half]
    return FoundOrientation(best, fits[best], as_given, max(rivals, default=0.0), likeness(tiles))


def likeness(tiles: Images) -> float:
    """Mean correlation, pixel by pixel, of tiles side by side or across a corner.

    Only patterns that do not move with the stage raise it.
    """
    still = CoarseTiles.of(tiles, dict.fromkeys(tiles, (0.0, 0.0)))
    correlations = [
        still.correlation((row, column), other, still.structure)
        for row, column in still.structure
        for other in ((row, column + 1), *((row + 1, column + aside) for aside in (-1, 0, 1)))
        if other in still.structure
    ]
    return round(float(np.mean(correlations)), RESULT_DECIMALS) if correlations else 0.0


def _fit(
    tiles: Images,
    orientation: Orientation,
    places: Mapping[Tile, Position] | None,
    spacing: Position,
) -> Fit:
    """Compare neighbours under one orientation."""
    named = {orientation.of(tile): tile for tile in tiles}
    images = {label: tiles[tile] for label, tile in named.items()}
    size = np.max([image.shape for image in tiles.values()], axis=0)
    if places:
        given = {label: orientation.of(places[tile]) for label, tile in named.items()}
        starts = {label: (y / spacing[0], x / spacing[1]) for label, (y, x) in given.items()}
    else:
        pitch = size * (1 - FIRST_OVERLAP)
        starts = {(row, column): (row * pitch[0], column * pitch[1]) for row, column in images}
    coarse = CoarseTiles.of(images, starts)
    shares: list[float] = []
    best: list[float] = []
    overlaps: list[float | None] = [None, None]
    further: list[float | None] = [None, None]
    near: list[tuple[Neighbour, ...]] = [(), ()]
    for axis, pairs in enumerate(compare_tiles(coarse)):
        moves = [(pair, pair.moved) for pair in pairs if pair.moved is not None]
        if not moves:
            continue
        usual = np.median([move for _, move in moves], axis=0)
        agree = [
            (pair, coarse.offset(pair.first, pair.second) + move, move[axis])
            for pair, move in moves
            if pair.best >= LIKELY_CORRELATION and np.abs(move - usual).max() <= ERROR_PIXELS
        ]
        shares.append(len(agree) / len(moves))
        if agree:
            best += [pair.best for pair, *_ in agree]
            unit = coarse.factor / float(size[axis])
            apart = np.median([place[axis] for _, place, _ in agree])
            overlaps[axis] = round(1 - float(apart) * unit, RESULT_DECIMALS)
            further[axis] = round(
                float(np.median([move for *_, move in agree])) * unit, RESULT_DECIMALS
            )
            near[axis] = tuple(
                Neighbour(
                    named[pair.first], named[pair.second], _scale_position(place, coarse.factor)
                )
                for pair, place, _ in agree
            )
    typical = round(float(np.median(best)), RESULT_DECIMALS) if best else 0.0
    along = (overlaps[0], overlaps[1]), (further[0], further[1]), (near[0], near[1])
    return Fit(min(shares, default=-1.0), len(best), typical, *along)


def _scale_position(place: npt.NDArray[np.float64], factor: int) -> Position:
    y, x = (factor * place).tolist()
    return y, x
