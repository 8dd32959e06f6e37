"""OME-Zarr 0.5, or 0.4 for programs without zarr 3."""

import math
from pathlib import Path

from octane.config.parameters import ExecutionParameters
from octane.config.types import OmeZarrVersion
from octane.core.geometry import Region, blocks, bounds
from octane.core.progress import Progress
from octane.core.units import bytes_of
from octane.pipeline.workers import plan_workers, run_tiles
from octane.store.writer import SHARD, Level, channel_writers, create_image
from octane.tools.export.source import Source


def write_ome_zarr(
    source: Source, destination: Path, version: OmeZarrVersion, execution: ExecutionParameters
) -> None:
    """Write a store; an OctaneError says why that failed, and nothing is left half-written."""
    first = source.levels[0]
    levels = [Level.volume(parts[0].grid) for parts in source.levels]
    if version == "0.4":
        levels = [Level(level.grid, level.chunks) for level in levels]
    several = len(first) > 1
    dtype = first[0].dtype
    # Entire shards, or eight chunks; as much again is decoded and encoded.
    size = (SHARD, SHARD, SHARD)
    tasks = [
        (index, channel, block)
        for index, level in enumerate(levels)
        for channel in range(len(first))
        for block in blocks(level.grid.shape, size)
    ]
    most = max(min(SHARD**3, math.prod(level.grid.shape)) for level in levels)
    workers = plan_workers(
        2 * most * dtype.itemsize, bytes_of(execution.memory), execution.workers, len(tasks)
    )
    advance = Progress("Export", len(tasks), "blocks", workers=workers)
    with create_image(
        destination, levels, dtype, attributes=source.attributes,
        channels=source.names if several else (), shown=source.shown,
        coarser=source.coarser, version=version, overwrite=execution.overwrite, to_disk=True,
    ) as writers:  # fmt: skip
        outputs = [channel_writers(writer, len(first)) for writer in writers]

        def write(task: tuple[int, int, Region]) -> None:
            index, channel, block = task
            voxels = source.levels[index][channel].read(block)
            outputs[index][channel][block] = voxels
            advance(voxels.nbytes)

        run_tiles(tasks, write, workers=workers, describe=lambda task: f"block {bounds(task[2])}")
