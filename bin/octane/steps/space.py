"""How many bytes each step will write, from the plan alone: grids, types, codecs, what is linked.

What is counted is what file systems are to hold: files rounded up to their blocks, folders, and
what Nextflow and the records add to every task. Compression comes from
:mod:`octane.steps.sampling`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from octane.core.dtypes import output_type
from octane.core.errors import OctaneError
from octane.core.geometry import Grid, vector
from octane.resample.operator import resampled
from octane.resample.plan import plan_mosaic, target_of
from octane.steps.pyramid import plan_levels
from octane.steps.sampling import Ratios, sampled
from octane.steps.stack import volume_depth
from octane.steps.stitch import THUMBNAIL, nominal_positions
from octane.stitch.placement import Layout
from octane.store.image import Codec, Image, Level
from octane.store.mosaic_grid import Tiling
from octane.store.volumes import Volume

__all__ = ["Step", "predict"]

BLOCK = 4096
"""What file systems give out at once; a file wastes half of one on average."""
TASK = 15 * BLOCK
"""Nextflow's own files of a task, its settings and records, each of few bytes and one block."""
SLICES = 256
"""Longest edge of the previews of a volume, pixels."""
REPORT = 850_000
"""A report without its sections' pictures: curves, cuts, the font list of its plots."""
PICTURE = 3
"""Bytes that a pixel of a section's picture takes in the report: as PNG, and within the page."""


@dataclass(frozen=True)
class Step:
    """What one step writes, over all its tasks.

    Attributes
    ----------
    name
        As the process.
    tasks
        How many.
    bytes
        Of all tasks together, what is linked left out.
    linked
        Bytes that are hard links into the step before, where both are on one file system.
    published
        Bytes of what is a result.
    """

    name: str
    tasks: int
    bytes: int
    linked: int = 0
    published: int = 0

    @property
    def largest(self) -> int:
        """Of one task, about; with what it cannot link."""
        return (self.bytes + self.linked) // self.tasks


