"""Image filters with mirrored borders.

They return the results of SciPy's filters bit for bit, without importing SciPy, which takes longer
than many steps run.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 15
"""Pixels filtered at once, few enough to stay in the cache."""


def gaussian(image: npt.NDArray, sigma: float, truncate: float = 4.0) -> npt.NDArray:
    """Gaussian filter of ``sigma`` pixels, truncated at ``truncate`` sigmas."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    weights /= weights.sum()

    def filtered(lines: npt.NDArray, n: int) -> npt.NDArray:
        total = lines[radius : radius + n] * weights[radius]
        # The farthest pairs first, as SciPy adds them.
        for k in range(radius):
            pair = lines[k : k + n] + lines[2 * radius - k :][:n]
            pair *= weights[k]
            total += pair
        return total

    return _along_axes(image, radius, filtered)


def _along_axes(
    image: npt.NDArray, radius: int, filtered: Callable[[npt.NDArray, int], npt.NDArray]
) -> npt.NDArray:
    """Filter one axis after the other; ``filtered`` receives padded float64 columns."""
    for axis in range(image.ndim):
        moved = np.moveaxis(image, axis, 0)
        n = len(moved)
        lines = moved.reshape(n, -1)
        found = np.empty_like(lines)
        places = np.arange(-radius, n + radius) % (2 * n)
        places = np.minimum(places, 2 * n - 1 - places)
        width = max(1, BLOCK // n)
        for start in range(0, lines.shape[1], width):
            columns = slice(start, start + width)
            found[:, columns] = filtered(lines[:, columns].astype(np.float64)[places], n)
        image = np.moveaxis(found.reshape(moved.shape), 0, axis)
    return image
