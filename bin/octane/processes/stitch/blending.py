"""Blending of tiles into a section."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Region, place_in, shape_of
from octane.layout.mosaic import Tile
from octane.layout.placement import Placement, TilePlacement
from octane.resample.operator import interpolator, unchanged
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


def placed(
    tile: npt.NDArray,
    places: tuple[Placement, Placement],
    area: tuple[slice, slice],
    dtype: npt.DTypeLike = np.float32,
) -> npt.NDArray:
    """Planes (z, y, x) of a tile on rows and columns of the section, by linear interpolation."""
    (y, rows), (x, columns) = (
        interpolator(np.arange(span.start, span.stop) - place.shift, place.count).part(slice(None))
        for span, place in zip(area, places, strict=True)
    )
    values = tile[:, rows, columns].astype(dtype, copy=False)
    return resample(values, (unchanged(len(tile)), y, x))


def accumulate(
    total: npt.NDArray,
    weights: npt.NDArray,
    region: Region,
    tile: npt.NDArray,
    places: tuple[Placement, Placement],
    *,
    gain: npt.NDArray[np.float32] | None = None,
    dark: float = 0.0,
) -> None:
    """Add one tile to a block of a section, in place.

    ``total`` is the weighted sum (z, y, x) and ``weights`` that of the weights (y, x), float32.
    ``region`` is the block's place in the section's grid, ``tile`` has all of the tile in y and x
    and the block's planes in z, ``places`` its placement in y and x. ``gain`` holds factors that
    even out a full tile, and ``dark`` is the grey level subtracted first.
    """
    area = _area(region, places)
    if area is None:
        return
    values = placed(tile, places, area, total.dtype)
    weight = _weight(area, places)
    # The gain is smooth, so it is interpolated separately, once for all planes.
    part = weight if gain is None else weight * placed(gain[None], places, area)[0]
    here = place_in(region[1:], area)
    total[(slice(None), *here)] += values * part
    if dark:
        total[(slice(None), *here)] -= dark * part
    weights[here] += weight


def choose(
    chosen: npt.NDArray,
    weights: npt.NDArray,
    region: Region,
    tile: npt.NDArray,
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
    rows, columns = (
        np.clip(np.arange(own.start, own.stop) - round(place.shift), 0, place.count - 1)
        for place, own in zip(places, area, strict=True)
    )
    weight = _weight(area, places)
    here = place_in(region[1:], area)
    better = weight > weights[here]
    np.copyto(chosen[(slice(None), *here)], tile[:, rows[:, None], columns], where=better)
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
    return np.outer(*(taper(place, np.arange(own.start, own.stop)) for place, own in pairs))


def shared(placement: TilePlacement, first: Tile, second: Tile) -> tuple[slice, slice] | None:
    """Rows and columns of the section that two tiles share; None if these are too few."""
    pairs = zip(placement.places[first], placement.places[second], strict=True)
    y, x = (slice(max(a.first, b.first), min(a.last, b.last)) for a, b in pairs)
    return None if min(shape_of((y, x))) < LEAST_OVERLAP else (y, x)


def overlap(
    placement: TilePlacement, projections: Projections, first: Tile, second: Tile
) -> tuple[npt.NDArray, npt.NDArray] | None:
    """The area that two tiles share, as each saw it; None if that is too small."""
    area = shared(placement, first, second)
    if area is None:
        return None
    one, other = (
        placed(projections[tile][None], placement.places[tile], area)[0] for tile in (first, second)
    )
    return one, other
