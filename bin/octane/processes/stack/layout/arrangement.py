"""Sections where they lie in the volume, moved and blended, or as another channel's do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from octane.core.errors import InputError
from octane.core.geometry import Grid, spelled, vector
from octane.layout.sections import list_numbers, number_or_first, sections_by_number
from octane.processes.stack.layout.borders import Border
from octane.processes.stack.layout.displacement import IN_PLACE, NEGLIGIBLE, Displacement
from octane.processes.stack.layout.stack import SectionSlab, arrange_slabs, imaged_box
from octane.processes.stack.layout.surfaces import Surface
from octane.processes.stack.record import SectionFigures, StackFigures
from octane.store.image import Image


@dataclass(frozen=True)
class Arrangement:
    """Grid of a volume, its sections in order, and the borders at which they are blended.

    ``excluded`` are the numbers that the user left out; ``aligned`` tells whether sections were to
    be moved.
    """

    grid: Grid
    slabs: list[SectionSlab]
    borders: list[Border]
    excluded: Sequence[int]
    aligned: bool

    @property
    def missing(self) -> list[int]:
        """Numbers of the gaps that the user did not ask for."""
        gaps = [slab.number for slab in self.slabs if slab.image is None]
        return [number for number in gaps if number not in self.excluded]


def realign_slabs(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    measured: Mapping[int, Displacement],
    given: Mapping[int, Displacement],
) -> tuple[Grid, list[SectionSlab]]:
    """Assign the given displacements and, to other sections, the measured ones that exceed noise.

    Returns a grid that holds all slabs, and the slabs.
    """
    (_, top, left), (_, height, width) = grid.edge, grid.extent
    middle = (top + height / 2, left + width / 2)
    spacing, radius = grid.spacing[1], max(height, width) / 2
    moves = {n: move for n, move in measured.items() if move.reach(radius) >= NEGLIGIBLE * spacing}
    moves |= given
    # Grow by whole voxels, so that unmoved sections are copied as without alignment.
    corner = math.hypot(*grid.extent[1:]) / 2
    border = math.ceil(max((move.reach(corner) for move in moves.values()), default=0) / spacing)
    edge = vector(grid.edge[0], *(e - border * spacing for e in grid.edge[1:]))
    extent = vector(grid.extent[0], *(e + 2 * border * spacing for e in grid.extent[1:]))
    return Grid.covering(edge, extent, grid.spacing) if border else grid, [
        replace(slab, displacement=moves.get(slab.number, IN_PLACE), middle=middle)
        for slab in slabs
    ]


def arrange_like(images: Sequence[Image], reference: StackFigures, path: Path) -> Arrangement:
    """Arrange a channel's sections as STACK arranged the reference channel's, to the bit.

    ``path`` is that of the reference's record. Raises an InputError unless the sections have the
    same numbers, places, extents and voxel size, and the record is complete.
    """
    _require_same_sections(images, reference, path)
    numbers = sections_by_number(images, len(reference.sections))
    slabs: list[SectionSlab] = []
    for section in reference.sections:
        if section.thickness is None or section.thickness_from is None:
            raise _incomplete_record(path)
        thickness = section.thickness, section.thickness_from
        if section.number in numbers:
            slab = _recorded_slab(section, numbers[section.number], thickness, path)
        else:
            slab = replace(
                slabs[-1], number=section.number, image=None, thickness=section.thickness
            )
        slabs.append(replace(slab, name=section.name, thickness_from=section.thickness_from))
    grid, slabs = arrange_slabs(slabs, reference.voxel_size)
    if reference.aligned:
        moves = {
            section.number: Displacement(*section.shift, section.rotation)
            for section in reference.sections
            if section.moved and section.shift is not None and section.rotation is not None
        }
        grid, slabs = realign_slabs(slabs, grid, {}, moves)
    planes = [range(section.start, section.stop) for section in reference.sections]
    if (grid.shape, [slab.planes for slab in slabs]) != (reference.shape, planes):
        raise _incomplete_record(path)
    pairs = zip(pairwise(slabs), reference.sections[1:], strict=True)
    borders = [Border(*pair, section.blended) for pair, section in pairs if section.blended]
    return Arrangement(grid, slabs, borders, reference.excluded_sections, reference.aligned)


def _recorded_slab(
    section: SectionFigures, image: Image, thickness: tuple[float, str], path: Path
) -> SectionSlab:
    """The section's slab below the recorded surface."""
    if (
        section.edge is None
        or section.extent is None
        or section.surface is None
        or section.surface_from is None
    ):
        raise _incomplete_record(path)
    box, (edge, extent) = (section.edge, section.extent), imaged_box(image)
    if not np.allclose(box, (edge, extent), rtol=1e-6, atol=1e-6 * min(image.grid.spacing)):
        raise InputError(
            f"{image.path} begins at {spelled(edge)} and is {spelled(extent)} micrometre large "
            f"(z y x), but in {path} section {section.number} begins at {spelled(box[0])} and is "
            f"{spelled(box[1])} large; give the record of the same sections, stitched alike."
        )
    cut = Surface(section.surface, section.levelled or (0.0, 0.0), section.surface_from)
    return SectionSlab.of_image(section.number, image, box, cut, thickness)


def _require_same_sections(images: Sequence[Image], reference: StackFigures, path: Path) -> None:
    """Raise unless the record is of sections with these numbers and voxels."""
    ours = sorted(map(number_or_first, images))
    theirs = [section.number for section in reference.sections if not section.missing]
    if ours != theirs:
        raise InputError(
            f"The inputs are the sections {list_numbers(ours)}, but {path} is of "
            f"{list_numbers(theirs)}; give the record of the same sections."
        )
    spacing = images[0].grid.spacing
    if not np.allclose(spacing, reference.voxel_size, rtol=1e-6, atol=0):
        raise InputError(
            f"{images[0].path} has voxels of {spelled(spacing)} micrometre, but {path} is of "
            f"voxels of {spelled(reference.voxel_size)}; resample both channels alike."
        )


def _incomplete_record(path: Path) -> InputError:
    return InputError(
        f"{path} does not say where each section lies; run STACK of the reference channel again "
        "with this version of octane."
    )
