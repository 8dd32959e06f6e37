"""Resampling on an NVIDIA GPU: the banded operators of three axes as a hand-written kernel.

A volume arrives in batches of planes, through a lane's buffers and stream. Each batch is resampled
along y right after its copy, which leaves about a third of it on the device; z and x follow once
all planes have arrived. The order y, z, x and the order of taps are fixed, so that a voxel has the
same value in any block.

While a lane waits for a copy, others decode and compute. Counted in bytes, the copies to the device
limit the run, and memory bandwidth the kernels; neither has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.arrays import integer_limits, working_type
from octane.gpu.kernels import OPTIONS, source_with
from octane.gpu.pinned import whole_pages
from octane.pipeline.lanes import Lane
from octane.resample.operator import AxisOperator, reach

SOURCE = Path(__file__).with_suffix(".cu")

THREADS = 256

STRETCH = 8
"""Outputs per thread along y and z: more mean fewer samples read twice, but fewer threads."""

BATCH_BYTES = 8 << 20
"""Bytes of planes pushed at once on a GPU. A push holds the interpreter's lock for tens of
microseconds: smaller ones would slow down many workers, larger ones need more memory."""

ALIGNMENT = 512
"""Bytes to whose multiples CuPy's memory pool rounds up."""

NAMES = {
    "f": "float", "d": "double", "F": "float", "D": "double", "e": "Half", "?": "bool",
    "b": "signed char", "h": "short", "i": "int", "l": "long",
    "B": "unsigned char", "H": "unsigned short", "I": "unsigned int", "L": "unsigned long",
}  # fmt: skip
TYPES = {np.dtype(code): name for code, name in NAMES.items()}
"""Voxel types that the kernel reads and writes, in the machine's byte order, with their names in
the kernel's source; a complex voxel is two values."""


def aligned(size: int) -> int:
    """Bytes of device memory that an array of ``size`` bytes takes."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


class Sizes(NamedTuple):
    """Sizes and types for resampling one volume."""

    planes: int  # needed by the operators
    columns: int  # needed by the operators
    made: tuple[int, int, int]  # shape of the result
    plane_shape: tuple[int, int]  # of pushed planes, which may exceed what the operators need
    dtype: np.dtype
    out_dtype: np.dtype

    @classmethod
    def of(
        cls,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> Sizes:
        """The sizes of one volume; arguments and errors are those of :func:`device_bytes`."""
        source, target = np.dtype(dtype).newbyteorder("="), np.dtype(out_dtype)
        if not {source, target} <= TYPES.keys() or (source.kind == "c") != (target.kind == "c"):
            raise ValueError(f"the kernel does not convert {source} to {target}")
        planes, _, columns = reach(operators, plane_shape)
        z, y, x = operators
        return cls(planes, columns, (z.size, y.size, x.size), plane_shape, source, target)

    @property
    def parts(self) -> int:
        """Values per voxel."""
        return 2 if self.dtype.kind == "c" else 1

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shapes and types of the device's arrays: after y, after z, and the result."""
        (mz, my, _), work = self.made, working_type(self.dtype)
        between = [((n, my, self.columns), work) for n in (self.planes, mz)]
        return [*between, (self.made, self.out_dtype)]


class Footprint(NamedTuple):
    """Bytes that one resampler needs, of device and of (pinned) host memory."""

    device: int
    host: int


def device_bytes(
    operators: Sequence[AxisOperator],
    plane_shape: tuple[int, int],
    dtype: npt.DTypeLike,
    planes: int,
    out_dtype: npt.DTypeLike,
) -> Footprint:
    """Memory of a resampler for volumes like this one, pushed ``planes`` at a time.

    Raises
    ------
    ValueError
        For types that are not in `TYPES` (in any byte order), conversions between complex and real
        ones, and planes smaller than the operators need.
    """
    sizes = Sizes.of(operators, plane_shape, dtype, out_dtype)
    work = working_type(sizes.dtype).itemsize // sizes.parts
    arrays = [math.prod(shape) * made.itemsize for shape, made in sizes.arrays]
    plane = math.prod(plane_shape) * sizes.dtype.itemsize
    weights = [n for o in operators for n in (4 * o.size, o.weight.size * work)]
    device = sum(map(aligned, [min(planes, sizes.planes) * plane, *arrays, *weights]))
    return Footprint(device, whole_pages(planes * plane) + whole_pages(arrays[-1]))


