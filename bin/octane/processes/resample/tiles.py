"""Resampling of a mosaic tile by tile: one worker decodes, resamples and writes each tile."""

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters
from octane.core.geometry import block_at, shape_of
from octane.core.metrics import Metrics
from octane.core.units import bytes_of
from octane.gpu.run import Share
from octane.layout.mosaic import MosaicGrid, Tile
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.resample.gpu import BATCH_BYTES as DEVICE_BATCH_BYTES
from octane.resample.operator import AxisOperator
from octane.resample.resampler import footprint, load, make_resampler
from octane.resample.stream import LanePlan
from octane.store.image import Image
from octane.store.writer import DirectWriter, Level

BATCH_BYTES = 1 << 20
"""Bytes of planes decoded at once: enough to amortise a call, few enough to stay in the cache."""


@dataclass(frozen=True)
class MosaicPlan:
    """Plan of a mosaic's resampling, each tile separately.

    Attributes
    ----------
    tiling
        Tiles of the source.
    level, dtype
        The result, in which each tile is a chunk too, and its type.
    operators
        Per axis, by tile length in samples, of which a grid has at most two.
    averaged
        False if they take the nearest voxel.
    """

    source: Image
    tiling: MosaicGrid
    level: Level
    dtype: np.dtype
    operators: tuple[dict[int, AxisOperator], ...]
    averaged: bool = True

    def tile_operators(self, tile: Tile) -> list[AxisOperator]:
        """The operators of a tile (z, y, x)."""
        region = self.tiling.region(tile)
        return [
            operators[r.stop - r.start] for operators, r in zip(self.operators, region, strict=True)
        ]

    def lanes(self, execution: ExecutionParameters, *, gpu: bool = False) -> LanePlan:
        """Workers and memory; raises an OctaneError if a single tile does not fit."""
        source = self.source
        _, cy, cx = source.chunks
        batch_bytes = DEVICE_BATCH_BYTES if gpu else BATCH_BYTES
        batch = max(1, min(self.tiling.tile[0], batch_bytes // (cy * cx * source.dtype.itemsize)))
        largest = [
            max(operators.values(), key=lambda operator: operator.size)
            for operators in self.operators
        ]
        need = footprint(largest, (cy, cx), source.dtype, batch, self.dtype, gpu=gpu)
        encoded = math.prod(self.level.chunks) * self.dtype.itemsize
        lane = need.host + source.worker_bytes + encoded
        memory = bytes_of(execution.memory)
        workers = plan_workers(lane, memory, execution.workers, len(self.tiling.imaged_tiles))
        return LanePlan(workers, batch, lane, PROCESS_BYTES, need.device)


def resample_tiles(
    plan: MosaicPlan,
    lanes: LanePlan,
    writer: DirectWriter,
    *,
    metrics: Metrics,
    share: Share,
) -> None:
    """Resample a mosaic into ``writer``, each tile by one worker.

    Other parameters are as for :func:`octane.pipeline.lanes.run_pipeline`.
    """
    image, reader = plan.source, plan.source.reader
    shape = plan.level.grid.shape
    tiles = plan.tiling.imaged_tiles
    coming = iter(tiles)

    def fetch(count: int) -> None:
        """Ask the system to load the next tiles while the previous ones are processed."""
        for tile in islice(coming, count):
            if reader is not None:
                reader.fetch((0, *tile))

    def work(tile: Tile, lane: Lane) -> int:
        fetch(1)
        result = _resample_tile(plan, tile, lanes.planes, lane)
        with lane.timed("write"):
            writer[block_at((0, *tile), plan.level.chunks, shape)] = result
        metrics.count("written", result.nbytes)
        return _tile_bytes(plan, tile)

    with metrics.timed("load"):
        load(share.xp, image.dtype, plan.dtype)
    fetch(lanes.workers)
    run_pipeline(
        tiles,
        work,
        label="RESAMPLE",
        workers=lanes.workers,
        metrics=metrics,
        share=share,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    metrics.figures["tiles"] = len(tiles)


def _tile_bytes(plan: MosaicPlan, tile: Tile) -> int:
    return math.prod(shape_of(plan.tiling.region(tile))) * plan.source.dtype.itemsize


def _resample_tile(plan: MosaicPlan, tile: Tile, batch: int, lane: Lane) -> npt.NDArray:
    """Resample a tile by ``batch`` planes, which are processed while still in the cache."""
    image = plan.source
    resampler = lane.keep("resampler", lambda: make_resampler(lane, averaged=plan.averaged))
    region = plan.tiling.region(tile)
    depth = region[0].stop
    lane.metrics.count("read", _tile_bytes(plan, tile))
    operators = plan.tile_operators(tile)
    if image.reader is None:
        with lane.timed("read"):
            voxels = image.read(region)
        with lane.timed("compute"):
            resampler.begin(operators, (voxels.shape[1], voxels.shape[2]), image.dtype, plan.dtype)
            for start in range(0, depth, batch):
                resampler.push(voxels[start : start + batch])
            return resampler.finish()
    # A chunk at the edge is stored with padding, which the operators do not use.
    _, cy, cx = image.chunks
    resampler.begin(operators, (cy, cx), image.dtype, plan.dtype)
    with image.naming_chunks(), image.reader.stream((0, *tile)) as stream:
        for start in range(0, depth, batch):
            with lane.timed("compute"):
                planes = resampler.buffer(min(batch, depth - start))
            # The stream measures its reading and decoding times itself.
            stream.read_into(planes)
            with lane.timed("compute"):
                resampler.push(planes)
        stream.drain()
    with lane.timed("compute"):
        return resampler.finish()
