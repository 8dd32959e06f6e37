"""Slab of a volume: a section in its place, and its voxels there by linear interpolation."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.core.arrays import working_type
from octane.core.geometry import Grid, Region, Vector
from octane.pipeline.lanes import Lane
from octane.resample.operator import AxisOperator, interpolator
from octane.resample.resampler import apply
from octane.stitch.alignment import IN_PLACE, Displacement
from octane.store.image import Image
from octane.store.mosaic_grid import Position


@dataclass(frozen=True)
class Slab:
    """Place of a section in the volume, in micrometres and planes; ``image`` is None for a gap.

    STACK undoes ``displaced``, a displacement about ``middle`` (y, x).
    """

    number: int
    name: str
    image: Image | None
    edge: Vector
    extent: Vector
    surface: float
    thickness: float
    planes: range = range(0)
    displaced: Displacement = IN_PLACE
    middle: Position = (0.0, 0.0)

    def imaged(self, planes: range, grid: Grid) -> npt.NDArray[np.int64]:
        """Planes that are not below the section's imaged depth."""
        z = np.array(planes)
        depth = (z + 0.5) * grid.spacing[0] - self.surface
        return z[depth <= self.extent[0] + 1e-6]


def interpolated(
    slab: Slab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a section on planes of the volume within a region, and their rows and columns."""
    image, moved = slab.image, slab.displaced
    assert image is not None
    if moved.rotation:
        return _turned(slab, planes, region, grid, lane)
    shifts = (moved.y, moved.x)
    spans = [planes]
    for axis, shift in zip((1, 2), shifts, strict=True):
        r, t = region[axis], grid.spacing[axis]
        first = (slab.edge[axis] - shift - grid.edge[axis]) / t
        last = (slab.edge[axis] - shift + slab.extent[axis] - grid.edge[axis]) / t
        low = int(np.ceil(first - 0.5 - 1e-6))
        high = int(np.floor(last - 0.5 + 1e-6)) + 1
        spans.append(np.arange(max(r.start, low), min(r.stop, high)))
    if not all(len(span) for span in spans):
        return None
    parts = [_along_z(slab, planes)]
    for span, axis, shift in zip(spans[1:], (1, 2), shifts, strict=True):
        s = image.grid.spacing[axis]
        index = ((span + 0.5) * s + grid.edge[axis] - image.grid.origin[axis] + shift) / s
        parts.append(_operator(index, image.grid.shape[axis]))
    values = _read(image, tuple(taken for _, taken in parts), lane)
    with lane.timed("compute"):
        for axis, (operator, _) in enumerate(parts):
            values = apply(operator, values, axis)
    rows, columns = (slice(int(span[0]), int(span[-1]) + 1) for span in spans[1:])
    return values, (rows, columns)


def _operator(index: npt.NDArray[np.floating], n: int) -> tuple[AxisOperator, slice]:
    """Linear interpolation of ``n`` samples, and the samples that it needs."""
    # Indices that are whole within 1e-6 copy and do not blur.
    whole = np.abs(index - np.round(index)) < 1e-6
    return interpolator(np.where(whole, np.round(index), index), n).part(slice(None))


def _along_z(slab: Slab, planes: npt.NDArray[np.int64]) -> tuple[AxisOperator, slice]:
    """Interpolation of planes of the volume from a section's."""
    assert slab.image is not None
    own = slab.image.grid
    # The volume counts depth from its own top, a section from where it was imaged.
    offset = slab.edge[0] - slab.surface
    index = ((planes + 0.5) * own.spacing[0] + offset - own.origin[0]) / own.spacing[0]
    return _operator(index, own.shape[0])


def _read(image: Image, region: Region, lane: Lane) -> npt.NDArray:
    with lane.timed("read"):
        memory = lane.buffer("section", [r.stop - r.start for r in region], image.dtype)
        values = image.read(region, memory)
    lane.metrics.count("read", values.nbytes)
    return values.astype(working_type(image.dtype), copy=False)


def _turned(
    slab: Slab, planes: npt.NDArray[np.int64], region: Region, grid: Grid, lane: Lane
) -> tuple[npt.NDArray, tuple[slice, slice]] | None:
    """Values of a rotated section: linear in z, then bilinear; 0 beyond its border."""
    image = slab.image
    assert image is not None
    own = image.grid
    centres = [
        (np.arange(r.start, r.stop) + 0.5) * t + e
        for r, t, e in zip(region[1:], grid.spacing[1:], grid.edge[1:], strict=True)
    ]
    y, x = slab.displaced.of(centres[0][:, None], centres[1][None, :], slab.middle)
    inside = np.ones(y.shape, bool)
    for at, axis in ((y, 1), (x, 2)):
        edge, tolerance = slab.edge[axis], 1e-6 * own.spacing[axis]
        inside &= (at >= edge - tolerance) & (at <= edge + slab.extent[axis] + tolerance)
    if not (inside.any() and len(planes)):
        return None
    along_z, taken = _along_z(slab, planes)
    needed, lower, fractions = [taken], [], []
    for at, axis in ((y, 1), (x, 2)):
        index = np.clip((at - own.origin[axis]) / own.spacing[axis], 0, own.shape[axis] - 1)
        first = np.minimum(np.floor(index), max(own.shape[axis] - 2, 0))
        start, stop = int(first[inside].min()), int(first[inside].max()) + 2
        needed.append(slice(start, min(stop, own.shape[axis])))
        lower.append(np.where(inside, first - start, 0).astype(np.intp))
        fractions.append(index - first)
    source = _read(image, tuple(needed), lane)
    with lane.timed("compute"):
        source = apply(along_z, source, 0)
        size = source.shape[2]
        steps = [
            np.minimum(low + 1, n - 1) - low for low, n in zip(lower, source.shape[1:], strict=True)
        ]
        at = lower[0] * size + lower[1]
        (up, down), (left, right) = ((inside * (1 - f), inside * f) for f in fractions)
        places = (at, at + steps[1], at + size * steps[0], at + size * steps[0] + steps[1])
        weights = [
            w.astype(source.real.dtype) for w in (up * left, up * right, down * left, down * right)
        ]
        result, term = (
            np.zeros((len(planes), *y.shape), source.dtype),
            np.empty_like(y, source.dtype),
        )
        for plane, total in zip(source.reshape(len(planes), -1), result, strict=True):
            for place, weight in zip(places, weights, strict=True):
                # Without tests of the indices, which lie inside.
                np.take(plane, place, out=term, mode="clip")
                term *= weight
                total += term
    return result, (region[1], region[2])
