"""Resampling of arrays: one banded operator per axis, applied as sums of taps.

Taps are summed one after the other in a fixed order, on any array module. A voxel's value is
therefore the same whatever block it was computed in, which makes block-wise results equal to
whole ones bit for bit (a GEMM's order depends on its shape).
"""

from collections.abc import Sequence

import numpy.typing as npt

from octane.backend import namespace
from octane.dtypes import working_type
from octane.operators import AxisOperator

__all__ = ["apply", "resample"]


def apply(operator: AxisOperator, array: npt.NDArray, axis: int) -> npt.NDArray:
    """Apply ``operator`` along ``axis`` of ``array`` (z, y, x), in the array's floating type."""
    if operator.identity(array.shape[axis]):
        return array
    xp = namespace(array)
    start = xp.asarray(operator.start)
    shape = [1] * array.ndim
    shape[axis] = operator.size
    real = array.real.dtype
    weight = xp.asarray(operator.weight.astype(real))
    total = xp.take(array, start, axis=axis)
    total *= weight[:, 0].reshape(shape)
    for tap in range(1, operator.taps):
        term = xp.take(array, start + tap, axis=axis)
        term *= weight[:, tap].reshape(shape)
        total += term
    return total


def resample(array: npt.NDArray, operators: Sequence[AxisOperator]) -> npt.NDArray:
    """Apply one operator per axis, the one that shrinks most first.

    Parameters
    ----------
    array
        (z, y, x), any real or complex type. Integers are computed in float32 up to 16 bits and in
        float64 above.
    operators
        One per axis.

    Returns
    -------
    array
        Floating or complex values; :func:`octane.dtypes.as_dtype` brings them back to integers.
    """
    values = array.astype(working_type(array.dtype), copy=False)
    for axis in sorted(range(values.ndim), key=lambda axis: (operators[axis].ratio, axis)):
        values = apply(operators[axis], values, axis)
    return values
