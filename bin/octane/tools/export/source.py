"""A volume, or a part of it, to be written for other programs: levels and channels, read in parts.

Of an OME-Zarr image these are the stored levels from the chosen resolution on, and all channels or
a chosen one. A region is cut from each level, and axes are permuted and flipped, as the voxels are
read.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError, first_lines
from octane.core.files import files_within
from octane.core.geometry import Grid, Region, shape_of, spelled, vector
from octane.core.orientation import (
    Orientation,
    directions_of,
    read_orientation,
    spelled_orientation,
)
from octane.core.progress import Progress
from octane.core.units import bytes_of
from octane.layout.sections import attributes_on
from octane.pipeline.workers import PROCESS_BYTES, plan_workers, run_tiles
from octane.store.channels import ALL, joined_attributes, names_of
from octane.store.image import Image, open_levels
from octane.store.ngff import ShownChannel, read_metadata
from octane.store.stated import CHANNEL, Attributes, stated_orientation
from octane.store.volumes import Volume, each_channel, open_volume
from octane.store.writer import SHARD, Json
from octane.tools.export.parameters import ExportParameters

LEVEL_TOLERANCE = 1e-3
"""Largest deviation of a level's voxel size from the one asked for, as a fraction."""
ROUNDING = 1e-6
"""Voxels by which a centre may miss the end of a region, for the rounding of metadata."""

SLAB_SHARE = 2
"""A slab takes at most this part of the memory: half."""
WIDER_TYPES = {"bool": "uint8", "float16": "float32"}
"""Types that formats other than OME-Zarr lack, and those that hold the same values."""


def files_of(store: Path) -> list[str]:
    """Paths in a store of all its files, to be given away.

    Raises an InputError that names links out of it, and what is not a regular file.
    """
    sizes, problems = files_within(store, "store")
    if problems:
        remedy = "; remove it, or put the file itself in its place."
        raise InputError("\n".join(first_lines([problem + remedy for problem in problems])))
    return [*sizes]


def require_outside(destination: Path, store: Path) -> None:
    """Raise an InputError if an output lies in the store that it is made from."""
    if Path(os.path.realpath(destination)).parent.is_relative_to(os.path.realpath(store)):
        raise InputError(f"{destination} lies in {store} itself; give a place outside of it.")


@dataclass(frozen=True)
class Turn:
    """Axes of a volume along z, y and x of a part of it, and whether the part runs backwards."""

    axes: tuple[int, int, int] = (0, 1, 2)
    flipped: tuple[bool, bool, bool] = (False, False, False)

    @classmethod
    def between(cls, orientation: Orientation, asked: Orientation) -> "Turn":
        """Turn by which a volume gets the orientation ``asked``; both are along ITK's axes."""
        ours, theirs = directions_of(orientation), directions_of(asked)
        assert ours is not None
        assert theirs is not None
        # Rows are the volume's axes and columns the part's, both z, y, x.
        along = (ours.T @ theirs)[::-1, ::-1]
        z, y, x = np.abs(along).argmax(0).tolist()
        fz, fy, fx = (along.sum(0) < 0).tolist()
        return cls((z, y, x), (fz, fy, fx))

    def grid(self, grid: Grid) -> Grid:
        """Grid of a turned part; along a flipped axis, coordinates change their sign."""
        axes = []
        for axis, flipped in zip(self.axes, self.flipped, strict=True):
            n, spacing, origin = grid.shape[axis], grid.spacing[axis], grid.origin[axis]
            axes.append((n, spacing, -(origin + (n - 1) * spacing) if flipped else origin))
        (nz, ny, nx), spacing, origin = zip(*axes, strict=True)
        return Grid((nz, ny, nx), vector(*spacing), vector(*origin))


