"""Columns of a tile: profiles along depth, averaged over squares of pixels to remove speckle."""

import numpy as np
import numpy.typing as npt

COLUMN_EDGE = 8
"""Edge of a column, pixels."""

Columns = npt.NDArray[np.float32]
"""Columns of a tile, (z, y, x)."""


def columns(block: npt.NDArray, size: int = COLUMN_EDGE) -> Columns:
    """Average |block| over squares of pixels in each plane: (z, y, x) to (z, y // size, x // size).

    NaN and Inf do not count; a square without any other value is NaN.
    """
    height, width = (n // size for n in block.shape[1:])
    block = block[:, : height * size, : width * size]
    means = np.empty((len(block), height, width), np.float32)
    # Plane by plane, which stays in the cache.
    bright = np.empty(block.shape[1:], np.abs(block[:0]).dtype)
    for plane, mean in zip(block, means, strict=True):
        np.abs(plane, out=bright)
        mean[:] = _square_sums(bright, size, np.float32)
        mean /= size**2
        if not np.isfinite(mean).all():
            known = np.isfinite(bright)
            count = _square_sums(known, size, np.float64)
            total = _square_sums(np.where(known, bright, 0), size, np.float64)
            mean[:] = np.where(count > 0, total, np.nan) / np.maximum(count, 1)
    return means


def _square_sums(plane: npt.NDArray, size: int, dtype: type[np.floating]) -> npt.NDArray:
    """Sum over squares of pixels; einsum is several times as fast as sums over short axes."""
    height, width = (n // size for n in plane.shape)
    folded = plane.reshape(height, size, width * size)
    rows = np.einsum("ijk->ik", folded, dtype=dtype, casting="unsafe")
    return np.einsum("ijk->ij", rows.reshape(height, width, size))
