"""The tissue mask for N4's fit, computed from the (shrunk) volume on the host.

Each section is processed separately: smoothed, thresholded by Otsu 1979 ("A threshold selection
method from gray-level histograms", IEEE TSMC 9(1)), its holes filled and its outline closed.
Sections differ in brightness, so one threshold for all would lose the dark ones; smoothing or
closing across a section boundary would mix two different slabs of tissue.

Otsu's threshold depends on the range of the values: a few that are many times brighter than tissue
(reflections, hot pixels) leave tissue with the background. Where such glare is seen, the threshold
is sought with clipped values, and taken if it lies between two groups and the mask is another.

Small islands are kept: the data do not tell the size that separates a fragment of tissue from a
speck, and a speck of a few voxels does not move a field of hundreds of control points.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from octane.core.filters import gaussian

log = logging.getLogger(__name__)

SIGMA = 1.0
"""Of the Gaussian smoothing, in voxels."""
GLARE = 0.04
"""Part of a section's voxels that are clipped where glare is seen: more than the glare, so that
tissue sets the level, whose logarithm may have the long tail of speckle."""
BRIGHTEST = 1.25
"""Level of clipping, in the brightness of the darkest of these voxels."""
GLARING = 1.3
"""Ratio of a smoothed section's brightest voxel to that level above which glare is looked for."""
ALIKE = 0.1
"""Part of a mask that may change by clipping for other reasons: how bright the brightest of sparse
or layered tissue is moves Otsu's threshold a little."""
ABSENT = 6.0
"""Ratio of the distances of the lowest value and of the brightest tissue from the median above
which values below 0 stand for missing data."""
GROUPS = 0.77
"""Least part of the variance that lies between two groups: noise has 0.64 between its halves,
evenly distributed values 0.75."""
BINS, VALLEY = 32, 0.5
"""Of groups that overlap more: in so many bins, the valley is less than this part of the peaks."""
SMALL, LARGER = 0.1, 4.0
"""A mask of less than this part of a section is far too small if so many times more lies above the
background."""

Warn = Callable[[str], None]


def tissue_mask(
    volume: np.ndarray,
    sections: Sequence[tuple[int, int]],
    warn: Warn = log.warning,
    names: Sequence[str] = (),
) -> np.ndarray:
    """Find the tissue in a volume, section by section.

    Parameters
    ----------
    volume : ndarray, (z, y, x)
        Finite intensities, tissue brighter than background.
    sections : sequence of (start, stop)
        Planes of each section on this grid; planes outside all sections are outside the mask.
    warn : callable
        Takes the warning that a section without contrast counts as empty, or that its mask is far
        smaller than what lies above the background.
    names : sequence of str
        Name of each section in warnings, by default its index and planes.

    Returns
    -------
    ndarray, bool, (z, y, x)
    """
    mask = np.zeros(volume.shape, bool)
    for number, (start, stop) in enumerate(sections):
        section = volume[start:stop].astype(np.float32)
        part = names[number] if names else f"section {number} (planes {start} to {stop})"
        name = f"tissue mask: {part}"
        if section.min() == section.max():
            warn(f"{name} is constant and counts as empty")
            continue
        mask[start:stop] = _section_mask(section, name, warn)
    return mask


def otsu_threshold(values: np.ndarray) -> float:
    """Return Otsu's threshold as ITK computes it (128 bins)."""
    import SimpleITK as sitk

    otsu = sitk.OtsuThresholdImageFilter()
    otsu.Execute(sitk.GetImageFromArray(np.ascontiguousarray(values)))
    return otsu.GetThreshold()


