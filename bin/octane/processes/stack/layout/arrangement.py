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
from octane.processes.stack.layout.stack import SectionSlab, arranged, imaged_box
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


def realigned(
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
    moved = {n: own for n, own in measured.items() if own.reach(radius) >= NEGLIGIBLE * spacing}
    moved |= given
    # Grow by whole voxels, so that unmoved sections are copied as without alignment.
    corner = math.hypot(*grid.extent[1:]) / 2
    border = math.ceil(max((own.reach(corner) for own in moved.values()), default=0) / spacing)
    edge = vector(grid.edge[0], *(e - border * spacing for e in grid.edge[1:]))
    extent = vector(grid.extent[0], *(e + 2 * border * spacing for e in grid.extent[1:]))
    return Grid.covering(edge, extent, grid.spacing) if border else grid, [
        replace(slab, displaced=moved.get(slab.number, IN_PLACE), middle=middle) for slab in slabs
    ]


def arranged_like(images: Sequence[Image], reference: StackFigures, path: Path) -> Arrangement:
    """Arrange a channel's sections as STACK arranged the reference channel's, to the bit.

    ``path`` is that of the reference's record. Raises an InputError unless the sections have the
    same numbers, places, extents and voxel size, and the record is complete.
    """
    _require_same_sections(images, reference, path)
    numbers = sections_by_number(images, len(reference.sections))
    slabs: list[SectionSlab] = []
    for own in reference.sections:
        if own.thickness is None or own.thickness_from is None:
            raise _incomplete(path)
        thickness = own.thickness, own.thickness_from
        if own.number in numbers:
            slab = _slab(own, numbers[own.number], thickness, path)
        else:
            slab = replace(slabs[-1], number=own.number, image=None, thickness=own.thickness)
        slabs.append(replace(slab, name=own.name, thickness_from=own.thickness_from))
    grid, slabs = arranged(slabs, reference.voxel_size)
    if reference.aligned:
        moved = {
            own.number: Displacement(*own.shift, own.rotation)
            for own in reference.sections
            if own.moved and own.shift is not None and own.rotation is not None
        }
        grid, slabs = realigned(slabs, grid, {}, moved)
    planes = [range(own.start, own.stop) for own in reference.sections]
    if (grid.shape, [slab.planes for slab in slabs]) != (reference.shape, planes):
        raise _incomplete(path)
    pairs = zip(pairwise(slabs), reference.sections[1:], strict=True)
    borders = [Border(*pair, own.blended) for pair, own in pairs if own.blended]
    return Arrangement(grid, slabs, borders, reference.excluded_sections, reference.aligned)


def _slab(
    own: SectionFigures, image: Image, thickness: tuple[float, str], path: Path
) -> SectionSlab:
    """The section's slab below the recorded surface."""
    if own.edge is None or own.extent is None or own.surface is None or own.surface_from is None:
        raise _incomplete(path)
    box, (edge, extent) = (own.edge, own.extent), imaged_box(image)
    if not np.allclose(box, (edge, extent), rtol=1e-6, atol=1e-6 * min(image.grid.spacing)):
        raise InputError(
            f"{image.path} begins at {spelled(edge)} and is {spelled(extent)} micrometre large "
            f"(z y x), but in {path} section {own.number} begins at {spelled(box[0])} and is "
            f"{spelled(box[1])} large; give the record of the same sections, stitched alike."
        )
    cut = Surface(own.surface, own.levelled or (0.0, 0.0), own.surface_from)
    return SectionSlab.of_image(own.number, image, box, cut, thickness)


def _require_same_sections(images: Sequence[Image], reference: StackFigures, path: Path) -> None:
    """Raise unless the record is of sections with these numbers and voxels."""
    ours = sorted(map(number_or_first, images))
    theirs = [own.number for own in reference.sections if not own.missing]
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


def _incomplete(path: Path) -> InputError:
    return InputError(
        f"{path} does not say where each section lies; run STACK of the reference channel again "
        "with this version of octane."
    )
