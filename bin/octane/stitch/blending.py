"""Blending of tiles into a section, and the mismatch at their seams."""

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Region
from octane.resample.operator import interpolator
from octane.resample.resampler import apply
from octane.stitch.placement import Placement


def taper(place: Placement, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Blending weight at section indices: rises linearly across each overlap, never to zero.

    A voxel's weight is its distance from the tile's border over the width of the overlap there,
    at most 1, so that two neighbours' weights add up to one in their overlap.
    """
    position = indices - place.shift + 0.5
    left = position / place.before if place.before > 0 else np.ones(len(indices))
    right = (place.count - position) / place.after if place.after > 0 else np.ones(len(indices))
    return np.clip(np.minimum(left, right), 1e-3, 1.0).astype(np.float32)


def accumulate(
    total: npt.NDArray,
    weights: npt.NDArray,
    region: Region,
    tile: npt.NDArray,
    places: tuple[Placement, Placement],
    *,
    blend: str,
) -> None:
    """Add one tile to a block of a section, in place.

    Parameters
    ----------
    total
        Weighted sum, (z, y, x) floating; with ``blend`` none the value of the best tile so far.
    weights
        Sum of weights, (y, x) float32; with ``blend`` none the best weight so far.
    region
        The block's place in the section's grid (z, y, x).
    tile
        The tile's voxels, all of it in y and x and the block's planes in z.
    places
        The tile's placement in y and x.
    blend
        ``linear`` or ``none``.
    """
    spans = [
        np.arange(max(r.start, p.first), min(r.stop, p.last))
        for r, p in zip(region[1:], places, strict=True)
    ]
    if not all(len(span) for span in spans):
        return
    values = tile.astype(total.dtype, copy=False)
    for axis, (span, place) in enumerate(zip(spans, places, strict=True), start=1):
        values = apply(interpolator(span - place.shift, place.count), values, axis)
    weight = np.outer(*(taper(p, s) for p, s in zip(places, spans, strict=True)))
    here = tuple(
        slice(int(s[0]) - r.start, int(s[-1]) + 1 - r.start)
        for s, r in zip(spans, region[1:], strict=True)
    )
    if blend == "linear":
        total[(slice(None), *here)] += values * weight
        weights[here] += weight
    else:
        better = weight > weights[here]
        block = total[(slice(None), *here)]
        total[(slice(None), *here)] = np.where(better, values, block)
        weights[here] = np.maximum(weight, weights[here])


def seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of two tiles where both saw the same: rms difference over their common mean."""
    mean = float(np.abs(first).mean() + np.abs(second).mean()) / 2
    return float(np.sqrt(np.mean(np.abs(first - second) ** 2)) / mean) if mean > 0 else 0.0
