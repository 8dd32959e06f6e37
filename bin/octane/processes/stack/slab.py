"""A section's voxels at its place in the volume: interpolated linearly, or the nearest ones."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters
from octane.core.arrays import working_type
from octane.core.geometry import Grid, Region, shape_of, slopes, vector
from octane.core.units import bytes_of
from octane.layout.mosaic import Position
from octane.pipeline.lanes import Lane
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.processes.stack.layout.stack import SectionSlab, imaged_box
from octane.processes.stack.levelling import TiltedPlanes, level_linear
from octane.processes.stack.nearest import level_nearest, nearest_samples, sample_nearest
from octane.processes.stack.sampling import sample_linear
from octane.resample.operator import AxisOperator, interpolator, unchanged
from octane.resample.resampler import resample
from octane.store.writer import Level


def block_workers(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    count: int,
    execution: ExecutionParameters,
    *,
    kept: int = 0,
) -> int:
    """Number of the volume's ``count`` blocks to interpolate at once, next to ``kept`` bytes.

    Raises an OctaneError that says how much memory one block needs if it does not fit.
    """
    depth, height, width = np.minimum(Level.volume(grid).object_shape, grid.shape).tolist()
    # A levelled section is read as much deeper as it is tilted, in its own type and as numbers.
    extent = vector(0.0, height * grid.spacing[1], width * grid.spacing[2])
    rise = max((slab.cut.rise(extent) for slab in slabs), default=0.0)
    deeper = math.ceil(2 * rise / grid.spacing[0])
    need = (5 * depth + 2 * deeper) * height * width * max(4, dtype.itemsize)
    memory, fixed = bytes_of(execution.memory), PROCESS_BYTES + kept
    return plan_workers(need, memory, execution.workers, count, fixed=fixed)


def interpolate_section(
    slab: SectionSlab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a section on the volume's planes in a region, and their rows and columns there.

    They are floating or complex, or those of the nearest voxels in the section's own type.
    """
    image = slab.image
    assert image is not None
    if any(slab.displacement):
        return _interpolate_moved(slab, planes, region, grid, lane)
    spans = [planes]
    for axis in (1, 2):
        r, t = region[axis], grid.spacing[axis]
        first = (slab.edge[axis] - grid.edge[axis]) / t
        last = (slab.edge[axis] + slab.extent[axis] - grid.edge[axis]) / t
        low = int(np.ceil(first - 0.5 - 1e-6))
        high = int(np.floor(last - 0.5 + 1e-6)) + 1
        spans.append(np.arange(max(r.start, low), min(r.stop, high)))
    if not all(len(span) for span in spans):
        return None
    parts = []
    for span, axis in zip(spans[1:], (1, 2), strict=True):
        s = image.grid.spacing[axis]
        index = ((span + 0.5) * s + grid.edge[axis] - image.grid.origin[axis]) / s
        parts.append(_operator(index, image.grid.shape[axis], is_nearest=slab.is_nearest))
    (y, rows), (x, columns) = parts
    values = _interpolate_planes(slab, planes, (rows, columns), lane)
    with lane.timed("compute"):
        values = _apply(values, (unchanged(len(planes)), y, x), is_nearest=slab.is_nearest)
    rows, columns = (slice(int(span[0]), int(span[-1]) + 1) for span in spans[1:])
    return values, (rows, columns)


def _operator(
    index: npt.NDArray[np.floating], n: int, *, is_nearest: bool
) -> tuple[AxisOperator, slice]:
    """Interpolation of ``n`` samples, linear or to the nearest, and the samples that it needs."""
    # Indices within 1e-6 of an integer copy instead of blurring.
    whole = np.abs(index - np.round(index)) < 1e-6
    places = nearest_samples(index) if is_nearest else np.where(whole, np.round(index), index)
    return interpolator(places, n).part(slice(None))


def _apply(
    values: npt.NDArray, operators: Sequence[AxisOperator], *, is_nearest: bool
) -> npt.NDArray:
    """Apply an operator per axis; one to the nearest sample has a single tap."""
    if is_nearest:
        return values[np.ix_(*(operator.start for operator in operators))]
    return resample(values, operators)


def _places(slab: SectionSlab, planes: npt.NDArray[np.int64]) -> tuple[npt.NDArray, float]:
    """Places of the volume's planes and of the surface, in planes of the section's image.

    They are those in the middle of the section.
    """
    assert slab.image is not None
    grid = slab.image.grid
    # The volume counts depth from its own top, a section from where it was imaged.
    offset = slab.edge[0] - slab.surface
    index = ((planes + 0.5) * grid.spacing[0] + offset - grid.origin[0]) / grid.spacing[0]
    return index, (slab.edge[0] - grid.origin[0]) / grid.spacing[0]


