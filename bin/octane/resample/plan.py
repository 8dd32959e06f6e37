"""Plan of a RESAMPLE or PYRAMID run: grids, operators, pieces, workers, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from octane.config.params import ExecutionParameters, ResampleParameters, bytes_of
from octane.core.arrays import output_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, Region, Vector, spelled, vector
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.resample.gpu import BATCH_BYTES as DEVICE_BATCH_BYTES
from octane.resample.operator import AxisOperator, resampled, resampler
from octane.resample.resampler import footprint
from octane.resample.stream import StreamPlan, decoding_bytes, plan_stream
from octane.store.image import Image
from octane.store.mosaic_grid import MosaicGrid, Tile
from octane.store.volumes import Volume
from octane.store.writer import Level

BATCH_BYTES = 1 << 20
"""Planes that are decoded at once: enough to amortise a call, few enough to stay in the cache."""


DEFAULT_RESOLUTIONS = (10.0, 25.0, 50.0, 100.0)
"""Voxel sizes of atlases and of quick looks, micrometres."""


def target_of(image: Volume, parameters: ResampleParameters) -> Vector:
    """The target voxel size in micrometres, once it is known to be possible.

    Raises
    ------
    OctaneError
        When there is none, or two, or it is finer than the source and upsampling is not allowed.
    """
    spacing = image.grid.spacing
    if (parameters.resolution is None) == (parameters.scale is None):
        raise OctaneError(
            f"{image.path}: give the target as --resolution in micrometres or as --scale, "
            "one of the two."
        )
    if parameters.scale is not None:
        target = vector(*(s / factor for s, factor in zip(spacing, parameters.scale, strict=True)))
    else:
        target = vector(*(parameters.resolution or ()))
    # A stored spacing that went through millimetres may be off in the last digits.
    finer = [t < s * (1 - 1e-6) for t, s in zip(target, spacing, strict=True)]
    if any(finer) and not parameters.allow_upsampling:
        raise OctaneError(
            f"{image.path} has voxels of {spelled(spacing)} micrometre (z y x), coarser than the "
            f"target {spelled(target)}: give a coarser --resolution, or --allow-upsampling."
        )
    return target


def _size(shape: Sequence[int], dtype: np.dtype) -> str:
    return f"{spelled(shape)} {dtype}, {math.prod(shape) * dtype.itemsize / 1e6:.0f} MB"


def _access(image: Volume) -> str:
    if not isinstance(image, Image):
        return "read whole, as its format is"
    if image.reader is None:
        return f"read through zarr, because {image.why_zarr}"
    if image.reader.streams:
        return "chunks decoded a few planes at a time"
    return "chunks decoded whole"


def _resources(plan: MosaicPlan | VolumePlan, lane: int, ahead: int) -> str:
    resources = (
        f"{plan.workers} worker(s) with {lane / 1e6:.0f} MB each, {ahead} fetched ahead, "
        f"about {plan.predicted_bytes / 1e6:.0f} MB of memory"
    )
    if plan.device_bytes:
        resources += f" and {plan.workers * plan.device_bytes / 1e6:.0f} MB of a GPU's"
    return resources


@dataclass(frozen=True)
class Piece:
    """One stored object of the result, and the tiles that it is made of.

    Attributes
    ----------
    position
        Of the object in the result's grid of objects (z, y, x).
    tiles
        In raster order.
    """

    position: tuple[int, int, int]
    tiles: tuple[Tile, ...]

    def __str__(self) -> str:
        """Its place, for a person."""
        (y, x), (last_y, last_x) = self.tiles[0], self.tiles[-1]
        if len(self.tiles) == 1:
            return f"tile row {y}, column {x}"
        return f"tiles of rows {y} to {last_y}, columns {x} to {last_x}"


def _around(regions: Sequence[Region]) -> Region:
    return tuple(
        slice(min(r.start for r in axis), max(r.stop for r in axis))
        for axis in zip(*regions, strict=True)
    )


@dataclass(frozen=True)
class MosaicPlan:
    """Plan of a mosaic grid's resampling.

    Attributes
    ----------
    image, tiling
        The source.
    target
        Voxel size, micrometres.
    level
        The result.
    dtype
        Of the result.
    operators
        Per axis, by the number of samples: a grid has at most two lengths of tile on each.
    pieces
        Work items, each written by one worker.
    batch
        Planes decoded at once.
    workers
        Tiles in flight.
    ahead
        Tiles that are fetched ahead.
    lane_bytes, predicted_bytes, device_bytes
        Host memory of one worker, peak of the process, and a GPU's memory for one worker.
    """

    image: Image
    tiling: MosaicGrid
    target: Vector
    level: Level
    dtype: np.dtype
    operators: tuple[dict[int, AxisOperator], ...]
    pieces: tuple[Piece, ...]
    batch: int
    workers: int
    ahead: int
    lane_bytes: int
    predicted_bytes: int
    device_bytes: int

    def operators_of(self, tile: Tile) -> list[AxisOperator]:
        """The operators of a tile (z, y, x)."""
        region = self.tiling.region(tile)
        return [own[r.stop - r.start] for own, r in zip(self.operators, region, strict=True)]

    def source(self, piece: Piece) -> Region:
        """Voxels of the source that a piece is made of."""
        return _around([self.tiling.region(tile) for tile in piece.tiles])

    def lines(self) -> list[str]:
        """The plan in words, a line each."""
        tiling = self.tiling
        pieces = "" if self.level.shards is None else f" in {len(self.pieces)} shards"
        return [
            f"{self.image.path}: {tiling.rows} x {tiling.columns} tiles of "
            f"{spelled(tiling.tile)} voxels (z y x) of {spelled(tiling.spacing)} um, "
            f"{_size(tiling.shape, self.image.dtype)}",
            _access(self.image),
            f"to {spelled(self.target)} um: tiles of {spelled(self.level.chunks)} voxels{pieces}, "
            f"{_size(self.level.grid.shape, self.dtype)} before compression",
            _resources(self, self.lane_bytes, self.ahead),
        ]


@dataclass(frozen=True)
class VolumePlan:
    """Plan of a continuous volume's resampling; attributes as of :class:`MosaicPlan`.

    Attributes
    ----------
    stream
        The blocks, and what they take.
    """

    image: Volume
    target: Vector
    level: Level
    stream: StreamPlan

    @property
    def workers(self) -> int:
        """Blocks in flight."""
        return self.stream.workers

    @property
    def predicted_bytes(self) -> int:
        """Peak of the process."""
        return self.stream.predicted_bytes

    @property
    def device_bytes(self) -> int:
        """A GPU's memory for one worker."""
        return self.stream.device_bytes

    def lines(self) -> list[str]:
        """The plan in words, a line each."""
        grid, stream = self.image.grid, self.stream
        return [
            f"{self.image.path}: a volume of {spelled(grid.spacing)} um (z y x), "
            f"{_size(grid.shape, self.image.dtype)}",
            _access(self.image),
            f"to {spelled(self.target)} um in {len(stream.regions)} blocks, "
            f"{_size(self.level.grid.shape, stream.dtype)} before compression",
            _resources(self, stream.lane_bytes, 0),
        ]


