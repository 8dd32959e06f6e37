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
