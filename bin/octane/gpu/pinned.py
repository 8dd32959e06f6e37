"""Host memory that a GPU copies from and to, page-locked where the host allows it.

A copy from ordinary (pageable) memory goes through a buffer of the driver, more slowly, and blocks
the thread that asks for it; one from page-locked memory runs beside everything else. Locking takes
about as long as filling the memory, so memory that is taken is kept and used again.

Memory is mapped first and locked where it lies (cudaHostRegister), not allocated by CUDA: it begins
at a page, takes whole pages and no more (CuPy's pool rounds up to powers of two), and is the same
memory when the host refuses to lock it. The process that takes it must own the GPU's context: a
lock does not pass on to other processes.
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
"""cudaHostRegisterPortable: locked for all contexts of the process, not only the thread's own."""


def whole_pages(size: int) -> int:
    """Bytes that memory of ``size`` bytes takes."""
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


class HostMemory(AbstractContextManager):
    """Memory for copies to and from a device, returned at the end; threads may share it.

    The memory is page-locked where ``xp`` is ``cupy``: ``pinned``. ``warn`` is called once when the
    host refuses to lock memory: the run goes on with ordinary memory, and ``pinned`` is False from
    then on.
    """

    def __init__(self, xp: ModuleType, *, warn: Callable[[str], None] = log.warning) -> None:
        self.pinned = xp is not np
        self._xp, self._warn = xp, warn
        # By their addresses: what was given out, and whether it is locked.
        self._given: dict[int, tuple[npt.NDArray[np.uint8], bool]] = {}
        self._lock = Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Map memory of ``size`` bytes (at least one) that begins at a page."""
        mapped = mmap.mmap(-1, whole_pages(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # As NumPy does it: a third of the time for the first touch, and for locking. Only Linux has
        # it, and kernels without huge pages (real-time ones) refuse it.
        with suppress(AttributeError, OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(mapped, np.uint8, max(1, size))
        with self._lock:
            self._given[memory.ctypes.data] = memory, self._locked(memory)
        return memory

    def give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Unlock what was taken, once no copy is under way; it is freed with its last array.

        A KeyError says that the memory was not taken here, or was given back before.
        """
        with self._lock:
            _, locked = self._given.pop(memory.ctypes.data)
            if locked:
                self._xp.cuda.runtime.hostUnregister(memory.ctypes.data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give back all that is left, once copies that an error left under way are done."""
        try:
            if any(locked for _, locked in self._given.values()):
                self._xp.cuda.Device().synchronize()
            for memory in [memory for memory, _ in self._given.values()]:
                self.give_back(memory)
        except self._xp.cuda.runtime.CUDARuntimeError:
            # A GPU that is lost refuses it; the error that ended the block says why.
            if kind is None:
                raise

    def _locked(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Lock memory; say why it cannot be locked, the first time only."""
        if not self.pinned:
            return False
        runtime = self._xp.cuda.runtime
        try:
            runtime.hostRegister(memory.ctypes.data, whole_pages(memory.nbytes), PORTABLE)
        except (runtime.CUDARuntimeError, MemoryError) as error:
            self.pinned = False
            self._warn(
                f"The host refuses to page-lock {memory.nbytes / 1e6:.0f} MB ({error}); copies to "
                "and from the GPU go on from ordinary memory, more slowly."
            )
        return self.pinned
