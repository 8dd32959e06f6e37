"""What PREFLIGHT decides by the data because nobody states it: how tiles lie and overlap."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy.typing as npt

from octane.compare.comparison import Images
from octane.compare.orientation import find_orientation
from octane.compare.overlap import GridOverlap, depth_mean, grid_overlap, middle_tiles
from octane.config.types import AUTO
from octane.core.errors import InputError
from octane.core.records import Decision
from octane.core.units import counted
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.processes.mosaic.checks_before import Acquisition, changed_flip
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.preflight.parameters import Settings
from octane.processes.preflight.subject import SubjectLayout
from octane.processes.stack.record import BY_DEPTH
from octane.store.channels import is_nearest
from octane.store.image import Image

LEAST_FIT = 0.75
"""Least part of the neighbours along an axis that must fit under another orientation. MOSAIC checks
each section again."""
MOST_SECTIONS = 8
"""Most sections that are compared."""
FIRST_SECTIONS = 4
"""Sections that are compared first: those that are imaged later must change no decision."""


@dataclass(frozen=True)
class SectionSource:
    """The tiles of a section: their grid, how to read one (z, y, x), and stated ``positions``."""

    grid: MosaicGrid
    tile_bytes: int
    read: Callable[[Tile], npt.NDArray]
    number: int | None = None
    positions: Mapping[Tile, Position] = field(default_factory=dict)

    @cached_property
    def means(self) -> Images:
        """Means over depth of the tiles in the middle."""
        tiles = middle_tiles(self.grid, self.tile_bytes)
        return {tile: depth_mean(self.read(tile)) for tile in tiles}


def sections_of_tiles(tiles: Acquisition) -> list[SectionSource]:
    """Sections of tiles in files, of one channel, in their order; none whose mean means nothing."""
    return [
        SectionSource(
            section.grid, section.tile_bytes, section.read, section.number, section.positions
        )
        for section in tiles.sections
        if not is_nearest(section.channels[min(section.channels)])
    ]


def sections_of_mosaics(images: Sequence[Image]) -> list[SectionSource]:
    """Sections of mosaics in their order; none whose mean means nothing."""
    sources = []
    for image in images:
        grid = MosaicGrid.of(image)
        size = prod(grid.tile) * image.dtype.itemsize
        if not is_nearest(image.attributes):
            sources.append(SectionSource(grid, size, _reader(image, grid)))
    return sources


def _reader(image: Image, grid: MosaicGrid) -> Callable[[Tile], npt.NDArray]:
    return lambda tile: image.read(grid.region(tile))


def decide_overlap(
    source: str, sections: Sequence[SectionSource]
) -> tuple[tuple[float, float], Decision | None]:
    """Overlap of the tiles of a grid as fractions of a tile (y, x), and how it was decided.

    No decision is needed where no tile has a neighbour. Raises an InputError that says what was
    seen in ``source`` if the tiles do not show it with certainty.
    """
    if all(len(section.grid.imaged_tiles) == 1 for section in sections) and sections:
        return (0.0, 0.0), None
    means: list[Images] = []
    measured = GridOverlap()
    for section in _comparison_order(sections):
        means.append(section.means)
        measured = grid_overlap(means, section.grid.tile[1:])
        if measured.is_exact:
            break
    if not measured.is_certain:
        raise InputError(
            f"The tiles in {source} do not state how they overlap, and {_explain_doubt(measured)}."
        )
    y, x = (0.0 if overlap is None else overlap.fraction for overlap in measured.axes)
    flag = f"--overlap {y:g},{x:g}"
    known = [
        (axis, overlap)
        for axis, overlap in zip("yx", measured.axes, strict=True)
        if overlap is not None
    ]
    figures = " and ".join(
        f"{overlap.fraction:.4f} ± {overlap.error:.4f} along {axis}" for axis, overlap in known
    )
    pairs = sum(overlap.pairs for _, overlap in known)
    evidence = f"{figures}, by {counted(pairs, 'pair')} of neighbours"
    return (y, x), Decision(
        subject="Overlap of tiles", evidence=evidence, done="placed so", flag=flag
    )


def without_decisions(settings: Settings, *, is_placed: bool, is_compared: bool) -> Settings:
    """Settings under which tiles stay if the user has placed them.

    All stays as stated if the user wants it, or if the result ``is_compared`` with a truth.
    """
    is_kept = settings.workflow.as_stated or is_compared
    stitch, stack = dict[str, object](), dict[str, object]()
    if settings.stitch.refine == AUTO and (is_placed or is_kept):
        stitch["refine"] = False
    if settings.stitch.flat_field == AUTO and is_kept:
        stitch["flat_field"] = "none"
    for name, stated in (("align", "none"), ("section_surface", 0.0), ("section_level", False)):
        if getattr(settings.stack, name) == AUTO and is_kept:
            stack[name] = stated
    return settings.model_copy(
        update={
            "stitch": settings.stitch.model_copy(update=stitch),
            "stack": settings.stack.model_copy(update=stack),
        }
    )


def with_thickness(layout: SubjectLayout, file_parameters: Collection[str]) -> SubjectLayout:
    """Layout whose settings measure the thickness of sections if nobody states it.

    ``file_parameters`` are those whose files the user gave. STACK measures it where sections show
    the planes of those above again, and takes all that was imaged for the others.
    """
    settings, slabs = layout.settings, layout.slabs
    is_stated = not any(slab.thickness_from == BY_DEPTH for slab in slabs)
    is_stated |= settings.stack.section_thickness is not None or "displacements" in file_parameters
    # Light of deep planes, which are compared, would differ.
    is_changed = layout.kind == "mosaic" and settings.stitch.attenuation != "none"
    is_kept = (
        settings.workflow.as_stated
        or "truth" in file_parameters
        or any(s.is_nearest for s in slabs)
    )
    if len(slabs) < 2 or is_stated or is_changed or is_kept:
        return layout
    stack = settings.stack.model_copy(update={"section_thickness": AUTO})
    return replace(layout, settings=settings.model_copy(update={"stack": stack}))


def decide_flip(
    sections: Sequence[SectionSource], p: TileParameters
) -> tuple[TileParameters, Decision] | None:
    """Change --tile_flip if neighbours certainly fit only so.

    None if they fit as they are, or show too little.
    """
    for section in _comparison_order(sections):
        means = section.means
        places = section.positions if section.positions.keys() >= means.keys() else None
        sy, sx = section.grid.spacing[1:]
        orientation = find_orientation(means, places, (sy, sx))
        if orientation is None or not orientation.is_clear:
            continue
        if not orientation.is_other:
            return None
        if not orientation.is_proof or orientation.fit.agreeing < LEAST_FIT:
            continue
        flip = changed_flip(p, orientation.best)
        agreeing, as_given = orientation.fit.agreeing, max(orientation.as_given, 0)
        evidence = f"{agreeing:.0%} of neighbours fit so, {as_given:.0%} as named or placed, "
        evidence += f"in section {section.number}"
        flag = f"--tile_flip {flip}"
        decision = Decision(
            subject="Rows and columns", evidence=evidence, done=orientation.best.said, flag=flag
        )
        return p.model_copy(update={"flip": flip}), decision
    return None


def _comparison_order(sections: Sequence[SectionSource]) -> Iterator[SectionSource]:
    """The sections to compare, one after another: the first few, then some of all others."""
    n, others = len(sections), MOST_SECTIONS - FIRST_SECTIONS
    places = [*range(FIRST_SECTIONS), *(n * part // (others + 1) for part in range(1, others + 1))]
    for place in dict.fromkeys(place for place in places if place < n):
        if len(sections[place].grid.imaged_tiles) > 1:
            yield sections[place]


def _explain_doubt(measured: GridOverlap) -> str:
    """What was seen instead of an overlap, and what to give."""
    orientation = measured.orientation
    give = "give --overlap (a fraction of a tile, 0 if they abut), or --positions"
    if orientation is None or not orientation.is_clear:
        return f"neighbours show too little, or do not overlap; {give}"
    if orientation.has_pattern:
        return f"all tiles show the same pattern, such as dust, fringes or a frame; {give}"
    if orientation.is_other:
        # With an overlap alone, STITCH would refuse them.
        flag = "--positions, or --tile_flip if they are in files"
        return f"neighbours fit only if {orientation.best.said}; give {flag}, or arrange them so"
    about = [
        f"{overlap:.2f} along {axis}"
        for axis, overlap in zip("yx", orientation.overlap, strict=True)
        if overlap
    ]
    return f"it is not certain that neighbours overlap by about {' and '.join(about)}; {give}"
