"""Sections blended into each other at their borders."""

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype, working_type
from octane.core.geometry import Grid, Region
from octane.pipeline.lanes import Lane
from octane.processes.stack.layout.borders import Border
from octane.processes.stack.slab import interpolate_section


def mix_planes(
    above: npt.NDArray, below: npt.NDArray, weight: float, *, is_nearest: bool = False
) -> npt.NDArray:
    """Mean of two planes, ``below`` with ``weight`` (0 to 1), in the type of ``below``.

    If ``is_nearest``, it is the one with the larger weight. Where either shows nothing, 0 or not
    finite, it is ``below``.
    """
    both = (above != 0) & (below != 0) & np.isfinite(above) & np.isfinite(below)
    if is_nearest:
        return np.where(both & (weight < 0.5), above, below)
    kind = working_type(below.dtype)
    upper, lower = above.astype(kind, copy=False), below.astype(kind, copy=False)
    # The product of infinity and 0 is undefined, but is not taken.
    with np.errstate(invalid="ignore"):
        mean = (1 - weight) * upper + weight * lower
    return np.where(both, as_dtype(np.where(both, mean, 0), below.dtype), below)


def blend_border(
    result: npt.NDArray, region: Region, border: Border, grid: Grid, lane: Lane
) -> None:
    """Mix the upper section into a block that holds the lower one, in place."""
    planes = border.planes(grid)
    planes = planes[(planes >= region[0].start) & (planes < region[0].stop)]
    section = interpolate_section(border.above, planes, region, grid, lane) if len(planes) else None
    if section is None:
        return
    values, (rows, columns) = section
    area = tuple(
        slice(span.start - r.start, span.stop - r.start)
        for span, r in zip((rows, columns), region[1:], strict=True)
    )
    with lane.timed("compute"):
        for plane, above, weight in zip(planes, values, border.weights(planes, grid), strict=True):
            below = result[(plane - region[0].start, *area)]
            is_nearest = border.below.is_nearest
            below[...] = mix_planes(above, below, float(weight), is_nearest=is_nearest)