def _section_mask(section: np.ndarray, name: str, warn: Warn) -> np.ndarray:
    # Not at module level: only runs with a tissue mask need it.
    import SimpleITK as sitk

    mask = _above_background(section, name, warn)
    # Plane by plane, by inserting planes of tissue: a cut ventricle is open at the top and bottom
    # of its section and would not be a hole in three dimensions.
    planes = np.ones((2 * len(mask) + 1, *mask.shape[1:]), np.uint8)
    planes[1::2] = mask
    filled = sitk.BinaryFillhole(sitk.GetImageFromArray(planes), False, 1)
    mask = sitk.GetArrayViewFromImage(filled)[1::2] > 0
    # Closing; the erosion assumes tissue beyond the borders, or it would remove tissue there.
    return ~_grown(~_grown(mask))


def _above_background(section: np.ndarray, name: str, warn: Warn) -> np.ndarray:
    """Voxels above Otsu's threshold of the smoothed section, in which glare is clipped."""
    low = float(section.min())
    most = 100 * (1 - GLARE)
    middle, bright = map(float, np.percentile(section, (50, most)))
    if low < -bright < 0 and middle - low > ABSENT * (bright - middle):
        low = -bright
        section = np.maximum(section, np.float32(low))
    if bright <= low:
        # Tissue is as sparse as glare may be.
        bright = float(np.percentile(section[section > low], most))
    level = BRIGHTEST * bright
    smooth = gaussian(section, SIGMA)
    mask = smooth > otsu_threshold(smooth)
    if level > max(low, 0) and smooth.max() > GLARING * level:
        clipped = gaussian(np.minimum(section, np.float32(level)), SIGMA)
        threshold = otsu_threshold(clipped)
        other = clipped > threshold
        change = np.count_nonzero(mask ^ other)
        if change > ALIKE * np.count_nonzero(other) and _are_two(clipped, threshold):
            log.info("%s: values above %.4g are clipped", name, level)
            mask = other
    _warn_of_little(section, mask, name, warn)
    return mask


def _warn_of_little(section: np.ndarray, mask: np.ndarray, name: str, warn: Warn) -> None:
    """Warn if a mask has far less than what lies above the background of a section."""
    share = np.count_nonzero(mask) / mask.size
    if share >= SMALL:
        return
    # What the mask has would shine into its surroundings.
    level = BRIGHTEST * np.percentile(section[~mask], 100 * (1 - GLARE))
    below = gaussian(np.minimum(section, np.float32(level)), SIGMA)[~mask]
    if below.min() == below.max():
        return
    threshold = otsu_threshold(below[None])
    dark = below[below <= threshold]
    above = 1 - dark.size / mask.size
    # Half of one value are planes that were not imaged; the background's noise is no tissue.
    blank = np.median(dark) == dark.min()
    if above > LARGER * share and not blank and _are_two(below, threshold):
        warn(
            f"{name}: the mask has {100 * share:.2g} % of the voxels, but {100 * above:.2g} % lie "
            "above the background; look for reflections, or give a mask of your own"
        )


def _are_two(values: np.ndarray, threshold: float) -> bool:
    """Tell whether a threshold divides values into two groups, rather than noise into halves."""
    bright = values[values > threshold]
    part = bright.size / values.size
    if not 0 < part < 1:
        return False
    mean = values.mean(dtype=np.float64)
    between = (bright.mean(dtype=np.float64) - mean) ** 2 * part / (1 - part)
    if between > GROUPS * values.var(dtype=np.float64):
        return True
    counts, edges = np.histogram(values, BINS)
    cut = int(np.clip(np.searchsorted(edges, threshold), 1, BINS - 1))
    left, right = int(counts[:cut].argmax()), cut + int(counts[cut:].argmax())
    valley = int(counts[left : right + 1].min())
    # Three standard deviations of chance above what was counted.
    most = valley + 3 * np.sqrt(valley + 1)
    return bool(most < VALLEY * min(counts[left], counts[right]))


def _grown(mask: np.ndarray) -> np.ndarray:
    """The mask dilated by the voxels that share a face with it."""
    grown = mask.copy()
    for axis in range(mask.ndim):
        whole, own = np.moveaxis(grown, axis, 0), np.moveaxis(mask, axis, 0)
        whole[1:] |= own[:-1]
        whole[:-1] |= own[1:]
    return grown
