"""RESAMPLE: every tile of a mosaic grid, or a continuous volume, to the target resolution."""

import logging
import math
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy.typing as npt
from numcodecs import Zstd

from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    ResampleParameters,
)
from octane.core.arrays import Backend
from octane.core.errors import InputError
from octane.core.geometry import block_at, shape_of
from octane.core.metrics import Metrics
from octane.core.records import ResampleFigures
from octane.gpu.device import CupyDevice
from octane.gpu.run import Share, on_device
from octane.layout.levels import target_of
from octane.layout.mosaic import Tile
from octane.layout.sections import attributes_on, imaged_plane, read_sections
from octane.pipeline.cuts import Cuts
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import cores
from octane.resample.plan import MosaicPlan, lines, plan_resampling
from octane.resample.resampler import load, make_resampler
from octane.resample.stream import LanePlan, StreamPlan, stream_resample
from octane.store.image import Image
from octane.store.ngff import Attributes
from octane.store.volumes import Volume, bring_in, open_volume
from octane.store.writer import DirectWriter, create_image

logger = logging.getLogger(__name__)

FEW_CORES = 4
"""Up to so many cores take longer for a tile than its way to a GPU and back."""


def resample_image(
    source: Path,
    destination: Path,
    parameters: ResampleParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters | None = None,
    *,
    dry_run: bool = False,
) -> Metrics:
    """Resample a mosaic grid tile by tile, or a volume.

    With ``dry_run`` the plan is written to the standard output, and nothing is done. An OctaneError
    names what is not usable; nothing is left half-written.
    """
    image = open_volume(source, reading)
    target = target_of(image, parameters)
    if image.dtype.kind == "c" and parameters.dtype != "input":
        raise InputError(
            f"{source} holds complex voxels, which --resample_dtype {parameters.dtype} would cut "
            "in half; leave --resample_dtype out, and take the modulus where it is wanted."
        )
    metrics = Metrics("resample", settings=parameters.recorded(reading, execution))
    backend = _backend(image, execution)
    gpu = backend != "cpu" and CupyDevice.missing() is None
    plan = plan_resampling(image, target, parameters)
    planned = plan.lanes(execution, gpu=gpu)
    if dry_run:
        sys.stdout.write("\n".join(lines(plan, planned)) + "\n")
        return metrics
    bring_in(image, metrics, destination)

    def work(share: Share) -> LanePlan:
        on_gpu = share.device is not None
        lanes = replace(planned, workers=share.batch) if on_gpu else plan.lanes(execution)
        for line in lines(plan, lanes):
            logger.info("RESAMPLE: %s", line)
        attributes = _attributes(plan)
        with create_image(
            destination,
            [plan.level],
            plan.dtype,
            codec=parameters.codec,
            attributes=attributes,
            overwrite=execution.overwrite,
        ) as (writer,):
            if isinstance(plan, MosaicPlan):
                _resample_mosaic(plan, lanes, writer, metrics, share)
            else:
                planes = plan.level.grid.shape[0]
                shown = imaged_plane(read_sections(attributes, planes), planes)
                cuts = Cuts(writer, plan.level.grid, plan.dtype, shown)
                stream_resample(plan, lanes, cuts, label="RESAMPLE", metrics=metrics, share=share)
                cuts.note(metrics)
        return lanes

    lanes = on_device(
        work,
        lambda batch: batch * planned.device_bytes,
        batch=planned.workers,
        backend=backend,
        sharing=LeaseParameters() if sharing is None else sharing,
        metrics=metrics,
        subject=f"{image.path.name} RESAMPLE",
    )
    figures = {
        "source_voxel_size": image.grid.spacing,
        "voxel_size": target,
        "shape": plan.level.grid.shape,
        "predicted_memory_bytes": lanes.predicted_bytes,
    }
    metrics.add_figures(ResampleFigures.model_validate(figures))
    return metrics


def _backend(image: Volume, execution: ExecutionParameters) -> Backend:
    """The CPU where the choice is open and a GPU would not be faster."""
    if execution.backend != "auto":
        return execution.backend
    reader = image.reader if isinstance(image, Image) else None
    workers = execution.workers or cores()
    if reader is not None and isinstance(reader.array.compressor, Zstd):
        reason = "decoding zstd takes most of the time, and a GPU does not do it"
    elif workers > FEW_CORES:
        reason = f"{workers} workers resample faster than tiles reach a GPU"
    else:
        return "auto"
    logger.info("backend auto: CPU, because %s", reason)
    return "cpu"


def _attributes(plan: MosaicPlan | StreamPlan) -> Attributes:
    """What is noted on the result."""
    image, grid = plan.source, plan.level.grid
    if isinstance(plan, MosaicPlan):
        return {**image.attributes, "kind": "mosaic", "mosaic": plan.tiling.attributes()}
    known = attributes_on(image, grid).items()
    return {k: v for k, v in known if k not in ("mosaic", "section")} | {"kind": "volume"}


def _resample_mosaic(
    plan: MosaicPlan, lanes: LanePlan, writer: DirectWriter, metrics: Metrics, share: Share
) -> None:
    image, reader = plan.source, plan.source.reader
    shape = plan.level.grid.shape
    coming = iter(plan.tiling.tiles)

    def fetch(count: int) -> None:
        """Ask the system to load the next tiles while those before them are worked on."""
        for tile in islice(coming, count):
            if reader is not None:
                reader.fetch((0, *tile))

    def work(tile: Tile, lane: Lane) -> int:
        fetch(1)
        result = _resampled(plan, tile, lanes.planes, lane)
        with lane.timed("write"):
            writer[block_at((0, *tile), plan.level.chunks, shape)] = result
        metrics.count("written", result.nbytes)
        return _bytes(plan, tile)

    with metrics.timed("load"):
        load(share.xp, image.dtype, plan.dtype)
    fetch(lanes.workers)
    run_pipeline(
        plan.tiling.tiles,
        work,
        label="RESAMPLE",
        workers=lanes.workers,
        metrics=metrics,
        share=share,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    metrics.figures["tiles"] = len(plan.tiling.tiles)


def _bytes(plan: MosaicPlan, tile: Tile) -> int:
    return math.prod(shape_of(plan.tiling.region(tile))) * plan.source.dtype.itemsize


def _resampled(plan: MosaicPlan, tile: Tile, batch: int, lane: Lane) -> npt.NDArray:
    """A tile decoded ``batch`` planes at a time, which are pushed through while in the cache."""
    image = plan.source
    resampler = lane.keep("resampler", lambda: make_resampler(lane))
    region = plan.tiling.region(tile)
    depth = region[0].stop
    lane.metrics.count("read", _bytes(plan, tile))
    operators = plan.operators_of(tile)
    if image.reader is None:
        with lane.timed("read"):
            voxels = image.read(region)
        with lane.timed("compute"):
            resampler.begin(operators, (voxels.shape[1], voxels.shape[2]), image.dtype, plan.dtype)
            for start in range(0, depth, batch):
                resampler.push(voxels[start : start + batch])
            return resampler.finish()
    # A chunk at the edge is stored with its padding, which the operators do not take.
    _, cy, cx = image.chunks
    resampler.begin(operators, (cy, cx), image.dtype, plan.dtype)
    with image.naming_chunks(), image.reader.stream((0, *tile)) as stream:
        for start in range(0, depth, batch):
            with lane.timed("compute"):
                planes = resampler.buffer(min(batch, depth - start))
            # It says by itself what was reading, and what decoding.
            stream.read_into(planes)
            with lane.timed("compute"):
                resampler.push(planes)
        stream.drain()
    with lane.timed("compute"):
        return resampler.finish()
