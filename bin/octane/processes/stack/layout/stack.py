"""Layout of a stack: each section's place and planes in the volume, and warnings about them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.sheets import read_rows
from octane.config.types import AUTO
from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector, vector
from octane.core.units import comma_in
from octane.layout.mosaic import Position
from octane.layout.sections import distances, list_numbers, sections_by_number
from octane.processes.stack.layout.displacement import (
    COLUMNS,
    IN_PLACE,
    Displacement,
    read_displacements,
)
from octane.processes.stack.layout.flips import require_flippable
from octane.processes.stack.layout.surfaces import (
    NONE_MEASURED,
    OF_OTHERS,
    Surface,
    cut_surfaces,
    recorded_surface,
)
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import BY_DEPTH, MEDIAN
from octane.processes.stitch.record import COMPENSATION
from octane.store.channels import is_nearest
from octane.store.image import Image

BY_PLACE = "from the translations along z"
BY_TABLE = "from the table"


@dataclass(frozen=True)
class SectionSlab:
    """Place of a section in the volume, in micrometres and planes; ``image`` is None for a gap.

    Its box begins at its ``cut`` surface, which lies ``surface`` deep in the volume; in z, ``edge``
    and ``extent`` are those in the middle of the section. ``thickness_from`` is the source of the
    thickness, in words. STACK undoes its ``displacement`` about ``middle`` (y, x).
    """

    number: int
    name: str
    image: Image | None
    edge: Vector
    extent: Vector
    cut: Surface
    surface: float
    thickness: float
    thickness_from: str
    planes: range = range(0)
    displacement: Displacement = IN_PLACE
    middle: Position = (0.0, 0.0)

    @classmethod
    def of_image(
        cls,
        number: int,
        image: Image,
        box: tuple[Vector, Vector],
        cut: Surface,
        thickness: tuple[float, str],
    ) -> "SectionSlab":
        """Slab of a section below its surface; ``box`` is the edge and extent of its image."""
        (top, *edge), (depth, *extent) = box
        edge, extent = vector(top + cut.depth, *edge), vector(depth - cut.depth, *extent)
        return cls(number, image.path.name, image, edge, extent, cut, 0.0, *thickness)

    @property
    def is_nearest(self) -> bool:
        """Tell whether its values, such as angles, must never be averaged."""
        return self.image is not None and is_nearest(self.image.attributes)

    def whole_planes(self, planes: range, grid: Grid) -> npt.NDArray[np.int64]:
        """Those of ``planes`` that are within the section's imaged depth at all pixels.

        Levelled, a section lacks a wedge of its lowest planes and, where its surface lay above the
        image, of its first ones.
        """
        z, depth = self._depths(planes, grid)
        rise = self.cut.rise(self.extent)
        first, last = rise - self.cut.depth, self.extent[0] - rise
        return z[(depth >= first - 1e-6) & (depth <= last + 1e-6)]

    def reached_planes(self, planes: range, grid: Grid) -> npt.NDArray[np.int64]:
        """Those of ``planes`` that are not below the section's imaged depth at all pixels."""
        z, depth = self._depths(planes, grid)
        return z[depth <= self.extent[0] + self.cut.rise(self.extent) + 1e-6]

    @property
    def has_compensation(self) -> bool:
        """Tell whether STITCH compensated the attenuation of its light."""
        return self.image is not None and COMPENSATION in self.image.attributes

    def compensation(self, planes: npt.NDArray[np.int64], grid: Grid) -> float:
        """Mean factor by which STITCH changed the light of these planes of the volume."""
        if self.image is None or not self.has_compensation:
            return 1.0
        factors = np.asarray(self.image.attributes[COMPENSATION], np.float64)
        depths = (planes + 0.5) * grid.spacing[0] - self.surface + self.cut.depth
        index = np.floor(depths / self.image.grid.spacing[0] + 1e-6).astype(np.int64)
        return float(factors[np.clip(index, 0, len(factors) - 1)].mean())

    def _depths(
        self, planes: range, grid: Grid
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The planes, and their depths below the section's surface."""
        z = np.array(planes)
        return z, (z + 0.5) * grid.spacing[0] - self.surface


def section_metadata(image: Image) -> Mapping[str, Sequence[float]]:
    """Metadata of a section, such as its number, edge, extent and thickness."""
    return cast("Mapping[str, Sequence[float]]", image.attributes.get("section", {}))


def _below_surface(cut: Surface) -> str:
    return " below its surface" if cut.depth else ""


def _imaged_depth(image: Image, extent: Vector, cut: Surface) -> float:
    """Depth imaged below the surface; whole planes may cover less."""
    return max(extent[0], section_metadata(image).get("extent", extent)[0]) - cut.depth


def _section_thickness(
    image: Image,
    parameters: StackParameters,
    extent: Vector,
    cut: Surface,
    stated: float | None,
) -> tuple[float, str]:
    """Thickness of a section, and its source; ``stated`` is that of the translations, if any."""
    deep, voxel = _imaged_depth(image, extent, cut), image.grid.spacing[0]
    if deep <= voxel / 2:
        raise InputError(
            f"--section_surface {cut.depth:g} leaves no plane of {image.path}, which is "
            f"{deep + cut.depth:g} micrometre deep; give a smaller one."
        )
    given = parameters.section_thickness
    if isinstance(given, float):
        if given < voxel:
            raise InputError(
                f"--section_thickness {given:g} is less than one voxel of "
                f"{image.path} ({voxel:g} micrometre); give it in micrometres."
            )
        # Before STITCH, a measured surface is unknown; after it, STACK warns of blank planes.
        most = deep + cut.depth if parameters.section_surface == AUTO else deep
        if given > most * (1 + 1e-6):
            raise InputError(
                f"--section_thickness {given:g} exceeds the depth of "
                f"{image.path}, {most:g} micrometre{_below_surface(cut)}; give at most that, or "
                "omit it."
            )
        return given, "as given"
    if "thickness" in section_metadata(image):
        return float(cast("float", section_metadata(image)["thickness"])), "from the metadata"
    if stated is not None:
        return stated, BY_PLACE
    throughout = extent[0] - cut.depth - cut.rise(extent)
    if any(cut.tilt) and throughout < voxel:
        raise InputError(
            f"{image.path} is tilted by {cut.tilt[0]:.2g} and {cut.tilt[1]:.2g} degrees (y x), "
            "which leaves no plane of it whole; give --section_thickness, or omit --section_level."
        )
    return throughout, BY_DEPTH


def imaged_box(section: Image) -> tuple[Vector, Vector]:
    """Edge and extent of a section as imaged, which whole planes may not fill."""
    metadata, grid = section_metadata(section), section.grid
    return vector(*metadata.get("edge", grid.edge)), vector(*metadata.get("extent", grid.extent))


def lay_out(
    images: list[Image],
    boxes: list[tuple[Vector, Vector]],
    parameters: StackParameters,
    spacing: Vector,
) -> tuple[Grid, list[SectionSlab]]:
    """The volume's grid, and its sections in order with the planes whose centres lie in them.

    ``images`` are the sections, or their mosaics before stitching; ``boxes`` their edges and
    extents. A missing number becomes a blank slab.
    """
    if parameters.align not in ("none", AUTO) and not np.isclose(*spacing[1:], rtol=1e-6):
        raise InputError(
            f"--stack_align {parameters.align} needs voxels as high as wide, but {images[0].path} "
            f"has {spacing[1]:g} x {spacing[2]:g} micrometre (y x); resample to one --resolution."
        )
    if 0 < parameters.blend < spacing[0] * (1 - 1e-6):
        raise InputError(
            f"--stack_blend {parameters.blend:g} is less than one voxel of {images[0].path} "
            f"({spacing[0]:g} micrometre); give at least that, or 0."
        )
    numbers = sections_by_number(images, parameters.allow_missing_sections, parameters.excluded)
    require_flippable([*numbers], parameters)
    cuts = cut_surfaces(images, [extent for _, extent in boxes], spacing[0], parameters)
    parts = zip(numbers.items(), boxes, cuts, strict=True)
    sections = {n: (image, *box, cut) for (n, image), box, cut in parts}
    apart = distances({n: edge[0] for n, (_, edge, *_) in sections.items()})
    deep = min(_imaged_depth(image, extent, cut) for image, _, extent, cut in sections.values())
    stated = apart.mean if apart is not None and apart.are_thickness(deep, spacing[0]) else None
    slabs: list[SectionSlab] = []
    for number in range(min(sections), max(sections) + 1):
        if number not in sections:
            slab = replace(slabs[-1], number=number, name="missing", image=None)
        else:
            image, edge, extent, cut = sections[number]
            thickness = _section_thickness(image, parameters, extent, cut, stated)
            slab = SectionSlab.of_image(number, image, (edge, extent), cut, thickness)
        slabs.append(slab)
    return arrange_slabs(slabs, spacing)


def arrange_slabs(slabs: Sequence[SectionSlab], spacing: Vector) -> tuple[Grid, list[SectionSlab]]:
    """The grid of a volume in which sections follow each other by their thickness, and its slabs.

    They get their ``surface`` and the planes whose centres lie in them.
    """
    *surfaces, surface = accumulate((slab.thickness for slab in slabs), initial=0.0)
    slabs = [replace(slab, surface=depth) for slab, depth in zip(slabs, surfaces, strict=True)]
    low = [min(s.edge[axis] for s in slabs) for axis in (1, 2)]
    high = [max(s.edge[axis] + s.extent[axis] for s in slabs) for axis in (1, 2)]
    extent = vector(surface, high[0] - low[0], high[1] - low[1])
    # The frame of the first section's image, along all axes.
    grid = Grid.covering(vector(slabs[0].edge[0], *low), extent, spacing)
    first = [int(np.ceil(s.surface / spacing[0] - 0.5 - 1e-9)) for s in slabs]
    # The depth is rounded to whole planes: it may end above or below the last section's.
    stops = np.clip([*first, grid.shape[0]], 0, grid.shape[0]).tolist()
    planes = map(range, stops[:-1], stops[1:])
    return grid, [replace(s, planes=p) for s, p in zip(slabs, planes, strict=True)]


def table_displacements(
    path: Path, slabs: Sequence[SectionSlab], grid: Grid, parameters: StackParameters
) -> dict[int, Displacement]:
    """Displacements of the sections in a volume that a table gives, by number.

    Rows of sections that the user left out are passed over. Raises an InputError that names the
    line of a wrong row.
    """
    imaged = {slab.number for slab in slabs if slab.image is not None}
    displacements = read_displacements(path, imaged.union(parameters.excluded), grid)
    return {number: move for number, move in displacements.items() if number in imaged}


def table_thicknesses(path: Path, slabs: Sequence[SectionSlab]) -> dict[int, float]:
    """Thickness of the sections that a table of displacements gives, micrometres, by number.

    Raises an InputError that names the line of a thickness that is less than a voxel or exceeds the
    imaged depth.
    """
    imaged = {slab.number: slab for slab in slabs if slab.image is not None}
    thicknesses: dict[int, float] = {}
    for line, row in read_rows(path, COLUMNS):
        slab = imaged.get(int(float(row["section"])))
        if slab is None or slab.image is None or "thickness" not in row:
            continue
        voxel, deep = slab.image.grid.spacing[0], slab.extent[0]
        try:
            thickness = float(row["thickness"])
        except ValueError:
            thickness = math.nan
        # Also false for NaN.
        if not voxel * (1 - 1e-6) <= thickness <= deep * (1 + 1e-6):
            raise InputError(
                f"{path}, line {line}: {comma}"
                if (comma := comma_in({"thickness": row["thickness"]}))
                else f"{path}, line {line}: the thickness of section {slab.number} is "
                f"{row['thickness']}; give micrometres from {voxel:g}, a voxel, to {deep:g}, the "
                "imaged depth, or leave it empty."
            )
        thicknesses[slab.number] = thickness
    return thicknesses


def with_thicknesses(
    slabs: Sequence[SectionSlab], thicknesses: Mapping[int, float], source: str
) -> list[SectionSlab]:
    """Slabs with the thickness found for some of them, by number; ``source`` says how.

    Blank ones get the median of the others, but for those that are as thick as they were imaged.
    """
    sized = [
        replace(slab, thickness=thicknesses[slab.number], thickness_from=source)
        if slab.number in thicknesses
        else slab
        for slab in slabs
    ]
    sizes = [s.thickness for s in sized if s.image is not None and s.thickness_from != BY_DEPTH]
    if not (thicknesses and sizes):
        return sized
    usual = median(sizes)
    return [
        replace(slab, thickness=usual, thickness_from=MEDIAN) if slab.image is None else slab
        for slab in sized
    ]


def overlap_warnings(slabs: Sequence[SectionSlab]) -> list[str]:
    """Warning about sections that do not overlap the section before them in y and x."""
    imaged = [slab for slab in slabs if slab.image is not None]
    numbers = [
        b.number
        for a, b in pairwise(imaged)
        if any(
            max(a.edge[k], b.edge[k]) >= min(s.edge[k] + s.extent[k] for s in (a, b))
            for k in (1, 2)
        )
    ]
    who, overlap, stores, them = (
        ("Section", "does not overlap the section before it", "its store", "it")
        if len(numbers) == 1
        else ("Sections", "do not overlap the sections before them", "their stores", "them")
    )
    text = f"in y and x: correct --positions or the translations in {stores}, or remove {them}."
    return [f"{who} {list_numbers(numbers)} {overlap} {text}"] if numbers else []


def blank_warnings(slabs: Sequence[SectionSlab]) -> list[str]:
    """Warning about sections whose thickness in the metadata exceeds their imaged depth."""
    sizes = [
        (
            slab,
            float(cast("float", section_metadata(slab.image).get("thickness", 0))),
            _imaged_depth(slab.image, slab.image.grid.extent, slab.cut),
        )
        for slab in slabs
        if slab.image is not None
    ]
    short = [size for size in sizes if size[1] > size[2] * (1 + 1e-6)]
    more = f" (and {len(short) - 1} more)" if short[1:] else ""
    return [
        f"{slab.name}{more} is {thickness:g} micrometre thick by its metadata but only {deep:g} "
        f"deep{_below_surface(slab.cut)}: deeper planes will be blank; check it, or give "
        "--section_thickness."
        for slab, thickness, deep in short[:1]
    ]


def distance_warnings(slabs: Sequence[SectionSlab]) -> list[str]:
    """Warning about translations along z that contradict the thickness used."""
    imaged = [slab for slab in slabs if slab.image is not None]
    first = imaged[0]
    # Of the images, as their stores state them: surfaces vary from section to section.
    apart = distances({slab.number: slab.edge[0] - slab.cut.depth for slab in imaged})
    assert first.image is not None
    half = first.image.grid.spacing[0] / 2
    if apart is None or (apart.is_steady and abs(apart.mean - first.thickness) <= half):
        return []
    return [
        f"{first.name} and the following sections are {apart} micrometre apart by their "
        f"translations along z, but {first.thickness:g} is used; give --section_thickness, at most "
        "the imaged depth: octane leaves no gaps between sections."
    ]


def describe_thickness(slabs: Sequence[SectionSlab]) -> str:
    """The thickness of the sections and its source, in a sentence."""
    sizes = sorted({slab.thickness for slab in slabs})
    size = f"{sizes[0]:g} to {sizes[-1]:g}" if sizes[1:] else f"{sizes[0]:g}"
    sources = " or ".join(dict.fromkeys(slab.thickness_from for slab in slabs))
    return f"Section thickness: {size} micrometre, {sources}."


def surface_warnings(slabs: Sequence[SectionSlab]) -> list[str]:
    """Warning about sections whose surface STITCH looked for and could not measure."""
    lacking = [
        (slab, surface.reason)
        for slab in slabs
        if slab.image is not None
        and slab.cut.source in (OF_OTHERS, NONE_MEASURED)
        and (surface := recorded_surface(slab.image)) is not None
    ]
    # Data that begin within the tissue show none.
    if not lacking or len(lacking) == sum(slab.image is not None for slab in slabs):
        return []
    named = list_numbers([f"{slab.number} ({reason})" for slab, reason in lacking])
    cut = lacking[0][0].cut
    whose, begins = ("section", "it begins") if len(lacking) == 1 else ("sections", "they begin")
    if cut.source == OF_OTHERS:
        place = f"{cut.depth:.4g} micrometre deep, as the median of the others."
    else:
        place = "with the first plane; give --section_surface in micrometres if water lies above."
    return [f"The surface of {whose} {named} was not measured: {begins} {place}"]
