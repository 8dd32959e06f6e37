"""Resampling by the nearest voxel, for values that must not be averaged: labels, angles.

No value is computed with, so that every type keeps its bits: NaN, -0.0, and integers that float64
does not hold. A GPU would have nothing to compute, so this runs on the CPU alone.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype
from octane.pipeline.lanes import Lane
from octane.resample.operator import AxisOperator, reach


class NearestResampler:
    """A :class:`octane.resample.resampler.Resampler` that takes voxels.

    Its operators are those of :func:`octane.resample.operator.nearest`.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a tile; arguments and errors are those of the compiled loops."""
        reach(operators, plane_shape)
        z, y, x = (operator.start for operator in operators)
        self._planes, self._taken = z, np.ix_(y, x)
        self._plane_shape, self._dtype = plane_shape, np.dtype(dtype)
        self._pushed = 0
        self._result = np.empty((len(z), len(y), len(x)), out_dtype)

    def buffer(self, planes: int) -> npt.NDArray:
        """A reusable array to decode the next planes into, (planes, y, x)."""
        return self._lane.buffer("planes", (planes, *self._plane_shape), self._dtype)

    def push(self, planes: npt.NDArray) -> None:
        """Take voxels of the next planes in the order of z, (planes, y, x)."""
        last = self._pushed + len(planes)
        first, stop = np.searchsorted(self._planes, (self._pushed, last))
        for output in range(first, stop):
            voxels = planes[self._planes[output] - self._pushed][self._taken]
            self._result[output] = as_dtype(voxels, self._result.dtype)
        self._pushed = last

    def finish(self) -> npt.NDArray:
        """Return the result, (z, y, x)."""
        return self._result
