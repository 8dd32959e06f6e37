"""CuPy with a GPU for tests and benchmarks, and a count of the host memory in use."""

import importlib
from types import ModuleType

from octane.gpu.pinned import HostMemory, whole_pages


class NoDeviceError(Exception):
    """CuPy cannot use a GPU; the text says why."""


def cupy_with_device() -> ModuleType:
    """Return CuPy; raise NoDeviceError if it sees no device."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        # A wheel for another CUDA version also raises ImportError; its text names the version.
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


def taken_from(memory: HostMemory) -> int:
    """Bytes of host memory in use."""
    return sum(whole_pages(given.nbytes) for given, _ in memory._given.values())
