"""Blocks read outside of the tile pipeline: by many threads at once, and with progress.

Each thread has a track of the step's record, so that what it waited for is known there too.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from octane.core.bounds import OTHER
from octane.core.metrics import Metrics
from octane.core.progress import progress
from octane.core.timing import span
from octane.pipeline.workers import run_tiles

__all__ = ["READER", "read_blocks"]

READER = "reader"
"""How the tracks of these threads begin."""

Block = TypeVar("Block")
Result = TypeVar("Result")


def read_blocks(
    blocks: Sequence[Block],
    work: Callable[[Block], tuple[Result, int]],
    *,
    label: str,
    workers: int,
    metrics: Metrics,
    describe: Callable[[Block], str],
) -> list[Result]:
    """Run ``work`` on every block, and show how far it has come.

    Parameters
    ----------
    blocks
        What is to be read.
    work
        Reads one block; gives what it makes of it, and the bytes that it read. It times its stages
        by :func:`octane.core.timing.span`.
    label
        What the work is called.
    workers
        Number of threads.
    metrics
        Takes seconds.
    describe
        Names a block in an error.

    Returns
    -------
    list
        What was made, in the blocks' order.
    """
    count = min(workers, len(blocks))
    tracks = deque(metrics.timeline.track(f"{READER} {n}") for n in range(count))
    with progress(label, len(blocks)) as advance:

        def one(block: Block) -> Result:
            track = tracks.popleft()
            try:
                with metrics.timeline.on(track), span(OTHER):
                    made, size = work(block)
            finally:
                tracks.append(track)
            advance(size)
            return made

        return run_tiles(blocks, one, workers=max(1, count), describe=describe)
