"""A leased GPU as CuPy sees it: chosen by UUID, emptied, and left for good.

CuPy counts the GPUs that CUDA shows it, NVML those of the node, so the UUID alone says which is
which. The choice of a device is a thread's own in CUDA: every thread that computes has to make it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Protocol

__all__ = ["CupyDevice", "Device", "DeviceMissingError", "DeviceTakenError"]

OUT_OF_MEMORY = 2
"""The CUDA runtime's cudaErrorMemoryAllocation and the driver's CUDA_ERROR_OUT_OF_MEMORY."""

TAKEN = 46
"""cudaErrorDevicesUnavailable: another process has it for itself."""


class DeviceTakenError(Exception):
    """The context could not be made: somebody was quicker."""


class DeviceMissingError(Exception):
    """The array library cannot use the GPU at all; the message says why."""


class Device(Protocol):
    """What :func:`octane.gpu.run.run_on_gpu` needs of an array library and a GPU."""

    @property
    def xp(self) -> ModuleType:
        """The array module."""
        ...

    def open(self) -> None:
        """Make the context.

        Raises
        ------
        DeviceTakenError
            When the memory or the device is gone.
        """
        ...

    def active(self) -> AbstractContextManager[None]:
        """Compute on it in the calling thread while the block runs."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says that the GPU's memory did not suffice."""
        ...

    def empty(self) -> None:
        """Give back all memory that no array uses."""
        ...

    def leave(self) -> None:
        """Release the primary context; the device is not to be used again by this process."""
        ...


class CupyDevice:
    """A GPU for CuPy.

    Parameters
    ----------
    uuid : str
        Of the GPU or the MIG instance.

    Raises
    ------
    DeviceMissingError
        When CuPy cannot be loaded, or CUDA does not start or does not show it to this process.
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
        """Why there is no CuPy, without loading it; None where there is."""
        found = importlib.util.find_spec("cupy")
        return "CuPy is not installed" if found is None else None

    def open(self) -> None:
        """Make the context: see :meth:`Device.open`."""
        try:
            with self.xp.cuda.Device(self.ordinal):
                self.xp.cuda.runtime.free(0)
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            if error.status in (OUT_OF_MEMORY, TAKEN):
                raise DeviceTakenError(str(error)) from error
            raise

    @contextmanager
    def active(self) -> Generator[None]:
        """Compute on it in the calling thread: see :meth:`Device.active`."""
        with self.xp.cuda.Device(self.ordinal):
            yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says so: CuPy's own, the runtime's or the driver's."""
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
