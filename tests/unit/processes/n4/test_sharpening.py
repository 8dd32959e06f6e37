"""A histogram is sharpened bit for bit as with NumPy's transforms."""

import math

import numpy as np
import pytest

from octane.processes.n4.sharpening import SHARE, Sharpening, sharpen


def expected(histogram, low, slope, options):
    """Sled's expected values, padded as ITK does, by numpy.fft."""
    bins = len(histogram)
    size = 2 ** (math.ceil(math.log2(bins)) + 1)
    offset, n = (size - bins) // 2, np.arange(size)
    width = options.fwhm / slope
    gaussian = np.exp(-4 * math.log(2) / width**2 * np.minimum(n, size - n) ** 2.0)
    blur = np.fft.rfft(gaussian * (2 * math.sqrt(math.log(2) / math.pi) / width)).real
    padded = np.zeros(size)
    padded[offset : offset + bins] = histogram
    filtered = np.fft.rfft(padded) * (blur / (blur * blur + options.noise))
    sharp = np.maximum(np.fft.irfft(filtered, size), 0)
    above, below = (
        np.fft.irfft(np.fft.rfft(v) * blur, size)[offset : offset + bins]
        for v in (sharp * (low + (n - offset) * slope), sharp)
    )
    return np.divide(above, below, out=np.zeros(bins), where=below != 0)


@pytest.mark.parametrize("bins", [2, 3, 4, 8, 16, 33, 64, 100, 200, 257, 1000])
@pytest.mark.parametrize("filled", [1.0, 0.3])
def test_values_are_those_of_numpy_s_transforms(rng, bins, filled):
    options = Sharpening(bins, 0.15, 0.01)
    counted = rng.integers(0, 5000, bins) * (rng.random(bins) < filled)
    shares = (counted * rng.random(bins) * SHARE).astype(np.int64)
    histogram = counted - shares / SHARE
    histogram[1:] += shares[:-1] / SHARE
    low, slope = float(rng.uniform(-1, 3)), float(rng.uniform(1, 4) / bins)
    table = sharpen(counted, shares, low, slope, options)
    values = expected(histogram, low, slope, options).astype(np.float32)
    np.testing.assert_array_equal(table[:, 0], values)
    np.testing.assert_array_equal(table[:, 1], [*np.diff(values), 0])


def test_an_empty_histogram_expects_nothing():
    nothing = np.zeros(200, np.int64)
    assert not sharpen(nothing, nothing, 1.0, 0.01, Sharpening(200, 0.15, 0.01)).any()