@dataclass(frozen=True)
class Part:
    """A region of one channel of a volume, turned; ``grid`` is the part's own."""

    volume: Volume
    region: Region
    turn: Turn
    grid: Grid

    @classmethod
    def of(cls, volume: Volume, region: Region, turn: Turn) -> "Part":
        """Part with the grid that follows from its place in the volume."""
        whole = volume.grid
        origin = [
            o + r.start * s for o, r, s in zip(whole.origin, region, whole.spacing, strict=True)
        ]
        nz, ny, nx = shape_of(region)
        cut = Grid((nz, ny, nx), whole.spacing, vector(*origin))
        return cls(volume, region, turn, turn.grid(cut))

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels, in native byte order."""
        return self.volume.dtype.newbyteorder("=")

    def read(self, region: Region) -> npt.NDArray:
        """Read the voxels of a region of the part."""
        stored = list(self.region)
        parts = zip(self.turn.axes, self.turn.flipped, self.grid.shape, region, strict=True)
        for axis, flipped, n, r in parts:
            first, last = (n - r.stop, n - r.start) if flipped else (r.start, r.stop)
            start = self.region[axis].start
            stored[axis] = slice(start + first, start + last)
        voxels = self.volume.read(tuple(stored)).transpose(self.turn.axes)
        return voxels[tuple(slice(None, None, -1 if f else 1) for f in self.turn.flipped)]

    def slabs(self, execution: ExecutionParameters) -> Iterator[npt.NDArray]:
        """Read the part from its first plane to its last, in slabs that fit into the memory.

        A slab holds the planes of a chunk, so that each is decoded once, or as many as half of the
        memory holds. It is valid until the next one is read.
        """
        nz, ny, nx = self.grid.shape
        plane, memory = ny * nx * self.dtype.itemsize, bytes_of(execution.memory)
        deep, *sides = (self.volume.chunks[axis] for axis in self.turn.axes)
        depth = max(1, min(nz, deep, (memory - PROCESS_BYTES) // SLAB_SHARE // plane))
        # Entire chunks, unless they are large.
        high, wide = (SHARD // side * side or SHARD for side in sides)
        across = [*product(self.spans(1, high), self.spans(2, wide))]
        # Two planes more for the writer.
        workers = plan_workers(
            2 * depth * min(ny, high) * min(nx, wide) * self.dtype.itemsize, memory,
            execution.workers, len(across), fixed=PROCESS_BYTES + (depth + 2) * plane,
        )  # fmt: skip
        slabs = self.spans(0, depth)
        advance = Progress("Export", len(slabs) * len(across), "blocks", workers=workers)
        memory_of_slab = np.empty((depth, ny, nx), self.dtype)
        for slab in slabs:
            out = memory_of_slab[: slab.stop - slab.start]

            def read(block: Region, slab: slice = slab, out: npt.NDArray = out) -> None:
                voxels = self.read((slab, *block))
                out[:, *block] = voxels
                advance(voxels.nbytes)

            run_tiles(across, read, workers=workers)
            yield out

    def spans(self, axis: int, size: int) -> list[slice]:
        """Cut an axis of the part where the volume's blocks of ``size`` voxels begin and end."""
        stored, n = self.region[self.turn.axes[axis]], self.grid.shape[axis]
        first = stored.stop % size if self.turn.flipped[axis] else -stored.start % size
        return [slice(a, b) for a, b in pairwise([0, *range(first or size, n, size), n])]


@dataclass(frozen=True)
class Source:
    """Levels to write, finest first, each as the parts of its channels.

    ``shown`` has the window and colour of each channel, None where the store states none;
    ``attributes`` are octane's own, with the orientation; ``coarser`` and ``version`` are those of
    :class:`octane.store.ngff.Metadata`, the latter None for other formats.
    """

    path: Path
    levels: list[list[Part]]
    names: list[str]
    shown: list[ShownChannel]
    attributes: Attributes
    coarser: Json
    version: object

    @property
    def orientation(self) -> Orientation:
        """Orientation of z, y and x as they are written."""
        return stated_orientation(self.attributes)


def open_source(
    path: Path, parameters: ExportParameters, reading: InputParameters, *, several: bool
) -> Source:
    """Open what ``parameters`` choose of a volume, of all its channels if ``several`` are allowed.

    An InputError says that a channel must be chosen, or that the volume lacks the level, the region
    or the orientation that is asked for.
    """
    are_all = several and reading.channel is None
    asked = each_channel(path, parameters.channels or ALL, reading) if are_all else [reading]
    channels = [open_volume(path, words) for words in asked]
    levels: list[list[Volume]] = [channels]
    shown = [ShownChannel()] * len(channels)
    coarser: Json = {}
    version: object = None
    images = [channel for channel in channels if isinstance(channel, Image)]
    if images:
        places = [image.place for image in images]
        levels = _stored_levels(path, reading, places)
        metadata = read_metadata(path, reading)
        for k, place in enumerate(places):
            number = dict(zip(metadata.axes, place, strict=True)).get(CHANNEL, 0)
            if number < len(metadata.windows):
                window, color = metadata.windows[number], metadata.colors[number]
                shown[k] = ShownChannel(window=window, color=color)
        coarser, version = metadata.coarser, metadata.version
    grids = [level[0].grid for level in levels]
    levels = levels[_level_of(path, grids, parameters.resolution) :]
    orientation = stated_orientation(channels[0].attributes)
    asked = None if parameters.reorient is None else read_orientation([parameters.reorient])
    turn = _turn(path, orientation, asked)
    regions = [_cut_region(level[0].grid, parameters.region) for level in levels]
    if 0 in shape_of(regions[0]):
        raise InputError(
            f"{path} has no voxel centre in --region {' '.join(parameters.region)}; they are from "
            f"{centres(levels[0][0].grid)} um."
        )
    attributes = [_attributes(c, levels[0][0].grid, regions[0], turn) for c in channels]
    if turn != Turn():
        attributes = [{**attributes, "orientation": asked} for attributes in attributes]
    parts = [
        [Part.of(channel, region, turn) for channel in level]
        for level, region in zip(levels, regions, strict=True)
        if 0 not in shape_of(region)
    ]
    return Source(
        path, parts, names_of(attributes), shown, joined_attributes(attributes), coarser, version
    )


