"""What the benchmarks of a GPU share: the device, seconds until it is done, what copies reach."""

import importlib
import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np

from octane.gpu.pinned import HostMemory

__all__ = [
    "DIRECTIONS",
    "NoDeviceError",
    "bandwidth",
    "copy_rate",
    "cupy_with_device",
    "device_or_exit",
    "seconds",
]

DIRECTIONS = ("to_device", "to_host")

COPIES = 7
NO_DEVICE = 3
"""Exit code by which `make bench` tells a benchmark that was skipped from one that failed."""


class NoDeviceError(Exception):
    """Why there is no GPU for CuPy."""


def cupy_with_device() -> ModuleType:
    """CuPy, once it sees a device.

    Raises
    ------
    NoDeviceError
        When it is not installed, or sees none.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        # A wheel for another CUDA version fails with ImportError too; its text says which.
        raise NoDeviceError(f"CuPy cannot be imported ({str(error).splitlines()[0]})") from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        # No driver, or one too old: CUDA reports both as an error instead of a count of 0.
        raise NoDeviceError(f"CUDA finds no usable device ({error})") from error
    if count == 0:
        raise NoDeviceError("CUDA finds no device")
    return cupy


def device_or_exit(name: str) -> ModuleType:
    """CuPy with a device; without one, say so and exit with :data:`NO_DEVICE`."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        return cupy_with_device()
    except NoDeviceError as error:
        logging.getLogger(name).error("%s was not measured: %s", name, error)
        sys.exit(NO_DEVICE)


def seconds(xp: ModuleType, work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of `work` until the device is done, each time."""
    found = []
    for _ in range(repeats):
        xp.cuda.Device().synchronize()
        start = time.perf_counter()
        work()
        xp.cuda.Device().synchronize()
        found.append(time.perf_counter() - start)
    return found


def bandwidth(xp: ModuleType) -> float:
    """Bytes read and written a second by a copy on the device: the ceiling for all the kernels."""
    source = xp.random.random(1 << 27, dtype=xp.float32)
    target = xp.empty_like(source)
    _, *copies = seconds(xp, lambda: xp.copyto(target, source), COPIES + 1)
    return 2 * source.nbytes / statistics.median(copies)


class _Copier:
    """Copies of one size in one direction, in a stream of their own."""

    def __init__(self, xp: ModuleType, memory: HostMemory, size: int, direction: str) -> None:
        self.runtime = xp.cuda.runtime
        self.stream = xp.cuda.Stream(non_blocking=True)
        self.size = size
        self.host = memory.take(size)
        self.host[...] = 1
        self.device = xp.zeros(size, np.uint8)
        addresses = self.device.data.ptr, self.host.ctypes.data
        if direction == "to_device":
            self.to, self.source, self.kind = *addresses, self.runtime.memcpyHostToDevice
        else:
            self.source, self.to, self.kind = *addresses, self.runtime.memcpyDeviceToHost

    def copy(self, times: int, *, waited: bool) -> None:
        """Copy so often, and wait: for each, or for all of them."""
        for _ in range(times):
            self.runtime.memcpyAsync(self.to, self.source, self.size, self.kind, self.stream.ptr)
            if waited:
                self.stream.synchronize()
        self.stream.synchronize()


def copy_rate(
    xp: ModuleType, size: int, directions: tuple[str, ...], *, pinned: bool, waited: bool = False
) -> float:
    """Bytes a second between host and device, of all directions together (median of rounds).

    Every direction has a thread and a stream, so that copies of pageable memory, which hold up the
    thread that asks for them, may overlap too.

    Raises
    ------
    RuntimeError
        When the host refuses to page-lock memory.
    """
    times = max(2, (1 << 28) // size)
    with HostMemory(xp, pinned=pinned) as memory:
        copiers = [_Copier(xp, memory, size, direction) for direction in directions]
        if memory.pinned != pinned:
            raise RuntimeError("the host refuses to page-lock memory")

        def work() -> None:
            threads = [
                threading.Thread(target=c.copy, args=(times,), kwargs={"waited": waited})
                for c in copiers
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        _, *rounds = seconds(xp, work, COPIES + 1)
    return times * size * len(directions) / statistics.median(rounds)
