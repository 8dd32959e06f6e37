"""Resampling on an NVIDIA GPU: the banded operators of three axes as a hand-written kernel.

A volume comes in batches of planes. Each is copied to the device and taken along y behind the copy,
which leaves about a third of it there; z and x follow once all planes have come. The order y, z, x
and the order of taps are fixed, so that a voxel has the same value in any block.

The memory of the device bounds the kernels, and the copy to the device, which the y pass runs
beside, bounds the whole (counts in docs/benchmarks.md). :class:`Sizes` and :func:`device_bytes`
give types, numbers of values and bytes before anything is allocated, so that memory can be planned.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.arrays import integer_limits, working_type
from octane.core.timing import span
from octane.gpu.pinned import HostMemory, whole_pages
from octane.resample.operator import AxisOperator

SOURCE = Path(__file__).with_suffix(".cu")

THREADS = 256

# Outputs of a thread along y and z: the more, the fewer samples are read twice, and the fewer
# threads there are.
STRETCH = 8

BATCH_BYTES = 8 << 20
"""Pushed together on a GPU. A push holds the interpreter's lock for some tens of microseconds, so
that smaller ones would bound many workers; larger ones take memory."""

# What CuPy's memory pool rounds up to.
ALIGNMENT = 512


class _Type(NamedTuple):
    """Names of a type of voxels in CUDA, and of its memory in NumPy."""

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
class Sizes:
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
    ) -> Sizes:
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
    """Memory of a resampler for volumes like this one, pushed ``planes`` at a time.

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
        As :meth:`Sizes.of`.
    """
    layout = Sizes.of(operators, plane_shape, dtype, out_dtype)
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
    """Key of an operator by its values: parts of an operator are new objects for every block."""
    return axis.start.tobytes(), axis.weight.tobytes(), work.char


_address: Callable[[np.ndarray], int] = operator.attrgetter("data.ptr")


@cache
def _source() -> str:
    return SOURCE.read_text(encoding="utf-8")


def band_options(source: np.dtype, target: np.dtype, work: np.dtype) -> tuple[str, ...]:
    """Compiler options of the kernel for values of two types in `TYPES`, computed in `work`."""
    options = (
        # Nothing is contracted behind the source's back: see gpu.cu.
        "--fmad=false",
        f"-DTHREADS={THREADS}",
        f"-DINPUT={TYPES[source].name}",
        f"-DOUTPUT={TYPES[target].name}",
        f"-DWORK={TYPES[work].name}",
        *(["-DHALF_INPUT"] if source == np.float16 else []),
        *(["-DHALF_OUTPUT"] if target == np.float16 else []),
        *(["-DTRUTH"] if target.kind == "b" else []),
    )
    if target.kind not in "iu":
        return options
    low, high = integer_limits(target, work)
    return (*options, "-DCLIPPED", f"-DLOWEST={low!r}", f"-DHIGHEST={high!r}")


class _Band(NamedTuple):
    """An operator on the device; weights are (taps, outputs), so that outputs lie together."""

    start: np.ndarray
    weight: np.ndarray


class CudaResampler:
    """Resamples tile after tile on a GPU; one per worker, with its own stream and buffers.

    Everything a resampler asks of the device is in its own stream: the copy of a batch of planes,
    the y pass over them, the copy of the next ones, the other passes, the copy of the result. None
    of it holds up the worker, which fills one of two host buffers meanwhile and waits only for the
    copy that still reads it, and at the end for the result. Streams of several workers are
    independent of one another (and of CUDA's default stream), so that their copies in either
    direction and their kernels overlap; a second stream per worker would add nothing to that.

    All buffers are kept and grow to the largest tile, and the weights of every operator that has
    come are kept by what they are. Tiles like those before therefore allocate nothing.

    A resampler belongs to the device that is current when it is made, and to one thread at a time.

    Parameters
    ----------
    xp
        ``cupy``.
    memory
        Where its host buffers come from; several resamplers may share it.
    """

    def __init__(self, xp: ModuleType, memory: HostMemory) -> None:
        self._xp, self._memory = xp, memory
        self._device = xp.cuda.Device()
        self.stream = xp.cuda.Stream(non_blocking=True)
        # Waiting threads sleep: their cores have tiles to decode.
        self._copied = [xp.cuda.Event(block=True, disable_timing=True) for _ in range(2)]
        self._worked, self._done = (
            xp.cuda.Event(block=True, disable_timing=True) for _ in range(2)
        )
        self._turn = 0
        self._axes: list[_Band] = []
        self._on_host: dict[str, npt.NDArray[np.uint8]] = {}
        self._on_device: dict[str, np.ndarray] = {}
        self._bands: dict[tuple[bytes, bytes, str], _Band] = {}
        self._kernels: dict[tuple[str, ...], Callable[..., None]] = {}

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a volume; one that was not finished is dropped.

        Parameters
        ----------
        operators
            One per axis (z, y, x).
        plane_shape
            Rows and columns of the planes that will come. What the operators do not take of them,
            as the padding of a chunk at an edge, is passed over.
        dtype, out_dtype
            Types of the voxels and of the result, in `TYPES`; complex if both are. The conversion
            is that of :func:`octane.core.arrays.as_dtype`. The bytes of types of the other order,
            as big-endian ones are on most machines, are turned on the host.

        Raises
        ------
        ValueError
            For other types, or planes smaller than what the operators take.
        """
        layout = self._layout = Sizes.of(operators, plane_shape, dtype, out_dtype)
        work = layout.work
        self._given, self._out = np.dtype(dtype), np.dtype(out_dtype)
        self._pushed = 0
        with self._device, self.stream:
            self._axes = [self._band(axis, work) for axis in operators]
            self._make_room("after y", layout.after_y * work.itemsize)
            self._make_room("after z", layout.after_z * work.itemsize)
            self._make_room("result", layout.result)
            self._first = self._kernel(layout.dtype, work)
            self._middle = self._kernel(work, work)
            self._last = self._kernel(work, layout.out_dtype)
        self._result = (
            self._host("result", layout.result).view(layout.out_dtype).reshape(layout.made)
        )

    def buffer(self, planes: int) -> npt.NDArray:
        """A host buffer to be filled and pushed, once the copy that last read it is done.

        Parameters
        ----------
        planes
            How many planes are to be pushed together.

        Returns
        -------
        array
            (planes, cy, cx), of what was pushed two batches ago.
        """
        if self._given == self._layout.dtype:
            return self._next(planes)
        memory = self._host("given", planes * self._layout.plane)
        return memory.view(self._given).reshape(planes, *self._layout.plane_shape)

    def push(self, planes: npt.NDArray) -> None:
        """Copy the next planes to the device, and take them along y there.

        Planes behind those that the operators take are passed over.

        Parameters
        ----------
        planes
            (planes, cy, cx) of the type that was begun with: what :meth:`buffer` gave, whose copy
            goes on after the return, or any other array, whose copy is waited for.

        Raises
        ------
        ValueError
            For another shape or type.
        """
        layout = self._layout
        if planes.shape[1:] != layout.plane_shape or planes.dtype != self._given:
            raise ValueError(
                f"planes of {planes.dtype}, {planes.shape[1:]}: "
                f"{self._given}, {layout.plane_shape} were begun with"
            )
        count = min(len(planes), layout.taken[0] - self._pushed)
        if count < 1:
            return
        if planes.dtype != layout.dtype or not planes.flags.c_contiguous:
            staged = self._next(len(planes))
            staged[...] = planes
            planes = staged
        runtime = self._xp.cuda.runtime
        address = planes.ctypes.data
        own = [
            copied
            for turn, copied in enumerate(self._copied)
            if f"planes {turn}" in self._on_host
            and self._on_host[f"planes {turn}"].ctypes.data == address
        ]
        copied = own[0] if own else self._done
        with self._device, self.stream:
            size = count * layout.plane
            self._make_room("planes", size)
            to, how = _address(self._on_device["planes"]), runtime.memcpyHostToDevice
            with self._memory.transfers.timed(self.stream, size, "to_device"):
                runtime.memcpyAsync(to, address, size, how, self.stream.ptr)
            copied.record(self.stream)
            self.along_y(self._pushed, count)
        self._pushed += count
        if not own:
            with span("copy"):
                copied.synchronize()

    def finish(self) -> npt.NDArray:
        """The result, once it is on the host.

        Returns
        -------
        array
            (mz, my, mx) of the type asked for, in memory that the next volume's result takes.

        Raises
        ------
        ValueError
            When planes are missing.
        """
        layout = self._layout
        if self._pushed < layout.taken[0]:
            raise ValueError(f"{self._pushed} of {layout.taken[0]} planes were pushed")
        runtime = self._xp.cuda.runtime
        with self._device, self.stream:
            self.along_z()
            self.along_x()
            self._worked.record(self.stream)
            made, to = _address(self._on_device["result"]), self._result.ctypes.data
            how = runtime.memcpyDeviceToHost
            with self._memory.transfers.timed(self.stream, layout.result, "to_host"):
                runtime.memcpyAsync(to, made, layout.result, how, self.stream.ptr)
            self._done.record(self.stream)
        # Two waits tell the kernels' time from the copy's, which is queued by now.
        self._worked.synchronize()
        with span("copy"):
            self._done.synchronize()
        self._memory.transfers.settle(self.stream)
        return self._result.astype(self._out, copy=False)

    def close(self) -> None:
        """Wait for what is under way, and give the buffers back."""
        self.stream.synchronize()
        for memory in self._on_host.values():
            self._memory.give_back(memory)
        self._on_host.clear()
        self._on_device.clear()
        self._bands.clear()
        self._axes.clear()

    def along_y(self, first: int, count: int) -> None:
        """Launch the y pass of planes that are on the device, ``first`` and those behind it."""
        layout = self._layout
        (cy, cx), columns = layout.plane_shape, layout.taken[2]
        values = self._on_device["planes"].view(TYPES[layout.dtype].stored)
        after_y = self._on_device["after y"].view(layout.work)
        made = after_y[first * layout.made[1] * columns * layout.parts :]
        steps = cy * cx * layout.parts, cx * layout.parts, columns * layout.parts
        self._launch(self._first, values, count, steps, self._axes[1], STRETCH, made)

    def along_z(self) -> None:
        """Launch the z pass."""
        layout = self._layout
        plane = layout.made[1] * layout.taken[2] * layout.parts
        steps = 0, plane, plane
        values, made = (self._on_device[n].view(layout.work) for n in ("after y", "after z"))
        self._launch(self._middle, values, 1, steps, self._axes[0], STRETCH, made)

    def along_x(self) -> None:
        """Launch the x pass, which makes the result's type."""
        layout = self._layout
        values = self._on_device["after z"].view(layout.work)
        made = self._on_device["result"].view(TYPES[layout.out_dtype].stored)
        steps = layout.taken[2] * layout.parts, layout.parts, layout.parts
        outer = layout.made[0] * layout.made[1]
        self._launch(self._last, values, outer, steps, self._axes[2], 1, made)

    def _launch(
        self,
        kernel: Callable[..., None],
        values: np.ndarray,
        outer: int,
        steps: tuple[int, int, int],
        band: _Band,
        stretch: int,
        made: np.ndarray,
    ) -> None:
        """Launch one pass; ``steps`` are the kernel's arguments ``apart``, ``row``, ``inner``."""
        taps, outputs = band.weight.shape
        threads = outer * math.ceil(outputs / stretch) * steps[2]
        kernel(
            (math.ceil(threads / THREADS),),
            (THREADS,),
            (values, outer, *steps, band.start, band.weight, taps, outputs, stretch, made),
        )

    def _kernel(self, source: np.dtype, target: np.dtype) -> Callable[..., None]:
        options = band_options(source, target, self._layout.work)
        if options not in self._kernels:
            module = self._xp.RawModule(code=_source(), options=options)
            self._kernels[options] = module.get_function("band")
        return self._kernels[options]

    def _band(self, axis: AxisOperator, work: np.dtype) -> _Band:
        key = identity_of(axis, work)
        if key not in self._bands:
            self._bands[key] = _Band(
                self._xp.asarray(axis.start.astype(np.int32)),
                self._xp.asarray(np.ascontiguousarray(axis.weight.T.astype(work))),
            )
        return self._bands[key]

    def _next(self, planes: int) -> npt.NDArray:
        """The buffer whose turn it is, once its last copy is done."""
        turn = self._turn = 1 - self._turn
        with span("copy"):
            self._copied[turn].synchronize()
        memory = self._host(f"planes {turn}", planes * self._layout.plane)
        return memory.view(self._layout.dtype).reshape(planes, *self._layout.plane_shape)

    def _make_room(self, name: str, size: int) -> None:
        """See that a device buffer is large enough."""
        if name not in self._on_device or self._on_device[name].nbytes < size:
            # In this order, so that both are not held at once. What still works with the first is
            # in the same stream, to which the memory pool keeps it.
            self._on_device.pop(name, None)
            self._on_device[name] = self._xp.empty(aligned(size), np.uint8)

    def _host(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """A host buffer, made larger if it must be."""
        if name not in self._on_host or self._on_host[name].nbytes < size:
            if name in self._on_host:
                self._memory.give_back(self._on_host.pop(name))
            self._on_host[name] = self._memory.take(size)
        return self._on_host[name][:size]
