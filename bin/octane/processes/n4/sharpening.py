"""Sharpening of N4's histogram: deconvolution with a Gaussian, and the expected values."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

SHARE = 2**24
"""Units per voxel in which its share of the next bin is counted."""


class Sharpening(NamedTuple):
    """Options of the histogram's deconvolution: see :func:`fit_bias_field`."""

    bins: int
    fwhm: float
    noise: float


def sharpen(
    counted: np.ndarray, shares: np.ndarray, low: float, slope: float, options: Sharpening
) -> np.ndarray:
    """Expected true value for every bin of a log histogram (Sled 1998).

    Parameters
    ----------
    counted, shares : ndarray, int64, (bins,)
        Voxels per bin, and the sum of their shares of the next bin, times 2**24.
    low, slope : float
        Value of the first bin, and the bin width.

    Returns
    -------
    ndarray, float32, (bins, 2)
        The value, and its difference to the next one.
    """
    bins, size = options.bins, padded_size(options.bins)
    offset = (size - bins) // 2
    inside = slice(offset, offset + bins)
    width = options.fwhm / slope
    gaussian = np.exp((-4 * math.log(2) / width**2) * _squares(size))
    # The transform of an even function is real.
    blur = np.fft.rfft(gaussian * (2 * math.sqrt(math.log(2) / math.pi) / width)).real
    padded = np.zeros(size)
    padded[inside] = counted - shares / SHARE
    padded[offset + 1 : offset + bins] += shares[:-1] / SHARE
    filtered = np.fft.rfft(padded) * (blur / (blur * blur + options.noise))
    sharp = np.maximum(np.fft.irfft(filtered, size), 0)
    values = low + (np.arange(size) - offset) * slope
    above, below = np.fft.irfft(np.fft.rfft([sharp * values, sharp]) * blur, size)[:, inside]
    table = np.zeros((bins, 2), np.float32)
    np.divide(above, below, out=table[:, 0], where=below != 0, casting="same_kind")
    table[:-1, 1] = np.diff(table[:, 0])
    return table


def padded_size(bins: int) -> int:
    """Points of the padded histogram: twice the next power of two, as in ITK."""
    # Size and offset affect the field (256 points: 4e-4; offset 0: diverges).
    return 2 ** (math.ceil(math.log2(bins)) + 1)


@cache
def _squares(size: int) -> np.ndarray:
    """Squared distances from the first point of a periodic row, (size,)."""
    n = np.arange(size)
    return np.minimum(n, size - n) ** 2.0
