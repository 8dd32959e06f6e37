"""CUDA kernels without a GPU: a CuPy that is NumPy in disguise.

A C++ compiler makes their source run on the CPU (cuda_on_cpu.h).
"""

import collections
import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from octane.resample.gpu import aligned

COMPILER = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
SHIM = Path(__file__).with_name("cuda_on_cpu.h")


class DeviceArray(np.ndarray):
    """A NumPy array that passes for a CuPy array."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, array, stream):
        assert array.flags.c_contiguous
        assert array.dtype == self.dtype
        stream.queue.append(lambda: np.copyto(self.view(np.ndarray), array))

    def get(self, stream, out, *, blocking=True):
        assert self.flags.c_contiguous
        assert out.flags.c_contiguous
        stream.queue.append(lambda: np.copyto(out, self.view(np.ndarray)))
        if blocking:
            stream.synchronize()
        return out


DeviceArray.__module__ = "cupy"


class Stream:
    """Work that is done when somebody waits for it: as late as a GPU may do it."""

    def __init__(self, device, *, non_blocking=False):
        assert non_blocking
        self.device, self.ptr = device, id(self)
        self.queue, self.done = collections.deque(), 0
        device.streams[self.ptr] = self

    def __enter__(self):
        self.before, self.device.stream = self.device.stream, self

    def __exit__(self, *_):
        self.device.stream = self.before

    @property
    def asked(self):
        return self.done + len(self.queue)

    def synchronize(self, until=None):
        while self.done < (self.asked if until is None else until):
            self.queue.popleft()()
            self.done += 1


class Event:
    """A place in a stream's work: somebody sleeps until it is reached, or it tells when it was."""

    def __init__(self, *, block=False, disable_timing=False):
        assert block == disable_timing
        self.stream, self.timed, self.moment = None, not disable_timing, None

    def record(self, stream):
        self.stream, self.place = stream, stream.asked
        if self.timed:
            stream.queue.append(self.reached)

    def reached(self):
        self.moment = time.perf_counter()

    def synchronize(self):
        if self.stream is not None:
            self.stream.synchronize(self.place)


def elapsed(begin, end):
    """Milliseconds between two events; CUDA refuses them before both are reached."""
    assert begin.moment is not None, "not reached yet"
    assert end.moment is not None, "not reached yet"
    return 1e3 * (end.moment - begin.moment)


class Runtime:
    """What is called of CUDA's runtime."""

    CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {})
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2

    def __init__(self, device):
        self.device, self.locked, self.refuses = device, {}, False

    def hostRegister(self, address, size, flags):
        assert address % 4096 == size % 4096 == 0
        assert flags == 1
        if self.refuses:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        assert address not in self.locked
        self.locked[address] = size

    def hostUnregister(self, address):
        del self.locked[address]

    def memcpyAsync(self, to, source, size, kind, stream):
        on_device = source if kind == self.memcpyDeviceToHost else to
        assert any(start <= on_device <= on_device + size <= end for start, end in self.device.held)
        self.device.calls.append({1: "to device", 2: "to host"}[kind])
        self.device.ask(functools.partial(ctypes.memmove, to, source, size), stream)


class Kernel:
    """A kernel of a shared library, called as CuPy calls one."""

    def __init__(self, device, library, name):
        self.device, self.name = device, name
        signature = getattr(library, f"signature_{name}")
        signature.restype = ctypes.c_char_p
        self.types = signature().decode().split()
        self.launch = getattr(library, f"launch_{name}")

    def __call__(self, grid, block, arguments):
        assert len(grid) == len(block) == 1
        assert 0 < grid[0] < 1 << 31
        assert 0 < block[0] <= 1024
        assert len(arguments) == len(self.types), self.name
        self.device.calls.append(self.name)
        values = [self.convert(a, t) for a, t in zip(arguments, self.types, strict=True)]
        pointers = [ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]

        def launch(_kept=(values, arguments)):
            self.launch(grid[0], block[0], (ctypes.c_void_p * len(pointers))(*pointers))

        self.device.ask(launch)

    def convert(self, argument, kind):
        """One argument, of the type that the kernel declares: a GPU would not notice another."""
        if kind == "integer":
            assert type(argument) is int, (self.name, argument)
            return ctypes.c_longlong(argument)
        if kind == "real":
            assert type(argument) is float, (self.name, argument)
            return ctypes.c_double(argument)
        if type(argument) is int:
            assert argument == 0
            return ctypes.c_void_p(None)
        assert type(argument) is DeviceArray, (self.name, type(argument))
        assert argument.dtype.name == kind, self.name
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)


