"""PYRAMID: a volume at several resolutions in one OME-Zarr image."""

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import TypeGuard

from octane.config.params import ExecutionParameters, InputParameters, PyramidParameters
from octane.core.arrays import require_cpu
from octane.core.files import bring_to_disk
from octane.core.geometry import Grid, Region
from octane.core.metrics import Metrics
from octane.core.records import PyramidFigures
from octane.layout.sections import Section, attributes_on, imaged_plane, read_sections, rescaled
from octane.pipeline.cuts import CUT, Cuts
from octane.resample.plan import plan_levels
from octane.resample.stream import StreamPlan, stream_resample
from octane.store.array import Array
from octane.store.channels import name_of
from octane.store.image import Image
from octane.store.ngff import Attributes
from octane.store.volumes import Volume, bring_in, is_plain, open_volume
from octane.store.writer import DirectWriter, Level, create_image

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
    planned = plan_levels(image.grid, parameters.resolutions)
    require_cpu(execution.backend, "PYRAMID")
    metrics = Metrics(
        "pyramid", channel=name_of(image.attributes), settings=parameters.recorded(reading)
    )
    bring_in(image, metrics, destination)
    levels = [Level.volume(grid) for grid, _ in planned]
    attributes: Attributes = {**attributes_on(image, planned[0][0]), "step": "pyramid"}
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
                    _link(image, writer.array, metrics)
                # The next level is made from the original, so that an error names that.
                continue
            plan = StreamPlan(before, level, image.dtype, operators)
            label = f"PYRAMID {max(grid.spacing):g} um"
            stream_resample(plan, plan.lanes(execution), writer, label=label, metrics=metrics)
            if not (plan.copies and is_plain(image)):
                before = Image(destination, writer.array, grid, "fill")
        _preview(writers, [level.grid for level in levels], sections, metrics)
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
    ours, theirs = (a.opened.metadata.to_dict() for a in (array, image.array))
    return ours == {**theirs, "attributes": ours["attributes"]}


def _link(image: Image, array: Array, metrics: Metrics) -> None:
    image.require_chunks(tuple(slice(0, n) for n in image.grid.shape))
    source = (image.path / image.array.path).resolve()
    target = array.folder / array.path
    for file in sorted(source.rglob("*")):
        if not file.is_file() or file.name == "zarr.json":
            continue
        link = target / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, link)
            metrics.count("linked", file.stat().st_size)
        except OSError as error:
            # Another file system, or one that lacks hard links or forbids them to this user.
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copyfile(file, link)
            metrics.count("written", file.stat().st_size)


def _preview(
    writers: list[DirectWriter], grids: list[Grid], sections: list[Section], metrics: Metrics
) -> None:
    """Make the preview from the coarsest level that fills it, or else the finest."""
    index = max((i for i, grid in enumerate(grids) if max(grid.shape) >= CUT), default=0)
    grid, array = grids[index], writers[index].array
    image, planes = Image(array.folder, array, grid), grid.shape[0]
    sections = rescaled(sections, grid.spacing[0] / grids[0].spacing[0], planes)
    cuts = Cuts(writers[index], grid, array.dtype, imaged_plane(sections, planes))
    for axis, at in enumerate(cuts.centre):
        whole = [slice(0, n) for n in grid.shape]
        region: Region = (*whole[:axis], slice(at, at + 1), *whole[axis + 1 :])
        cuts.take(region, image.read(region))
    cuts.note(metrics)
