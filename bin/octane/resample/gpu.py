"""Resampling on an NVIDIA GPU: the banded operators of three axes as a hand-written kernel.

A volume comes in batches of planes. Each is copied to the device and taken along y behind the copy,
which leaves about a third of it there; z and x follow once all planes have come. The order y, z, x
and the order of taps are fixed, so that a voxel has the same value in any block.

The memory of the device bounds the kernels, and the copy to the device, which the y pass runs
beside, bounds the whole (counts in docs/benchmarks.md).
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
from octane.core.timing import span
from octane.gpu.pinned import HostMemory, whole_pages
from octane.resample.operator import AxisOperator, reach, require_announced

SOURCE = Path(__file__).with_suffix(".cu")

THREADS = 256

STRETCH = 8
"""Outputs of a thread along y and z: the more, the fewer samples are read twice, and the fewer
threads there are."""

BATCH_BYTES = 8 << 20
"""Pushed together on a GPU. A push holds the interpreter's lock for some tens of microseconds, so
that smaller ones would bound many workers; larger ones take memory."""

ALIGNMENT = 512
"""Bytes to a multiple of which CuPy's memory pool rounds up."""

TYPES = (*map(np.dtype, "fdFDe?bBhHiIlL"),)
"""Types of voxels that the kernel reads and writes, of the machine's byte order."""


def _stored(dtype: np.dtype) -> np.dtype:
    """Type of a value in the device's memory; a complex voxel is two values."""
    other = {"c8": "f4", "c16": "f8", "f2": "u2", "b1": "u1"}
    return np.dtype(other.get(dtype.str[1:], dtype))


def _named(dtype: np.dtype) -> str:
    """CUDA's name of the type of a value in memory."""
    stored = _stored(dtype)
    if stored.kind == "f":
        return "float" if stored.itemsize == 4 else "double"
    sign = "unsigned" if stored.kind == "u" else "signed"
    return f"{sign} {('char', 'short', 'int', 'long long')[stored.itemsize.bit_length() - 1]}"


