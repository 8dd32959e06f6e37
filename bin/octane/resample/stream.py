"""Resampling a continuous volume block by block, with halos, equal to the whole bit for bit.

A block is a stored object of the result. The source planes that it needs are read slab by slab and
pushed through the operators, which keep what the next planes need, so that along z nothing is
computed twice. Slabs end at chunk borders of the source: a chunk is decoded once per block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters
from octane.core.geometry import Region, blocks, bounds, shape_of
from octane.core.metrics import Metrics
from octane.core.units import bytes_of
from octane.gpu.run import Share
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, cores, plan_workers
from octane.resample.gpu import Footprint
from octane.resample.operator import AxisOperator
from octane.resample.resampler import footprint, load, make_resampler
from octane.store.image import Image
from octane.store.volumes import Volume, Writer
from octane.store.writer import Level

SLAB_BYTES = 64_000_000
"""Most bytes read at once from uncompressed chunks."""


@dataclass(frozen=True)
class LanePlan:
    """Workers and memory of a run.

    Attributes
    ----------
    workers
        Blocks or tiles in flight.
    planes
        Source planes read at once.
    lane_bytes, fixed_bytes
        Host memory per worker, and that of the process besides.
    device_bytes
        GPU memory per worker; 0 for the CPU.
    """

    workers: int
    planes: int
    lane_bytes: int
    fixed_bytes: int
    device_bytes: int

    @property
    def predicted_bytes(self) -> int:
        """Peak of the process."""
        return self.fixed_bytes + self.workers * self.lane_bytes


@dataclass(frozen=True)
class StreamPlan:
    """Plan of a volume's resampling.

    Attributes
    ----------
    level, dtype
        The result, and its type.
    operators
        One per axis (z, y, x), from the entire source to the entire result.
    averaged
        False if they take the nearest voxel.
    """

    source: Volume
    level: Level
    dtype: np.dtype
    operators: Sequence[AxisOperator]
    averaged: bool = True

    @cached_property
    def regions(self) -> Sequence[Region]:
        """Blocks of the result, each written by one worker."""
        return blocks(self.level.grid.shape, self.level.object_shape)

    @property
    def copies(self) -> bool:
        """True if the result equals the source."""
        shape = self.source.grid.shape
        return self.dtype == self.source.dtype and all(
            operator.identity(n) for operator, n in zip(self.operators, shape, strict=True)
        )

    def lanes(self, execution: ExecutionParameters, *, gpu: bool = False) -> LanePlan:
        """Workers and memory; raises an OctaneError if a single block does not fit."""
        source = self.source
        # The first block is the largest, and needs the most of the source, except at borders.
        parts, needed = parts_of(self.operators, self.regions[0])
        nz, ny, nx = shape_of(needed)
        memory = bytes_of(execution.memory)

        def taken(slab: int) -> Footprint:
            return footprint(parts, (ny, nx), source.dtype, min(slab, nz), self.dtype, gpu=gpu)

        # Encoding holds the result a second time.
        own = prod(shape_of(self.regions[0])) * self.dtype.itemsize + source.worker_bytes
        fixed = PROCESS_BYTES + source.whole_bytes
        wanted = min(execution.workers or cores(), len(self.regions))
        # Reading only part of a chunk's planes decodes it again, which is better than losing
        # workers. The parts are equal, so that slabs end at chunk borders. For uncompressed chunks
        # without a checksum, parts are free, and as many planes are read as stay in the cache.
        depth = most = source.chunks[0]
        if isinstance(source, Image) and source.is_plain and not source.array.checked:
            most = max(1, SLAB_BYTES // (ny * nx * source.dtype.itemsize))
        slabs = [n for n in range(min(most, depth), 0, -1) if depth % n == 0]
        slab = next(
            (n for n in slabs if fixed + wanted * (taken(n).host + own) <= memory), slabs[-1]
        )
        lane = taken(slab).host + own
        workers = plan_workers(lane, memory, execution.workers, len(self.regions), fixed=fixed)
        return LanePlan(workers, slab, lane, fixed, taken(slab).device)


def parts_of(
    operators: Sequence[AxisOperator], region: Region
) -> tuple[list[AxisOperator], Region]:
    """The operators of a block, and the source voxels that it needs."""
    parts = [o.part(r) for o, r in zip(operators, region, strict=True)]
    return [operator for operator, _ in parts], tuple(needed for _, needed in parts)


def stream_resample(
    plan: StreamPlan,
    lanes: LanePlan,
    write: Writer,
    *,
    label: str,
    metrics: Metrics,
    share: Share | None = None,
) -> None:
    """Resample a volume into ``write``, which receives each block once, from one worker.

    Other parameters are as for :func:`octane.pipeline.lanes.run_pipeline`.
    """
    source = plan.source

    def copy(region: Region, lane: Lane) -> int:
        def read(part: Region) -> npt.NDArray:
            with lane.timed("read"):
                memory = lane.buffer("block", [r.stop - r.start for r in part], plan.dtype)
                block = source.read(part, memory)
            metrics.count("read", block.nbytes)
            return block

        with lane.timed("write"):
            write.fill(region, read, source)
        size = prod(r.stop - r.start for r in region) * plan.dtype.itemsize
        metrics.count("written", size)
        return size

    def work(region: Region, lane: Lane) -> int:
        operators, needed = parts_of(plan.operators, region)
        resampler = lane.keep("resampler", lambda: make_resampler(lane, averaged=plan.averaged))
        planes, *across = needed
        shape = (across[0].stop - across[0].start, across[1].stop - across[1].start)
        resampler.begin(operators, shape, source.dtype, plan.dtype)
        start = planes.start
        while start < planes.stop:
            stop = min((start // lanes.planes + 1) * lanes.planes, planes.stop)
            with lane.timed("compute"):
                memory = resampler.buffer(stop - start)
            with lane.timed("read"):
                slab = source.read((slice(start, stop), *across), memory)
            metrics.count("read", slab.nbytes)
            with lane.timed("compute"):
                resampler.push(slab)
            start = stop
        with lane.timed("compute"):
            result = resampler.finish()
        with lane.timed("write"):
            write[region] = result
        metrics.count("written", result.nbytes)
        return result.nbytes

    with metrics.timed("load"):
        if not plan.copies:
            load(np if share is None else share.xp, source.dtype, plan.dtype)
    run_pipeline(
        plan.regions,
        copy if plan.copies else work,
        label=label,
        workers=lanes.workers,
        metrics=metrics,
        share=share,
        describe=lambda region: f"block {bounds(region)} of {source.path}",
    )
