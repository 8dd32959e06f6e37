"""Bounds of what a run writes, from the grids alone, compared with the free space.

At most the voxels are stored without compression; at least with :data:`LEAST` of that. Records,
previews and reports count in the upper bound alone. Work, scratch and output folders on one file
system are added up. A quota that the file system does not count is not seen.
"""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

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
from octane.core.geometry import Grid, vector
from octane.core.units import format_bytes
from octane.resample.operator import resampled
from octane.resample.plan import plan_levels, plan_mosaic, target_of
from octane.steps.stack import volume_depth
from octane.steps.stitch import nominal_positions
from octane.stitch.placement import TilePlacement
from octane.store.image import Image
from octane.store.mosaic_grid import MosaicGrid
from octane.store.volumes import Volume
from octane.store.writer import Codec, Level

logger = logging.getLogger(__name__)

LEAST = 0.4
"""Part of its voxels' bytes that an image takes at least once it is compressed."""
BLOCK = 4096
"""Unit in which file systems allocate space."""
TASK = 1_000_000
"""Nextflow's files of a task, its records and previews, at most."""
PICTURE = 500_000
"""Picture of a section in the report, at most."""
RUN, RUN_TASK = 3_300_000, 10_000
"""Nextflow's report, timeline, DAG and trace; and the part of each task in them."""

PLACES = {
    "work": "work directory",
    "scratch": "scratch folder at a time",
    "output": "output folder",
}
REMEDIES = {
    "scratch": "give --scratch_dir false, or a path with more space",
    "work": "give Nextflow a -work-dir with more space",
    "output": "give an --outdir with more space, or --publish_dir_mode symlink",
}


@dataclass(frozen=True)
class Step:
    """Bytes that one step writes in all its tasks; images count without compression.

    ``linked`` are hard links into the step before, where both are on one file system; they are no
    part of ``voxels``. ``published`` is a result. ``pictures`` are those in the report, at most.
    """

    name: str
    tasks: int
    voxels: int
    linked: int = 0
    published: int = 0
    pictures: int = 0

    @property
    def beside(self) -> int:
        """Records, previews and pictures, at most."""
        return self.tasks * TASK + self.pictures


class Space(TypedDict):
    """The comparison, ready for JSON; the summary is a sentence without its subject."""

    summary: str
    warnings: list[str]


@dataclass(frozen=True)
class Places:
    """Folders that a run writes into, and its way of publishing.

    Attributes
    ----------
    work
        A folder on the work directory's file system.
    outdir
        Folder of the results; need not exist.
    scratch
        As :func:`octane.config.scratch.read_scratch` gives it.
    copied
        Whether results are copied, and not linked.
    recorded
        Whether Nextflow's own records are written.
    """

    work: Path
    outdir: Path
    scratch: bool | str = False
    copied: bool = False
    recorded: bool = True


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
    """Bound what each step of a run will write.

    Parameters
    ----------
    volumes
        The inputs: mosaics, sections or one volume.
    kind
        ``mosaic``, ``section`` or ``volume``.
    settings
        Parameters of each step, as in a plan.
    positions
        Table of tile positions.

    Raises
    ------
    OctaneError
        As the steps would, for data that does not fit its parameters.
    """
    images = [volume for volume in volumes if isinstance(volume, Image)]
    if kind != "volume" and len(images) < len(volumes):
        other = next(volume for volume in volumes if not isinstance(volume, Image))
        raise OctaneError(
            f"{other.path} is no OME-Zarr image and so no {kind}; convert it, or leave "
            "--input_kind out."
        )
    workflow, count = settings["workflow"], len(volumes)
    steps: list[Step] = []
    dtype, grids = volumes[0].dtype, [volume.grid for volume in volumes]
    tilings = [MosaicGrid.of(image) for image in images] if kind == "mosaic" else []
    resample = ResampleParameters.model_validate(settings["resample"])
    if resample.resolution is not None and not workflow["skip_resample"] and kind != "section":
        dtype = output_type(resample.dtype, dtype)
        if kind == "mosaic":
            made = [_resampled_mosaic(image, resample) for image in images]
            levels, tilings = [level for level, _ in made], [tiling for _, tiling in made]
        else:
            levels = [Level.volume(resampled(v.grid, target_of(v, resample))[0]) for v in volumes]
        grids = [level.grid for level in levels]
        written = sum(stored(level, dtype, resample.codec) for level in levels)
        steps.append(Step("RESAMPLE", count, written))
    boxes = [(grid.edge, grid.extent) for grid in grids]
    if kind == "mosaic" and not workflow["skip_stitch"]:
        stitch = StitchParameters.model_validate(settings["stitch"])
        layouts = [
            TilePlacement(
                tiling,
                nominal_positions(image, tiling, stitch, positions),
                subpixel=stitch.subpixel,
            )
            for image, tiling in zip(images, tilings, strict=True)
        ]
        boxes = [(layout.edge, layout.extent) for layout in layouts]
        written = sum(stored(Level.volume(own.grid), dtype, stitch.codec) for own in layouts)
        steps.append(Step("STITCH", count, written))
    volume = _Volume(grids[0], dtype)
    if kind != "volume":
        stack = StackParameters.model_validate(settings["stack"])
        depth, imaged = volume_depth(images, [extent[0] for _, extent in boxes], stack)
        low = [min(edge[axis] for edge, _ in boxes) for axis in (1, 2)]
        high = [max(edge[axis] + extent[axis] for edge, extent in boxes) for axis in (1, 2)]
        extent = vector(depth, *(b - a for a, b in zip(low, high, strict=True)))
        grid = Grid.covering(vector(0, *low), extent, grids[0].spacing)
        volume = _Volume(grid, dtype, "zstd", imaged / depth)
        steps.append(Step("STACK", 1, volume.stored(grid, "zstd")))
    return _of_volume(steps, volume, settings)