def stored(
    level: Level, dtype: np.dtype, codec: Codec, ratio: float, *, content: float = 1.0
) -> int:
    """Bytes of one level of an image, with its folders and metadata.

    Parameters
    ----------
    level, dtype, codec
        The array; what pads its chunks takes nothing when it is compressed.
    ratio
        Encoded by decoded size.
    content
        Part of the voxels that are not blank.
    """
    counts = [-(-n // c) for n, c in zip(level.grid.shape, level.chunks, strict=True)]
    files = [-(-n // o) for n, o in zip(level.grid.shape, level.owned, strict=True)]
    padded = math.prod(counts) * math.prod(level.chunks)
    voxels = padded if codec == "none" else math.prod(level.grid.shape) * content
    index = 16 * math.prod(counts) * (level.shards is not None)
    folders = 2 + files[0] * (1 + files[1])
    metadata = 2 * BLOCK
    return round(
        voxels * dtype.itemsize * ratio
        + index
        + math.prod(files) * BLOCK / 2
        + folders * BLOCK
        + metadata
    )


def _thumbnail(shape: Sequence[int]) -> int:
    """Pixels of a section's picture."""
    step = max(1, -(-max(shape[1:]) // THUMBNAIL))
    return math.prod(-(-n // step) for n in shape[1:])


def _slices(shape: Sequence[int], itemsize: int = 4) -> int:
    """Bytes of three slices through a volume as a preview; float32, if no other size is given."""
    step = max(1, -(-max(shape) // SLICES))
    z, y, x = (-(-n // step) for n in shape)
    return itemsize * (z * y + z * x + y * x)


@dataclass
class _Course:
    """What is known of the data on its way: the grids of what is there, and the steps so far."""

    steps: list[Step]
    grids: list[Grid]
    dtype: np.dtype
    content: float = 1.0
    pictures: int = 0


def _resample(
    course: _Course, volumes: Sequence[Volume], p: ResampleParameters, ratios: Ratios
) -> list[Tiling | None]:
    """Grids after RESAMPLE; the tilings of mosaics."""
    execution = ExecutionParameters(memory="1000TB")
    total, grids, tilings = 0, [], []
    course.dtype = output_type(p.dtype, volumes[0].dtype)
    for volume in volumes:
        target = target_of(volume, p)
        if isinstance(volume, Image) and p.layout == "mosaic":
            made = plan_mosaic(volume, target, p, execution)
            own, level = made.tiling, made.level
            tilings.append(
                Tiling(
                    level.grid.shape, level.chunks, target, own.edge, own.tile_extent, own.extent,
                    own.pitch,
                )
            )  # fmt: skip
        else:
            level = Level.volume(resampled(volume.grid, target)[0])
            tilings.append(None)
        grids.append(level.grid)
        total += TASK + stored(level, course.dtype, p.codec, ratios.of(p.codec, course.dtype))
    course.grids = grids
    course.steps.append(Step("RESAMPLE", len(volumes), total))
    return tilings


def _stitch(
    course: _Course,
    volumes: Sequence[Volume],
    tilings: Sequence[Tiling | None],
    p: StitchParameters,
    positions: Path | None,
    ratios: Ratios,
) -> list[Layout]:
    layouts, total = [], 0
    for volume, tiling in zip(volumes, tilings, strict=True):
        if tiling is None or not isinstance(volume, Image):
            continue
        nominal = nominal_positions(volume, tiling, p, positions)
        layout = Layout(tiling, nominal, subpixel=p.subpixel)
        layouts.append(layout)
        pixels = _thumbnail(layout.grid.shape)
        course.pictures += pixels
        level = Level.volume(layout.grid)
        total += (
            TASK
            + 4 * pixels
            + stored(level, course.dtype, p.codec, ratios.of(p.codec, course.dtype))
        )
    course.grids = [layout.grid for layout in layouts]
    course.steps.append(Step("STITCH", len(layouts), total))
    return layouts


def _stack(
    course: _Course,
    volumes: Sequence[Volume],
    layouts: Sequence[Layout],
    p: StackParameters,
    ratios: Ratios,
) -> None:
    images = [volume for volume in volumes if isinstance(volume, Image)]
    extents = [layout.extent for layout in layouts] or [grid.extent for grid in course.grids]
    depth, imaged = volume_depth(images, [extent[0] for extent in extents], p)
    edges = [layout.edge for layout in layouts] or [grid.edge for grid in course.grids]
    low = [min(edge[axis] for edge in edges) for axis in (1, 2)]
    high = [max(e[axis] + x[axis] for e, x in zip(edges, extents, strict=True)) for axis in (1, 2)]
    spacing = course.grids[0].spacing
    y, x = (b - a for a, b in zip(low, high, strict=True))
    grid = Grid.covering(vector(0, low[0], low[1]), vector(depth, y, x), spacing)
    course.grids, course.content = [grid], imaged / depth
    size = stored(
        Level.volume(grid), course.dtype, "zstd", ratios.of("zstd", course.dtype),
        content=course.content,
    )  # fmt: skip
    course.steps.append(Step("STACK", 1, TASK + size))


def _n4(course: _Course, p: N4Parameters, *, field: bool, ratios: Ratios) -> int:
    """The corrected volume's bytes; the field's are published by this step."""
    (grid,) = course.grids
    level, dtype = Level.volume(grid), output_type(p.dtype, course.dtype)
    ratio = ratios.of(p.codec, dtype, corrected=True)
    volume = stored(level, dtype, p.codec, ratio, content=course.content)
    bias = 0
    if field:
        bias = stored(level, np.dtype(np.float32), p.codec, ratios.of_field(grid.shape, p.codec))
    course.dtype = dtype
    course.steps.append(Step("N4", 1, TASK + _slices(grid.shape) + volume + bias, published=bias))
    return volume


def _pyramid(
    course: _Course, p: PyramidParameters, linkable: Codec | None, ratios: Ratios, *, changed: bool
) -> None:
    (grid,) = course.grids
    ratio = ratios.of(p.codec, course.dtype, corrected=changed)
    sizes = [
        stored(Level.volume(own), course.dtype, p.codec, ratio, content=course.content)
        for own, _ in plan_levels(grid, p.resolutions)
    ]
    same = plan_levels(grid, p.resolutions)[0][0].shape == grid.shape
    linked = sizes[0] if same and linkable == p.codec else 0
    made = TASK + _slices(grid.shape, course.dtype.itemsize) + sum(sizes)
    course.steps.append(Step("PYRAMID", 1, made - linked, linked, sum(sizes)))


def predict(
    volumes: Sequence[Volume],
    kind: str,
    settings: Mapping[str, Mapping[str, object]],
    folder: Path,
    positions: Path | None = None,
) -> list[Step]:
    """What each step of a run will write.

    Parameters
    ----------
    volumes
        The inputs: mosaics, sections or one volume.
    kind
        Which of the three.
    settings
        Parameters of each step, as in a plan, the layout of ``resample`` included.
    folder
        Where samples may be written for a moment.
    positions
        Table of tile positions.

    Raises
    ------
    OctaneError
        As the steps would, for data that does not fit its parameters.
    """
    for volume in volumes:
        if kind != "volume" and not isinstance(volume, Image):
            raise OctaneError(
                f"{volume.path} is no OME-Zarr image and so no {kind}; convert it, or leave "
                "--input_kind out."
            )
    workflow = settings["workflow"]
    skipped = {
        name
        for name in ("resample", "stitch", "n4", "pyramid", "report")
        if workflow[f"skip_{name}"]
    }
    resample = ResampleParameters.model_validate(settings["resample"])
    resamples = resample.resolution is not None and "resample" not in skipped and kind != "section"
    target = target_of(volumes[0], resample) if resamples else None
    ratios = sampled(volumes, target, resample.dtype, folder, mosaic=kind == "mosaic")
    course = _Course([], [v.grid for v in volumes], volumes[0].dtype)
    tilings: list[Tiling | None] = [
        Tiling.of(v) if kind == "mosaic" and isinstance(v, Image) else None for v in volumes
    ]
    if resamples:
        tilings = _resample(course, volumes, resample, ratios)
    layouts: list[Layout] = []
    if kind == "mosaic" and "stitch" not in skipped:
        stitch = StitchParameters.model_validate(settings["stitch"])
        layouts = _stitch(course, volumes, tilings, stitch, positions, ratios)
    linkable: Codec | None = None
    if kind != "volume":
        _stack(course, volumes, layouts, StackParameters.model_validate(settings["stack"]), ratios)
        linkable = "zstd"
    last = course.steps[-1].bytes if course.steps else 0
    if "n4" not in skipped:
        n4 = N4Parameters.model_validate(settings["n4"])
        last = _n4(course, n4, field=bool(workflow["save_bias_field"]), ratios=ratios)
        linkable = n4.codec
    if "pyramid" not in skipped:
        pyramid = PyramidParameters.model_validate(settings["pyramid"])
        _pyramid(course, pyramid, linkable, ratios, changed="n4" not in skipped)
    elif course.steps:
        # Without it, the volume that is there last is the result.
        step = course.steps[-1]
        course.steps[-1] = Step(step.name, step.tasks, step.bytes, 0, step.published + last)
    if "report" not in skipped and course.steps:
        size = TASK + REPORT + PICTURE * course.pictures
        course.steps.append(Step("REPORT", 1, size, published=size - TASK))
    return course.steps