class TheDevice:
    """The one device there is."""

    def __init__(self, streams):
        self.streams = streams

    def synchronize(self):
        for stream in self.streams.values():
            stream.synchronize()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Device(ModuleType):
    """The namespace: NumPy's functions on its own arrays, RawModule, and a part of `cuda`."""

    def __init__(self, folder):
        super().__init__("cupy")
        self.folder, self.calls, self.copies, self.libraries = folder, [], 0, {}
        self.first, self.stream, self.streams = 0, None, {}
        # Of each allocation: where it begins and ends, what a pool would take for it.
        self.held, self.allocated = [], 0
        self.empty_like = lambda a, dtype=None: self.empty(a.shape, dtype or a.dtype)
        self.cuda = SimpleNamespace(
            Device=functools.partial(TheDevice, self.streams),
            Stream=functools.partial(Stream, self),
            Event=Event,
            get_elapsed_time=elapsed,
            runtime=Runtime(self),
        )

    def __getattr__(self, name):
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def function(*args, **options):
            result = found(*args, **options)
            return result.view(DeviceArray) if isinstance(result, np.ndarray) else result

        return function

    def noted(self, array):
        self.held.append((array.ctypes.data, array.ctypes.data + array.nbytes))
        self.allocated += aligned(array.nbytes)
        return array

    def empty(self, shape, dtype=np.float64):
        """Memory as a device hands it out: whatever was there."""
        array = np.empty(shape, dtype).view(DeviceArray)
        array.view(np.uint8)[...] = 0xFF
        return self.noted(array)

    def asarray(self, array, *args):
        return self.noted(np.array(np.asarray(array, *args), order="C").view(DeviceArray))

    def asnumpy(self, array):
        self.copies += 1
        return np.array(array, subok=False)

    def ask(self, work, stream=None):
        """Do work now, or leave it to a stream."""
        current = self.stream if stream is None else self.streams[stream]
        if current is None:
            work()
        else:
            current.queue.append(work)

    def order(self, number):
        """Which threads and blocks come first, in all kernels."""
        self.first = number
        for library in self.libraries.values():
            library.on_cpu_order(number)

    def library(self, code, options):
        if COMPILER is None or sys.platform != "linux":
            pytest.skip("running the CUDA kernels on the CPU needs a C++ compiler (g++) on Linux")
        key = hashlib.sha256(repr((code, options)).encode()).hexdigest()[:16]
        if key not in self.libraries:
            command = [str(COMPILER), *(o for o in options if o.startswith("-D"))]
            seen = subprocess.run(
                [*command, "-E", "-P", "-x", "c++", "-"],
                input=code,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            names = re.findall(r"__global__ void __launch_bounds__\([^)]*\)\s*(\w+)\(", seen)
            source = self.folder / f"{key}.cpp"
            lines = [f'#include "{SHIM}"', code, *(f"KERNEL({name})" for name in names)]
            source.write_text("\n".join(lines), encoding="utf-8")
            # Exactly what is written, as --fmad=false does it on a GPU.
            assert "--fmad=false" in options
            command += ["-std=c++20", "-O2", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
            target = source.with_suffix(".so")
            command += ["-U_FORTIFY_SOURCE", str(source), "-o", str(target)]
            subprocess.run(command, check=True)
            self.libraries[key] = ctypes.CDLL(str(target))
            self.libraries[key].on_cpu_order(self.first)
        return self.libraries[key]

    def RawModule(self, *, code, options):
        get_function = functools.partial(Kernel, self, self.library(code, options))
        return SimpleNamespace(get_function=get_function)


@pytest.fixture(scope="session")
def cuda_on_cpu(tmp_path_factory):
    """A CuPy whose device is the CPU."""
    return Device(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def device(cuda_on_cpu, monkeypatch):
    """The same, as the CuPy that is loaded."""
    monkeypatch.setitem(sys.modules, "cupy", cuda_on_cpu)
    cuda_on_cpu.calls.clear()
    cuda_on_cpu.copies = 0
    yield cuda_on_cpu
    cuda_on_cpu.order(0)