def code(source: np.dtype, target: np.dtype, work: np.dtype) -> str:
    """The kernel's source for values of two types in `TYPES`, computed in `work`."""
    low, high = integer_limits(target, work) if target.kind in "iu" else (0.0, 0.0)
    types = {"INPUT": TYPES[source], "OUTPUT": TYPES[target], "WORK": TYPES[work]}
    return source_with(SOURCE, **types, LOWEST=repr(low), HIGHEST=repr(high), THREADS=THREADS)


def kernels(
    xp: ModuleType, dtype: npt.DTypeLike, out_dtype: npt.DTypeLike
) -> list[Callable[..., None]]:
    """Return the kernels of the passes along z, y and x; a process's first call compiles them.

    Make that call before starting threads, each of which would compile its own.
    """
    source, target = np.dtype(dtype).newbyteorder("="), np.dtype(out_dtype)
    work = working_type(source)
    return [
        xp.RawModule(code=code(*types, work), options=OPTIONS).get_function("band")
        for types in ((work, work), (source, work), (work, target))
    ]


class CudaResampler:
    """A :class:`octane.resample.resampler.Resampler` on the current GPU, in its lane's stream."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a volume.

        An unfinished one is dropped. Types and errors are those of :func:`device_bytes`; voxels in
        the other byte order are swapped on the host.
        """
        xp, sizes = self._lane.xp, Sizes.of(operators, plane_shape, dtype, out_dtype)
        self._sizes, self._given, self._pushed = sizes, np.dtype(dtype), 0
        self.kernels = kernels(xp, dtype, out_dtype)
        work = working_type(sizes.dtype)
        # Free the last volume's memory before allocating this one's.
        self._axes, self._arrays = [], []
        # Weights are (taps, outputs), so that the outputs are contiguous.
        self._axes = [
            (
                xp.asarray(o.start.astype(np.int32)),
                xp.asarray(np.ascontiguousarray(o.weight.T.astype(work).real)),
            )
            for o in operators
        ]
        self._arrays = [xp.empty(*array) for array in sizes.arrays]

    def buffer(self, planes: int) -> npt.NDArray:
        """Return the host buffer, (planes, cy, cx), to fill and push."""
        return self._lane.buffer("planes", (planes, *self._sizes.plane_shape), self._given)

    def push(self, planes: npt.NDArray) -> None:
        """Copy the next planes to the device, and resample them along y there.

        They are the array of :meth:`buffer`, or any other, which is copied into it first. Planes
        after the last that the operators need are ignored.
        """
        sizes = self._sizes
        count = min(len(planes), sizes.planes - self._pushed)
        if count < 1:
            return
        staged = self.buffer(len(planes))
        # NumPy does not copy if they are the buffer itself.
        staged[...] = planes
        if self._given != sizes.dtype:
            staged.byteswap(inplace=True)
        held = self._lane.to_device(staged.view(sizes.dtype)[:count])
        row = sizes.plane_shape[1] * sizes.parts
        steps = sizes.plane_shape[0] * row, row, sizes.columns * sizes.parts
        self._launch(1, held, count, steps, self._arrays[0][self._pushed :])
        self._pushed += count

    def finish(self) -> npt.NDArray:
        """Wait for the result, (mz, my, mx), on the host; the next one reuses its memory."""
        sizes, (after_y, after_z, result) = self._sizes, self._arrays
        mz, my, _ = sizes.made
        row = sizes.columns * sizes.parts
        self._launch(0, after_y, 1, (0, my * row, my * row), after_z)
        self._launch(2, after_z, mz * my, (row, sizes.parts, sizes.parts), result)
        return self._lane.to_host(result, "result")

    def _launch(
        self,
        axis: int,
        values: np.ndarray,
        outer: int,
        steps: tuple[int, int, int],
        made: np.ndarray,
    ) -> None:
        """Launch one pass; ``steps`` are the kernel's arguments ``apart``, ``row``, ``inner``."""
        start, weight = self._axes[axis]
        (taps, outputs), stretch = weight.shape, 1 if axis == 2 else STRETCH
        threads = outer * math.ceil(outputs / stretch) * steps[2]
        self.kernels[axis](
            (math.ceil(threads / THREADS),),
            (THREADS,),
            (values, outer, *steps, start, weight, taps, outputs, stretch, made),
        )
