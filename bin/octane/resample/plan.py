"""Plan of a RESAMPLE or PYRAMID run: grids, operators, pieces, workers, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from octane.config.params import ExecutionParameters, ResampleParameters, bytes_of
from octane.core.arrays import output_type
from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector, spelled, vector
from octane.layout.levels import level_grids
from octane.layout.mosaic import MosaicGrid, Tile
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.resample.gpu import BATCH_BYTES as DEVICE_BATCH_BYTES
from octane.resample.operator import AxisOperator, resampled, resampler
from octane.resample.resampler import footprint
from octane.resample.stream import StreamPlan, decoding_bytes, plan_stream
from octane.store.image import Image
from octane.store.tiff_files import TiffVolume
from octane.store.volumes import Volume
from octane.store.writer import Level

BATCH_BYTES = 1 << 20
"""Planes that are decoded at once: enough to amortise a call, few enough to stay in the cache."""


@dataclass(frozen=True)
class MosaicPlan:
    """Plan of a mosaic grid's resampling; further attributes as of :class:`StreamPlan`.

    Attributes
    ----------
    operators
        Per axis, by the number of samples: a grid has at most two lengths of tile on each.
    batch
        Planes decoded at once.
    workers
        Tiles in flight.
    """

    source: Image
    tiling: MosaicGrid
    level: Level
    dtype: np.dtype
    operators: tuple[dict[int, AxisOperator], ...]
    batch: int
    workers: int
    lane_bytes: int
    predicted_bytes: int
    device_bytes: int

    def operators_of(self, tile: Tile) -> list[AxisOperator]:
        """The operators of a tile (z, y, x)."""
        region = self.tiling.region(tile)
        return [own[r.stop - r.start] for own, r in zip(self.operators, region, strict=True)]


def _size(shape: Sequence[int], dtype: np.dtype) -> str:
    return f"{spelled(shape)} {dtype}, {math.prod(shape) * dtype.itemsize / 1e6:.0f} MB"


def lines(plan: MosaicPlan | StreamPlan) -> list[str]:
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
    memory = f"about {plan.predicted_bytes / 1e6:.0f} MB of memory"
    if plan.device_bytes:
        memory += f" and {plan.workers * plan.device_bytes / 1e6:.0f} MB of a GPU's"
    return [
        f"{source.path}: {what} of {spelled(source.grid.spacing)} um (z y x), "
        f"{_size(source.grid.shape, source.dtype)}",
        access,
        f"to {spelled(grid.spacing)} um in {made}, {_size(grid.shape, plan.dtype)} uncompressed",
        f"{plan.workers} worker(s) with {plan.lane_bytes / 1e6:.0f} MB, {memory}",
    ]


def plan_resampling(
    image: Volume,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    *,
    gpu: bool = False,
) -> MosaicPlan | StreamPlan:
    """Plan the resampling of a mosaic grid, or of a continuous volume.

    ``target`` is the voxel size in micrometres; ``gpu`` says whether a GPU computes.

    Raises
    ------
    OctaneError
        When it is no mosaic grid and is to be one, or not one tile or block fits the memory.
    """
    if parameters.layout == "volume":
        grid, operators = resampled(image.grid, target)
        dtype = output_type(parameters.dtype, image.dtype)
        return plan_stream(image, Level.volume(grid), operators, dtype, execution, gpu=gpu)
    if not isinstance(image, Image):
        raise InputError(
            f"{image.path} is no mosaic grid but a plain volume; give --layout volume."
        )
    return plan_mosaic(image, target, parameters, execution, gpu=gpu)


def plan_mosaic(
    image: Image,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    *,
    gpu: bool = False,
) -> MosaicPlan:
    """Plan the resampling of a mosaic grid, each tile alone, as :func:`plan_resampling`."""
    kind = image.attributes.get("kind")
    if kind in ("section", "volume"):
        raise InputError(f"{image.path} is a {kind} and no mosaic grid; give --layout volume.")
    tiling = MosaicGrid.of(image)
    dtype = output_type(parameters.dtype, image.dtype)
    lengths = [
        {r.stop - r.start for r in regions}
        for regions in zip(*map(tiling.region, tiling.tiles), strict=True)
    ]
    operators = tuple(
        {n: resampler(n, spacing, t) for n in sizes}
        for sizes, spacing, t in zip(lengths, tiling.spacing, target, strict=True)
    )
    level = _level(tiling, target, operators)
    _, cy, cx = image.chunks
    plane_bytes = cy * cx * image.dtype.itemsize
    batch_bytes = DEVICE_BATCH_BYTES if gpu else BATCH_BYTES
    batch = max(1, min(tiling.tile[0], batch_bytes // plane_bytes))
    largest = [max(own.values(), key=lambda operator: operator.size) for own in operators]
    taken = footprint(largest, (cy, cx), image.dtype, batch, dtype, gpu=gpu)
    encoded = math.prod(level.chunks) * dtype.itemsize
    lane = taken.host + decoding_bytes(image) + encoded
    workers = plan_workers(lane, bytes_of(execution.memory), execution.workers, len(tiling.tiles))
    return MosaicPlan(
        image, tiling, level, dtype, operators, batch, workers, lane,
        PROCESS_BYTES + workers * lane, taken.device,
    )  # fmt: skip


def _level(
    tiling: MosaicGrid, target: Vector, operators: Sequence[dict[int, AxisOperator]]
) -> Level:
    """The result's grid and how it is cut: a tile is a chunk there as well."""
    full = [operators[axis][tiling.tile[axis]].size for axis in range(3)]
    last = [
        operators[axis][r.stop - r.start].size
        for axis, r in enumerate(tiling.region((tiling.rows - 1, tiling.columns - 1)))
    ]
    counts = (1, tiling.rows, tiling.columns)
    shape = [f * (k - 1) + e for f, k, e in zip(full, counts, last, strict=True)]
    edge = (
        e + (length - n * t) / 2
        for e, length, n, t in zip(tiling.edge, tiling.tile_extent, full, target, strict=True)
    )
    extent = (n * t for n, t in zip(shape, target, strict=True))
    grid = Grid.covering(vector(*edge), vector(*extent), target)
    return Level(grid, (full[0], full[1], full[2]))


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
