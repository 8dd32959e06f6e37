"""Rounding of floating values to integers, in one compiled pass."""

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from octane.core.compiled import compiled


def rounded(values: npt.NDArray, limits: tuple[float, float], dtype: np.dtype) -> npt.NDArray:
    """Round float32 or float64 half to even, and clip to the ``limits`` of an integer type.

    NaN becomes 0.
    """
    found = np.empty(values.shape, dtype.newbyteorder("="))
    line = np.ascontiguousarray(values).reshape(-1)
    _rounder(line.dtype, found.dtype)(line, np.array(limits, line.dtype), found.reshape(-1))
    return found.astype(dtype, copy=False)


@cache
def _rounder(floating: np.dtype, integer: np.dtype) -> Callable[..., None]:
    """Compile the loop of :func:`rounded` for these types."""
    f = floating.name
    return compiled(f"void({f}[::1], {f}[::1], {integer.name}[::1])")(_round)


def _round(values: np.ndarray, limits: np.ndarray, found: np.ndarray) -> None:
    low, high = limits
    for i in range(len(values)):
        value = values.dtype.type(np.rint(values[i]))
        # As on a GPU, no number is 0.
        value = value if value == value else values.dtype.type(0)
        value = value if value > low else low
        found[i] = value if value < high else high
