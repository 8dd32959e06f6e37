"""PYRAMID: a volume at several resolutions in one OME-Zarr image."""

import logging
from pathlib import Path
from typing import TypeGuard

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.arrays import require_cpu
from octane.core.files import bring_to_disk
from octane.core.metrics import Metrics
from octane.core.units import bytes_of
from octane.layout.sections import attributes_on, read_sections
from octane.pipeline.cuts import note_cuts
from octane.pipeline.workers import require_decodable
from octane.processes.pyramid.parameters import PyramidParameters
from octane.processes.pyramid.record import PyramidFigures
from octane.resample.levels import plan_levels
from octane.resample.stream import StreamPlan, stream_resample
from octane.store.array import Array
from octane.store.channels import is_nearest, name_of
from octane.store.image import Image
from octane.store.stated import Attributes, stated_orientation
from octane.store.volumes import Volume, bring_in, open_volume
from octane.store.writer import Level, create_image, link_chunks

logger = logging.getLogger(__name__)


def build_pyramid(
    source: Path,
    destination: Path,
    parameters: PyramidParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> Metrics:
    """Write ``source`` as an OME-Zarr 0.5 image with one level per resolution.

    A first level that is identical to octane's own volume is hard-linked instead of written again;
    across file systems it is copied.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    image = open_volume(source, reading)
    averaged = not is_nearest(image.attributes)
    planned = plan_levels(image.grid, parameters.resolutions, averaged=averaged)
    require_cpu(execution.backend, "PYRAMID")
    metrics = Metrics(
        "pyramid",
        channel=name_of(image.attributes),
        orientation=stated_orientation(image.attributes),
        settings=parameters.recorded(reading),
    )
    require_decodable(bytes_of(execution.memory), image)
    bring_in(image, metrics, destination)
    levels = [Level.volume(grid) for grid, _ in planned]
    stated = attributes_on(image, planned[0][0])
    attributes: Attributes = {**stated, "kind": "volume", "step": "pyramid"}
    sections = read_sections(attributes, planned[0][0].shape[0])
    with create_image(
        destination,
        levels,
        image.dtype,
        codec=parameters.codec,
        attributes=attributes,
        overwrite=execution.overwrite,
        to_disk=True,
    ) as writers:
        before: Volume = image
        for index, ((grid, operators), level, writer) in enumerate(
            zip(planned, levels, writers, strict=True)
        ):
            if index == 0 and _same_chunks(image, writer.array):
                with metrics.timed("link"):
                    link_chunks(image, writer.array, (), metrics)
                # The next level is made from the original, so that an error names that.
                continue
            plan = StreamPlan(before, level, image.dtype, operators, averaged)
            label = f"PYRAMID {max(grid.spacing):g} um"
            stream_resample(plan, plan.lanes(execution), writer, label=label, metrics=metrics)
            if averaged and not (plan.copies and image.is_plain):
                before = Image(destination, writer.array, grid, "fill")
        written = [
            Image(destination, writer.array, level.grid)
            for writer, level in zip(writers, levels, strict=True)
        ]
        note_cuts(written, sections, metrics)
    with metrics.timed("to disk"):
        bring_to_disk(destination)
    levels = [
        {
            "voxel_size": grid.spacing,
            "shape": grid.shape,
            "bytes": sum(
                f.stat().st_size for f in (destination / str(i)).rglob("*") if f.is_file()
            ),
        }
        for i, (grid, _) in enumerate(planned)
    ]
    metrics.add_figures(PyramidFigures.model_validate({"levels": levels}))
    return metrics


def _same_chunks(image: Volume, array: Array) -> TypeGuard[Image]:
    """Tell whether octane made the volume, with the chunks and codecs of the first level."""
    if not isinstance(image, Image) or image.attributes.get("step") not in ("stack", "n4"):
        return False
    if image.array.archive is not None:
        # Its chunks are not files, which could be linked.
        return False
    ours, theirs = (a.opened.metadata.to_dict() for a in (array, image.array))
    return ours == {**theirs, "attributes": ours["attributes"]}
