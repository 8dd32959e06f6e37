"""A section's voxels, interpolated linearly at its place in the volume."""

from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.params import ExecutionParameters, bytes_of
from octane.core.arrays import working_type
from octane.core.geometry import Grid, Region, shape_of
from octane.layout.mosaic import Position
from octane.layout.stack import SectionSlab
from octane.pipeline.lanes import Lane
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.resample.operator import AxisOperator, interpolator, unchanged
from octane.resample.resampler import resample
from octane.stitch.sampling import sampled
from octane.store.writer import Level


def block_workers(
    grid: Grid, dtype: np.dtype, count: int, execution: ExecutionParameters, *, kept: int = 0
) -> int:
    """Number of the volume's ``count`` blocks to interpolate at once, next to ``kept`` bytes.

    Raises an OctaneError that says how much memory one block needs if it does not fit.
    """
    need = 5 * int(np.prod(np.minimum(Level.volume(grid).owned, grid.shape)))
    need *= max(4, dtype.itemsize)
    memory, fixed = bytes_of(execution.memory), PROCESS_BYTES + kept
    return plan_workers(need, memory, execution.workers, count, fixed=fixed)


def interpolated(
    slab: SectionSlab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a section on the volume's planes in a region, and their rows and columns there."""
    image = slab.image
    assert image is not None
    if any(slab.displaced):
        return _moved(slab, planes, region, grid, lane)
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
        parts.append(_operator(index, image.grid.shape[axis]))
    (y, rows), (x, columns) = parts
    values = _on_planes(slab, planes, (rows, columns), lane)
    with lane.timed("compute"):
        values = resample(values, (unchanged(len(planes)), y, x))
    rows, columns = (slice(int(span[0]), int(span[-1]) + 1) for span in spans[1:])
    return values, (rows, columns)


def _operator(index: npt.NDArray[np.floating], n: int) -> tuple[AxisOperator, slice]:
    """Linear interpolation of ``n`` samples, and the samples that it needs."""
    # Indices within 1e-6 of an integer copy instead of blurring.
    whole = np.abs(index - np.round(index)) < 1e-6
    return interpolator(np.where(whole, np.round(index), index), n).part(slice(None))


def _along_z(slab: SectionSlab, planes: npt.NDArray[np.int64]) -> tuple[AxisOperator, slice]:
    """Interpolation from a section's planes to the volume's."""
    assert slab.image is not None
    own = slab.image.grid
    # The volume counts depth from its own top, a section from where it was imaged.
    offset = slab.edge[0] - slab.surface
    index = ((planes + 0.5) * own.spacing[0] + offset - own.origin[0]) / own.spacing[0]
    # Planes above the surface, which may be water, are left out.
    first = np.ceil((slab.edge[0] - own.origin[0]) / own.spacing[0] - 1e-6)
    return _operator(np.maximum(index, first) if first > 0 else index, own.shape[0])


def _on_planes(
    slab: SectionSlab, planes: npt.NDArray[np.int64], area: tuple[slice, slice], lane: Lane
) -> npt.NDArray:
    """Values of an area of a section, in its own rows and columns, on the volume's planes."""
    image = slab.image
    assert image is not None
    operator, taken = _along_z(slab, planes)
    region = (taken, *area)
    with lane.timed("read"):
        memory = lane.buffer("section", shape_of(region), image.dtype)
        values = image.read(region, memory)
    lane.metrics.count("read", values.nbytes)
    with lane.timed("compute"):
        _, ny, nx = values.shape
        values = values.astype(working_type(image.dtype), copy=False)
        return resample(values, (operator, unchanged(ny), unchanged(nx)))


def _moved(
    slab: SectionSlab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a moved section: linear in z, then bilinear; 0 beyond its border."""
    image = slab.image
    assert image is not None
    own = image.grid
    ends = [
        (np.array([r.start, r.stop - 1]) + 0.5) * t + e
        for r, t, e in zip(region[1:], grid.spacing[1:], grid.edge[1:], strict=True)
    ]
    corners = slab.displaced.of(ends[0][:, None], ends[1][None, :], slab.middle)
    needed, places = [], []
    for at, axis in zip(corners, (1, 2), strict=True):
        origin, spacing, n = own.origin[axis], own.spacing[axis], own.shape[axis]
        index = (at - origin) / spacing
        border = (np.array([0, slab.extent[axis]]) + slab.edge[axis] - origin) / spacing
        if index.max() < border[0] - 1e-6 or index.min() > border[1] + 1e-6:
            return None
        first, last = np.clip([index.min(), index.max()], 0, n - 1)
        begin = min(int(first), max(n - 2, 0))
        needed.append(slice(begin, min(int(last) + 2, n)))
        places.append(np.array([index[0, 0], border[0] - 1e-6, border[1] + 1e-6]) - begin)
    rows, columns = needed
    source = _on_planes(slab, planes, (rows, columns), lane)
    with lane.timed("compute"):
        source = np.ascontiguousarray(source)
        shape = shape_of(region)[1:]
        start, low, high = cast("list[Position]", np.transpose(places).tolist())
        values = sampled(source, start, slab.displaced.turn, shape, inside=(low, high), beyond=0.0)
    return values, (region[1], region[2])
