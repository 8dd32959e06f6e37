"""Plans of the levels of a pyramid."""

from __future__ import annotations

from itertools import pairwise

from octane.core.geometry import Grid
from octane.layout.levels import level_grids
from octane.resample.operator import AxisOperator, resampled, resampler


def plan_levels(
    grid: Grid, resolutions: tuple[float, ...] | None, *, averaged: bool = True
) -> list[tuple[Grid, list[AxisOperator]]]:
    """Grid of each level, and the operators that compute it from the previous level.

    Arguments and errors are those of :func:`octane.layout.levels.level_grids`. Without ``averaged``
    they take the nearest voxel of ``grid``: from level to level, what is half a voxel off would
    add up.
    """
    levels = level_grids(grid, resolutions)
    planned = [
        (level, resampled(grid, level.spacing, averaged=averaged)[1]) for level in levels[:1]
    ]
    for previous, level in pairwise(levels):
        before = previous if averaged else grid
        axes = zip(before.shape, before.spacing, level.spacing, level.shape, strict=True)
        planned.append((level, [resampler(*axis, averaged=averaged) for axis in axes]))
    return planned
