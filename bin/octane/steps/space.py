"""Bounds of what a run writes, from the grids alone, compared with the free space.

At most the voxels are stored without compression; at least with :data:`LEAST` of that. Records and
previews count in the upper bound alone. Work, scratch and output folders on one file system are
added up. A quota that the file system does not count is not seen.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from octane.config.params import (
    ExecutionParameters,
    N4Parameters,
    PyramidParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.config.scratch import known_folder
from octane.core.arrays import output_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.core.units import format_bytes
from octane.resample.operator import resampled
from octane.resample.plan import plan_levels, plan_mosaic, target_of
from octane.steps.stack import lay_out
from octane.steps.stitch import nominal_positions
from octane.stitch.placement import TilePlacement
from octane.store.image import Image
from octane.store.mosaic_grid import MosaicGrid
from octane.store.volumes import Volume
from octane.store.writer import Codec, Level

LEAST = 0.4
"""Part of its voxels' bytes that an image takes at least once it is compressed."""
BLOCK = 4096
"""Unit in which file systems allocate space."""
TASK = 1_000_000
"""Nextflow's files of a task, its records and previews, at most."""

REMEDIES = {
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
    "scratch": "give --scratch_dir false, or a path with more space",
}


@dataclass(frozen=True)
class Step:
    """Bytes that one step writes in all its tasks; images count without compression.

    ``linked`` are hard links into the step before, where both are on one file system; they are no
    part of ``voxels``. ``published`` is a result.
    """

    name: str
    tasks: int
    voxels: int
    linked: int = 0
    published: int = 0