def _z_operator(slab: SectionSlab, planes: npt.NDArray[np.int64]) -> tuple[AxisOperator, slice]:
    """Interpolation from a section's planes to the volume's."""
    assert slab.image is not None
    index, surface = _places(slab, planes)
    # Planes above the surface, which may be water, are left out.
    first = np.ceil(surface - 1e-6)
    index = np.maximum(index, first) if first > 0 else index
    return _operator(index, slab.image.grid.shape[0], is_nearest=slab.is_nearest)


def _tilted_planes(
    slab: SectionSlab, planes: npt.NDArray[np.int64], area: tuple[slice, slice]
) -> TiltedPlanes:
    """Places of the volume's planes in an area of a section with a tilted surface."""
    assert slab.image is not None
    grid, (edge, extent) = slab.image.grid, imaged_box(slab.image)
    deeper = []
    for slope, pixels, axis in zip(slopes(slab.cut.tilt), area, (1, 2), strict=True):
        middle = slab.edge[axis] + slab.extent[axis] / 2
        at = grid.origin[axis] + np.arange(pixels.start, pixels.stop) * grid.spacing[axis]
        deeper.append(slope * (at - middle) / grid.spacing[0])
    low, high = ((end - grid.origin[0]) / grid.spacing[0] for end in (edge[0], edge[0] + extent[0]))
    places, surface = _places(slab, planes)
    return TiltedPlanes(places, *deeper, surface, (low, high))


def _interpolate_planes(
    slab: SectionSlab, planes: npt.NDArray[np.int64], area: tuple[slice, slice], lane: Lane
) -> npt.NDArray:
    """Values of an area of a section, in its own rows and columns, on the volume's planes."""
    assert slab.image is not None
    if any(slab.cut.tilt):
        tilted = _tilted_planes(slab, planes, area)
        needed = tilted.source_planes(slab.image.grid.shape[0])
        values = _read_region(slab, (needed, *area), lane)
        with lane.timed("compute"):
            if slab.is_nearest:
                return level_nearest(values, needed.start, tilted)
            working = values.astype(working_type(values.dtype), copy=False)
            return level_linear(working, needed.start, tilted)
    operator, needed = _z_operator(slab, planes)
    values = _read_region(slab, (needed, *area), lane)
    with lane.timed("compute"):
        operators = (operator, *map(unchanged, values.shape[1:]))
        return _apply(values, operators, is_nearest=slab.is_nearest)


def _read_region(slab: SectionSlab, region: Region, lane: Lane) -> npt.NDArray:
    """Read a region of a section, in its own type."""
    image = slab.image
    assert image is not None
    with lane.timed("read"):
        memory = lane.buffer("section", shape_of(region), image.dtype)
        values = image.read(region, memory)
    lane.metrics.count("read", values.nbytes)
    return values


def _interpolate_moved(
    slab: SectionSlab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a moved section: along z, then in the plane; 0 beyond its border."""
    image = slab.image
    assert image is not None
    stored = image.grid
    ends = [
        (np.array([r.start, r.stop - 1]) + 0.5) * t + e
        for r, t, e in zip(region[1:], grid.spacing[1:], grid.edge[1:], strict=True)
    ]
    corners = slab.displacement.apply(ends[0][:, None], ends[1][None, :], slab.middle)
    needed, places = [], []
    for at, axis in zip(corners, (1, 2), strict=True):
        origin, spacing, n = stored.origin[axis], stored.spacing[axis], stored.shape[axis]
        index = (at - origin) / spacing
        border = (np.array([0, slab.extent[axis]]) + slab.edge[axis] - origin) / spacing
        if index.max() < border[0] - 1e-6 or index.min() > border[1] + 1e-6:
            return None
        first, last = np.clip([index.min(), index.max()], 0, n - 1)
        begin = min(int(first), max(n - 2, 0))
        needed.append(slice(begin, min(int(last) + 2, n)))
        places.append(np.array([index[0, 0], border[0] - 1e-6, border[1] + 1e-6]) - begin)
    rows, columns = needed
    source = _interpolate_planes(slab, planes, (rows, columns), lane)
    with lane.timed("compute"):
        source = np.ascontiguousarray(source)
        shape = shape_of(region)[1:]
        start, low, high = cast("list[Position]", np.transpose(places).tolist())
        turn, inside = slab.displacement.turn, (low, high)
        if slab.is_nearest:
            values = sample_nearest(source, start, turn, shape, inside)
        else:
            values = sample_linear(source, start, turn, shape, inside=inside, beyond=0.0)
    return values, (region[1], region[2])
