"""Blending of tiles into a section."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype, integer_limits
from octane.core.geometry import Region, place_in, shape_of
from octane.layout.mosaic import Tile
from octane.layout.placement import Placement, TilePlacement
from octane.resample.cpu import LOOPED, component
from octane.resample.operator import AxisOperator, interpolator, unchanged
from octane.resample.resampler import resample

Projections = Mapping[Tile, npt.NDArray[np.float32]]
"""Means of tiles over depth, (y, x)."""

LEAST_OVERLAP = 4
"""Minimum pixels along an axis that two compared tiles share."""


def taper(place: Placement, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Blending weight at section indices: rises linearly across each overlap, never to zero.

    A voxel's weight is its distance from the tile's border over the width of the overlap there,
    at most 1, so that two neighbours' weights add up to one in their overlap.
    """
    position = indices - place.shift + 0.5
    left = position / place.before if place.before > 0 else np.ones(len(indices))
    right = (place.count - position) / place.after if place.after > 0 else np.ones(len(indices))
    return np.clip(np.minimum(left, right), 1e-3, 1.0).astype(np.float32)


def interpolate_tile(
    tile: npt.NDArray,
    places: tuple[Placement, Placement],
    area: tuple[slice, slice],
) -> npt.NDArray:
    """Planes (z, y, x) of a tile on rows and columns of the section, by linear interpolation."""
    (y, rows), (x, columns) = _operators(places, area)
    return resample(tile[:, rows, columns].astype(np.float32), (unchanged(len(tile)), y, x))


def _operators(
    places: tuple[Placement, Placement], area: tuple[slice, slice]
) -> list[tuple[AxisOperator, slice]]:
    """Interpolation of a tile along y and x, and the rows and columns that it needs."""
    return [
        interpolator(np.arange(span.start, span.stop) - place.shift, place.count).part(slice(None))
        for span, place in zip(area, places, strict=True)
    ]


class TilePart(NamedTuple):
    """A tile's planes of a block, which begin at ``start`` of an array, both (z, y, x)."""

    voxels: npt.NDArray
    start: tuple[int, int, int]


def accumulate(
    total: npt.NDArray,
    weights: npt.NDArray,
    region: Region,
    tile: TilePart,
    places: tuple[Placement, Placement],
    *,
    gain: npt.NDArray[np.float32] | np.float32 | None = None,
    dark: float = 0.0,
) -> None:
    """Add one tile to a block of a section, in place.

    ``total`` is the weighted sum (z, y, x) and ``weights`` that of the weights (y, x), float32.
    ``region`` is the block's place in the section's grid, ``places`` the tile's in y and x.
    ``gain`` holds factors that even out a full tile, or is one factor for all of it, and ``dark``
    is the grey level subtracted first.
    """
    area = _area(region, places)
    if area is None:
        return
    weight = _weight(area, places)
    if isinstance(gain, np.ndarray):
        # The gain is smooth, so it is interpolated separately, once for all planes.
        gain = interpolate_tile(gain[None], places, area)[0]
    part = weight if gain is None else weight * gain
    here = place_in(region[1:], area)
    _add(total, tile, _operators(places, area), here, part, dark)
    weights[here] += weight


def _add(
    total: npt.NDArray,
    tile: TilePart,
    operators: Sequence[tuple[AxisOperator, slice]],
    here: Region,
    part: npt.NDArray[np.float32],
    dark: float,
) -> None:
    """Add a tile, interpolated by ``operators`` and times ``part``, to the area ``here``."""
    # Here, because numba takes a third of a second to import.
    from octane.processes.stitch.loops import adder

    voxels, (plane, row, column) = tile
    (y, rows), (x, columns) = operators
    row, column = row + rows.start, column + columns.start
    if voxels.dtype not in LOOPED:
        planes, (height, width) = slice(plane, plane + len(total)), shape_of((rows, columns))
        voxels = voxels[planes, row : row + height, column : column + width].astype(total.dtype)
        plane = row = column = 0
    work = component(total.dtype)
    components = total.dtype.itemsize // work.itemsize
    # The parts of a complex value lie side by side.
    starts = (components * x.start[:, None] + np.arange(components)).reshape(-1)
    along_y = y.start, y.weight.T.astype(work, order="C")
    along_x = starts, x.weight.T.repeat(components, axis=1).astype(work, order="C")
    part = part.repeat(components, axis=1)
    at = (here[0].start, components * here[1].start, plane, row, components * column, components)
    stored = component(voxels.dtype)
    adder(stored, work)(
        total.view(work), voxels.view(stored), np.array(at), along_y, along_x, part, dark
    )


