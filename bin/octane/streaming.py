"""Resampling a continuous volume block by block, with halos, equal to the whole bit for bit.

The source of a block is read in slabs of planes, each once: what an output takes of the slab before
is still in the resampler.
"""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import ModuleType

import numpy as np
import numpy.typing as npt

from octane.dtypes import working_type
from octane.geometry import Region, blocks
from octane.metrics import Metrics
from octane.operators import AxisOperator
from octane.progress import progress
from octane.resample import Resampler, make_resampler
from octane.tiles import plan_workers, run_tiles
from octane.volumes import Writer

__all__ = ["stream_resample"]

SLAB_BYTES = 64_000_000
"""Decoded input read at once: large enough to amortise a read, small beside the output shard."""


def stream_resample(
    read: Callable[[Region], npt.NDArray],
    write: Writer,
    operators: Sequence[AxisOperator],
    owned: tuple[int, int, int],
    dtype: npt.DTypeLike,
    *,
    label: str,
    source_dtype: np.dtype,
    xp: ModuleType,
    metrics: Metrics,
    memory: int,
    workers: int | None,
) -> None:
    """Resample a volume into ``write``, one owned block (a shard) after the other.

    Parameters
    ----------
    read
        Gives the source's voxels of a region.
    write
        Takes the result; each block is written once, by one worker.
    operators
        One per axis (z, y, x), from the whole source to the whole result.
    owned
        Size of the blocks.
    dtype, source_dtype
        Types of the result and of the source.
    xp
        Array module that computes.
    metrics
        Takes seconds and bytes.
    memory, workers
        Limits, see :func:`octane.tiles.plan_workers`.
    """
    shape = tuple(operator.size for operator in operators)
    regions = blocks(shape, owned)
    block = [min(n, size) for n, size in zip(owned, shape, strict=True)]
    _, rows, columns = (
        needed.stop - needed.start
        for _, needed in (o.part(slice(0, n)) for o, n in zip(operators, block, strict=True))
    )
    # Planes that wait for the operator of z are as wide as the source and as high as the result.
    waiting = operators[0].taps * block[1] * columns * working_type(source_dtype).itemsize
    plane = rows * columns * source_dtype.itemsize
    need = int(np.prod(block)) * np.dtype(dtype).itemsize + waiting + 3 * max(SLAB_BYTES, plane)
    count = plan_workers(need, memory, workers, len(regions))
    idle: SimpleQueue[Resampler] = SimpleQueue()
    for _ in range(count):
        idle.put(make_resampler(xp))

    with progress(label, len(regions)) as advance:

        def work(region: Region) -> None:
            parts = [o.part(r) for o, r in zip(operators, region, strict=True)]
            z, *across = (needed for _, needed in parts)
            ny, nx = (needed.stop - needed.start for needed in across)
            slab = max(1, SLAB_BYTES // (ny * nx * source_dtype.itemsize))
            resampler = idle.get()
            try:
                resampler.begin([part for part, _ in parts], (ny, nx), source_dtype, dtype)
                for start in range(z.start, z.stop, slab):
                    with metrics.timed("read"):
                        source = read((slice(start, min(start + slab, z.stop)), *across))
                    metrics.count("read", source.nbytes)
                    with metrics.timed("compute"):
                        resampler.push(source)
                result = resampler.finish()
                with metrics.timed("write"):
                    write[region] = result
                metrics.count("written", result.nbytes)
                advance(result.nbytes)
            finally:
                idle.put(resampler)

        run_tiles(regions, work, workers=count, describe=lambda r: f"block {r}")
