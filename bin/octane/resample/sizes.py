"""What a volume takes on its way through a GPU: types, numbers of values, bytes.

Known before anything is allocated, so that memory can be planned; :mod:`octane.resample.gpu`
allocates by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.dtypes import working_type
from octane.gpu.pinned import whole_pages
from octane.resample.operator import AxisOperator

__all__ = ["BATCH_BYTES", "TYPES", "Footprint", "Layout", "aligned", "device_bytes", "identity_of"]

BATCH_BYTES = 8 << 20
"""Pushed together on a GPU. A push holds the interpreter's lock for some tens of microseconds, so
that smaller ones would bound many workers; larger ones take memory."""

# What CuPy's memory pool rounds up to.
ALIGNMENT = 512


class _Type(NamedTuple):
    """How voxels of a type lie in memory: their name in CUDA, and in NumPy."""

    name: str
    stored: str


TYPES = {
    np.dtype(kind): _Type(*stored)
    for kind, stored in {
        "f4": ("float", "f4"),
        "f8": ("double", "f8"),
        "c8": ("float", "f4"),
        "c16": ("double", "f8"),
        "f2": ("unsigned short", "u2"),
        "?": ("unsigned char", "u1"),
        "u1": ("unsigned char", "u1"),
        "i1": ("signed char", "i1"),
        "u2": ("unsigned short", "u2"),
        "i2": ("short", "i2"),
        "u4": ("unsigned int", "u4"),
        "i4": ("int", "i4"),
        "u8": ("unsigned long long", "u8"),
        "i8": ("long long", "i8"),
    }.items()
}
"""Types of voxels that the kernel reads and writes; none needs a conversion on the host."""


def aligned(size: int) -> int:
    """Bytes of device memory that an array of ``size`` bytes takes."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Layout:
    """Sizes of one volume on its way: numbers of values, a complex voxel being two.

    Attributes
    ----------
    taken
        Planes, rows and columns that the operators take.
    made
        Shape of the result.
    plane_shape
        Rows and columns that come: those that are taken, and perhaps some behind them.
    dtype, out_dtype, work
        Types of the voxels, of the result, and of the values in between, on the device.
    """

    taken: tuple[int, int, int]
    made: tuple[int, int, int]
    plane_shape: tuple[int, int]
    dtype: np.dtype
    out_dtype: np.dtype
    work: np.dtype

    @classmethod
    def of(
        cls,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> Layout:
        """The sizes of one volume; the arguments are those of :func:`device_bytes`.

        Raises
        ------
        ValueError
            For types that are not in `TYPES`, complex ones to real ones or back, and planes smaller
            than what the operators take.
        """
        source, target = (np.dtype(t).newbyteorder("=") for t in (dtype, out_dtype))
        if (
            source not in TYPES
            or target not in TYPES
            or (source.kind == "c") != (target.kind == "c")
        ):
            raise ValueError(f"the kernel does not take {source} to {target}")
        nz, ny, nx = (int(o.start.max()) + o.taps for o in operators)
        if ny > plane_shape[0] or nx > plane_shape[1]:
            raise ValueError(f"the operators take {ny} x {nx} of planes of {plane_shape}")
        mz, my, mx = (o.size for o in operators)
        work = working_type(source)
        # Complex values are computed as their components.
        real = np.empty(0, work).real.dtype
        return cls((nz, ny, nx), (mz, my, mx), plane_shape, source, target, real)

    @property
    def parts(self) -> int:
        """Values of a voxel."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def plane(self) -> int:
        """Bytes of a plane that comes."""
        return math.prod(self.plane_shape) * self.dtype.itemsize

    @property
    def after_y(self) -> int:
        """Values after the y pass."""
        return self.taken[0] * self.made[1] * self.taken[2] * self.parts

    @property
    def after_z(self) -> int:
        """Values after the z pass."""
        return self.made[0] * self.made[1] * self.taken[2] * self.parts

    @property
    def result(self) -> int:
        """Bytes of the result."""
        return math.prod(self.made) * self.out_dtype.itemsize


class Footprint(NamedTuple):
    """Bytes that one resampler takes, on the device and of (pinned) host memory."""

    device: int
    host: int


def device_bytes(
    operators: Sequence[AxisOperator],
    plane_shape: tuple[int, int],
    dtype: npt.DTypeLike,
    planes: int,
    out_dtype: npt.DTypeLike,
) -> Footprint:
    """What a resampler takes for volumes like this one, pushed ``planes`` at a time.

    One that goes on to others keeps the largest of each of its buffers, and all their weights.

    Parameters
    ----------
    operators, plane_shape, dtype, out_dtype
        As :meth:`octane.resample.gpu.CudaResampler.begin` is to get them.
    planes
        Most planes that are pushed together.

    Raises
    ------
    ValueError
        As :meth:`Layout.of`.
    """
    layout = Layout.of(operators, plane_shape, dtype, out_dtype)
    batch = planes * layout.plane
    size = layout.work.itemsize
    bands = {identity_of(o, layout.work): (4 * o.size, o.weight.size * size) for o in operators}
    taken = (
        min(planes, layout.taken[0]) * layout.plane,
        layout.after_y * size,
        layout.after_z * size,
        layout.result,
        *(size for band in bands.values() for size in band),
    )
    # What comes in the other order of bytes is turned into the buffers, from one of its own.
    batches = 2 if np.dtype(dtype) == layout.dtype else 3
    host = batches * whole_pages(batch) + whole_pages(layout.result)
    return Footprint(sum(map(aligned, taken)), host)


def identity_of(axis: AxisOperator, work: np.dtype) -> tuple[bytes, bytes, str]:
    """By what it does: parts of an operator are new objects for every block."""
    return axis.start.tobytes(), axis.weight.tobytes(), work.char