@dataclass(frozen=True)
class _Volume:
    """The volume between two steps; codec None: the input, which is never linked.

    Blank slabs take no space: ``content`` is the part of the voxels outside them.
    """

    grid: Grid
    dtype: np.dtype
    codec: Codec | None = None
    content: float = 1.0

    def stored(self, grid: Grid, codec: Codec) -> int:
        return math.ceil(stored(Level.volume(grid), self.dtype, codec) * self.content)


def _resampled_mosaic(image: Image, parameters: ResampleParameters) -> tuple[Level, MosaicGrid]:
    unlimited = ExecutionParameters(memory="1000TB")
    plan = plan_mosaic(image, target_of(image, parameters), parameters, unlimited)
    shape, tile = plan.level.grid.shape, plan.level.chunks
    return plan.level, replace(plan.tiling, shape=shape, tile=tile, spacing=plan.level.grid.spacing)


def _of_volume(
    steps: list[Step], volume: _Volume, settings: Mapping[str, Mapping[str, object]]
) -> list[Step]:
    """Add the steps from the whole volume on."""
    workflow = settings["workflow"]
    sections = sum(step.tasks for step in steps if step.name == "STITCH")
    last = steps[-1].voxels if steps else 0
    if not workflow["skip_n4"]:
        n4 = N4Parameters.model_validate(settings["n4"])
        volume = replace(volume, dtype=output_type(n4.dtype, volume.dtype), codec=n4.codec)
        last = volume.stored(volume.grid, n4.codec)
        bias = 0
        if workflow["save_bias_field"]:
            bias = stored(Level.volume(volume.grid), np.dtype(np.float32), n4.codec)
        steps.append(Step("N4", 1, last + bias, published=bias))
    if not workflow["skip_pyramid"]:
        pyramid = PyramidParameters.model_validate(settings["pyramid"])
        grids = [grid for grid, _ in plan_levels(volume.grid, pyramid.resolutions)]
        sizes = [volume.stored(grid, pyramid.codec) for grid in grids]
        same = grids[0].shape == volume.grid.shape and volume.codec == pyramid.codec
        linked = sizes[0] if same else 0
        steps.append(Step("PYRAMID", 1, sum(sizes) - linked, linked, sum(sizes)))
    elif steps:
        # Without it, the last volume is the result.
        steps[-1] = replace(steps[-1], published=steps[-1].published + last)
    if steps and not workflow["skip_report"]:
        steps.append(Step("REPORT", 1, 0, pictures=(1 + sections) * PICTURE))
    return steps


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _device(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _free(folder: Path) -> int:
    """Bytes that a user without privileges may take."""
    found = os.statvfs(_existing(folder))
    return found.f_bavail * found.f_frsize


def _needs(steps: Sequence[Step], places: Places) -> dict[str, tuple[int, int]]:
    """Bytes at least and at most, in each place."""
    scratch = places.scratch is not False
    beside = sum(step.beside for step in steps)
    # A link does not survive the copy out of a scratch folder.
    voxels = sum(step.voxels + step.linked * scratch for step in steps)
    results = places.copied * sum(step.published for step in steps)
    records = places.recorded * (RUN + RUN_TASK * sum(step.tasks for step in steps))
    needs = {
        "work": (round(LEAST * voxels), voxels + beside),
        "output": (round(LEAST * results), results + places.copied * beside + records),
    }
    if scratch:
        needs["scratch"] = (
            max((round(LEAST * s.voxels) // s.tasks for s in steps), default=0),
            max(((s.voxels + s.linked + s.beside) // s.tasks for s in steps), default=0),
        )
    return needs


def check_space(steps: Sequence[Step], places: Places, subject: str, *, stop: bool = True) -> Space:
    """Compare the bounds of what steps will write with what is free.

    Parameters
    ----------
    steps
        From :func:`predict`, of one subject or of several.
    places
        Where it goes.
    subject
        Name in the messages.
    stop
        Whether it is an error, and not a warning, when not even the least fits.

    Raises
    ------
    OctaneError
        When not even the least fits, with a line for each file system.
    """
    needs = _needs(steps, places)
    folders = {"work": places.work, "output": _existing(places.outdir)}
    problems: list[str] = []
    warnings: list[str] = []
    if (scratch := known_folder(places.scratch)) is not None:
        folders["scratch"] = scratch
        if _device(scratch) == _device(places.work):
            warnings.append(
                f"The scratch folder {scratch} is on the file system of the work directory: "
                f"everything is written twice there, {_range(*needs['work'])} each time; give "
                "--scratch_dir false."
            )
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
    parts = [f"{_range(*needs[name])} in the {PLACES[name]}" for name in PLACES if name in needs]
    found = Space(summary=f"will write {', '.join(parts)}.", warnings=warnings + problems)
    logger.info("%s %s", subject, found["summary"])
    for line in found["warnings"]:
        logger.warning("%s", line)
    return found


def _range(least: int, most: int) -> str:
    return f"{format_bytes(least)} to {format_bytes(most)}"


def require_links(places: Places) -> None:
    """Try a hard link from the output folder to the work directory.

    Raises
    ------
    OctaneError
        When the two are on different file systems, or theirs has no hard links.
    """
    file = places.work / f".octane-link-{os.getpid()}"
    link = _existing(places.outdir) / file.name
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
