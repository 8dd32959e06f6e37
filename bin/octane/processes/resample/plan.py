"""Plans of RESAMPLE, for tiles or a volume."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octane.core.arrays import output_type
from octane.core.errors import InputError
from octane.core.geometry import Vector, spelled
from octane.layout.mosaic import MosaicGrid
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.tiles import MosaicPlan
from octane.resample.operator import resampled, resampler
from octane.resample.stream import LanePlan, StreamPlan
from octane.store.channels import is_nearest
from octane.store.image import Image
from octane.store.volumes import Volume
from octane.store.writer import Level


def _describe_size(shape: Sequence[int], dtype: np.dtype) -> str:
    return f"{spelled(shape)} {dtype}, {math.prod(shape) * dtype.itemsize / 1e6:.0f} MB"


def plan_lines(plan: MosaicPlan | StreamPlan, lanes: LanePlan) -> list[str]:
    """The plan as lines for the log."""
    source, grid = plan.source, plan.level.grid
    if isinstance(plan, MosaicPlan):
        tiling = plan.tiling
        source_text = f"{tiling.rows} x {tiling.columns} tiles of {spelled(tiling.tile)} voxels"
        result_text = (
            f"tiles of {spelled(plan.level.chunks)} voxels in {len(tiling.imaged_tiles)} files"
        )
        if tiling.not_imaged:
            source_text += f", {len(tiling.not_imaged)} of them not imaged"
    else:
        source_text, result_text = "a volume", f"{len(plan.regions)} blocks"
    memory = f"about {lanes.predicted_bytes / 1e6:.0f} MB of memory"
    if lanes.device_bytes:
        memory += f" and {lanes.workers * lanes.device_bytes / 1e6:.0f} MB of a GPU's"
    return [
        f"{source.path}: {source_text} of {spelled(source.grid.spacing)} um (z y x), "
        f"{_describe_size(source.grid.shape, source.dtype)}",
        source.access,
        f"to {spelled(grid.spacing)} um in {result_text}, "
        f"{_describe_size(grid.shape, plan.dtype)} uncompressed",
        f"{lanes.workers} worker(s) with {lanes.lane_bytes / 1e6:.0f} MB, {memory}",
    ]


def plan_resampling(
    image: Volume, target: Vector, parameters: ResampleParameters
) -> MosaicPlan | StreamPlan:
    """Plan the resampling of a mosaic, or of a volume, to a voxel size in micrometres.

    Raises
    ------
    OctaneError
        If ``layout`` is mosaic and the image is not one.
    """
    dtype, averaged = output_type(parameters.dtype, image.dtype), not is_nearest(image.attributes)
    if parameters.layout == "volume":
        grid, operators = resampled(image.grid, target, averaged=averaged)
        return StreamPlan(image, Level.volume(grid), dtype, operators, averaged)
    if not isinstance(image, Image):
        raise InputError(f"{image.path} is a volume, not a mosaic; give --layout volume.")
    tiling = MosaicGrid.of(image)
    lengths = [
        {r.stop - r.start for r in regions}
        for regions in zip(*map(tiling.region, tiling.tiles), strict=True)
    ]
    operators = tuple(
        {n: resampler(n, spacing, t, averaged=averaged) for n in sizes}
        for sizes, spacing, t in zip(lengths, tiling.spacing, target, strict=True)
    )
    result = tiling.with_spacing(target)
    return MosaicPlan(image, tiling, Level(result.grid, result.tile), dtype, operators, averaged)