def plan_volume(
    image: Volume,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    *,
    gpu: bool = False,
) -> VolumePlan:
    """Plan the resampling of a continuous volume; parameters as for :func:`plan_mosaic`.

    Raises
    ------
    OctaneError
        When not one block fits the memory.
    """
    grid, operators = resampled(image.grid, target)
    level = Level.volume(grid)
    dtype = output_type(parameters.dtype, image.dtype)
    return VolumePlan(
        image, target, level, plan_stream(operators, level.owned, dtype, image, execution, gpu=gpu)
    )


def plan_mosaic(
    image: Image,
    target: Vector,
    parameters: ResampleParameters,
    execution: ExecutionParameters,
    *,
    gpu: bool = False,
) -> MosaicPlan:
    """Plan the resampling of a mosaic grid, each tile alone.

    Parameters
    ----------
    image
        The mosaic grid.
    target
        Voxel size, micrometres.
    parameters, execution
        See :mod:`octane.config.params`.
    gpu
        Whether a GPU computes.

    Raises
    ------
    OctaneError
        When it is no mosaic grid, or not one tile fits the memory.
    """
    kind = image.attributes.get("kind")
    if kind in ("section", "volume"):
        raise OctaneError(f"{image.path} is a {kind} and no mosaic grid; give --layout volume.")
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
    level = _level(tiling, target, operators, parameters.tiles_per_shard)
    pieces = _pieces(tiling, level)
    _, cy, cx = image.array.chunks
    plane_bytes = cy * cx * image.dtype.itemsize
    batch_bytes = DEVICE_BATCH_BYTES if gpu else BATCH_BYTES
    batch = max(1, min(tiling.tile[0], batch_bytes // plane_bytes))
    largest = [max(own.values(), key=lambda operator: operator.size) for own in operators]
    taken = footprint(largest, (cy, cx), image.dtype, batch, dtype, gpu=gpu)
    encoded = math.prod(level.owned) * dtype.itemsize
    lane = taken.host + decoding_bytes(image) + encoded
    workers = plan_workers(lane, bytes_of(execution.memory), execution.workers, len(pieces))
    ahead = workers if execution.prefetch is None else execution.prefetch
    return MosaicPlan(
        image, tiling, target, level, dtype, operators, pieces, batch, workers, ahead, lane,
        PROCESS_BYTES + workers * lane, taken.device,
    )  # fmt: skip


def _level(
    tiling: MosaicGrid,
    target: Vector,
    operators: Sequence[dict[int, AxisOperator]],
    per_shard: Sequence[int],
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
    chunks = (full[0], full[1], full[2])
    # A shard that reaches beyond the mosaic would only have a longer index.
    ky, kx = (min(k, n) for k, n in zip(per_shard, counts[1:], strict=True))
    shards = (full[0], ky * full[1], kx * full[2]) if ky * kx > 1 else None
    return Level(grid, chunks, shards)


def _pieces(tiling: MosaicGrid, level: Level) -> tuple[Piece, ...]:
    ky, kx = (o // c for o, c in zip(level.owned[1:], level.chunks[1:], strict=True))
    return tuple(
        Piece(
            (0, y // ky, x // kx),
            tuple(
                product(range(y, min(y + ky, tiling.rows)), range(x, min(x + kx, tiling.columns)))
            ),
        )
        for y, x in product(range(0, tiling.rows, ky), range(0, tiling.columns, kx))
    )


def plan_levels(
    grid: Grid, resolutions: tuple[float, ...] | None
) -> list[tuple[Grid, list[AxisOperator]]]:
    """Grid of each level, and the operators that make it from the level before.

    Parameters
    ----------
    grid
        The volume's own.
    resolutions
        Voxel sizes in micrometres, finest first; None for the volume's own and the coarser ones of
        :data:`DEFAULT_RESOLUTIONS`.

    Raises
    ------
    OctaneError
        When a resolution is finer than the volume, or they do not ascend.
    """
    coarsest = max(grid.spacing)
    if resolutions is None:
        steps = [grid.spacing]
        steps += [vector(t, t, t) for t in DEFAULT_RESOLUTIONS if t > coarsest * (1 + 1e-6)]
    else:
        steps = [vector(t, t, t) for t in resolutions]
        if list(resolutions) != sorted(set(resolutions)):
            raise OctaneError(
                f"--resolutions {' '.join(f'{t:g}' for t in resolutions)} do not ascend; "
                "give each once, finest first."
            )
        if steps and steps[0][0] < coarsest * (1 - 1e-6):
            raise OctaneError(
                f"--resolutions asks for {steps[0][0]:g} micrometre and the volume has "
                f"{coarsest:g}; leave out what is finer."
            )
    planned: list[tuple[Grid, list[AxisOperator]]] = []
    for step in steps:
        planned.append(resampled(planned[-1][0] if planned else grid, step))
    return planned
