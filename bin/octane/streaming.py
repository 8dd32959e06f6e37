"""Resampling a continuous volume block by block, with halos, equal to the whole bit for bit."""

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt

from octane.backend import to_host
from octane.dtypes import as_dtype
from octane.geometry import Region, blocks
from octane.metrics import Metrics
from octane.operators import AxisOperator
from octane.progress import progress
from octane.resample import resample
from octane.tiles import plan_workers, run_tiles
from octane.volumes import Writer

__all__ = ["stream_resample"]

SLAB_BYTES = 64_000_000
"""Decoded input read at once: large enough to amortise a read, small beside the output shard."""


def _slab(owned: tuple[int, ...], operators: Sequence[AxisOperator], itemsize: int) -> int:
    """Output planes whose input, halo apart, is about :data:`SLAB_BYTES`."""
    input_plane = itemsize
    for axis, operator in enumerate(operators):
        _, needed = operator.part(slice(0, min(owned[axis], operator.size)))
        input_plane *= (needed.stop - needed.start) / (owned[0] if axis == 0 else 1)
    return int(max(1, min(owned[0], SLAB_BYTES // input_plane)))


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
    slab = _slab(owned, operators, source_dtype.itemsize)
    block_bytes = int(np.prod(np.minimum(owned, shape))) * np.dtype(dtype).itemsize
    need = block_bytes + 4 * SLAB_BYTES
    count = plan_workers(need, memory, workers, len(regions))

    with progress(label, len(regions)) as advance:

        def work(region: Region) -> None:
            result = np.empty([r.stop - r.start for r in region], dtype)
            across = [
                operator.part(r) for operator, r in zip(operators[1:], region[1:], strict=True)
            ]
            for start in range(region[0].start, region[0].stop, slab):
                planes = slice(start, min(start + slab, region[0].stop))
                parts = [operators[0].part(planes), *across]
                with metrics.timed("read"):
                    source = read(tuple(needed for _, needed in parts))
                metrics.count("read", source.nbytes)
                with metrics.timed("compute"):
                    values = resample(xp.asarray(source), [operator for operator, _ in parts])
                    here = slice(planes.start - region[0].start, planes.stop - region[0].start)
                    result[here] = to_host(as_dtype(values, dtype))
            with metrics.timed("write"):
                write[region] = result
            metrics.count("written", result.nbytes)
            advance(result.nbytes)

        run_tiles(regions, work, workers=count, describe=lambda r: f"block {r}")
