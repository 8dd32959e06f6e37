"""Device: a leased GPU for CuPy, chosen by UUID and emptied, and its description.

CuPy counts the GPUs that CUDA shows to the process, NVML those of the node, so only the UUID
identifies a GPU. In CUDA each thread chooses its device: every thread that computes has to do it.
None may choose device 0 without need: the choice alone makes a context there.
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
"""Names of errors for lack of memory, of the CUDA runtime, the driver and cuBLAS, as texts say."""

TAKEN = "cudaErrorDevicesUnavailable"
"""Name of the error where another process uses the GPU exclusively."""

INSTALL = "install CuPy 13 or newer for this driver, cupy-cuda12x[ctk] or cupy-cuda13x[ctk]"
"""Remedy where CuPy is missing or cannot compute."""

KEEP = "set CUPY_CACHE_DIR to a folder that can be written"
"""Remedy where CuPy cannot keep its kernels."""


class DeviceTakenError(Exception):
    """The context cannot be made: another process was quicker."""


class DeviceMissingError(Exception):
    """The array library cannot use the GPU at all; the message says why, and the remedy."""


class CupyDevice:
    """GPU or MIG instance for CuPy, by its UUID.

    A DeviceMissingError says that CuPy cannot be loaded or is too old, or that CUDA does not start
    or does not show the GPU to this process.
    """

    def __init__(self, uuid: str) -> None:
        # CUDA reads it at its start. Leases read indices in CUDA_VISIBLE_DEVICES in this order.
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if uuid.startswith("MIG-"):
            # CUDA shows a process one instance, which this variable alone chooses, at its start.
            os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        try:
            self.xp: ModuleType = importlib.import_module("cupy")
        except (ImportError, OSError) as error:
            # A wheel for another CUDA version, or no place for its kernels. CuPy's own text is a
            # page; the cause says which library is missing.
            reason = str(error.__cause__ or error).strip().partition("\n")[0]
            raise DeviceMissingError(f"CuPy cannot be imported ({reason}); {INSTALL}") from error
        # Before 13 a copy to the host waits always.
        if int(self.xp.__version__.partition(".")[0]) < 13:
            raise DeviceMissingError(f"CuPy is of version {self.xp.__version__}; {INSTALL}")
        self.uuid = uuid
        self.ordinal = self._find()

    @staticmethod
    def missing() -> str | None:
        """Reason and remedy where there is no CuPy, without loading it; None where it is."""
        found = importlib.util.find_spec("cupy")
        return f"CuPy is not installed; {INSTALL}" if found is None else None

    def open(self) -> None:
        """Make the context and run one kernel in it.

        A DeviceTakenError says that the memory or the device is gone, a DeviceMissingError that
        CuPy lacks a library, or that the driver does not run what it compiles.
        """
        cuda = self.xp.cuda
        try:
            with self.active():
                self.xp.ones(1).get()
        except OSError as error:
            raise DeviceMissingError(f"CuPy cannot keep its kernels ({error}); {KEEP}") from error
        except (RuntimeError, ImportError, MemoryError, cuda.compiler.CompileException) as error:
            reason = str(error).partition("\n")[0]
            if self.is_out_of_memory(error) or TAKEN in reason:
                raise DeviceTakenError(reason) from error
            raise DeviceMissingError(f"CuPy cannot compute ({reason}); {INSTALL}") from error

    @contextmanager
    def active(self) -> Generator[None]:
        """Compute on it in the calling thread while the block runs.

        Afterwards the thread has its own context again. One that had none stays on this GPU.
        """
        before = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(before))
        self.xp.cuda.runtime.setDevice(self.ordinal)
        try:
            yield
        finally:
            if before:
                # A GPU that is lost refuses it; the error that ended the block says why.
                self._driver.cuCtxSetCurrent(before)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Recognise the errors of CuPy, of the runtime, of the driver and of cuBLAS."""
        if isinstance(error, self.xp.cuda.memory.OutOfMemoryError):
            return True
        return any(name in str(error) for name in OUT_OF_MEMORY)

    def is_lost(self) -> bool:
        """Tell whether CUDA refuses all work, as it does after a fault of a kernel or of memory.

        By CUDA's documents no call then works in this process, on any GPU, until it ends.
        """
        try:
            with self.active():
                self.xp.cuda.runtime.deviceSynchronize()
        except self.xp.cuda.runtime.CUDARuntimeError:
            return True
        return False

    def empty(self) -> None:
        """Return the memory pool, of the device and of pinned host memory."""
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
            # CuPy's own properties end a UUID at its first zero byte.
            self._driver.cuDeviceGet(ctypes.byref(handle), ordinal)
            if not self._driver.cuDeviceGetUuid_v2(uuid, handle) and bytes(uuid).hex() == digits:
                return ordinal
        raise DeviceMissingError(f"CUDA does not show {self.uuid}; check CUDA_VISIBLE_DEVICES")


def describe(xp: ModuleType) -> dict[str, str | int | None]:
    """Describe the current device of ``cupy``, for the metrics.

    ``driver`` is the driver's own version, None where NVML does not tell, ``cuda`` the newest CUDA
    that the driver supports, and ``runtime`` the CUDA runtime.
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
    """Version of the driver; None in containers and WSL, which run CUDA without NVML."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def _cuda_version(number: int) -> str:
    """CUDA's 12040 as '12.4'."""
    return f"{number // 1000}.{number % 1000 // 10}"
