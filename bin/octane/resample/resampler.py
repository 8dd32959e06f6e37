"""Resampling of arrays: one banded operator per axis, along y, then z, then x.

On a CPU it uses compiled loops (:mod:`octane.resample.cpu`), on a GPU a kernel
(:mod:`octane.resample.gpu`); the tests compare both with sums over whole arrays. All sum the taps
in order. A voxel's value is therefore the same in any block, so that block-wise results equal the
whole bit for bit (a GEMM's order depends on its shape).
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octane.core.arrays import working_type
from octane.pipeline.lanes import Lane
from octane.resample.cpu import CompiledResampler
from octane.resample.gpu import CudaResampler, Footprint, device_bytes, kernels
from octane.resample.nearest import NearestResampler
from octane.resample.operator import AxisOperator


class Resampler(Protocol):
    """Resamples tile after tile; one per lane, because its buffers are reused."""

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a tile.

        Parameters
        ----------
        operators
            Operators of z, y and x.
        plane_shape
            (y, x) of the planes that will be pushed. Voxels beyond those that the operators use,
            such as the padding of a chunk at the edge, are ignored.
        dtype, out_dtype
            Of the planes and of the result: floating and complex values are cast, integers rounded
            and clipped as by :func:`octane.core.arrays.as_dtype`.

        Raises
        ------
        ValueError
            If the operators need more voxels than a plane has.
        """
        ...

    def buffer(self, planes: int) -> npt.NDArray:
        """A reusable array on the host to decode the next planes into, (planes, y, x)."""
        ...

    def push(self, planes: npt.NDArray) -> None:
        """Process the next planes in the order of z, (planes, y, x) with any strides.

        They have the shape and type that :meth:`begin` was given.
        """
        ...

    def finish(self) -> npt.NDArray:
        """Return the result, (z, y, x), on the host; the next tile reuses its memory."""
        ...


def make_resampler(lane: Lane, *, averaged: bool) -> Resampler:
    """The resampler for the device of a lane, or the one that averages nothing."""
    if not averaged:
        return NearestResampler(lane)
    return CompiledResampler() if lane.xp is np else CudaResampler(lane)


def footprint(
    operators: Sequence[AxisOperator],
    plane_shape: tuple[int, int],
    dtype: npt.DTypeLike,
    planes: int,
    out_dtype: npt.DTypeLike,
    *,
    gpu: bool,
) -> Footprint:
    """Memory of a resampler on the device and on the host, pushed ``planes`` at a time."""
    if gpu:
        return device_bytes(operators, plane_shape, dtype, planes, out_dtype)
    z, y, x = operators
    working, out = working_type(np.dtype(dtype)), np.dtype(out_dtype)
    batch = planes * plane_shape[0] * plane_shape[1] * np.dtype(dtype).itemsize
    ring = (z.taps + 2) * y.size * plane_shape[1] * working.itemsize
    # Types that the loops do not write are converted from the computing type.
    result = z.size * y.size * x.size * (out.itemsize + working.itemsize * (out.kind == "b"))
    return Footprint(0, batch + ring + result)


def load(xp: ModuleType, dtype: npt.DTypeLike, out_dtype: npt.DTypeLike) -> None:
    """Compile a GPU's kernels for these types once, before each lane would."""
    if xp is not np:
        kernels(xp, dtype, out_dtype)


def resample(array: npt.NDArray, operators: Sequence[AxisOperator]) -> npt.NDArray:
    """Apply one operator per axis to an array (z, y, x) of any real or complex type.

    The result has floating or complex values: float32 for integers up to 16 bits, float64 above. It
    may be the array itself, if the operators leave it unchanged.
    """
    _, ny, nx = array.shape
    if all(own.identity(n) for own, n in zip(operators, array.shape, strict=True)):
        return array.astype(working_type(array.dtype), copy=False)
    # A new resampler, so that its result is not overwritten.
    resampler = CompiledResampler()
    resampler.begin(operators, (ny, nx), array.dtype, working_type(array.dtype))
    resampler.push(array)
    return resampler.finish()
