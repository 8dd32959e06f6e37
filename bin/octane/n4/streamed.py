"""N4 from host memory to host memory on a GPU, with copies beside the fit and the correction.

1. The shrunk volume is on the device, or before all else on its way, and is fitted in the caller's
   stream.
2. Meanwhile slabs of the volume are uploaded in other streams, as many as the device's memory
   holds.
3. After the fit every slab is corrected and downloaded. Where there are more slabs than fit, the
   next is uploaded into the memory of the one that is done.

Slab n belongs to stream n modulo `STREAMS`, and so does its memory: upload, correction, download
and the upload of the next slab follow one another in the stream, and no stream waits for another.
Every voxel crosses the bus once up and once down; those of the shrunk volume once more up.

Copies run beside other work only from and to page-locked memory: what the caller did not lock is
locked for the call, which takes about as long as filling it. Kept arrays of ``cupyx.empty_pinned``
save that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from octane.core.geometry import Region, blocks
from octane.gpu.pinned import HostMemory
from octane.n4.apply import FieldPart, correct_block

if TYPE_CHECKING:
    from octane.n4.fit import BiasFit

SLAB = 1 << 24
"""Voxels of a slab: its copies take longer than the calls that ask for them."""
STREAMS = 3
"""One uploads, one downloads, and the third's small tables do not wait behind the upload."""
WORK_BYTES = 64
"""Of a voxel of a slab that is corrected: the result, and arrays of types without a kernel."""


def slabs(shape: Sequence[int]) -> list[Region]:
    """Cut a volume into contiguous slabs of about `SLAB` voxels: planes, or rows of a plane."""
    _, ny, nx = shape
    rows = max(1, SLAB // nx)
    return blocks(tuple(shape), (max(1, rows // ny), min(ny, rows), nx))


def correct_resident(image: np.ndarray, out: np.ndarray, fit: BiasFit, strength: float) -> BiasFit:
    """Correct a volume of the device, a CuPy array, into `out` in the current stream."""
    for region in slabs(image.shape):
        part = FieldPart(fit.lattice, image.shape, region)
        out[region], _ = correct_block(image[region], [part], strength=strength)
    return fit


def correct_streamed(
    image: np.ndarray,
    out: np.ndarray,
    fit: Callable[[], BiasFit],
    strength: float,
    fit_bytes: int,
    xp: ModuleType,
) -> BiasFit:
    """Fit and correct a volume of the host on the current device.

    Parameters
    ----------
    image, out : ndarray, (z, y, x)
        The volume, and the array for the corrected one: C-contiguous, of the same dtype.
    fit : callable
        Fits the shrunk volume, which is uploaded already, in the current stream.
    strength : float
        0 to 1: how much of the correction is applied.
    fit_bytes : int
        Memory of the device that `fit` takes.
    xp : module
        ``cupy``.
    """
    regions = slabs(image.shape)
    native = image.dtype.newbyteorder("=")
    streams = _streams(xp, xp.cuda.Device().id)

    def upload(n: int) -> np.ndarray:
        with streams[n % STREAMS]:
            values = np.ascontiguousarray(image[regions[n]]).view(native)
            slab = xp.empty(values.shape, native)
            slab.set(values)
            return slab if image.dtype.isnative else _swapped(slab)

    def finish(n: int, slab: np.ndarray, lattice: np.ndarray) -> None:
        with streams[n % STREAMS]:
            part = FieldPart(lattice, image.shape, regions[n])
            corrected, _ = correct_block(slab, [part], strength=strength)
            if not image.dtype.isnative:
                corrected = _swapped(corrected)
            xp.ascontiguousarray(corrected).get(out=out[regions[n]].view(native), blocking=False)

    with HostMemory(xp) as host, _awaited(xp, streams):
        for array in (image, out):
            if array.flags.c_contiguous:
                host.lock(array)
        # The first slab is as large as any.
        most = _resident(xp, image[regions[0]].size, native.itemsize, len(regions), fit_bytes)
        held = deque(upload(n) for n in range(most))
        found = fit()
        for n in range(len(regions)):
            finish(n, held.popleft(), found.lattice)
            if n + most < len(regions):
                held.append(upload(n + most))
    return found


@cache
def _streams(xp: ModuleType, device: int) -> tuple[AbstractContextManager[object], ...]:
    """Return the streams of a device, the same at every call: CuPy keeps memory by its stream."""
    with xp.cuda.Device(device):
        return tuple(xp.cuda.Stream(non_blocking=True) for _ in range(STREAMS))


@contextmanager
def _awaited(xp: ModuleType, streams: Sequence[object]) -> Generator[None]:
    """Wait at the end until the streams are done, also after an error, which is raised then."""

    def wait() -> None:
        for stream in streams:
            # The thread sleeps, where it would spin in a wait for the stream itself.
            event = xp.cuda.Event(block=True, disable_timing=True)
            event.record(stream)
            event.synchronize()

    try:
        yield
    except BaseException:
        with suppress(xp.cuda.runtime.CUDARuntimeError):
            wait()
        raise
    wait()


def _resident(xp: ModuleType, voxels: int, itemsize: int, count: int, fit_bytes: int) -> int:
    """Count the slabs that fit on the device beside the fit: all, or as many for every stream."""
    pool = xp.get_default_memory_pool()
    free = xp.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
    if pool.get_limit():
        free = min(free, pool.get_limit() - pool.used_bytes())
    fits = (free - fit_bytes - STREAMS * voxels * WORK_BYTES) // (voxels * itemsize)
    return count if fits >= count else min(count, max(1, fits // STREAMS) * STREAMS)


def _swapped(values: np.ndarray) -> np.ndarray:
    """Return values of the device in the other byte order, which CUDA has no types for."""
    size = values.dtype.itemsize
    swapped = values.view(np.uint8).reshape(*values.shape, size)[..., ::-1]
    return swapped.reshape(*values.shape[:-1], -1).view(values.dtype)