def aligned(size: int) -> int:
    """Bytes of device memory that an array of ``size`` bytes takes."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


class Sizes(NamedTuple):
    """Sizes of one volume on its way, and types on the device; a complex voxel is two values."""

    planes: int  # that the operators take
    columns: int  # values of a row that they take
    made: tuple[int, int, int]  # shape of the result
    plane_shape: tuple[int, int]  # that come: those that are taken, and perhaps some behind them
    parts: int  # values of a voxel
    dtype: np.dtype
    out_dtype: np.dtype
    work: np.dtype  # of the values in between

    @classmethod
    def of(
        cls,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> Sizes:
        """The sizes of one volume; arguments and errors are those of :func:`device_bytes`."""
        source, target = (np.dtype(t).newbyteorder("=") for t in (dtype, out_dtype))
        parts = 2 if source.kind == "c" else 1
        if not {source, target} <= set(TYPES) or (target.kind == "c") != (parts == 2):
            raise ValueError(f"the kernel does not take {source} to {target}")
        planes, _, columns = reach(operators, plane_shape)
        z, y, x = operators
        work = np.empty(0, working_type(source)).real.dtype
        made = z.size, y.size, x.size
        return cls(planes, columns * parts, made, plane_shape, parts, source, target, work)

    @property
    def plane(self) -> int:
        """Bytes of a plane that comes."""
        return math.prod(self.plane_shape) * self.dtype.itemsize

    @property
    def buffers(self) -> dict[str, int]:
        """Bytes of the device's buffers, except that for planes."""
        row = self.made[1] * self.columns * self.work.itemsize
        return {
            "after y": self.planes * row,
            "after z": self.made[0] * row,
            "result": math.prod(self.made) * self.out_dtype.itemsize,
        }


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

    Raises
    ------
    ValueError
        For types that are not in `TYPES`, complex ones to real ones or back, and planes smaller
        than what the operators take.
    """
    sizes = Sizes.of(operators, plane_shape, dtype, out_dtype)
    weights = [n for o in operators for n in (4 * o.size, o.weight.size * sizes.work.itemsize)]
    taken = [min(planes, sizes.planes) * sizes.plane, *sizes.buffers.values(), *weights]
    host = whole_pages(planes * sizes.plane) + whole_pages(sizes.buffers["result"])
    return Footprint(sum(map(aligned, taken)), host)


def band_options(source: np.dtype, target: np.dtype, work: np.dtype) -> tuple[str, ...]:
    """Compiler options of the kernel for values of two types in `TYPES`, computed in `work`."""
    options = (
        # Nothing is contracted behind the source's back: see gpu.cu.
        "--fmad=false",
        f"-DTHREADS={THREADS}",
        f"-DINPUT={_named(source)}",
        f"-DOUTPUT={_named(target)}",
        f"-DWORK={_named(work)}",
        *(["-DHALF_INPUT"] if source == np.float16 else []),
        *(["-DHALF_OUTPUT"] if target == np.float16 else []),
        *(["-DTRUTH"] if target.kind == "b" else []),
    )
    if target.kind not in "iu":
        return options
    low, high = integer_limits(target, work)
    return (*options, "-DCLIPPED", f"-DLOWEST={low!r}", f"-DHIGHEST={high!r}")


class CudaResampler:
    """Resamples tile after tile on the current GPU; one per worker, its buffers are reused.

    All that a resampler asks of the device is in its own stream, whose copies and kernels overlap
    with those of other workers. ``xp`` is ``cupy``; host buffers come from ``memory``, which
    several resamplers may share.
    """

    def __init__(self, xp: ModuleType, memory: HostMemory) -> None:
        self._xp, self._memory = xp, memory
        self.stream = xp.cuda.Stream(non_blocking=True)
        # Waiting threads sleep: their cores have tiles to decode.
        self._event = xp.cuda.Event(block=True, disable_timing=True)
        self._on_host: dict[str, npt.NDArray[np.uint8]] = {}
        self._on_device: dict[str, np.ndarray] = {}
        self._kernels: dict[tuple[str, ...], Callable[..., None]] = {}

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a volume, as :meth:`octane.resample.cpu.CompiledResampler.begin`.

        One that was not finished is dropped. Types and errors are those of :func:`device_bytes`;
        the bytes of types of the other order are turned on the host.
        """
        sizes = self._sizes = Sizes.of(operators, plane_shape, dtype, out_dtype)
        self._given, self._out = np.dtype(dtype), np.dtype(out_dtype)
        self._pushed = 0
        with self.stream:
            # Weights are (taps, outputs), so that outputs lie together.
            self._axes = [
                (
                    self._xp.asarray(o.start.astype(np.int32)),
                    self._xp.asarray(np.ascontiguousarray(o.weight.T.astype(sizes.work))),
                )
                for o in operators
            ]
            for name, size in sizes.buffers.items():
                self._make_room(name, size)

    def buffer(self, planes: int) -> npt.NDArray:
        """The host buffer (planes, cy, cx) to be filled and pushed, once its last copy is done."""
        with span("copy"):
            self._event.synchronize()
        memory = self._host("planes", planes * self._sizes.plane)
        return memory.view(self._given).reshape(planes, *self._sizes.plane_shape)

    def push(self, planes: npt.NDArray) -> None:
        """Copy the next planes to the device, and take them along y there.

        They are what :meth:`buffer` gave, or any other array, which is copied into it first. Planes
        behind those that the operators take are passed over.

        Raises
        ------
        ValueError
            When they are not of the shape and type that were announced.
        """
        sizes = self._sizes
        require_announced(planes, sizes.plane_shape, self._given)
        kept = self._on_host.get("planes")
        if kept is None or planes.ctypes.data != kept.ctypes.data:
            staged = self.buffer(len(planes))
            staged[...] = planes
            planes = staged
        if self._given != sizes.dtype:
            planes.byteswap(inplace=True)
        count = min(len(planes), sizes.planes - self._pushed)
        if count < 1:
            return
        size = count * sizes.plane
        with self.stream:
            held = self._make_room("planes", size)
            with self._memory.transfers.timed(self.stream, size, "to_device"):
                held.set(self._on_host["planes"][:size], stream=self.stream)  # ty: ignore
            self._event.record(self.stream)
            (cy, cx), my = sizes.plane_shape, sizes.made[1]
            made = self._on_device["after y"].view(sizes.work)[self._pushed * my * sizes.columns :]
            steps = cy * cx * sizes.parts, cx * sizes.parts, sizes.columns
            self._launch(sizes.dtype, sizes.work, held, count, steps, 1, made)
        self._pushed += count

    def finish(self) -> npt.NDArray:
        """The result (mz, my, mx), once it is on the host, in memory that the next one takes."""
        sizes = self._sizes
        mz, my, _ = sizes.made
        row, parts, work = sizes.columns, sizes.parts, sizes.work
        size = sizes.buffers["result"]
        memory = self._host("result", size)
        with self.stream:
            after_y, after_z, result = (self._on_device[name] for name in sizes.buffers)
            self._launch(work, work, after_y, 1, (0, my * row, my * row), 0, after_z)
            self._launch(work, sizes.out_dtype, after_z, mz * my, (row, parts, parts), 2, result)
            # Two waits tell the kernels' time from the copy's.
            self._wait()
            with span("copy"):
                with self._memory.transfers.timed(self.stream, size, "to_host"):
                    result = result[:size]
                    result.get(stream=self.stream, out=memory, blocking=False)  # ty: ignore
                self._wait()
        self._memory.transfers.settle(self.stream)
        return memory.view(sizes.out_dtype).reshape(sizes.made).astype(self._out, copy=False)

    def _wait(self) -> None:
        self._event.record(self.stream)
        self._event.synchronize()

    def _launch(
        self,
        source: np.dtype,
        target: np.dtype,
        values: np.ndarray,
        outer: int,
        steps: tuple[int, int, int],
        axis: int,
        made: np.ndarray,
    ) -> None:
        """Launch one pass; ``steps`` are the kernel's arguments ``apart``, ``row``, ``inner``."""
        options = band_options(source, target, self._sizes.work)
        if options not in self._kernels:
            code = SOURCE.read_text(encoding="utf-8")
            module = self._xp.RawModule(code=code, options=options)
            self._kernels[options] = module.get_function("band")
        start, weight = self._axes[axis]
        (taps, outputs), stretch = weight.shape, 1 if axis == 2 else STRETCH
        threads = outer * math.ceil(outputs / stretch) * steps[2]
        values, made = values.view(_stored(source)), made.view(_stored(target))
        self._kernels[options](
            (math.ceil(threads / THREADS),),
            (THREADS,),
            (values, outer, *steps, start, weight, taps, outputs, stretch, made),
        )

    def _make_room(self, name: str, size: int) -> np.ndarray:
        """A device buffer's first ``size`` bytes; it is made larger if it must be."""
        if name not in self._on_device or self._on_device[name].nbytes < size:
            # In this order, so that both are not held at once. What still works with the first is
            # in the same stream, to which the memory pool keeps it.
            self._on_device.pop(name, None)
            self._on_device[name] = self._xp.empty(aligned(size), np.uint8)
        return self._on_device[name][:size]

    def _host(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """A host buffer, made larger if it must be."""
        if name not in self._on_host or self._on_host[name].nbytes < size:
            if name in self._on_host:
                self._memory.give_back(self._on_host.pop(name))
            self._on_host[name] = self._memory.take(size)
        return self._on_host[name][:size]