def file_type(dtype: np.dtype) -> np.dtype:
    """Type of the voxels in a file; the values are the same."""
    return np.dtype(WIDER_TYPES.get(dtype.name, dtype)).newbyteorder("<")


def _stored_levels(
    path: Path, reading: InputParameters, places: Sequence[tuple[int, ...]]
) -> list[list[Volume]]:
    """Levels of an OME-Zarr image, finest first, each with the channels at these places."""
    levels: dict[str, dict[tuple[int, ...], Image]] = {}
    for image in open_levels(path, reading):
        levels.setdefault(image.array.path, {})[image.place] = image
    return [[level[place] for place in places] for level in levels.values()]


def _level_of(path: Path, grids: Sequence[Grid], resolution: Sequence[float] | None) -> int:
    """Number of the level with voxels of ``resolution`` (micrometres); the finest for None."""
    if resolution is None:
        return 0
    for index, grid in enumerate(grids):
        if np.allclose(grid.spacing, resolution, rtol=LEVEL_TOLERANCE, atol=0):
            return index
    listed = ", ".join(spelled(grid.spacing) for grid in grids)
    raise InputError(
        f"{path} does not have a level of --resolution {spelled(resolution)} um, only {listed} "
        "(z y x); give one of these, or make the level with bin/pyramid.py."
    )


def _turn(path: Path, orientation: Orientation, asked: Orientation | None) -> Turn:
    if asked is None:
        return Turn()
    if directions_of(orientation) is None:
        stated = spelled_orientation(orientation) or "none"
        raise InputError(
            f"{path} does not state an orientation along R L, A P and S I (it states {stated}), "
            "which --reorient needs; give --orientation."
        )
    return Turn.between(orientation, asked)


def _cut_region(grid: Grid, words: Sequence[str]) -> Region:
    """Voxels whose centres lie in a ``--region``, the first end included; perhaps none."""
    region = [slice(0, n) for n in grid.shape]
    for axis, ends in (word.lower().split("=") for word in words):
        k = "zyx".index(axis)
        places = [
            (float(end) - grid.origin[k]) / grid.spacing[k] - ROUNDING if end else None
            for end in ends.split(":")
        ]
        # Cut before it is rounded: an end may be infinite.
        start, stop = (
            p if p is None else math.ceil(min(max(p, 0.0), float(grid.shape[k]))) for p in places
        )
        region[k] = slice(start or 0, grid.shape[k] if stop is None else stop)
    return tuple(region)


def centres(grid: Grid) -> str:
    """First and last centre along each axis, as a region is given."""
    axes = zip("zyx", grid.origin, grid.shape, grid.spacing, strict=True)
    return " ".join(f"{axis}={o:g}:{o + (n - 1) * s:g}" for axis, o, n, s in axes)


def _attributes(volume: Volume, grid: Grid, region: Region, turn: Turn) -> Attributes:
    """Octane's attributes of a part of a level; its sections only if it is not turned."""
    # Facts about tiles and extents do not hold for a part, nor for other chunks.
    dropped = ("mosaic", "section", "sections")
    on_level, planes = attributes_on(volume, grid), region[0]
    attributes: Attributes = {k: v for k, v in on_level.items() if k not in dropped}
    attributes["kind"] = "volume"
    kept = []
    for section in cast("list[dict[str, int]]", on_level.get("sections", [])):
        start = max(section["start"], planes.start) - planes.start
        stop = min(section["stop"], planes.stop) - planes.start
        kept += [{**section, "start": start, "stop": stop}] * (start < stop)
    if kept and turn == Turn():
        attributes["sections"] = kept
    return attributes