def stored(level: Level, dtype: np.dtype, codec: Codec) -> int:
    """Bytes of one level without compression, with its folders and metadata."""
    shape = level.grid.shape
    voxels = math.prod(shape)
    if codec == "none":
        # Chunks at the edge are stored whole; compressed, their padding takes nothing.
        voxels = math.prod(-(-n // c) * c for n, c in zip(shape, level.chunks, strict=True))
    files = math.prod(-(-n // o) for n, o in zip(shape, level.owned, strict=True))
    return voxels * dtype.itemsize + (2 * files + 6) * BLOCK


def predict(
    volumes: Sequence[Volume],
    kind: str,
    settings: Mapping[str, Mapping[str, object]],
    positions: Path | None = None,
) -> list[Step]:
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
    workflow = settings["workflow"]
    steps: list[Step] = []
    dtype, grids = volumes[0].dtype, [volume.grid for volume in volumes]
    tilings = [MosaicGrid.of(image) for image in images] if kind == "mosaic" else []
    p = ResampleParameters.model_validate(settings["resample"])
    if p.resolution is not None and not workflow["skip_resample"] and kind != "section":
        dtype = output_type(p.dtype, dtype)
        if kind == "mosaic":
            unlimited = ExecutionParameters(memory="1000TB")
            plans = [plan_mosaic(image, target_of(image, p), p, unlimited) for image in images]
            levels = [plan.level for plan in plans]
            tilings = [
                replace(
                    plan.tiling,
                    shape=plan.level.grid.shape,
                    tile=plan.level.chunks,
                    spacing=plan.level.grid.spacing,
                )
                for plan in plans
            ]
        else:
            levels = [Level.volume(resampled(v.grid, target_of(v, p))[0]) for v in volumes]
        grids = [level.grid for level in levels]
        written = sum(stored(level, dtype, p.codec) for level in levels)
        steps.append(Step("RESAMPLE", len(volumes), written))
    if kind == "volume":
        return _of_volume(steps, grids[0], dtype, None, 1.0, settings)
    boxes = [(grid.edge, grid.extent) for grid in grids]
    if kind == "mosaic" and not workflow["skip_stitch"]:
        stitch = StitchParameters.model_validate(settings["stitch"])
        placed = [
            TilePlacement(
                tiling,
                nominal_positions(image, tiling, stitch, positions),
                subpixel=stitch.subpixel,
            )
            for image, tiling in zip(images, tilings, strict=True)
        ]
        boxes = [(placement.edge, placement.extent) for placement in placed]
        written = sum(stored(Level.volume(own.grid), dtype, stitch.codec) for own in placed)
        steps.append(Step("STITCH", len(volumes), written))
    stack = StackParameters.model_validate(settings["stack"])
    grid, slabs = lay_out(images, boxes, stack, grids[0].spacing)
    imaged = sum(min(slab.thickness, slab.extent[0]) for slab in slabs if slab.image is not None)
    content = imaged / sum(slab.thickness for slab in slabs)
    written = math.ceil(stored(Level.volume(grid), dtype, "zstd") * content)
    steps.append(Step("STACK", 1, written))
    return _of_volume(steps, grid, dtype, "zstd", content, settings)


def _of_volume(
    steps: list[Step],
    grid: Grid,
    dtype: np.dtype,
    codec: Codec | None,
    content: float,
    settings: Mapping[str, Mapping[str, object]],
) -> list[Step]:
    """Add the steps from the whole volume on.

    ``codec`` None is for the input, which is never linked. ``content`` is the part of the voxels
    outside blank slabs, which take no space.
    """

    def size(of: Grid, codec: Codec) -> int:
        return math.ceil(stored(Level.volume(of), dtype, codec) * content)

    workflow = settings["workflow"]
    last = steps[-1].voxels if steps else 0
    if not workflow["skip_n4"]:
        n4 = N4Parameters.model_validate(settings["n4"])
        dtype, codec = output_type(n4.dtype, dtype), n4.codec
        last, bias = size(grid, codec), 0
        if workflow["save_bias_field"]:
            bias = stored(Level.volume(grid), np.dtype(np.float32), codec)
        steps.append(Step("N4", 1, last + bias, published=bias))
    if not workflow["skip_pyramid"]:
        pyramid = PyramidParameters.model_validate(settings["pyramid"])
        grids = [level for level, _ in plan_levels(grid, pyramid.resolutions)]
        sizes = [size(level, pyramid.codec) for level in grids]
        linked = sizes[0] * (grids[0].shape == grid.shape and codec == pyramid.codec)
        steps.append(Step("PYRAMID", 1, sum(sizes) - linked, linked, sum(sizes)))
    elif steps:
        # Without it, the last volume is the result.
        steps[-1] = replace(steps[-1], published=steps[-1].published + last)
    if steps and not workflow["skip_report"]:
        steps.append(Step("REPORT", 1, 0))
    return steps


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _device(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _free(folder: Path) -> int:
    """Bytes that a user without privileges may take."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def check_space(
    steps: Sequence[Step],
    subject: str,
    work: Path,
    outdir: Path,
    scratch: bool | str = False,
    *,
    copied: bool = False,
    stop: bool = True,
) -> list[str]:
    """Compare the bounds of what steps of one or more subjects will write with what is free.

    Gives a sentence on what they will write, and warnings.

    ``scratch`` is a value of :func:`octane.config.scratch.read_scratch`, ``copied`` tells whether
    results are copied and not linked. With ``stop`` it is an error, with a line for each file
    system, when not even the least fits.
    """
    records = TASK * sum(step.tasks for step in steps)
    # A link does not survive the copy out of a scratch folder.
    voxels = sum(step.voxels + step.linked * (scratch is not False) for step in steps)
    results = copied * sum(step.published for step in steps)
    needs = {
        "work": (round(LEAST * voxels), voxels + records),
        "output": (round(LEAST * results), results + copied * records),
    }
    if scratch is not False:
        needs["scratch"] = (
            max((round(LEAST * s.voxels) // s.tasks for s in steps), default=0),
            max(((s.voxels + s.linked) // s.tasks + TASK for s in steps), default=0),
        )
    folders = {"work": work, "output": _existing(outdir)}
    if (known := known_folder(scratch)) is not None:
        folders["scratch"] = _existing(known)
    problems: list[str] = []
    warnings: list[str] = []
    for device in dict.fromkeys(map(_device, folders.values())):
        names = [name for name, folder in folders.items() if _device(folder) == device]
        least, most = (sum(needs[name][bound] for name in names) for bound in (0, 1))
        folder, free = folders[names[0]], _free(folders[names[0]])
        spelled = " and ".join(f"{name} ({_range(*needs[name])})" for name in names)
        line = (
            f"fit: {spelled} take {_range(least, most)} on the file system of {folder}, which has "
            f"{format_bytes(free)} free. Free some; "
            f"or {'; or '.join(REMEDIES[name] for name in names)}"
        )
        if least > free:
            problems.append(
                f"{subject} does not {line}; or, where much of it is there from an earlier run "
                "that is resumed, give --check_space false."
            )
        elif most > free:
            warnings.append(f"{subject} may not {line}.")
    if problems and stop:
        raise OctaneError("\n".join(problems))
    parts = [f"{_range(*need)} in the {name} folder" for name, need in needs.items()]
    parts = [f"{part} at a time" if "scratch" in part else part for part in parts]
    written = f"{subject} will write {', '.join(parts)}."
    return [written, *(f"Warning: {line}" for line in warnings + problems)]


def _range(least: int, most: int) -> str:
    return f"{format_bytes(least)} to {format_bytes(most)}"


def require_links(work: Path, outdir: Path) -> None:
    """Raise unless a hard link can lead from the output folder to the work directory.

    Two mounts of one file system have one device, and no link between them: it is tried.
    """
    file = work / f".octane-link-{os.getpid()}"
    link = _existing(outdir) / file.name
    try:
        file.touch()
        if link != file:
            os.link(file, link)
    except OSError as error:
        raise OctaneError(
            f"--publish_dir_mode link: no hard link can lead from {link.parent} to the work "
            f"directory ({error.strerror}); give symlink, rellink or copy, or an --outdir on the "
            "work directory's file system."
        ) from error
    finally:
        link.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
