"""Layout of a subject: the grids of its data in each step, derived from its inputs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from octane.config.types import AUTO
from octane.core.arrays import output_type
from octane.core.geometry import Grid
from octane.core.units import counted, format_bytes, format_lengths
from octane.layout.levels import level_grids
from octane.layout.mosaic import MosaicGrid, unlike_mosaics
from octane.layout.placement import TilePlacement, crowded_tiles, tiles_apart
from octane.processes.preflight.inputs import warn_sizes
from octane.processes.preflight.parameters import Settings
from octane.processes.resample.layout import target_voxel_size
from octane.processes.stack.layout.borders import blend_warnings
from octane.processes.stack.layout.stack import (
    BY_PLACE,
    SectionSlab,
    blank_warnings,
    describe_thickness,
    distance_warnings,
    lay_out,
    overlap_warnings,
)
from octane.processes.stack.record import BY_DEPTH
from octane.processes.stitch.layout import nominal_depths, nominal_positions
from octane.processes.stitch.parameters import StitchParameters
from octane.store.image import Image
from octane.store.stated import orientation_in_words
from octane.store.volumes import Volume, lost_directions, override_warnings

ABUTTING = StitchParameters(overlap=(0.0, 0.0))
"""Tiles side by side, for what does not depend on their places."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of voxels that one step writes, without compression.

    ``linked`` are hard links to the previous step's files if both are on one file system; they are
    not part of ``voxels``. ``published`` are results. ``emptied`` voxels are removed from the work
    directory once they have been read.
    """

    name: str
    voxels: int
    linked: int = 0
    published: int = 0
    is_emptied: bool = False


@dataclass(frozen=True)
class SubjectLayout:
    """Grids of a subject, before refinement moves tiles and alignment moves sections.

    Attributes
    ----------
    inputs, kind
        Volumes as they were given: mosaics, sections or one volume.
    mosaics, placements
        Tiles of each mosaic as STITCH gets them, and their places in its section; empty for other
        inputs.
    slabs
        Sections in the volume; empty if a volume was given.
    volume
        Grid that N4 gets.
    levels
        Grids that PYRAMID writes; empty without it.
    from_tiles
        MOSAIC writes the inputs, which are mosaics, from tiles in files.
    """

    inputs: Sequence[Volume]
    kind: str
    settings: Settings
    mosaics: Sequence[MosaicGrid]
    placements: Sequence[TilePlacement]
    slabs: Sequence[SectionSlab]
    volume: Grid
    levels: Sequence[Grid]
    from_tiles: bool = False

    def bytes(self) -> list[StepBytes]:
        """Bytes that each step of the run writes, in order."""
        workflow, n4 = self.settings.workflow, self.settings.n4
        dtype = self.inputs[0].dtype
        steps: list[StepBytes] = []
        if self.from_tiles:
            written = [MosaicGrid.of(mosaic).voxels for mosaic in self.inputs]
            steps.append(StepBytes("MOSAIC", sum(written) * dtype.itemsize))
        if needs_resample(self.kind, self.settings):
            dtype = output_type(self.settings.resample.dtype, dtype)
            tiled = sum(mosaic.voxels for mosaic in self.mosaics) * dtype.itemsize
            steps.append(StepBytes("RESAMPLE", tiled or _total_bytes([self.volume], dtype)))
        if self.placements:
            sections = [placement.grid for placement in self.placements]
            steps.append(StepBytes("STITCH", _total_bytes(sections, dtype)))
        if workflow.until:
            emptied = [] if workflow.keep_intermediates else steps[:-1]
            return [replace(s, is_emptied=True) for s in emptied] + steps[len(emptied) :]
        # Blank slabs take no space.
        thick = sum(slab.thickness for slab in self.slabs)
        imaged = sum(min(s.thickness, s.extent[0]) for s in self.slabs if s.image is not None)
        part = imaged / thick if self.slabs else 1.0
        if self.slabs:
            steps.append(StepBytes("STACK", round(part * _total_bytes([self.volume], dtype))))
        if not workflow.skip_n4:
            dtype = output_type(n4.dtype, dtype)
            bias = (
                _total_bytes([self.volume], np.dtype(np.float32)) if workflow.save_bias_field else 0
            )
            corrected = round(part * _total_bytes([self.volume], dtype))
            steps.append(StepBytes("N4", corrected + bias, published=bias))
        if self.levels:
            voxels = round(part * _total_bytes(self.levels, dtype))
            # An input is not linked.
            first, is_linked = self.levels[0], bool(self.slabs) or not workflow.skip_n4
            is_linked &= first.shape == self.volume.shape
            linked = round(part * _total_bytes([first], dtype)) if is_linked else 0
            steps.append(StepBytes("PYRAMID", voxels - linked, linked, voxels))
        elif steps:
            # Without PYRAMID, the last volume is the result.
            steps[-1] = replace(steps[-1], published=steps[-1].voxels)
        if not workflow.keep_intermediates:
            # As in tasks.py: N4 and PYRAMID share files, and STACK may be the last.
            names = [step.name for step in steps]
            first = (
                names.index("N4") if "N4" in names else names.index("STACK") if self.slabs else 0
            )
            steps[:first] = [replace(step, is_emptied=True) for step in steps[:first]]
        return steps

    def about(self) -> str:
        """The inputs in a sentence: number, largest extent, voxel sizes and bytes."""
        extents = [placement.extent for placement in self.placements]
        whole = np.max(extents or [volume.grid.extent for volume in self.inputs], axis=0)
        tiles = ""
        if self.mosaics:
            first = self.mosaics[0]
            field = format_lengths(first.tile_extent[1:])
            tiles = f" of {first.rows} x {first.columns} tiles of {field} (y x)"
        voxels = dict.fromkeys(format_lengths(volume.grid.spacing) for volume in self.inputs)
        size = sum(math.prod(v.grid.shape) * v.dtype.itemsize for v in self.inputs)
        most = "up to " if len(self.inputs) > 1 else ""
        text = (
            f"{counted(len(self.inputs), self.kind)}{tiles}, {most}{format_lengths(whole)} (z y x) "
            f"in voxels of {' or '.join(voxels)}, {format_bytes(size)} decoded."
        )
        if orientation := orientation_in_words(self.inputs[0].attributes):
            text += f" Orientation: {orientation}."
        if any(slab.thickness_from == BY_PLACE for slab in self.slabs):
            text += f" {describe_thickness(self.slabs)}"
        is_uncut = self.kind == "mosaic" and self.settings.stack.section_surface == AUTO
        if is_uncut and any(slab.thickness_from == BY_DEPTH for slab in self.slabs):
            text += (
                " Sections are counted with all that was imaged, and become thinner where STITCH "
                "finds their surface deeper."
            )
        if excluded := self.settings.stack.excluded_sections:
            text += f" Excluded sections: {excluded}."
        return text

    def warnings(self) -> list[str]:
        """Warnings about the inputs' metadata and the positions of tiles and sections."""
        names, stack = [volume.path.name for volume in self.inputs], self.settings.stack
        texts = unlike_mosaics(names, self.mosaics) + tiles_apart(names, self.placements)
        texts += crowded_tiles(names, self.mosaics, self.placements)
        texts += overlap_warnings(self.slabs)
        texts += blend_warnings(self.slabs, stack.blend, self.volume)
        if self.slabs and not isinstance(stack.section_thickness, float):
            texts += blank_warnings(self.slabs) + distance_warnings(self.slabs)
        texts += [text for volume in self.inputs for text in lost_directions(volume)]
        texts += warn_sizes(self.inputs) + override_warnings(self.inputs)
        if self.mosaics:
            texts += self._tile_warnings()
        first = self.inputs[0]
        if first.dtype.kind == "c":
            texts.append(
                f"{first.path.name} has complex voxels: blending and interpolation darken them "
                "unless their phases agree; give the modulus if you do not need phases."
            )
        return texts

    def _tile_warnings(self) -> list[str]:
        """Warnings about mosaics whose chunks may not be tiles."""
        first, texts = self.inputs[0], []
        is_guessed = self.settings.workflow.input_kind == "auto" and "kind" not in first.attributes
        # Whoever gives an overlap knows that they are tiles.
        is_guessed &= not any(self.settings.stitch.overlap or ())
        sizes = [(first.grid.shape[axis], first.chunks[axis]) for axis in (1, 2)]
        if is_guessed and all(n > chunk and n % chunk for n, chunk in sizes):
            texts.append(
                f"{first.path.name} may be a stitched section, as its last row and column of "
                "chunks are smaller; if so, give --input_kind section."
            )
        if all(len(mosaic.tiles) == 1 for mosaic in self.mosaics):
            texts.append(
                f"Each mosaic, such as {first.path.name}, is one chunk and therefore one tile: "
                "nothing is stitched. Write all tiles of a section into one store, one chunk each, "
                "or give --tile_pattern if each store is a tile."
            )
        return texts


