"""Plan of a RESAMPLE run: grids, operators, pieces, workers, memory; and the levels of PYRAMID."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from octane.config.params import ExecutionParameters, ResampleParameters, bytes_of
from octane.core.arrays import output_type
from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector, spelled
from octane.layout.levels import level_grids
from octane.layout.mosaic import MosaicGrid, Tile
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.resample.gpu import BATCH_BYTES as DEVICE_BATCH_BYTES
from octane.resample.operator import AxisOperator, resampled, resampler
from octane.resample.resampler import footprint
from octane.resample.stream import LanePlan, StreamPlan, decoding_bytes
from octane.store.image import Image
from octane.store.tiff_files import TiffVolume
from octane.store.volumes import Volume
from octane.store.writer import Level

BATCH_BYTES = 1 << 20
"""Planes that are decoded at once: enough to amortise a call, few enough to stay in the cache."""


@dataclass(frozen=True)
class MosaicPlan:
    """Plan of a mosaic's resampling, each tile alone.

    Attributes
    ----------
    tiling
        Tiles of the source.
    level, dtype
        The result, in which a tile is a chunk as well, and its type.
    operators
        Per axis, by the number of samples: a grid has at most two lengths of tile on each.
    """

    source: Image
    tiling: MosaicGrid
    level: Level
    dtype: np.dtype
    operators: tuple[dict[int, AxisOperator], ...]

    def operators_of(self, tile: Tile) -> list[AxisOperator]:
        """The operators of a tile (z, y, x)."""
        region = self.tiling.region(tile)
        return [own[r.stop - r.start] for own, r in zip(self.operators, region, strict=True)]

    def lanes(self, execution: ExecutionParameters, *, gpu: bool = False) -> LanePlan:
        """Workers and memory; an OctaneError when not one tile fits."""
        source = self.source
        _, cy, cx = source.chunks
        batch_bytes = DEVICE_BATCH_BYTES if gpu else BATCH_BYTES
        batch = max(1, min(self.tiling.tile[0], batch_bytes // (cy * cx * source.dtype.itemsize)))
        largest = [max(own.values(), key=lambda operator: operator.size) for own in self.operators]
        taken = footprint(largest, (cy, cx), source.dtype, batch, self.dtype, gpu=gpu)
        encoded = math.prod(self.level.chunks) * self.dtype.itemsize
        lane = taken.host + decoding_bytes(source) + encoded
        memory = bytes_of(execution.memory)
        workers = plan_workers(lane, memory, execution.workers, len(self.tiling.tiles))
        return LanePlan(workers, batch, lane, PROCESS_BYTES, taken.device)


def _size(shape: Sequence[int], dtype: np.dtype) -> str:
    return f"{spelled(shape)} {dtype}, {math.prod(shape) * dtype.itemsize / 1e6:.0f} MB"


def lines(plan: MosaicPlan | StreamPlan, lanes: LanePlan) -> list[str]:
    """A plan in words, a line each."""
    source, grid = plan.source, plan.level.grid
    if isinstance(plan, MosaicPlan):
        tiling = plan.tiling
        what = f"{tiling.rows} x {tiling.columns} tiles of {spelled(tiling.tile)} voxels"
        made = f"tiles of {spelled(plan.level.chunks)} voxels in {len(tiling.tiles)} files"
    else:
        what, made = "a volume", f"{len(plan.regions)} blocks"
    if isinstance(source, TiffVolume):
        access = "read in parts, after it was decoded once if it is compressed"
    elif not isinstance(source, Image):
        access = "read whole, as its format is"
    elif source.reader is None:
        access = f"read through zarr, because {source.array.why_zarr}"
    else:
        access = f"chunks decoded {'a few planes at a time' if source.reader.streams else 'whole'}"
    memory = f"about {lanes.predicted_bytes / 1e6:.0f} MB of memory"
    if lanes.device_bytes:
        memory += f" and {lanes.workers * lanes.device_bytes / 1e6:.0f} MB of a GPU's"
    return [
        f"{source.path}: {what} of {spelled(source.grid.spacing)} um (z y x), "
        f"{_size(source.grid.shape, source.dtype)}",
        access,
        f"to {spelled(grid.spacing)} um in {made}, {_size(grid.shape, plan.dtype)} uncompressed",
        f"{lanes.workers} worker(s) with {lanes.lane_bytes / 1e6:.0f} MB, {memory}",
    ]


def plan_resampling(
    image: Volume, target: Vector, parameters: ResampleParameters
) -> MosaicPlan | StreamPlan:
    """Plan the resampling of a mosaic, or of a volume, to a voxel size in micrometres.

    Raises
    ------
    OctaneError
        When it is not a mosaic and is to be one.
    """
    dtype = output_type(parameters.dtype, image.dtype)
    if parameters.layout == "volume":
        grid, operators = resampled(image.grid, target)
        return StreamPlan(image, Level.volume(grid), dtype, operators)
    if not isinstance(image, Image):
        raise InputError(f"{image.path} is a volume and not a mosaic; give --layout volume.")
    tiling = MosaicGrid.of(image)
    lengths = [
        {r.stop - r.start for r in regions}
        for regions in zip(*map(tiling.region, tiling.tiles), strict=True)
    ]
    operators = tuple(
        {n: resampler(n, spacing, t) for n in sizes}
        for sizes, spacing, t in zip(lengths, tiling.spacing, target, strict=True)
    )
    made = tiling.resampled(target)
    return MosaicPlan(image, tiling, Level(made.grid, made.tile), dtype, operators)


def plan_levels(
    grid: Grid, resolutions: tuple[float, ...] | None
) -> list[tuple[Grid, list[AxisOperator]]]:
    """Grid of each level, and the operators that make it from the level before.

    Arguments and errors are those of :func:`octane.layout.levels.level_grids`.
    """
    levels = level_grids(grid, resolutions)
    planned = [(level, resampled(grid, level.spacing)[1]) for level in levels[:1]]
    for before, level in pairwise(levels):
        axes = zip(before.shape, before.spacing, level.spacing, level.shape, strict=True)
        planned.append((level, [resampler(*axis) for axis in axes]))
    return planned
