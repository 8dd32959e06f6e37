"""Gains of a section's tiles: how bright each is, where a laser drifts or a sample bleaches.

The gain of a tile is in all ratios to its neighbours, the flat field in all ratios along an axis,
so both are fitted at once. Overlaps leave one thing open: gains that rise by the same factor from
column to column look like a flat field that is tilted along x. Such a trend counts as one of the
gains if gains that differ as these do show it by chance, or if no flat field is applied; otherwise
it is the flat field's.

What is fitted to one half of each overlap's blocks must fit the other half as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from octane.compare.correlation import neighbours
from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.exposure import DIM
from octane.processes.stitch.flat_field import compare_sample, full_shape
from octane.processes.stitch.ratios import (
    ALIKE,
    EXPECTED,
    TILTS,
    ComparedBlocks,
    Fit,
    Groups,
    Values,
    compare_blocks,
    fit_light,
    groups,
)
from octane.processes.stitch.record import HeldOutFigures

CHANCE = 2.0
"""Standard deviations beyond which a trend of gains is not one by chance."""

Gains = Mapping[Tile, float]
"""Brightness of tiles relative to their geometric mean; voxels are divided by it."""
Halves = tuple[Sequence[ComparedBlocks], Sequence[ComparedBlocks]]
"""Two halves of the blocks that tiles share."""


@dataclass(frozen=True)
class MeasuredGains:
    """Gains of the tiles whose overlaps show them; their geometric mean is 1.

    ``held_out`` compares a fit of a flat field and gains with one of a flat field alone.
    """

    gains: Gains
    held_out: HeldOutFigures


def measure_gains(
    projections: Projections,
    placement: TilePlacement,
    odd: Collection[Tile] = (),
    *,
    dark: float = 0.0,
    with_flat_field: bool = False,
) -> MeasuredGains | None:
    """Measure the gains of a section's tiles in their overlaps.

    ``projections`` are the tiles' means over depth, ``dark`` is the grey level without light, and
    ``odd`` tiles, whose brightness or place is wrong, are left out. ``with_flat_field`` if a flat
    field will be estimated of tiles without these gains. Returns None if no overlap shows light.
    """
    pairs = [pair for pair in neighbours([*placement.places]) if not {*pair} & {*odd}]
    shape = full_shape(projections)
    halves = _halves(compare_blocks(projections, placement, pairs, shape, dark))
    if not all(halves):
        return None
    tiles = sorted({tile for pair in halves[0] for tile in pair[:2]})
    fits = [fit_light(half, tiles) for half in halves]
    held_out = _held_out_seams(halves, [fit_light(half) for half in halves], fits)
    logs = np.mean([[*fit.gains.values()] for fit in fits], axis=0)
    places = np.array([[pair.shift for pair in placement.places[tile]] for tile in tiles])
    group = groups(halves[0], tiles)
    # As a flat field's terms have them.
    at = _centre(2 * places / shape, group)
    # Without a tilt of the flat field.
    logs = logs - at @ np.mean([fit.coefficients[TILTS] for fit in fits], axis=0)
    if with_flat_field:
        logs = logs - at @ _trend(logs, at, group)
    gains = {tile: exp(log) for tile, log in zip(tiles, logs, strict=True)}
    return MeasuredGains(gains, held_out)


def _centre(values: Values, group: Groups) -> Values:
    """Values (tiles, n) relative to their means in each group of tiles."""
    sums = np.zeros((len(group), values.shape[1]))
    np.add.at(sums, group, values)
    return values - (sums / np.maximum(np.bincount(group, minlength=len(group)), 1)[:, None])[group]


def _trend(logs: Values, at: Values, group: Groups) -> Values:
    """Slopes (y, x) of logarithms of gains that are too large for chance; others are 0.

    Both arguments are relative to their means in each ``group`` of tiles.
    """
    slopes = np.linalg.lstsq(at, logs, rcond=None)[0]
    free = max(1, len(logs) - len(np.unique(group)) - 2)
    spread = sqrt(float(np.sum((logs - at @ slopes) ** 2)) / free)
    reach = np.sqrt(np.sum(at**2, axis=0))
    return np.where(np.abs(slopes) * reach > CHANCE * spread, slopes, 0.0)


def judge_flat_field(
    projections: Projections, placement: TilePlacement, *, dark: float = 0.0
) -> HeldOutFigures | None:
    """Judge whether a flat field of a section lowers seams that it was not fitted to.

    Arguments are as for :func:`measure_gains`. Returns None if no overlap shows light.
    """
    halves = _halves(compare_sample(projections, placement, dark))
    if not all(halves):
        return None
    none = Fit(np.zeros(len(EXPECTED)), {})
    return _held_out_seams(halves, [none, none], [fit_light(half) for half in halves])


def equalise_brightness(projections: Projections, gains: Gains, dark: float) -> Projections:
    """Projections of tiles as if all had the same gain; ``dark`` is the grey level without it."""
    return {
        tile: dark + (image - dark) / np.float32(gains[tile]) if tile in gains else image
        for tile, image in projections.items()
    }


def _halves(pairs: Sequence[ComparedBlocks]) -> Halves:
    """Both halves of the lit blocks of those pairs that have some in each."""
    shown = [values for pair in pairs for values in (pair.one, pair.other)]
    dim = DIM * float(np.percentile(np.concatenate(shown), 95)) if shown else 0.0
    lit = [pair.part(np.minimum(pair.one, pair.other) > dim) for pair in pairs]
    kept = [pair for pair in lit if {*pair.half} == {0, 1}]
    first, second = ([pair.part(pair.half == k) for pair in kept] for k in (0, 1))
    return first, second


def _held_out_seams(halves: Halves, before: Sequence[Fit], after: Sequence[Fit]) -> HeldOutFigures:
    """Seams of each half, with the fits to the other one.

    A seam is the root mean square of what is left of the logarithms of ratios, which includes
    speckle. ``noise`` is the standard error of the difference, whose errors neighbouring blocks,
    and so both halves, share where tiles are slightly misplaced.
    """
    rows: list[tuple[float, float, float]] = []
    for half, old, new in zip(halves, before[::-1], after[::-1], strict=True):
        squares = [(old.residues(pair) ** 2, new.residues(pair) ** 2) for pair in half]
        means = np.mean([[pair.mean() for pair in both] for both in squares], axis=0)
        errors = [np.var(a - b) / max(1, len(a) - 1) for a, b in squares]
        one, other = (sqrt(float(mean)) for mean in means)
        error = ALIKE * sqrt(float(np.sum(errors))) / len(errors)
        rows.append((one, other, error / (one + other) if one + other > 0 else 0.0))
    first, second = rows
    return HeldOutFigures(
        before=(first[0], second[0]), after=(first[1], second[1]), noise=(first[2], second[2])
    )