def needs_resample(kind: str, settings: Settings) -> bool:
    """Tell whether inputs of a kind pass through RESAMPLE."""
    return kind != "section" and settings.resample.resolution is not None


def lay_out_mosaic(
    image: Volume, settings: Settings, positions: Path | None = None
) -> tuple[MosaicGrid, TilePlacement]:
    """Tiles of a mosaic as STITCH gets them, and their places.

    Raises an OctaneError if the chunks are not tiles or their positions are missing.
    """
    tiling = MosaicGrid.of(image)
    if needs_resample("mosaic", settings):
        tiling = tiling.with_spacing(target_voxel_size(image, settings.resample))
    places = nominal_positions(image, tiling, settings.stitch, positions)
    return tiling, TilePlacement(tiling, places, nominal_depths(image, tiling, positions))


def lay_out_subject(
    volumes: Sequence[Volume],
    kind: str,
    settings: Settings,
    positions: Path | None = None,
    *,
    from_tiles: bool = False,
) -> SubjectLayout:
    """Lay out inputs of one kind; ``positions`` is the table of their tiles.

    With ``from_tiles`` the inputs are mosaics that MOSAIC writes first.

    Raises the OctaneError that a step would raise for data that do not fit the parameters.
    """
    mosaics: list[MosaicGrid] = []
    placements: list[TilePlacement] = []
    slabs: list[SectionSlab] = []
    if kind == "volume":
        (whole,) = volumes
        grid = whole.grid
        if needs_resample(kind, settings):
            grid = grid.resampled(target_voxel_size(whole, settings.resample))
    else:
        # As :func:`octane.processes.preflight.inputs.kind_of` requires.
        images = cast("list[Image]", volumes)
        grids = [image.grid for image in images]
        if kind == "mosaic":
            laid = [lay_out_mosaic(image, settings, positions) for image in images]
            mosaics = [tiling for tiling, _ in laid]
            placements = [placement for _, placement in laid]
            grids = [tiling.grid for tiling in mosaics]
        boxes = [(box.edge, box.extent) for box in placements or grids]
        grid, slabs = lay_out(images, boxes, settings.stack, grids[0].spacing)
    workflow, pyramid = settings.workflow, settings.pyramid
    levels = [] if workflow.skip_pyramid else level_grids(grid, pyramid.resolutions)
    return SubjectLayout(
        volumes, kind, settings, mosaics, placements, slabs, grid, levels, from_tiles
    )


def _total_bytes(grids: Iterable[Grid], dtype: np.dtype) -> int:
    return sum(math.prod(grid.shape) for grid in grids) * dtype.itemsize
