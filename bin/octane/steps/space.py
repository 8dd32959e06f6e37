"""Bounds of what a run writes, from the grids alone, compared with the free space.

At most the voxels are stored without compression; at least with :data:`LEAST` of that. Work
and output folders on one file system are added up. A scratch folder is not looked at: a task that
fills it is tried again without. A quota that the file system does not count is not seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage
from typing import NamedTuple

import numpy as np

from octane.config.params import Settings, WorkflowParameters
from octane.core.arrays import output_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.core.units import format_bytes
from octane.layout.levels import level_grids, target_of
from octane.layout.mosaic import MosaicGrid, nominal_positions
from octane.layout.placement import TilePlacement
from octane.layout.stack import SectionSlab, lay_out
from octane.store.image import Image
from octane.store.volumes import Volume

LEAST = 0.4
"""Part of its voxels' bytes that an image takes at least once it is compressed."""

REMEDIES = {
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


@dataclass(frozen=True)
class Step:
    """Bytes that one step writes, without compression.

    ``linked`` are hard links into the step before, where both are on one file system; they are no
    part of ``voxels``. ``published`` is a result.
    """

    name: str
    voxels: int
    linked: int = 0
    published: int = 0


def _bytes(grids: Sequence[Grid], dtype: np.dtype) -> int:
    return sum(math.prod(grid.shape) for grid in grids) * dtype.itemsize


class Prediction(NamedTuple):
    """What steps will write, and the tiles and sections for it; none where they make no section.

    ``grid`` is the one of the volume that N4 gets, before tiles or sections are moved.
    """

    steps: list[Step]
    grid: Grid
    tilings: Sequence[MosaicGrid] = ()
    placed: Sequence[TilePlacement] = ()
    slabs: Sequence[SectionSlab] = ()


def predict(
    volumes: Sequence[Volume], kind: str, settings: Settings, positions: Path | None = None
) -> Prediction:
    """Bound what each step of a run will write, from inputs of one kind and a plan's settings.

    Data that does not fit the parameters is an error, as in the steps.
    """
    images = [volume for volume in volumes if isinstance(volume, Image)]
    if kind != "volume" and len(images) < len(volumes):
        other = next(volume for volume in volumes if not isinstance(volume, Image))
        raise OctaneError(
            f"{other.path} is no OME-Zarr image and so no {kind}; convert it, or leave "
            "--input_kind out."
        )
    steps: list[Step] = []
    dtype, grids = volumes[0].dtype, [volume.grid for volume in volumes]
    tilings = [MosaicGrid.of(image) for image in images] if kind == "mosaic" else []
    p = settings.resample
    if p.resolution is not None and kind != "section":
        dtype = output_type(p.dtype, dtype)
        if kind == "mosaic":
            resampled = zip(tilings, images, strict=True)
            tilings = [tiling.resampled(target_of(image, p)) for tiling, image in resampled]
            grids = [tiling.grid for tiling in tilings]
        else:
            grids = [v.grid.resampled(target_of(v, p)) for v in volumes]
        steps.append(Step("RESAMPLE", _bytes(grids, dtype)))
    if kind == "volume":
        return Prediction(_of_volume(steps, grids[0], dtype, settings), grids[0])
    placed: list[TilePlacement] = []
    boxes = [(grid.edge, grid.extent) for grid in grids]
    if kind == "mosaic" and not settings.workflow.skip_stitch:
        placed = [
            TilePlacement(
                tiling,
                nominal_positions(image, tiling, settings.stitch, positions),
                subpixel=settings.stitch.subpixel,
            )
            for image, tiling in zip(images, tilings, strict=True)
        ]
        boxes = [(placement.edge, placement.extent) for placement in placed]
        written = _bytes([placement.grid for placement in placed], dtype)
        steps.append(Step("STITCH", written))
    grid, slabs = lay_out(images, boxes, settings.stack, grids[0].spacing)
    imaged = sum(min(slab.thickness, slab.extent[0]) for slab in slabs if slab.image is not None)
    content = imaged / sum(slab.thickness for slab in slabs)
    steps.append(Step("STACK", round(content * _bytes([grid], dtype))))
    steps = _of_volume(steps, grid, dtype, settings, "zstd", content)
    return Prediction(steps, grid, tilings, placed, slabs)


def _of_volume(
    steps: list[Step],
    grid: Grid,
    dtype: np.dtype,
    settings: Settings,
    codec: str | None = None,
    content: float = 1.0,
) -> list[Step]:
    """Add the steps from the whole volume on.

    ``codec`` None is for input, which is not linked. ``content`` is the part of the voxels outside
    blank slabs, which take no space.
    """
    workflow, n4, pyramid = settings.workflow, settings.n4, settings.pyramid
    last = steps[-1].voxels if steps else 0
    if not workflow.skip_n4:
        dtype, codec = output_type(n4.dtype, dtype), n4.codec
        last = round(content * _bytes([grid], dtype))
        bias = _bytes([grid], np.dtype(np.float32)) if workflow.save_bias_field else 0
        steps.append(Step("N4", last + bias, published=bias))
    if not workflow.skip_pyramid:
        grids = level_grids(grid, pyramid.resolutions)
        voxels = round(content * _bytes(grids, dtype))
        is_linked = grids[0].shape == grid.shape and codec == pyramid.codec
        linked = round(content * _bytes(grids[:1], dtype)) if is_linked else 0
        steps.append(Step("PYRAMID", voxels - linked, linked, voxels))
    elif steps:
        # Without it, the last volume is the result.
        steps[-1] = replace(steps[-1], published=steps[-1].published + last)
    return steps


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def check_space(
    steps: Sequence[Step], subject: str, work: Path, workflow: WorkflowParameters
) -> list[str]:
    """Compare the bounds of what steps of one or more subjects will write with what is free.

    Gives a sentence on what they will write, and warnings. It is an error, with a line for each
    file system, when not even the least fits and ``check_space`` is on.
    """
    outdir = workflow.outdir
    output = next(path for path in (outdir, *outdir.absolute().parents) if path.exists())
    # A link does not survive the copy out of a scratch folder.
    is_linked = workflow.scratch_dir is False
    voxels = sum(step.voxels + (0 if is_linked else step.linked) for step in steps)
    needs, folders = {"work": voxels}, {"work": work}
    if workflow.publish_dir_mode == "copy":
        needs["output"], folders["output"] = sum(step.published for step in steps), output
    problems: list[str] = []
    warnings: list[str] = []
    for device in dict.fromkeys(map(_device, folders.values())):
        names = [name for name, folder in folders.items() if _device(folder) == device]
        most = sum(needs[name] for name in names)
        folder, free = folders[names[0]], disk_usage(folders[names[0]]).free
        spelled = " and ".join(f"{name} ({_range(needs[name])})" for name in names)
        line = (
            f"fit: {spelled} take {_range(most)} on the file system of {folder}, which has "
            f"{format_bytes(free)} free. Free some; "
            f"or {'; or '.join(REMEDIES[name] for name in names)}"
        )
        if LEAST * most > free:
            problems.append(
                f"{subject} does not {line}; or, where much of it is there from an earlier run "
                "that is resumed, give --check_space false."
            )
        elif most > free:
            warnings.append(f"{subject} may not {line}.")
    if problems and workflow.check_space:
        raise OctaneError("\n".join(problems))
    parts = [f"{_range(need)} in the {name} folder" for name, need in needs.items()]
    written = f"{subject} will write {', '.join(parts)}."
    return [written, *(f"Warning: {line}" for line in warnings + problems)]


def _range(most: int) -> str:
    return f"{format_bytes(LEAST * most)} to {format_bytes(most)}"
