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

Copies run beside other work only from and to page-locked memory (``cupyx.empty_pinned``). Arrays
are not locked for a single call, which would take longer than their slower copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from octane.core.geometry import Region, blocks
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


def correct_streamed(
    image: np.ndarray,
    out: np.ndarray,
    fit: Callable[[], BiasFit],
    strength: float,
    fit_bytes: int,
    xp: ModuleType,
) -> BiasFit:
    """Correct a volume of the host on the current device into `out`, C-contiguous.

    `fit` fits the shrunk volume, which is uploaded already, in the current stream, and takes
    `fit_bytes` of the device's memory.
    """
    regions = slabs(image.shape)
    native = image.dtype.newbyteorder("=")
    streams = _streams(xp, xp.cuda.Device().id)

    def upload(n: int) -> np.ndarray:
        with streams[n % STREAMS]:
            values = np.ascontiguousarray(image[regions[n]], native)
            slab = xp.empty(values.shape, native)
            slab.set(values)
            if not np.may_share_memory(values, image):
                # A copy has to last until it is on the device.
                xp.cuda.get_current_stream().synchronize()
            return slab

    def finish(n: int, slab: np.ndarray, lattice: np.ndarray) -> None:
        with streams[n % STREAMS]:
            part = FieldPart(lattice, image.shape, regions[n])
            corrected = xp.asarray(correct_block(slab, [part], strength=strength)[0])
            if out.dtype.isnative:
                corrected.get(out=out[regions[n]], blocking=False)
            else:
                out[regions[n]] = corrected.get()

    # The first slab is as large as any.
    most = _resident(xp, image[regions[0]].size, native.itemsize, len(regions), fit_bytes)
    try:
        held = deque(upload(n) for n in range(most))
        found = fit()
        for n in range(len(regions)):
            finish(n, held.popleft(), found.lattice)
            if n + most < len(regions):
                held.append(upload(n + most))
    finally:
        for stream in streams:
            # The thread sleeps, where it would spin in a wait for the stream itself.
            event = xp.cuda.Event(block=True, disable_timing=True)
            event.record(stream)
            event.synchronize()
    return found


@cache
def _streams(xp: ModuleType, device: int) -> list[AbstractContextManager[object]]:
    """Return the streams of the current device, always the same: CuPy keeps memory by stream."""
    return [xp.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]


def _resident(xp: ModuleType, voxels: int, itemsize: int, count: int, fit_bytes: int) -> int:
    """Count the slabs that fit on the device beside the fit: all, or as many for every stream."""
    pool = xp.get_default_memory_pool()
    free = xp.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
    if pool.get_limit():
        free = min(free, pool.get_limit() - pool.used_bytes())
    fits = (free - fit_bytes - STREAMS * voxels * WORK_BYTES) // (voxels * itemsize)
    return count if fits >= count else min(count, max(1, fits // STREAMS) * STREAMS)
