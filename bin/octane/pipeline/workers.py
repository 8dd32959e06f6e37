"""Blocks worked on by many threads, each block by one thread from its begin to its end.

Memory is bounded by the number of threads: a block is in flight only while a thread holds it.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from threading import Condition
from typing import TypeVar

from octane.core.errors import OctaneError

PROCESS_BYTES = 270_000_000
"""Memory of Python with NumPy, SimpleITK, zarr and compiled loops, before any data."""

Tile = TypeVar("Tile")
Result = TypeVar("Result")


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def plan_workers(
    bytes_per_block: int,
    memory: int,
    requested: int | None,
    blocks: int,
    *,
    fixed: int = PROCESS_BYTES,
) -> int:
    """Find how many workers fit: one per core (or as requested), fewer where memory is short.

    Parameters
    ----------
    bytes_per_block, memory
        Host memory that one block needs, and bytes that the step may plan with.
    requested
        Number of workers that the user requests, or None.
    blocks
        Number of blocks; more workers than that would be idle.
    fixed
        Memory that any number of workers needs in addition.

    Raises
    ------
    OctaneError
        When not even one block fits.
    """
    least = fixed + bytes_per_block
    if least > memory:
        raise OctaneError(
            f"One block at a time needs {least / 1e6:.0f} MB and --memory allows "
            f"{memory / 1e6:.0f} MB; give --memory {least / 1e9 + 0.05:.1f}GB or more."
        )
    return max(1, min(requested or cores(), (memory - fixed) // bytes_per_block, blocks))


class _Gate:
    """A gate that lets tiles begin until it is closed; closing waits for tiles in work.

    A signal within `submit` leaves a thread that the pool does not know, and does not wait for.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._within, self._closed = 0, False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise CancelledError
            self._within += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._within -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._within)


def run_tiles(
    tiles: Sequence[Tile],
    work: Callable[[Tile], Result],
    *,
    workers: int,
    describe: Callable[[Tile], str] = str,
) -> list[Result]:
    """Run ``work`` on every tile from ``workers`` threads; the results are in the tiles' order.

    The first error stops the others: tiles not begun are dropped, those in work end, and the error
    is raised with the tile's name, which ``describe`` gives.
    """
    gate = _Gate()

    def one(tile: Tile) -> Result:
        with gate:
            return work(tile)

    pool = ThreadPoolExecutor(workers, thread_name_prefix="tile")
    try:
        futures = [pool.submit(one, tile) for tile in tiles]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # Also when a signal ends the wait: a task that is cancelled must not begin new tiles.
        pool.shutdown(wait=False, cancel_futures=True)
        gate.close()
        pool.shutdown()
    for tile, future in zip(tiles, futures, strict=True):
        if future in done and (error := future.exception()) is not None:
            error.add_note(f"while working on {describe(tile)}")
            raise error
    return [future.result() for future in futures]
