"""Host memory for copies to and from a GPU, page-locked if the host allows it.

A copy from ordinary (pageable) memory is slower, as it passes through a buffer of the driver, and
blocks its thread; one from page-locked memory runs in the background. Locking takes time, so memory
is kept and reused.

Memory is first mapped and then locked in place (cudaHostRegister), not allocated by CUDA: it uses
entire pages and no more (CuPy's pool rounds up to powers of two), and stays the same if the host
refuses to lock it. The process that takes it must own the GPU's context, as other processes do not
inherit the lock.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from threading import Lock
from types import ModuleType

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

PORTABLE = 1
"""cudaHostRegisterPortable: locked for all contexts of the process, not only the current one."""


def whole_pages(size: int) -> int:
    """Round ``size`` bytes up to entire pages."""
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


class HostMemory(AbstractContextManager):
    """Memory for copies to and from a device, returned at the end; threads may share it.

    The memory is page-locked (``pinned``) if ``xp`` is ``cupy``. If the host refuses to lock
    memory, ``warn`` is called once, and the run goes on with ordinary memory and ``pinned`` False.
    """

    def __init__(self, xp: ModuleType, *, warn: Callable[[str], None] = log.warning) -> None:
        self.pinned = xp is not np
        self._xp, self._warn = xp, warn
        # By address: memory that was taken, and whether it is locked.
        self._given: dict[int, tuple[npt.NDArray[np.uint8], bool]] = {}
        self._lock = Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Map ``size`` bytes (at least one) of memory that begins at a page."""
        mapped = mmap.mmap(-1, whole_pages(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # As NumPy does, for a faster first touch. Only Linux has it, and kernels without huge pages
        # (real-time ones) refuse it.
        with suppress(AttributeError, OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(mapped, np.uint8, max(1, size))
        with self._lock:
            self._given[memory.ctypes.data] = memory, self._locked(memory)
        return memory

    def give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Unlock taken memory, once copies are finished; it is freed with its last array.

        A KeyError says that the memory was not taken here or was already given back.
        """
        with self._lock:
            _, locked = self._given.pop(memory.ctypes.data)
            if locked:
                self._xp.cuda.runtime.hostUnregister(memory.ctypes.data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give back the remaining memory, after copies that an error left unfinished."""
        try:
            if any(locked for _, locked in self._given.values()):
                self._xp.cuda.Device().synchronize()
            for memory in [memory for memory, _ in self._given.values()]:
                self.give_back(memory)
        except self._xp.cuda.runtime.CUDARuntimeError:
            # A lost GPU refuses this; the error that ended the block says why.
            if kind is None:
                raise

    def _locked(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Lock memory, and tell whether it is locked; warn only the first time."""
        if not self.pinned:
            return False
        runtime = self._xp.cuda.runtime
        try:
            runtime.hostRegister(memory.ctypes.data, whole_pages(memory.nbytes), PORTABLE)
        except (runtime.CUDARuntimeError, MemoryError) as error:
            self.pinned = False
            if self._is_lost():
                # The next copy says so.
                return False
            self._warn(
                f"The host refuses to page-lock {memory.nbytes / 1e6:.0f} MB ({error}); copies to "
                "and from the GPU use ordinary memory, which is slower."
            )
        return self.pinned

    def _is_lost(self) -> bool:
        """Tell whether the GPU refuses everything, and not only to lock memory."""
        try:
            self._xp.cuda.Device().synchronize()
        except self._xp.cuda.runtime.CUDARuntimeError:
            return True
        return False
