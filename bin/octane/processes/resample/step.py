"""RESAMPLE: every tile of a mosaic grid, or a continuous volume, to the target resolution."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

from numcodecs import Zstd

from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.core.arrays import Backend
from octane.core.errors import InputError
from octane.core.metrics import Metrics
from octane.core.units import bytes_of
from octane.gpu.device import CupyDevice
from octane.gpu.run import Share, on_device
from octane.layout.sections import attributes_on, imaged_plane, read_sections
from octane.pipeline.cuts import Cuts
from octane.pipeline.workers import cores, require_decodable
from octane.processes.resample.layout import target_voxel_size
from octane.processes.resample.parameters import ResampleParameters
from octane.processes.resample.plan import plan_lines, plan_resampling
from octane.processes.resample.record import ResampleFigures
from octane.processes.resample.tiles import MosaicPlan, resample_tiles
from octane.resample.stream import LanePlan, StreamPlan, stream_resample
from octane.store.channels import is_nearest, name_of
from octane.store.image import Image
from octane.store.stated import Attributes, stated_orientation
from octane.store.volumes import Volume, bring_in, open_volume
from octane.store.writer import create_image

logger = logging.getLogger(__name__)

MAX_GPU_CORES = 4
"""Up to this number of cores, a tile takes longer than its transfer to a GPU and back."""


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

    With ``dry_run``, only write the plan to standard output. Raises an OctaneError that names what
    is not usable; nothing is left half-written.
    """
    image = open_volume(source, reading)
    require_decodable(bytes_of(execution.memory), image)
    target = target_voxel_size(image, parameters)
    if image.dtype.kind == "c" and parameters.dtype != "input":
        raise InputError(
            f"{source} holds complex voxels, of which --resample_dtype {parameters.dtype} would "
            "drop the imaginary part; omit --resample_dtype, and take the modulus where needed."
        )
    metrics = Metrics(
        "resample",
        channel=name_of(image.attributes),
        orientation=stated_orientation(image.attributes),
        settings=parameters.recorded(reading, execution),
    )
    backend = _choose_backend(image, execution)
    gpu = backend != "cpu" and CupyDevice.missing() is None
    plan = plan_resampling(image, target, parameters)
    planned = plan.lanes(execution, gpu=gpu)
    if dry_run:
        sys.stdout.write("\n".join(plan_lines(plan, planned)) + "\n")
        return metrics
    bring_in(image, metrics, destination)

    def work(share: Share) -> LanePlan:
        on_gpu = share.device is not None
        lanes = replace(planned, workers=share.batch) if on_gpu else plan.lanes(execution)
        for line in plan_lines(plan, lanes):
            logger.info("RESAMPLE: %s", line)
        attributes = _result_attributes(plan)
        with create_image(
            destination,
            [plan.level],
            plan.dtype,
            codec=parameters.codec,
            attributes=attributes,
            overwrite=execution.overwrite,
        ) as (writer,):
            if isinstance(plan, MosaicPlan):
                resample_tiles(plan, lanes, writer, metrics=metrics, share=share)
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


def _choose_backend(image: Volume, execution: ExecutionParameters) -> Backend:
    """Choose the CPU if a GPU has nothing to compute, or if it may be chosen and is as fast."""
    if is_nearest(image.attributes):
        logger.info("CPU, because taking the nearest voxel leaves a GPU nothing to compute")
        return "cpu"
    if execution.backend != "auto":
        return execution.backend
    reader = image.reader if isinstance(image, Image) else None
    workers = execution.workers or cores()
    if reader is not None and isinstance(reader.array.compressor, Zstd):
        reason = "decoding zstd takes most of the time, and a GPU does not do it"
    elif workers > MAX_GPU_CORES:
        reason = f"{workers} workers are expected to resample faster than tiles reach a GPU"
    else:
        return "auto"
    logger.info("backend auto: CPU, because %s", reason)
    return "cpu"


def _result_attributes(plan: MosaicPlan | StreamPlan) -> Attributes:
    """Attributes of the result."""
    image, grid = plan.source, plan.level.grid
    if isinstance(plan, MosaicPlan):
        return {**image.attributes, "kind": "mosaic", "mosaic": plan.tiling.attributes()}
    items = attributes_on(image, grid).items()
    return {k: v for k, v in items if k not in ("mosaic", "section")} | {"kind": "volume"}
