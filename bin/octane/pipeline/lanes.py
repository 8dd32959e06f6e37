"""The pipeline: one worker reads, computes and writes a tile, and many workers run at once.

A worker (a lane) takes one tile through all stages and then begins the next, with the same buffers.
As lanes are at different stages, reading, copying, computing and writing overlap; on a GPU each
lane has its own stream. Without queues, memory is the buffers of the lanes, however many tiles.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octane.core.metrics import Metrics
from octane.core.progress import Progress
from octane.core.timing import OTHER, STAGES, Track, span
from octane.gpu.pinned import HostMemory
from octane.gpu.run import Share
from octane.pipeline.workers import run_tiles

logger = logging.getLogger(__name__)

Tile = TypeVar("Tile")
Kept = TypeVar("Kept")


class Lane:
    """One worker with its buffers, which come from ``host`` and are reused from tile to tile."""

    def __init__(self, xp: ModuleType, metrics: Metrics, host: HostMemory, track: Track) -> None:
        self.xp, self.metrics, self.host, self.track = xp, metrics, host, track
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}
        self._own: dict[str, object] = {}
        self.stream = None if xp is np else xp.cuda.Stream(non_blocking=True)

    def active(self) -> AbstractContextManager[object]:
        """Run work on the device in the lane's own stream."""
        return nullcontext() if self.stream is None else self.stream

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Add the seconds of a block to a stage."""
        return span(stage)

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """Return the lane's own object of this name, made at the first call."""
        if name not in self._own:
            self._own[name] = make()
        return self._own[name]  # ty: ignore[invalid-explicit-return]

    def buffer(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray:
        """Return the host array of this name, uninitialised; page-locked if on a GPU."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        held = self._buffers.get(name)
        if held is None or held.nbytes < size:
            if held is not None:
                self.host.give_back(self._buffers.pop(name))
                # Free the old one first, so that both never exist at once.
                del held
            held = self._buffers[name] = self.host.take(size)
        return held[:size].view(dtype).reshape(shape)

    def to_device(self, array: npt.NDArray) -> npt.NDArray:
        """Copy an array to the device; on a CPU return the array itself."""
        if self.stream is None:
            return array
        with span("copy"):
            # CUDA supports only the native byte order.
            array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
            copy = self.xp.empty(array.shape, array.dtype)
            copy.set(array, stream=self.stream)
            # The caller may refill the array at once. Only this lane waits.
            self._wait()
        self.metrics.count("copy", array.nbytes)
        return copy

    def to_host(self, array: npt.NDArray, name: str) -> npt.NDArray:
        """Copy an array to the lane's buffer of that name; on a CPU return the array itself."""
        if self.stream is None:
            return array
        result = self.buffer(name, array.shape, array.dtype)
        with span("compute"):
            array = self.xp.ascontiguousarray(array)
            # Otherwise the copy would wait for the kernels, and their time would count as copying.
            self._wait()
        with span("copy"):
            array.get(stream=self.stream, out=result, blocking=False)
            self._wait()
        self.metrics.count("copy", result.nbytes)
        return result

    def _wait(self) -> None:
        """Sleep until the lane's stream is done; the stream's own wait would keep a core busy."""
        done = self.xp.cuda.Event(block=True, disable_timing=True)
        done.record(self.stream)
        done.synchronize()


def run_pipeline(
    tiles: Sequence[Tile],
    work: Callable[[Tile, Lane], int],
    *,
    label: str,
    workers: int,
    metrics: Metrics,
    share: Share | None = None,
    describe: Callable[[Tile], str] | None = None,
) -> None:
    """Run ``work`` on every tile.

    Parameters
    ----------
    tiles
        Started in this order.
    work
        Reads, computes and writes one tile with the buffers of a lane; returns its bytes, for the
        progress. It times its stages (:data:`octane.core.timing.STAGES`) by :meth:`Lane.timed`.
    label
        Name of the work in the log.
    workers
        Number of lanes: tiles in flight.
    metrics
        Receives seconds and bytes.
    share
        Array module and device that compute; None for NumPy.
    describe
        Names a tile in an error.

    Raises
    ------
    Exception
        The first that ``work`` raised, with the tile in its notes; running tiles finish, others do
        not start.
    """
    xp, active = (np, nullcontext) if share is None else (share.xp, share.active)
    tracks = [metrics.timeline.track(f"lane {n}") for n in range(min(workers, len(tiles)))]
    before, start = _seconds(tracks), time.perf_counter()
    advance = Progress(label, len(tiles), workers=max(1, len(tracks)))
    with HostMemory(xp, warn=metrics.warn) as host:
        lanes = deque(Lane(xp, metrics, host, track) for track in tracks)

        def one(tile: Tile) -> None:
            lane = lanes.popleft()
            try:
                # In CUDA the current device is per thread.
                with metrics.timeline.on(lane.track), span(OTHER), active(), lane.active():
                    size = work(tile, lane)
            finally:
                lanes.append(lane)
            advance(size)

        run_tiles(tiles, one, workers=max(1, len(lanes)), describe=describe)
    wall = time.perf_counter() - start
    spent = {stage: seconds - before[stage] for stage, seconds in _seconds(tracks).items()}
    every = max(sum(spent.values()), 1e-9)
    shares = sorted(((seconds / every, stage) for stage, seconds in spent.items()), reverse=True)
    listed = ", ".join(f"{stage} {part:.0%}" for part, stage in shares if part >= 0.01)
    logger.info("%s: %d tiles, %d workers, %.1f s: %s", label, len(tiles), len(lanes), wall, listed)


def _seconds(tracks: Sequence[Track]) -> dict[str, float]:
    """Sum the seconds of lanes by stage."""
    return {
        stage: sum(track.seconds.get(stage, 0.0) for track in tracks) for stage in (*STAGES, OTHER)
    }
