"""Device: a leased GPU for CuPy, chosen by UUID, emptied and left for good, and its description.

CuPy counts the GPUs that CUDA shows to the process, NVML those of the node, so only the UUID
identifies a GPU. In CUDA each thread chooses its device: every thread that computes has to do it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import ModuleType

import numpy as np
import pynvml

from octane.core.arrays import processor

OUT_OF_MEMORY = 2
"""The CUDA runtime's cudaErrorMemoryAllocation and the driver's CUDA_ERROR_OUT_OF_MEMORY."""

TAKEN = 46
"""cudaErrorDevicesUnavailable: another process uses it exclusively."""


class DeviceTakenError(Exception):
    """The context cannot be made: another process was quicker."""


class DeviceMissingError(Exception):
    """The array library cannot use the GPU at all; the message says why."""


class CupyDevice:
    """GPU or MIG instance for CuPy, by its UUID.

    A DeviceMissingError says that CuPy cannot be loaded, or that CUDA does not start or does not
    show the GPU to this process.
    """

    def __init__(self, uuid: str) -> None:
        if uuid.startswith("MIG-"):
            # CUDA shows a process one instance, which this variable alone chooses, at its start.
            os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        try:
            self.xp: ModuleType = importlib.import_module("cupy")
        except ImportError as error:
            # A wheel for another CUDA version; the text says which library it misses.
            raise DeviceMissingError(f"CuPy cannot be imported ({error})") from error
        self.uuid = uuid
        self.ordinal = self._find()

    @staticmethod
    def missing() -> str | None:
        """Reason for which there is no CuPy, without loading it; None where it is installed."""
        found = importlib.util.find_spec("cupy")
        return "CuPy is not installed" if found is None else None

    def open(self) -> None:
        """Make the context; DeviceTakenError when the memory or the device is gone."""
        try:
            with self.xp.cuda.Device(self.ordinal):
                self.xp.cuda.runtime.free(0)
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            if error.status in (OUT_OF_MEMORY, TAKEN):
                raise DeviceTakenError(str(error)) from error
            raise

    @contextmanager
    def active(self) -> Generator[None]:
        """Compute on it in the calling thread while the block runs."""
        with self.xp.cuda.Device(self.ordinal):
            yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Recognise the errors of CuPy, of the runtime and of the driver."""
        cuda = self.xp.cuda
        if isinstance(error, cuda.memory.OutOfMemoryError):
            return True
        if isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError):
            return error.status == OUT_OF_MEMORY
        return False

    def empty(self) -> None:
        """Return the memory pool, of the device and of pinned host memory."""
        with self.xp.cuda.Device(self.ordinal):
            self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def leave(self) -> None:
        """Release the primary context, and with it the hundreds of megabytes that it takes.

        CuPy keeps handles of compiled kernels per device, which point into the context: it must not
        use this device again.
        """
        self.empty()
        driver = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), self.ordinal) == 0:
            driver.cuDevicePrimaryCtxReset_v2(device)

    def _find(self) -> int:
        runtime = self.xp.cuda.runtime
        try:
            count = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise DeviceMissingError(f"CUDA does not start ({error})") from error
        if self.uuid.startswith("MIG-") and count == 1:
            return 0
        digits = self.uuid.removeprefix("GPU-").replace("-", "")
        for ordinal in range(count):
            if bytes(runtime.getDeviceProperties(ordinal)["uuid"]).hex() == digits:
                return ordinal
        raise DeviceMissingError(f"CUDA shows {count} devices to this process, not {self.uuid}")


def describe(xp: ModuleType) -> dict[str, str | int | None]:
    """Describe the current device of an array module, ``numpy`` or ``cupy``, for the metrics.

    Returns
    -------
    dict
        ``backend`` ('cpu' or 'gpu'), ``device`` (its name), ``driver`` (the driver's own version,
        None where NVML does not tell), ``cuda`` (the newest CUDA that the driver supports) and
        ``runtime`` (the CUDA runtime), ``memory_bytes`` of the device, all None on a CPU, and
        ``library`` (array module and version).
    """
    found: dict[str, str | int | None] = {"backend": "cpu", "device": None, "driver": None}
    found |= {"cuda": None, "runtime": None, "memory_bytes": None}
    if xp is np:
        found["device"] = processor()
    else:
        runtime = xp.cuda.runtime
        properties = runtime.getDeviceProperties(runtime.getDevice())
        name = properties["name"]
        found |= {
            "backend": "gpu",
            "device": name.decode() if isinstance(name, bytes) else str(name),
            "driver": _driver(),
            "cuda": _cuda_version(runtime.driverGetVersion()),
            "runtime": _cuda_version(runtime.runtimeGetVersion()),
            "memory_bytes": int(properties["totalGlobalMem"]),
        }
    return {**found, "library": f"{xp.__name__} {xp.__version__}"}


def _driver() -> str | None:
    """Version of the driver; None in containers and WSL, which run CUDA without NVML."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    return None


def _cuda_version(number: int) -> str:
    """CUDA's 12040 as '12.4'."""
    return f"{number // 1000}.{number % 1000 // 10}"
