"""The tissue mask that N4 fits in, made on the (shrunk) volume on the host.

Each section is smoothed, thresholded by Otsu 1979 ("A threshold selection method from gray-level
histograms", IEEE TSMC 9(1)), its holes are filled and its outline is closed, on its own: sections
differ in brightness, so one threshold for all would lose the dark ones, and smoothing or closing
across a section boundary would mix two different slabs of tissue.

Small islands are kept: telling a fragment of tissue from a speck needs a size that no data gives,
and a speck of some voxels does not move a field of some hundred control points.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from octane.core.filters import gaussian

log = logging.getLogger(__name__)

SIGMA = 1.0
"""Of the Gaussian smoothing, in voxels."""


def tissue_mask(volume: np.ndarray, sections: Sequence[tuple[int, int]]) -> np.ndarray:
    """Find the tissue in a volume, section by section.

    Parameters
    ----------
    volume : ndarray, (z, y, x)
        Finite intensities, tissue brighter than background.
    sections : sequence of (start, stop)
        Planes of each section on this grid; planes in none are outside the mask.

    Returns
    -------
    ndarray, bool, (z, y, x)
        A section without contrast has no tissue; a warning is logged for it.
    """
    mask = np.zeros(volume.shape, bool)
    for number, (start, stop) in enumerate(sections):
        section = volume[start:stop].astype(np.float32)
        if section.min() == section.max():
            log.warning(
                "tissue mask: section %d (planes %d to %d) is constant and has no tissue",
                *(number, start, stop),
            )
            continue
        mask[start:stop] = _section_mask(section)
    return mask


def enlarged(
    mask: np.ndarray,
    keep: Sequence[slice],
    region: Sequence[slice],
    sections: Sequence[tuple[int, int]],
) -> np.ndarray:
    """Return a part of a mask at full resolution, from the mask on a shrunk grid.

    Outlines are interpolated linearly in y and x, so that they follow the tissue and not the
    shrunk voxels. Along z the nearest kept plane of the same section is taken.

    ``keep`` are the voxels of the full grid that the shrunk grid has, slices with start and step;
    ``region`` is the part wanted. ``sections`` are the planes, from start to stop, of each section
    of the full grid; planes in none are outside.
    """
    planes = keep[0].start + keep[0].step * np.arange(len(mask))
    out = np.zeros([r.stop - r.start for r in region], bool)
    weights = [
        _interpolation(k, r, n)
        for k, r, n in zip(keep[1:], region[1:], mask.shape[1:], strict=True)
    ]
    (y0, y1, ty), (x0, x1, tx) = weights
    made: dict[int, np.ndarray] = {}
    for start, stop in sections:
        own = np.flatnonzero((planes >= start) & (planes < stop))
        for z in range(max(start, region[0].start), min(stop, region[0].stop)):
            if not own.size:
                continue
            k = int(own[np.argmin(np.abs(planes[own] - z))])
            if k not in made:
                rows = mask[k].astype(np.float32)
                rows = rows[y0] * (1 - ty)[:, None] + rows[y1] * ty[:, None]
                made[k] = rows[:, x0] * (1 - tx) + rows[:, x1] * tx >= 0.5
            out[z - region[0].start] = made[k]
    return out


def _interpolation(
    keep: slice, region: slice, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two shrunk voxels around each voxel of a region, and the share of the second."""
    at = np.clip((np.arange(region.start, region.stop) - keep.start) / keep.step, 0, size - 1)
    before = np.floor(at).astype(np.intp)
    return before, np.minimum(before + 1, size - 1), (at - before).astype(np.float32)


def otsu_threshold(values: np.ndarray) -> float:
    """Return Otsu's threshold as ITK computes it (128 bins)."""
    import SimpleITK as sitk

    otsu = sitk.OtsuThresholdImageFilter()
    otsu.Execute(sitk.GetImageFromArray(np.ascontiguousarray(values)))
    return otsu.GetThreshold()


def _section_mask(section: np.ndarray) -> np.ndarray:
    # Only runs with a mask of tissue wait for it.
    import SimpleITK as sitk

    smooth = gaussian(section, SIGMA)
    mask = smooth > otsu_threshold(smooth)
    # Plane by plane, with planes of tissue between them: a cut ventricle opens at the top and
    # bottom of its section and would never be a hole in three dimensions.
    planes = np.ones((2 * len(mask) + 1, *mask.shape[1:]), np.uint8)
    planes[1::2] = mask
    filled = sitk.BinaryFillhole(sitk.GetImageFromArray(planes), False, 1)
    mask = sitk.GetArrayViewFromImage(filled)[1::2] > 0
    # Closed; the erosion sees tissue beyond the borders, or it would take tissue off them.
    return ~_grown(~_grown(mask))


def _grown(mask: np.ndarray) -> np.ndarray:
    """A mask with the voxels that share a face with it."""
    grown = mask.copy()
    for axis in range(mask.ndim):
        whole, own = np.moveaxis(grown, axis, 0), np.moveaxis(mask, axis, 0)
        whole[1:] |= own[:-1]
        whole[:-1] |= own[1:]
    return grown