def divide_by_weights(
    total: npt.NDArray, weights: npt.NDArray[np.float32], out: npt.NDArray
) -> npt.NDArray:
    """Mean of the tiles of a block in the type of ``out``; 0 where there is none.

    ``total`` and ``weights`` are as for :func:`accumulate`; the former and ``out``, of which one
    is returned, are changed.
    """
    weights = np.where(weights > 0, weights, np.float32(1))
    if out.dtype.kind not in "iu":
        total /= weights
        return as_dtype(total, out.dtype)
    from octane.processes.stitch.loops import divider

    limits = np.array(integer_limits(out.dtype, total.dtype), total.dtype)
    divider(total.dtype, out.dtype)(total, weights, limits, out)
    return out


def choose(
    chosen: npt.NDArray,
    weights: npt.NDArray,
    region: Region,
    tile: TilePart,
    places: tuple[Placement, Placement],
) -> None:
    """Take from a tile the columns of a block that it shows with the largest weight so far.

    ``chosen`` (z, y, x) and ``weights`` (y, x) are changed in place, the others as in
    :func:`accumulate`. Each voxel is the nearest one of a single tile; of equal weights, the first
    tile's counts.
    """
    area = _area(region, places)
    if area is None:
        return
    voxels, (plane, *corner) = tile
    planes = voxels[plane : plane + len(chosen)]
    rows, columns = (
        first + np.clip(np.arange(span.start, span.stop) - round(place.shift), 0, place.count - 1)
        for first, place, span in zip(corner, places, area, strict=True)
    )
    weight = _weight(area, places)
    here = place_in(region[1:], area)
    better = weight > weights[here]
    np.copyto(chosen[(slice(None), *here)], planes[:, rows[:, None], columns], where=better)
    np.copyto(weights[here], weight, where=better)


def _area(region: Region, places: tuple[Placement, Placement]) -> tuple[slice, slice] | None:
    """Rows and columns of the section that a block shares with a tile; None if there are none."""
    pairs = zip(region[1:], places, strict=True)
    rows, columns = (slice(max(r.start, p.first), min(r.stop, p.last)) for r, p in pairs)
    return None if rows.start >= rows.stop or columns.start >= columns.stop else (rows, columns)


def _weight(
    area: tuple[slice, slice], places: tuple[Placement, Placement]
) -> npt.NDArray[np.float32]:
    """Weights (y, x) of a tile in an area of the section."""
    pairs = zip(places, area, strict=True)
    return np.outer(*(taper(place, np.arange(span.start, span.stop)) for place, span in pairs))


def shared_area(placement: TilePlacement, first: Tile, second: Tile) -> tuple[slice, slice] | None:
    """Rows and columns of the section that two tiles share; None if these are too few."""
    pairs = zip(placement.places[first], placement.places[second], strict=True)
    y, x = (slice(max(a.first, b.first), min(a.last, b.last)) for a, b in pairs)
    return None if min(shape_of((y, x))) < LEAST_OVERLAP else (y, x)


def overlap(
    placement: TilePlacement, projections: Projections, first: Tile, second: Tile
) -> tuple[npt.NDArray, npt.NDArray] | None:
    """The area that two tiles share, as each saw it; None if that is too small."""
    area = shared_area(placement, first, second)
    if area is None:
        return None
    one, other = (
        interpolate_tile(projections[tile][None], placement.places[tile], area)[0]
        for tile in (first, second)
    )
    return one, other
