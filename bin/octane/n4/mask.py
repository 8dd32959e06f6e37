"""The tissue mask for N4's fit, computed from the (shrunk) volume on the host.

Each section is processed separately: smoothed, thresholded by Otsu 1979 ("A threshold selection
method from gray-level histograms", IEEE TSMC 9(1)), its holes filled and its outline closed.
Sections differ in brightness, so one threshold for all would lose the dark ones; smoothing or
closing across a section boundary would mix two different slabs of tissue.

Small islands are kept: the data do not tell the size that separates a fragment of tissue from a
speck, and a speck of a few voxels does not move a field of hundreds of control points.
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
        Planes of each section on this grid; planes outside all sections are outside the mask.

    Returns
    -------
    ndarray, bool, (z, y, x)
        A section without contrast counts as empty, and a warning is logged.
    """
    mask = np.zeros(volume.shape, bool)
    for number, (start, stop) in enumerate(sections):
        section = volume[start:stop].astype(np.float32)
        if section.min() == section.max():
            log.warning(
                "tissue mask: section %d (planes %d to %d) is constant and counts as empty",
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
    # Not at module level: only runs with a tissue mask need it.
    import SimpleITK as sitk

    smooth = gaussian(section, SIGMA)
    mask = smooth > otsu_threshold(smooth)
    # Plane by plane, by inserting planes of tissue: a cut ventricle is open at the top and bottom
    # of its section and would not be a hole in three dimensions.
    planes = np.ones((2 * len(mask) + 1, *mask.shape[1:]), np.uint8)
    planes[1::2] = mask
    filled = sitk.BinaryFillhole(sitk.GetImageFromArray(planes), False, 1)
    mask = sitk.GetArrayViewFromImage(filled)[1::2] > 0
    # Closing; the erosion assumes tissue beyond the borders, or it would remove tissue there.
    return ~_grown(~_grown(mask))


def _grown(mask: np.ndarray) -> np.ndarray:
    """The mask dilated by the voxels that share a face with it."""
    grown = mask.copy()
    for axis in range(mask.ndim):
        whole, own = np.moveaxis(grown, axis, 0), np.moveaxis(mask, axis, 0)
        whole[1:] |= own[:-1]
        whole[:-1] |= own[1:]
    return grown
