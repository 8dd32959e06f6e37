"""Resampling of arrays: one banded operator per axis, along y, then z, then x.

On NumPy arrays it is compiled loops (:mod:`octane.resample_compiled`), elsewhere sums of taps of
whole arrays, which are also what the tests compare with. Both sum the taps one after the other in
their order. A voxel's value is therefore the same whatever block it was computed in, which makes
block-wise results equal to whole ones bit for bit (a GEMM's order depends on its shape).
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octane.backend import namespace, to_host
from octane.dtypes import as_dtype, working_type
from octane.operators import AxisOperator
from octane.resample_compiled import (
    CompiledResampler,
    reach,
    require_announced,
    require_complete,
    streams,
)

__all__ = [
    "ArrayResampler",
    "Resampler",
    "apply",
    "make_resampler",
    "resample",
    "resample_arrays",
]


class Resampler(Protocol):
    """Resamples tile after tile, plane after plane; one per worker, its buffers are reused.

    See :class:`octane.resample_compiled.CompiledResampler` for what the methods take.
    """

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a tile with the operators of z, y and x."""

    def buffer(self, planes: int) -> np.ndarray:
        """An array for the next planes to be decoded into, (planes, y, x); reused."""
        ...

    def push(self, planes: np.ndarray) -> None:
        """Take the next planes in the order of z."""

    def finish(self) -> np.ndarray:
        """The result, (z, y, x) of the type asked for: valid until the next ``begin``."""
        ...


def make_resampler(xp: ModuleType) -> Resampler:
    """The resampler for arrays of a module, ``numpy`` or ``cupy``."""
    return CompiledResampler() if xp is np else ArrayResampler(xp)


def resample(array: npt.NDArray, operators: Sequence[AxisOperator]) -> npt.NDArray:
    """Apply one operator per axis.

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
    if namespace(array) is not np or not streams(operators):
        return resample_arrays(array, operators)
    _, ny, nx = array.shape
    # A resampler of its own, whose result nothing else will overwrite.
    resampler = CompiledResampler()
    resampler.begin(operators, (ny, nx), array.dtype, working_type(array.dtype))
    resampler.push(array)
    return resampler.finish()


def resample_arrays(array: npt.NDArray, operators: Sequence[AxisOperator]) -> npt.NDArray:
    """:func:`resample` as sums of taps of whole arrays, on any array module."""
    values = array.astype(working_type(array.dtype), copy=False)
    for axis in (1, 0, 2):
        values = apply(operators[axis], values, axis)
    return values


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


class ArrayResampler:
    """A :class:`Resampler` of arrays of any module, with the bits of :func:`resample_arrays`."""

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a tile with the operators of z, y and x."""
        self._reach = reach(operators, plane_shape)
        self._operators, self._plane_shape, self._dtype = operators, plane_shape, np.dtype(dtype)
        self._result = np.empty([operator.size for operator in operators], out_dtype)
        self._waiting: list[npt.NDArray] = []
        # Along z: the first plane that waits, and planes of the result that are complete.
        self._first = self._done = 0

    def buffer(self, planes: int) -> np.ndarray:
        """An array for the next planes, (planes, y, x)."""
        return np.empty((planes, *self._plane_shape), self._dtype)

    def push(self, planes: np.ndarray) -> None:
        """Take the next planes; those of the result that they complete are computed at once."""
        require_announced(planes, self._plane_shape, self._dtype)
        z, y, x = self._operators
        ny, nx = self._reach
        # A copy, as the caller may fill the array again, and of a byte order that CuPy takes.
        own = planes[:, :ny, :nx].astype(self._dtype.newbyteorder("="))
        source = self._xp.asarray(own).astype(working_type(self._dtype), copy=False)
        self._waiting.append(apply(y, source, 1))
        there = self._first + sum(map(len, self._waiting))
        done = int(np.searchsorted(z.start, there - z.taps, "right"))
        if done == self._done:
            return
        waiting = self._xp.concatenate(self._waiting)
        part, needed = z.part(slice(self._done, done))
        values = waiting[needed.start - self._first : needed.stop - self._first]
        values = as_dtype(apply(x, apply(part, values, 0), 2), self._result.dtype)
        self._result[self._done : done] = to_host(values)
        first = min(int(z.start[done]), there) if done < z.size else there
        self._waiting = [waiting[first - self._first :]]
        self._first, self._done = first, done

    def finish(self) -> np.ndarray:
        """The result, (z, y, x) of the type asked for."""
        require_complete(self._done, len(self._result))
        return self._result
