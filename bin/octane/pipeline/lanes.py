"""The tile pipeline: every tile read, computed and written by one worker, many workers at once.

A worker (a lane) does the whole chain for one tile, read and decode, copy to the device, compute,
copy back, encode and write, and then begins the next, with the buffers of the one before. The lanes
are at different links of the chain, so that reading, copies, computing and writing overlap; on a
GPU each lane has a stream of its own, on which one lane's copies run beside another's kernels. On a
CPU as many lanes as cores were measured 1.5 times faster than a chain of stages with one reader.

There is no queue: a lane that cannot write does not read, and one that waits for the disk does not
compute. What is in memory is the lanes' buffers, whatever the number of tiles.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octane.core.bounds import IDLE, OTHER, STAGES, Spent, bound_of, codec_of, gap_of
from octane.core.idling import Idling
from octane.core.metrics import Metrics
from octane.core.progress import progress
from octane.core.timing import Track, span, summed
from octane.gpu.pinned import HostMemory
from octane.pipeline.workers import run_tiles

__all__ = ["Lane", "run_pipeline"]

logger = logging.getLogger(__name__)

Tile = TypeVar("Tile")
Kept = TypeVar("Kept")


class Lane:
    """What one worker keeps from tile to tile.

    Attributes
    ----------
    xp
        Array module that computes.
    metrics
        Takes seconds and bytes.
    host
        Where its buffers come from.
    track
        Where its time goes.
    """

    def __init__(self, xp: ModuleType, metrics: Metrics, host: HostMemory, track: Track) -> None:
        self.xp, self.metrics, self.host, self.track = xp, metrics, host, track
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}
        self._own: dict[str, object] = {}
        self.stream = None if xp is np else xp.cuda.Stream(non_blocking=True)

    def active(self) -> AbstractContextManager[object]:
        """Within it, work on the device goes to the lane's own stream."""
        return nullcontext() if self.stream is None else self.stream

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Count the seconds of a block to a stage."""
        return span(stage)

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """The lane's own object of this name, made when it is first asked for."""
        if name not in self._own:
            self._own[name] = make()
        return self._own[name]  # ty: ignore[invalid-explicit-return]

    def buffer(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray:
        """A host array that is used again under its name; what it held is lost.

        On a GPU it is page-locked, as far as the host allows.
        """
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        held = self._buffers.get(name)
        if held is None or held.nbytes < size:
            if held is not None:
                self.host.give_back(self._buffers.pop(name))
                # The old one goes first, so that both are never there at once.
                del held
            held = self._buffers[name] = self.host.take(size)
        return held[:size].view(dtype).reshape(shape)

    def to_device(self, array: npt.NDArray) -> npt.NDArray:
        """A copy on the device; on a CPU the array itself."""
        if self.stream is None:
            return array
        with span("copy"):
            array = np.ascontiguousarray(array)
            copy = self.xp.empty(array.shape, array.dtype)
            with self.host.transfers.timed(self.stream, array.nbytes, "to_device"):
                copy.set(array, stream=self.stream)
            # The array may be filled anew at once. Only this lane waits, and others go on.
            self.stream.synchronize()
        self.host.transfers.settle(self.stream)
        return copy

    def to_host(self, array: npt.NDArray, name: str) -> npt.NDArray:
        """The array in the lane's buffer of that name; on a CPU the array itself."""
        if self.stream is None:
            return array
        result = self.buffer(name, array.shape, array.dtype)
        with span("compute"):
            array = self.xp.ascontiguousarray(array)
            # So that the kernels are not taken for the copy, which waits for them.
            self.stream.synchronize()
        with span("copy"):
            with self.host.transfers.timed(self.stream, result.nbytes, "to_host"):
                # Otherwise CuPy waits for it before the end of the copy is asked for.
                array.get(stream=self.stream, out=result, blocking=False)
            self.stream.synchronize()
        self.host.transfers.settle(self.stream)
        return result


def run_pipeline(
    tiles: Sequence[Tile],
    work: Callable[[Tile, Lane], int],
    *,
    label: str,
    workers: int,
    xp: ModuleType,
    metrics: Metrics,
    describe: Callable[[Tile], str] = str,
    fetch: Callable[[Tile], None] | None = None,
    ahead: int = 0,
    pinned: bool = True,
    active: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Run ``work`` on every tile.

    Parameters
    ----------
    tiles
        In the order in which they are begun.
    work
        Reads, computes and writes one tile with what a lane keeps, and gives the bytes that it did,
        for the progress. It times its stages (:data:`STAGES`) by :meth:`Lane.timed`.
    label
        What the work is called.
    workers
        Number of lanes: tiles in flight.
    xp
        Array module that computes.
    metrics
        Takes seconds and bytes, and figures of the pipeline under ``pipeline``.
    describe
        Names a tile in an error.
    fetch
        Asks the system to load a tile's bytes; called for the tile ``ahead`` of the lanes.
    ahead
        How many tiles.
    pinned
        Whether the lanes' buffers are page-locked on a GPU.
    active
        Within it a thread works on the device, which CUDA keeps for every thread by itself.

    Raises
    ------
    Exception
        The first that ``work`` raised, with the tile in its notes; tiles in work are ended, others
        are not begun.
    """
    tracks = [metrics.timeline.track(f"lane {n}") for n in range(min(workers, len(tiles)))]
    before, moved = _seconds(tracks), dict(metrics.bytes)
    start, cpu = time.perf_counter(), time.process_time()
    idling = Idling(start)
    for track in tracks:
        track.watch(idling)

    with (
        HostMemory(xp, pinned=pinned, warn=metrics.warn) as host,
        progress(label, len(tiles)) as advance,
    ):
        lanes = deque(Lane(xp, metrics, host, track) for track in tracks)

        def one(index: int) -> None:
            if fetch is not None and ahead > 0 and index + ahead < len(tiles):
                fetch(tiles[index + ahead])
            lane = lanes.popleft()
            try:
                with metrics.timeline.on(lane.track), span(OTHER), active(), lane.active():
                    size = work(tiles[index], lane)
            finally:
                lanes.append(lane)
            advance(size)

        if fetch is not None:
            for tile in tiles[:ahead]:
                fetch(tile)
        try:
            run_tiles(
                range(len(tiles)),
                one,
                workers=max(1, len(lanes)),
                describe=lambda index: describe(tiles[index]),
            )
        finally:
            # Of a try that failed as well, whose seconds are counted too.
            if copied := sum(found.bytes for found in host.transfers.found().values()):
                metrics.count("copy", copied)
    end = time.perf_counter()
    wall = end - start
    after = _seconds(tracks)
    seconds = {stage: after[stage] - before[stage] for stage in after}
    seconds[IDLE] = max(0.0, len(lanes) * wall - sum(seconds.values()))
    waited = summed(track.meanwhile for track in tracks)
    gaps = {stage: seconds / len(tracks) for stage, seconds in waited.items()}
    gaps[IDLE] = max(0.0, idling.at(end) - sum(gaps.values()))
    spent = Spent(
        label,
        seconds,
        time.process_time() - cpu,
        wall,
        len(tiles),
        len(lanes),
        *(metrics.bytes.get(s, 0) - moved.get(s, 0) for s in ("read", "written")),
        gpu=xp is not np,
        gaps=gaps,
        codec=codec_of(metrics.settings),
        looks_ahead=fetch is not None,
    )
    sentence = bound_of(spent)
    logger.info(sentence)
    if spent.gpu:
        logger.info(gap_of(spent))
    told = metrics.figures.setdefault("pipeline", {})
    assert isinstance(told, dict)
    told[label] = {
        "tiles": len(tiles),
        "workers": len(lanes),
        "seconds": wall,
        "tiles_per_second": len(tiles) / wall,
        "megabytes_per_second": advance.bytes / wall / 1e6,
        # Seconds of all lanes: what they waited for, and what they were without a tile.
        "lane_seconds": seconds,
        # Seconds in which no lane computed, by what they did.
        "gap_seconds": gaps,
        "cpu_seconds": spent.cpu_seconds,
        "read_bytes": spent.read_bytes,
        "written_bytes": spent.written_bytes,
        "looks_ahead": spent.looks_ahead,
        "bound_by": spent.stage,
        "bound": sentence,
        "transfers": {way: asdict(found) for way, found in host.transfers.found().items()},
    }


def _seconds(tracks: Sequence[Track]) -> dict[str, float]:
    """What lanes have spent on each stage so far."""
    return {
        stage: sum(track.seconds.get(stage, 0.0) for track in tracks) for stage in (*STAGES, OTHER)
    }
