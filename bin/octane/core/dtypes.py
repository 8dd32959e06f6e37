"""Types of voxels: which to compute in, and the way back."""

import numpy as np
import numpy.typing as npt

from octane.core.arrays import namespace

__all__ = ["as_dtype", "integer_limits", "output_type", "working_type"]


def output_type(asked: str, own: np.dtype) -> np.dtype:
    """Type of an output: what its ``dtype`` parameter asks for, or the input's own."""
    return own if asked == "input" else np.dtype(asked)


def working_type(dtype: np.dtype) -> np.dtype:
    """Type to compute in: floating and complex ones as they are, small integers in float32.

    It is of the machine's byte order.
    """
    if dtype.kind in "fc" and dtype.itemsize > 2:
        return dtype.newbyteorder("=")
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def as_dtype(values: npt.NDArray, dtype: npt.DTypeLike) -> npt.NDArray:
    """Convert ``values`` to ``dtype``: integers are rounded (half to even) and clipped.

    Masks (bool) are true from one half on. Complex values stay complex.
    """
    target = np.dtype(dtype)
    if target.kind == "b":
        return values >= 0.5
    if target.kind not in "iu":
        return values.astype(target, copy=False)
    xp = namespace(values)
    rounded = xp.rint(values)
    return xp.clip(rounded, *integer_limits(target, rounded.dtype)).astype(target)


def integer_limits(target: np.dtype, floating: np.dtype) -> tuple[float, float]:
    """Smallest and largest value of a floating type that are values of an integer type too."""
    limits = np.iinfo(str(target))
    top = floating.type(limits.max)
    # The largest int64 is no float64, and the largest int32 no float32: the one below.
    if int(top) > limits.max:
        top = np.nextafter(top, floating.type(0))
    return float(limits.min), float(top)
