"""Blocks processed by many threads, each block by one thread from start to end.

Memory is bounded by the number of threads: a block is in flight only while a thread holds it.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import TypeVar

from octane.core.errors import OctaneError
from octane.store.volumes import Volume

PROCESS_BYTES = 270_000_000
"""Memory of Python with NumPy, SimpleITK, zarr and compiled loops, before any data."""

Tile = TypeVar("Tile")
Result = TypeVar("Result")


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def require_memory(what: str, needed: int, memory: int) -> None:
    """Raise an OctaneError that names ``what`` if it needs more bytes than ``memory``."""
    if needed > memory:
        raise OctaneError(
            f"{what} needs {needed / 1e6:.0f} MB, but --memory allows {memory / 1e6:.0f} MB; give "
            f"--memory {needed / 1e9 + 0.05:.1f}GB or more."
        )


def require_decodable(memory: int, *volumes: Volume) -> None:
    """Raise an OctaneError if a plane of a compressed TIFF needs more bytes than ``memory``."""
    for volume in volumes:
        if volume.decoding:
            what = f"Decoding a plane of {volume.path}"
            require_memory(what, PROCESS_BYTES + volume.decoding, memory)


def plan_workers(
    bytes_per_block: int,
    memory: int,
    requested: int | None,
    blocks: int,
    *,
    fixed: int = PROCESS_BYTES,
) -> int:
    """Find how many workers fit: one per core (or as requested), fewer if memory is short.

    Parameters
    ----------
    bytes_per_block, memory
        Host memory that one block needs, and that the step may use, in bytes.
    requested
        Number of workers that the user requests, or None.
    blocks
        Number of blocks; more workers than that would be idle.
    fixed
        Memory that any number of workers needs in addition.

    Raises
    ------
    OctaneError
        If not even one block fits.
    """
    require_memory("One block at a time", fixed + bytes_per_block, memory)
    return max(1, min(requested or cores(), (memory - fixed) // bytes_per_block, blocks))


def run_tiles(
    tiles: Sequence[Tile],
    work: Callable[[Tile], Result],
    *,
    workers: int,
    describe: Callable[[Tile], str] | None = None,
) -> list[Result]:
    """Run ``work`` on every tile in ``workers`` threads; the results are in the tiles' order.

    After an error, running tiles finish and others do not start; the error is raised with the
    tile's name, which ``describe`` returns if given, in its notes.
    """
    left = deque(range(len(tiles)))
    results: dict[int, Result] = {}
    errors: dict[int, Exception] = {}

    def go(ended: Event) -> None:
        try:
            while left:
                one = left.popleft()
                try:
                    results[one] = work(tiles[one])
                except Exception as error:
                    errors[one] = error
                    left.clear()
        except IndexError:
            # Another thread took the last one.
            pass
        finally:
            ended.set()

    # Not joined: when a signal interrupts a join, Python takes the thread for ended, and a
    # cancelled task would remove its output while the thread still writes.
    ends = [Event() for _ in range(min(workers, len(tiles)))]
    threads = [Thread(target=go, args=(e,), name=f"tile_{n}") for n, e in enumerate(ends)]
    try:
        for thread in threads:
            thread.start()
        for ended in ends:
            ended.wait()
    finally:
        # Also if a signal ends the wait: a cancelled task must not start new tiles.
        left.clear()
        for thread, ended in zip(threads, ends, strict=True):
            if thread.ident is not None:
                ended.wait()
    for one, error in sorted(errors.items()):
        if describe is not None:
            error.add_note(f"while working on {describe(tiles[one])}")
        raise error
    return [results[one] for one in range(len(tiles))]
