"""Device: a leased GPU for CuPy, selected by UUID, and its description.

CuPy counts the GPUs that CUDA shows to the process, NVML those of the node, so only the UUID
identifies a GPU. In CUDA the current device is per thread, so every computing thread must select
it. Threads must not select device 0 needlessly, as this creates a context there.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import ModuleType

OUT_OF_MEMORY = (
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Out-of-memory errors of the CUDA runtime, the driver and cuBLAS, as named in messages."""

TAKEN = "cudaErrorDevicesUnavailable"
"""Name of the error if another process uses the GPU exclusively."""

INSTALL = (
    "install CuPy 13 or newer for this driver, cupy-cuda12x[ctk] (for Volta too) or "
    "cupy-cuda13x[ctk]"
)
"""Remedy if CuPy is missing or cannot compute."""

KEEP = "set CUPY_CACHE_DIR to a writable folder"
"""Remedy if CuPy cannot store its kernels."""


class DeviceTakenError(Exception):
    """The context cannot be created: another process was faster."""


class DeviceMissingError(Exception):
    """CuPy cannot use the GPU at all; the message gives the reason and the remedy."""


class CupyDevice:
    """A GPU or MIG instance for CuPy, given by its UUID.

    A DeviceMissingError says that CuPy cannot be imported or is too old, or that CUDA does not
    start or does not show the GPU to this process.
    """

    def __init__(self, uuid: str) -> None:
        # CUDA reads it when it starts. Leases number CUDA_VISIBLE_DEVICES in this order.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if uuid.startswith("MIG-"):
            # CUDA shows a process one instance, chosen only by this variable when CUDA starts.
            os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        try:
            self.xp: ModuleType = importlib.import_module("cupy")
        except (ImportError, OSError) as error:
            # A wheel for another CUDA version, or an unwritable cache. CuPy's own message is a page
            # long; the cause names the missing library.
            reason = str(error.__cause__ or error).strip().partition("\n")[0]
            raise DeviceMissingError(f"CuPy cannot be imported ({reason}); {INSTALL}") from error
        # Before version 13, copies to the host always block.
        if int(self.xp.__version__.partition(".")[0]) < 13:
            raise DeviceMissingError(f"CuPy has version {self.xp.__version__}; {INSTALL}")
        self.uuid = uuid
        self.ordinal = self._find()

    @staticmethod
    def missing() -> str | None:
        """Reason and remedy if CuPy is not installed, else None; CuPy is not imported."""
        found = importlib.util.find_spec("cupy")
        return f"CuPy is not installed; {INSTALL}" if found is None else None

    def open(self) -> None:
        """Create the context and run one kernel in it.

        A DeviceTakenError says that another process took the memory or the device, a
        DeviceMissingError that CuPy lacks a library or that the driver cannot run its kernels.
        """
        cuda = self.xp.cuda
        try:
            with self.active():
                self.xp.ones(1).get()
        except OSError as error:
            raise DeviceMissingError(f"CuPy cannot store its kernels ({error}); {KEEP}") from error
        except (RuntimeError, ImportError, MemoryError, cuda.compiler.CompileException) as error:
            reason = str(error).partition("\n")[0]
            if self.is_out_of_memory(error) or TAKEN in reason:
                raise DeviceTakenError(reason) from error
            raise DeviceMissingError(f"CuPy cannot compute ({reason}); {INSTALL}") from error

    @contextmanager
    def active(self) -> Generator[None]:
        """Make this GPU current in the calling thread while the block runs.

        Afterwards the thread's previous context is restored; a thread without one keeps this GPU.
        """
        before = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(before))
        self.xp.cuda.runtime.setDevice(self.ordinal)
        try:
            yield
        finally:
            if before:
                # A lost GPU refuses this; the error that ended the block says why.
                self._driver.cuCtxSetCurrent(before)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Recognise out-of-memory errors of CuPy, the CUDA runtime, the driver and cuBLAS."""
        if isinstance(error, self.xp.cuda.memory.OutOfMemoryError):
            return True
        return any(name in str(error) for name in OUT_OF_MEMORY)

    def is_lost(self) -> bool:
        """Tell whether CUDA refuses all work, as it does after a kernel or a memory fault.

        According to CUDA's documentation, every later call in this process fails, on any GPU.
        """
        try:
            with self.active():
                self.xp.cuda.runtime.deviceSynchronize()
        except self.xp.cuda.runtime.CUDARuntimeError:
            return True
        return False

    def empty(self) -> None:
        """Free CuPy's memory pools, of the device and of pinned host memory."""
        with self.active():
            self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def _find(self) -> int:
        try:
            count = self.xp.cuda.runtime.getDeviceCount()
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            raise DeviceMissingError(f"CUDA does not start ({error}); {INSTALL}") from error
        self._driver = ctypes.CDLL("libcuda.so.1")
        handle, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        digits = self.uuid.partition("-")[2].replace("-", "")
        for ordinal in range(count):
            # CuPy's own properties truncate a UUID at its first zero byte.
            self._driver.cuDeviceGet(ctypes.byref(handle), ordinal)
            if not self._driver.cuDeviceGetUuid_v2(uuid, handle) and bytes(uuid).hex() == digits:
                return ordinal
        raise DeviceMissingError(f"CUDA does not show {self.uuid}; check CUDA_VISIBLE_DEVICES")


def describe(xp: ModuleType) -> dict[str, str | int | None]:
    """Describe the current device of ``cupy``, for the metrics.

    ``driver`` is the driver's version (None without NVML), ``cuda`` the newest CUDA version that
    the driver supports, and ``runtime`` the version of the CUDA runtime.
    """
    runtime = xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "backend": "gpu",
        "device": properties["name"].decode(),
        "driver": _driver(),
        "cuda": _cuda_version(runtime.driverGetVersion()),
        "runtime": _cuda_version(runtime.runtimeGetVersion()),
        "memory_bytes": int(properties["totalGlobalMem"]),
        "library": f"{xp.__name__} {xp.__version__}",
    }


def _driver() -> str | None:
    """Version of the driver; None without NVML, as in some containers and WSL."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def _cuda_version(number: int) -> str:
    """Format CUDA's 12040 as '12.4'."""
    return f"{number // 1000}.{number % 1000 // 10}"
