"""Measurement of a section's tiles: their places, their light and fit, and the tissue's surface."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from octane.compare.columns import Columns, columns
from octane.compare.orientation import FoundOrientation, find_orientation
from octane.core.geometry import shape_of
from octane.core.metrics import Metrics
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.layout.placement import TilePlacement
from octane.pipeline.lanes import Lane, run_pipeline
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.checks import Findings, compare, compare_brightness
from octane.processes.stitch.exposure import blurred
from octane.processes.stitch.flat_field import FlatField, Light, light_of
from octane.processes.stitch.flat_field import Image as Profile
from octane.processes.stitch.gains import (
    Gains,
    MeasuredGains,
    judged_flat_field,
    measured_gains,
    of_one_brightness,
)
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.planes import why_not_compared
from octane.processes.stitch.record import (
    SATURATED,
    BlurredFigures,
    HeldOutFigures,
    SaturatedFigures,
    SurfaceFigures,
)
from octane.processes.stitch.reference import Reference
from octane.processes.stitch.refinement import refined_positions
from octane.processes.stitch.saturation import saturation
from octane.processes.stitch.seams import Seams, measured_seams
from octane.processes.stitch.surface import NOT_AVERAGED, measured_surface
from octane.store.image import Image

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mosaic:
    """A mosaic and how it is read: by ``workers`` from its store, or once, into ``voxels``.

    ``working`` is the type that its tiles are blended in; ``nearest`` means that its values must
    not be averaged.
    """

    image: Image
    tiling: MosaicGrid
    working: np.dtype
    workers: int
    voxels: npt.NDArray | None
    nearest: bool


@dataclass(frozen=True)
class Measurement:
    """A section's tiles at their ``positions``, and what they show.

    ``empty`` tiles were not imaged, ``digest`` is that of all voxels, and ``turned`` is another
    orientation of rows and columns under which several tiles fit their neighbours, but not as
    placed. Seams and brightness are those after ``light`` was evened out, whose rest is ``left``;
    values that must not be averaged have neither. ``gains`` are those that tiles are divided by,
    empty unless they were asked for; ``gains_held_out`` and ``flat_held_out`` are the seams that
    estimates were not fitted to, and ``dim`` the tiles whose overlaps show no gain. ``shares`` are
    those of each tile's voxels at its highest value, and that value; ``not_in_z`` says why no tiles
    were compared along z.
    """

    positions: dict[Tile, Position]
    placement: TilePlacement
    empty: set[Tile]
    digest: str
    surface: SurfaceFigures
    light: Light = field(default_factory=Light)
    left: FlatField | None = None
    seams: Seams = field(default_factory=Seams)
    findings: Findings = field(default_factory=lambda: ([], [], []))
    turned: FoundOrientation | None = None
    blurred: list[BlurredFigures] = field(default_factory=list)
    shares: Mapping[Tile, tuple[float, float]] = field(default_factory=dict)
    not_in_z: str = ""
    gains: Gains = field(default_factory=dict)
    gains_held_out: HeldOutFigures | None = None
    flat_held_out: HeldOutFigures | None = None
    dim: Collection[Tile] = ()

    @property
    def saturated(self) -> list[SaturatedFigures]:
        """Tiles with too many voxels at their highest value."""
        return [
            SaturatedFigures(row=tile[0], column=tile[1], share=share, level=level)
            for tile, (share, level) in self.shares.items()
            if share > SATURATED
        ]


def measure(
    mosaic: Mosaic,
    nominal: dict[Tile, Position],
    given: Profile | None,
    parameters: StitchParameters,
    reference: Reference | None,
    metrics: Metrics,
    given_gains: Gains | None = None,
) -> Measurement:
    """Read all tiles and measure them; fill ``mosaic.voxels``.

    ``nominal`` positions are refined if the ``parameters`` say so; ``given`` is a flat field to
    apply, and ``given_gains`` are gains to apply. With a ``reference``, only light and brightness
    are measured.
    """
    tiling, positions, dark = mosaic.tiling, nominal, parameters.dark_offset
    placement = TilePlacement(tiling, positions)
    with metrics.timed("project"):
        seen, profiles, shares = _projected(mosaic, metrics)
    empty, digest = _empty(mosaic.image.path.name, tiling, seen, metrics), _digest(seen)
    if mosaic.nearest:
        surface = SurfaceFigures(reason=NOT_AVERAGED) if reference is None else reference.surface
        return Measurement(positions, placement, empty, digest, surface)
    with metrics.timed("overlaps"):
        light = light_of(seen, placement, given, parameters)
        if parameters.refine:
            # Evened tiles register better, and registered tiles show their shading better.
            reach = parameters.max_shift
            positions = _refined(mosaic, nominal, light.evened(seen), reach, metrics)
            placement = TilePlacement(tiling, positions)
            light = light_of(seen, placement, given, parameters)
        evened = light.evened(seen)
    turned = None
    starts = {tile: (y.shift, x.shift) for tile, (y, x) in placement.places.items()}
    full = {tile for tile, (share, _) in shares.items() if share > SATURATED}
    unsharp: list[BlurredFigures] = []
    why, fits = "", True
    with metrics.timed("check"):
        if reference is None:
            sizes = (tiling.tile_extent[1:], tiling.spacing[1:])
            findings = compare(evened, profiles, starts, positions, *sizes, full)
            overlaps, misplaced, uneven = findings
            if any(overlap.found is None or overlap.better for overlap in overlaps):
                turned = _turned(tiling, evened, positions)
            if turned is not None:
                overlaps, misplaced = turned.best.instead(overlaps), []
                findings = overlaps, misplaced, uneven
            wrong = {(t.row, t.column) for t in misplaced if t.planes is None} | full
            shared = max(place.before for pair in placement.places.values() for place in pair)
            why = why_not_compared(profiles, shared)
            # Where tiles do not overlap as placed, they show different tissue.
            fits = turned is None and not any(overlap.better for overlap in overlaps)
            if fits:
                unsharp = blurred(evened, starts, wrong | empty)
        else:
            wrong = reference.odd | full
            uneven = compare_brightness(evened, starts, wrong)
            findings = [], [], uneven
    gains, found = given_gains or {}, None
    flat_held_out: HeldOutFigures | None = None
    with metrics.timed("overlaps"):
        if parameters.gain == ESTIMATE:
            blur = {(tile.row, tile.column) for tile in unsharp}
            if fits:
                found = _gains(seen, placement, light, wrong | blur, parameters)
            gains = dict.fromkeys(tiling.imaged, 1.0)
            if found is not None and found.held_out.helped:
                gains |= found.gains
        if any(gain != 1 for gain in gains.values()):
            seen = of_one_brightness(seen, gains, dark)
            light = light_of(seen, placement, given, parameters)
            evened = light.evened(seen)
            uneven = compare_brightness(evened, starts, wrong)
            findings = *findings[:2], uneven
        even = seen
        if any(tile.brightness > 0 for tile in uneven):
            # A factor of one tile is not taken for a pattern that all tiles share.
            times = {(own.row, own.column): own.brightness for own in uneven if own.brightness > 0}
            even = of_one_brightness(seen, times, dark)
            light = light_of(even, placement, given, parameters)
            evened = light.evened(seen)
        left = light.left(light.evened(even) if light.is_given else evened, placement)
        if parameters.flat_field == ESTIMATE:
            flat_held_out = judged_flat_field(even, placement, dark=dark)
        # Only one of the two is kept in memory.
        del seen, even
        seams = measured_seams(placement, {t: evened[t] for t in tiling.imaged}, left)
    if reference is None:
        with metrics.timed("surface"):
            surface = measured_surface(profiles, placement, dark=dark)
    else:
        surface = reference.surface
    return Measurement(
        *(positions, placement, empty, digest, surface, light, left, seams, findings),
        *(turned, unsharp, shares, why, gains, found.held_out if found else None, flat_held_out),
        dim=[t for t in tiling.imaged if t not in empty and found and t not in found.gains],
    )


def _gains(
    projections: Projections,
    placement: TilePlacement,
    light: Light,
    odd: Collection[Tile],
    parameters: StitchParameters,
) -> MeasuredGains | None:
    """Measure the gains of tiles, in the light of a given flat field or with one to estimate."""
    dark = parameters.dark_offset
    if light.is_given:
        return measured_gains(light.evened(projections), placement, odd)
    with_flat = parameters.flat_field == ESTIMATE
    return measured_gains(projections, placement, odd, dark=dark, with_flat_field=with_flat)


def _turned(
    tiling: MosaicGrid, projections: Projections, positions: dict[Tile, Position]
) -> FoundOrientation | None:
    """Find the orientation of rows and columns under which several neighbours fit, if another."""
    imaged = {tile: projections[tile] for tile in tiling.imaged}
    found = find_orientation(imaged, positions, tiling.spacing[1:])
    return found if found is not None and found.is_other and found.is_several else None


def _projected(
    mosaic: Mosaic, metrics: Metrics
) -> tuple[Projections, dict[Tile, Columns], dict[Tile, tuple[float, float]]]:
    """Read every tile, and take what tells tiles apart.

    That is its mean over depth, 0 if it was not imaged, its columns, and its share of voxels at its
    highest value with that value; the latter two are missing if it was not imaged.
    """
    image, tiling = mosaic.image, mosaic.tiling
    shapes = {tile: shape_of(tiling.region(tile)[1:]) for tile in tiling.not_imaged}
    found = {tile: np.zeros(shape, np.float32) for tile, shape in shapes.items()}
    profiles: dict[Tile, Columns] = {}
    shares: dict[Tile, tuple[float, float]] = {}

    def one(tile: Tile, lane: Lane) -> int:
        region = tiling.region(tile)
        with lane.timed("read"):
            memory = None if mosaic.voxels is None else mosaic.voxels[region]
            block = image.read(region, memory)
        metrics.count("read", block.nbytes)
        with lane.timed("compute"):
            bright = np.abs(block)
            mean = bright.mean(axis=0, dtype=np.float32)
            if not np.isfinite(mean).all():
                # NaN and Inf would break the comparison of overlaps.
                known = np.ma.masked_invalid(bright)
                mean = known.mean(axis=0, dtype=np.float32).filled(0)
            found[tile], profiles[tile] = mean, columns(block)
            shares[tile] = (0.0, 0.0) if mosaic.nearest else saturation(bright, SATURATED)
        return block.nbytes

    run_pipeline(
        tiling.imaged,
        one,
        label="STITCH: reading",
        workers=mosaic.workers,
        metrics=metrics,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    # In the same order on any number of threads.
    ordered = {tile: found[tile] for tile in tiling.tiles}
    kept = {tile: shares[tile] for tile in tiling.imaged}
    return ordered, {tile: profiles[tile] for tile in tiling.imaged}, kept


def _digest(projections: Projections) -> str:
    """Digest of a section's voxels, by their means over depth; empty if all are 0.

    However the voxels are stored, an image that was copied has the same.
    """
    if not any(own.any() for own in projections.values()):
        return ""
    found = blake2b(digest_size=16)
    for tile, own in projections.items():
        found.update(f"{tile} {own.shape}".encode())
        found.update(own.astype("<f4").tobytes())
    return found.hexdigest()


def _empty(name: str, tiling: MosaicGrid, projections: Projections, metrics: Metrics) -> set[Tile]:
    """Tiles that were not imaged, which must not darken what their neighbours saw."""
    empty = {tile for tile, own in projections.items() if not own.any()}
    unsaid = empty - tiling.not_imaged
    if tiling.not_imaged:
        logger.info(
            "STITCH: %d of %d tiles of %s were not imaged, as its metadata say",
            *(len(tiling.not_imaged), len(projections), name),
        )
    if unsaid and len(empty) < len(projections):
        metrics.warn(
            f"{len(unsaid)} of {len(projections)} tiles of {name} were not imaged: they hold only "
            "0 or NaN and are left out."
        )
    return empty


def _refined(
    mosaic: Mosaic,
    nominal: dict[Tile, Position],
    projections: Projections,
    max_shift: float,
    metrics: Metrics,
) -> dict[Tile, Position]:
    """Refine the positions by the overlaps; say if they stay, or if tiles reached ``max_shift``."""
    name = mosaic.image.path.name
    refinement = refined_positions(mosaic.tiling, nominal, projections, max_shift)
    if refinement.reason:
        metrics.warn_in_report(
            f"{name}: --stitch_refine left its tiles as stated, because {refinement.reason}; if "
            "they are off, give --positions."
        )
    positions = refinement.positions
    moves = [np.subtract(positions[tile], place) for tile, place in nominal.items()]
    held = sum(np.abs(move).max() > 0.999 * max_shift for move in moves)
    if held:
        metrics.warn(
            f"{name}: {held} of {len(moves)} tiles reached "
            "--stitch_max_shift, the limit of refinement; give --positions, or a larger "
            "--stitch_max_shift."
        )
    distances = [float(np.hypot(*move)) for move in moves]
    noted = {"median": float(np.median(distances)), "max": max(distances)}
    metrics.figures["refinement_micrometer"] = noted
    if refinement.reason:
        metrics.figures["not_refined"] = refinement.reason
    return positions
