"""Fit of a section's tiles: their places, refined or not, their light, and how well they fit."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from octane.compare.columns import Columns
from octane.compare.orientation import (
    PATTERN_CORRELATION,
    FoundOrientation,
    find_orientation,
    likeness,
)
from octane.compare.overlap import middle_tiles
from octane.config.types import AUTO
from octane.core.metrics import Metrics
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.checks import Findings, compare, compare_brightness
from octane.processes.stitch.exposure import blurred_tiles
from octane.processes.stitch.flat_field import Image as Profile
from octane.processes.stitch.light import Light, light_of
from octane.processes.stitch.parameters import StitchParameters
from octane.processes.stitch.planes import find_depth_shifts
from octane.processes.stitch.record import BlurredFigures, MisplacedFigures
from octane.processes.stitch.reference import Reference
from octane.processes.stitch.refinement import Refinement, refine_positions


@dataclass(frozen=True)
class Views:
    """What is known of a section's tiles before they are compared.

    ``profiles`` are their columns; brightness of ``saturated`` tiles says nothing, and ``empty``
    ones were not imaged. ``reference`` places the tiles of another channel.
    """

    tiling: MosaicGrid
    profiles: Mapping[Tile, Columns]
    saturated: Collection[Tile]
    empty: Collection[Tile]
    reference: Reference | None


@dataclass(frozen=True)
class TileFit:
    """Tiles at their places, with their ``light``, and what comparing them found.

    ``evened`` are the projections in this light. ``odd`` tiles are not compared further, and
    ``fits`` is false if the places of all tiles are wrong. The others are as for a measurement.
    """

    placement: TilePlacement
    light: Light
    evened: Projections
    findings: Findings
    odd: Set[Tile]
    fits: bool = True
    turned: FoundOrientation | None = None
    unsharp: list[BlurredFigures] = field(default_factory=list)
    refinement: Refinement | None = None

    @property
    def misplaced_tiles(self) -> set[Tile]:
        """Tiles that are out of place otherwise than along z."""
        return {(tile.row, tile.column) for tile in self.findings[1] if tile.planes is None}

    @property
    def starts(self) -> dict[Tile, Position]:
        """Fractional indices of the tiles' first voxels in the section."""
        return {tile: (y.shift, x.shift) for tile, (y, x) in self.placement.places.items()}


def fit_of(
    views: Views,
    stated: TilePlacement,
    seen: Projections,
    given: Profile | None,
    parameters: StitchParameters,
    metrics: Metrics,
) -> TileFit:
    """Place tiles from where they are ``stated``, measure their light, and compare them.

    ``seen`` are means over depth of planes that all tiles show; ``given`` is a flat field to apply.
    """
    placement, refinement = stated, None
    with metrics.timed("overlaps"):
        light = light_of(seen, placement, given, parameters)
        if parameters.refine:
            # Evened tiles register better, and registered tiles show their shading better.
            refinement = _refinement(views.tiling, stated, light.even_out(seen), parameters)
            placement = TilePlacement(views.tiling, refinement.positions, stated.depths)
            light = light_of(seen, placement, given, parameters)
        evened = light.even_out(seen)
    starts = {tile: (y.shift, x.shift) for tile, (y, x) in placement.places.items()}
    full = {*views.saturated}
    with metrics.timed("check"):
        if views.reference is not None:
            odd = views.reference.odd | full
            findings = [], [], compare_brightness(evened, starts, odd)
            return TileFit(placement, light, evened, findings, odd)
        findings, turned = _compare_tiles(views, placement, evened, starts)
        overlaps, misplaced, _ = findings
        odd = {(t.row, t.column) for t in misplaced if t.planes is None} | full
        # Where tiles do not overlap as placed, they show different tissue.
        fits = turned is None and not any(overlap.better for overlap in overlaps)
        unsharp = blurred_tiles(evened, starts, odd | {*views.empty}) if fits else []
    return TileFit(
        *(placement, light, evened, findings, odd, fits, turned, unsharp), refinement=refinement
    )


def _refinement(
    tiling: MosaicGrid,
    stated: TilePlacement,
    evened: Projections,
    parameters: StitchParameters,
) -> Refinement:
    """Refine the places of tiles; unasked, not if they show a pattern that would draw them."""
    imaged = {tile: evened[tile] for tile in middle_tiles(tiling)}
    if parameters.refine == AUTO and likeness(imaged) > PATTERN_CORRELATION:
        return Refinement(stated.positions, "all tiles show the same pattern")
    return refine_positions(tiling, stated.positions, evened, parameters.max_shift)


def _compare_tiles(
    views: Views,
    placement: TilePlacement,
    evened: Projections,
    starts: Mapping[Tile, Position],
) -> tuple[Findings, FoundOrientation | None]:
    """Compare tiles as placed, along z too if they overlap so, and under other orientations."""
    tiling, positions = views.tiling, placement.positions
    sizes = (tiling.tile_extent[1:], tiling.spacing[1:])
    overlaps, misplaced, uneven = compare(evened, starts, positions, *sizes, views.saturated)
    if not any(overlap.better for overlap in overlaps):
        # A tile that lies deeper shows more water, or less, and is of another brightness.
        misplaced_places = {(tile.row, tile.column) for tile in misplaced}
        deeper = find_depth_shifts(views.profiles, starts, misplaced_places, placement.depths)
        misplaced += [
            MisplacedFigures(row=y, column=x, planes=planes) for (y, x), planes in deeper.items()
        ]
    turned = None
    if any(overlap.found is None or overlap.better for overlap in overlaps):
        turned = _better_orientation(tiling, evened, positions)
    if turned is not None:
        overlaps, misplaced = turned.best.instead(overlaps), []
    return (overlaps, misplaced, uneven), turned


def _better_orientation(
    tiling: MosaicGrid, projections: Projections, positions: dict[Tile, Position]
) -> FoundOrientation | None:
    """Find the orientation of rows and columns under which several neighbours fit, if another."""
    imaged = {tile: projections[tile] for tile in tiling.imaged_tiles}
    orientation = find_orientation(imaged, positions, tiling.spacing[1:])
    return (
        orientation
        if orientation is not None and orientation.is_other and orientation.is_several
        else None
    )
