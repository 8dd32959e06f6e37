"""The voxels of a mask that N4 can fit: positive, finite, and not far from all others.

N4 works on the logarithm of the intensities. ITK fits values <= 0 without a logarithm, and a few of
them, or a few values that are extremely small or large, stretch the histogram until its bins are
wider than the Gaussian that is deconvolved: the field then is 1 everywhere, or anything.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.errors import InputError
from octane.core.units import counted

SPREAD = 3.0
"""Interquartile ranges of the logarithm beyond a quartile within which nothing is an outlier.

This is Tukey's outer fence: background and tissue together, of any ratio, lie within it.
"""
DARKER = 25.0
"""Distance of the logarithm below the lower quartile within which nothing is an outlier.

Speckle and noise reach down to any value, in 1e9 voxels by 21; the field hardly suffers.
"""
BRIGHTER = math.log(2**16)
"""The same above the upper quartile: integers of 16 bits have no outliers."""


class LeftOut(NamedTuple):
    """Voxels of the mask that are not fitted: NaN or infinite, 0 or less, outliers."""

    nonfinite: int = 0
    nonpositive: int = 0
    outliers: int = 0

    def __str__(self) -> str:
        """List the counts that are not 0."""
        words = zip(self, ("of NaN or Inf", "of 0 or less", "far from all others"), strict=True)
        parts = [(n, text) for n, text in words if n]
        return ", ".join(
            f"{n if k else counted(n, 'voxel')} {text}" for k, (n, text) in enumerate(parts)
        )


def voxels_to_fit(
    image: npt.NDArray[np.float32], inside: npt.NDArray[np.bool_], name: str
) -> tuple[npt.NDArray[np.bool_], LeftOut]:
    """Leave the voxels that N4 cannot fit out of a mask.

    Parameters
    ----------
    image : ndarray, float32, (z, y, x)
        Intensities as they are fitted.
    inside : ndarray, bool, (z, y, x)
        The voxels to fit, by which outliers are judged.
    name : str
        Names the image in an error.

    Returns
    -------
    kept : ndarray, bool, (z, y, x)
        `inside` itself if nothing is left out.
    left_out : LeftOut

    Raises
    ------
    OctaneError
        If no voxel is positive and finite.
    """
    values = image[inside]
    if not values.size:
        return inside, LeftOut()
    low, high = float(values.min()), float(values.max())
    if low > 0 and high < math.inf and math.log(high / low) <= BRIGHTER:
        return inside, LeftOut()
    finite = np.isfinite(values)
    usable = finite & (values > 0)
    if not usable.any():
        raise InputError(
            f"{name} has no voxel above 0 to be fitted, but N4 corrects by division: give linear "
            "intensities (not in decibels), or another mask."
        )
    bottom, top = _fences(values[usable])
    kept = usable & (values >= bottom) & (values <= top)
    counts = [int(np.count_nonzero(own)) for own in (finite, usable, kept)]
    left_out = LeftOut(values.size - counts[0], counts[0] - counts[1], counts[1] - counts[2])
    if not any(left_out):
        return inside, left_out
    mask = np.zeros(image.shape, np.bool_)
    mask[inside] = kept
    return mask, left_out


def _fences(values: npt.NDArray[np.float32]) -> tuple[np.float32, np.float32]:
    """Smallest and largest positive value that is no outlier."""
    lower, upper = np.log(np.percentile(values, (25, 75)), dtype=np.float64)
    spread = SPREAD * (upper - lower)
    ends = np.finfo(np.float32)
    low, high = lower - max(DARKER, spread), upper + max(BRIGHTER, spread)
    # The smallest number of float32 that is not 0, so that values of 0 remain outside.
    bottom = math.exp(max(low, math.log(float(ends.smallest_subnormal))))
    return np.float32(bottom), np.float32(math.exp(min(high, math.log(float(ends.max)))))
