"""Blocks read outside of the tile pipeline: by many threads at once, and with progress."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from octane.progress import progress
from octane.tiles import run_tiles

__all__ = ["read_blocks"]

Block = TypeVar("Block")
Result = TypeVar("Result")


def read_blocks(
    blocks: Sequence[Block],
    work: Callable[[Block], tuple[Result, int]],
    *,
    label: str,
    workers: int,
    describe: Callable[[Block], str],
) -> list[Result]:
    """Run ``work`` on every block, and show how far it has come.

    Parameters
    ----------
    blocks
        What is to be read.
    work
        Reads one block; gives what it makes of it, and the bytes that it read.
    label
        What the work is called.
    workers
        Number of threads.
    describe
        Names a block in an error.

    Returns
    -------
    list
        What was made, in the blocks' order.
    """
    with progress(label, len(blocks)) as advance:

        def one(block: Block) -> Result:
            made, size = work(block)
            advance(size)
            return made

        return run_tiles(blocks, one, workers=workers, describe=describe)
