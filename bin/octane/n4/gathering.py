"""Every n-th voxel of a volume, gathered block by block: what N4 fits on."""

import numpy as np
import numpy.typing as npt

from octane.core.errors import OctaneError
from octane.core.geometry import Region, blocks
from octane.core.metrics import Metrics
from octane.core.timing import span
from octane.pipeline.readers import read_blocks
from octane.store.volumes import Volume

__all__ = ["READ_BLOCK", "gather"]

READ_BLOCK = 256
"""Edge of the blocks that are read; a shard of octane's volumes."""


def gather(
    volume: Volume,
    keep: Region,
    dtype: npt.DTypeLike,
    *,
    workers: int,
    metrics: Metrics,
    finite: bool = False,
    label: str = "N4: reading",
) -> npt.NDArray:
    """Read the voxels of strided slices, block by block.

    Parameters
    ----------
    volume
        What to read.
    keep
        Slices with start and step (z, y, x).
    dtype
        Type of the result.
    workers
        Threads.
    metrics
        Takes their seconds.
    finite
        Look at every voxel on the way, kept or not, and raise at the first NaN or Inf.
    label
        What the work is called where its progress is shown.

    Returns
    -------
    array
        ``volume[keep]``.
    """
    shape = volume.grid.shape
    result = np.empty([len(range(n)[k]) for n, k in zip(shape, keep, strict=True)], dtype)
    # Integers are always finite; blocks that hold no kept voxel are read only to be looked at.
    finite = finite and volume.dtype.kind == "f"
    # Whole chunks, where they are smaller than a block, so that each is decoded once.
    size = tuple(c * (READ_BLOCK // c) if c < READ_BLOCK else READ_BLOCK for c in volume.chunks)
    regions = blocks(shape, size)

    def work(region: Region) -> tuple[None, int]:
        inner, outer = [], []
        for r, k in zip(region, keep, strict=True):
            first = max(0, -(-(r.start - k.start) // k.step))
            last = max(first, -(-(min(r.stop, k.stop) - k.start) // k.step))
            outer.append(slice(first, last))
            inner.append(slice(k.start + first * k.step - r.start, r.stop - r.start, k.step))
        if not finite and any(o.start == o.stop for o in outer):
            return None, 0
        with span("read"):
            block = volume.read(region)
        with span("compute"):
            if finite and not np.isfinite(block).all():
                at = np.argwhere(~np.isfinite(block))[0] + [r.start for r in region]
                raise OctaneError(
                    f"{volume.path} holds NaN or Inf (first at z y x {' '.join(map(str, at))}); "
                    "clean it, or give --nonfinite mask to leave such voxels out of the fit."
                )
            kept = block[tuple(inner)]
            result[tuple(outer)] = kept[tuple(slice(0, o.stop - o.start) for o in outer)]
        return None, block.nbytes

    read_blocks(
        regions,
        work,
        label=label,
        workers=workers,
        metrics=metrics,
        describe=lambda r: f"block {r} of {volume.path}",
    )
    return result
