"""Measurement of a section's tiles: their places, their light and fit, and the tissue's surface."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from octane.compare.columns import Columns, columns
from octane.compare.orientation import FoundOrientation
from octane.core.geometry import shape_of
from octane.core.metrics import Metrics
from octane.layout.mosaic import Depths, MosaicGrid, Tile
from octane.layout.placement import TilePlacement
from octane.pipeline.lanes import Lane, run_pipeline
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.checks import Findings, compare_brightness
from octane.processes.stitch.fit import TileFit, Views, fit_of
from octane.processes.stitch.flat_field import FlatField
from octane.processes.stitch.flat_field import Image as Profile
from octane.processes.stitch.gains import (
    Gains,
    MeasuredGains,
    equalise_brightness,
    measure_gains,
)
from octane.processes.stitch.light import Light, light_of
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.planes import reason_not_to_compare, refine_depths
from octane.processes.stitch.record import (
    SATURATED,
    BlurredFigures,
    HeldOutFigures,
    SaturatedFigures,
    SurfaceFigures,
)
from octane.processes.stitch.reference import Reference
from octane.processes.stitch.refinement import Refinement
from octane.processes.stitch.saturation import saturation
from octane.processes.stitch.seams import Seams, measure_seams
from octane.processes.stitch.surface import NOT_AVERAGED, measure_surface
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
    """A section's tiles at their ``placement``, and what they show.

    ``empty`` tiles were not imaged, ``digest`` is that of all voxels, and ``turned`` is another
    orientation of rows and columns under which several tiles fit their neighbours, but not as
    placed. Seams and brightness are those after ``light`` was evened out, whose rest is ``left``;
    values that must not be averaged have neither. ``gains`` are those that tiles are divided by,
    empty unless they were asked for; ``gains_held_out`` and ``flat_held_out`` are the seams that
    estimates were not fitted to, and ``dim`` the tiles whose overlaps show no gain. ``shares`` are
    those of each tile's voxels at its highest value, and that value; ``not_in_z`` says why no tiles
    were compared along z, and ``not_refined`` why tiles that were to be refined stay as stated.
    """

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
    not_refined: str = ""
    dim: Collection[Tile] = ()

    @property
    def saturated_tiles(self) -> list[SaturatedFigures]:
        """Tiles with too many voxels at their highest value."""
        return [
            SaturatedFigures(row=tile[0], column=tile[1], share=share, level=level)
            for tile, (share, level) in self.shares.items()
            if share > SATURATED
        ]


def measure(
    mosaic: Mosaic,
    stated: TilePlacement,
    given: Profile | None,
    parameters: StitchParameters,
    reference: Reference | None,
    metrics: Metrics,
    given_gains: Gains | None = None,
) -> Measurement:
    """Read all tiles and measure them; fill ``mosaic.voxels``.

    ``stated`` places are refined if the ``parameters`` say so; ``given`` is a flat field to apply,
    and ``given_gains`` are gains to apply. With a ``reference``, only light and brightness are
    measured.
    """
    tiling, dark = mosaic.tiling, parameters.dark_offset
    with metrics.timed("project"):
        seen, profiles, shares = _project_tiles(mosaic, metrics)
    empty, digest = _empty_tiles(mosaic.image.path.name, tiling, seen, metrics), _digest(seen)
    if mosaic.nearest:
        surface = SurfaceFigures(reason=NOT_AVERAGED) if reference is None else reference.surface
        return Measurement(stated, empty, digest, surface)
    full = {tile for tile, (share, _) in shares.items() if share > SATURATED}
    views = Views(tiling, profiles, full, empty, reference)
    if stated.depths:
        seen = _common_means(mosaic, seen, stated, metrics)
    fit = fit_of(views, stated, seen, given, parameters, metrics)
    if parameters.refine:
        depths = _refine_depths(views, fit, stated.depths, mosaic.image.path.name, metrics)
        if depths != stated.depths:
            moved = TilePlacement(tiling, stated.positions, depths)
            seen = _common_means(mosaic, seen, moved, metrics)
            # Tiles register better by the same planes.
            fit = fit_of(views, moved, seen, given, parameters, metrics)
    if fit.refinement is not None:
        _note_refinement(mosaic, stated, fit.refinement, parameters.max_shift, metrics)
    placement, light, evened, findings = fit.placement, fit.light, fit.evened, fit.findings
    why = ""
    if reference is None:
        shared = max(place.before for pair in placement.places.values() for place in pair)
        why = reason_not_to_compare(profiles, shared)
    gains, measured_gains = given_gains or {}, None
    with metrics.timed("overlaps"):
        if parameters.gain == ESTIMATE:
            blur = {(tile.row, tile.column) for tile in fit.unsharp}
            if fit.fits:
                measured_gains = _gains(seen, placement, light, fit.odd | blur, parameters)
            gains = dict.fromkeys(tiling.imaged_tiles, 1.0)
            if measured_gains is not None and measured_gains.held_out.lowers_seams:
                gains |= measured_gains.gains
        if any(gain != 1 for gain in gains.values()):
            seen = equalise_brightness(seen, gains, dark)
            light = light_of(seen, placement, given, parameters)
            evened = light.even_out(seen)
            findings = *findings[:2], compare_brightness(evened, fit.starts, fit.odd)
        even, uneven = seen, findings[2]
        if any(tile.brightness > 0 for tile in uneven):
            # A factor of one tile is not taken for a pattern that all tiles share.
            times = {(odd.row, odd.column): odd.brightness for odd in uneven if odd.brightness > 0}
            even = equalise_brightness(seen, times, dark)
            light = light_of(even, placement, given, parameters)
            evened = light.even_out(seen)
        left = light.remaining_flat_field(
            light.even_out(even) if light.is_given else evened, placement
        )
        # Only one of the two is kept in memory.
        del seen, even
        seams = measure_seams(placement, {t: evened[t] for t in tiling.imaged_tiles}, left)
    if reference is None:
        with metrics.timed("surface"):
            surface = measure_surface(profiles, placement, dark=dark)
    else:
        surface = reference.surface
    return Measurement(
        *(placement, empty, digest, surface, light, left, seams, findings),
        *(
            fit.turned,
            fit.unsharp,
            shares,
            why,
            gains,
            measured_gains.held_out if measured_gains else None,
        ),
        light.held_out,
        not_refined="" if fit.refinement is None else fit.refinement.reason,
        dim=[
            t
            for t in tiling.imaged_tiles
            if t not in empty and measured_gains and t not in measured_gains.gains
        ],
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
        return measure_gains(light.even_out(projections), placement, odd)
    with_flat = parameters.flat_field == ESTIMATE or light.applied is not None
    return measure_gains(projections, placement, odd, dark=dark, with_flat_field=with_flat)


def _project_tiles(
    mosaic: Mosaic, metrics: Metrics
) -> tuple[Projections, dict[Tile, Columns], dict[Tile, tuple[float, float]]]:
    """Read every tile, and take what tells tiles apart.

    That is its mean over depth, 0 if it was not imaged, its columns, and its share of voxels at its
    highest value with that value; the latter two are missing if it was not imaged.
    """
    image, tiling = mosaic.image, mosaic.tiling
    shapes = {tile: shape_of(tiling.region(tile)[1:]) for tile in tiling.not_imaged}
    means = {tile: np.zeros(shape, np.float32) for tile, shape in shapes.items()}
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
            means[tile], profiles[tile] = _mean(bright), columns(block)
            shares[tile] = (0.0, 0.0) if mosaic.nearest else saturation(bright, SATURATED)
        return block.nbytes

    run_pipeline(
        tiling.imaged_tiles,
        one,
        label="STITCH: reading",
        workers=mosaic.workers,
        metrics=metrics,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    # In the same order on any number of threads.
    ordered = {tile: means[tile] for tile in tiling.tiles}
    kept = {tile: shares[tile] for tile in tiling.imaged_tiles}
    return ordered, {tile: profiles[tile] for tile in tiling.imaged_tiles}, kept


def _mean(bright: npt.NDArray) -> npt.NDArray[np.float32]:
    """Mean over depth; 0 where nothing is known."""
    mean = bright.mean(axis=0, dtype=np.float32)
    if not np.isfinite(mean).all():
        # NaN and Inf would break the comparison of overlaps.
        mean = np.ma.masked_invalid(bright).mean(axis=0, dtype=np.float32).filled(0)
    return mean


def _digest(projections: Projections) -> str:
    """Digest of a section's voxels, by their means over depth; empty if all are 0.

    However the voxels are stored, an image that was copied has the same.
    """
    if not any(image.any() for image in projections.values()):
        return ""
    digest = blake2b(digest_size=16)
    for tile, image in projections.items():
        digest.update(f"{tile} {image.shape}".encode())
        digest.update(image.astype("<f4").tobytes())
    return digest.hexdigest()


def _empty_tiles(
    name: str, tiling: MosaicGrid, projections: Projections, metrics: Metrics
) -> set[Tile]:
    """Tiles that were not imaged, which must not darken what their neighbours saw."""
    empty = {tile for tile, image in projections.items() if not image.any()}
    undeclared = empty - tiling.not_imaged
    if tiling.not_imaged:
        logger.info(
            "STITCH: %d of %d tiles of %s were not imaged, as its metadata say",
            *(len(tiling.not_imaged), len(projections), name),
        )
    if undeclared and len(empty) < len(projections):
        metrics.warn(
            f"{len(undeclared)} of {len(projections)} tiles of {name} were not imaged: they hold "
            "only 0 or NaN and are left out."
        )
    return empty


def _common_means(
    mosaic: Mosaic, projections: Projections, placement: TilePlacement, metrics: Metrics
) -> Projections:
    """Means of the tiles over the planes that all of them show at their depths."""
    means = dict(projections)

    def one(tile: Tile, lane: Lane) -> int:
        region = placement.common(tile), *mosaic.tiling.region(tile)[1:]
        if mosaic.voxels is not None:
            block = mosaic.voxels[region]
        else:
            with lane.timed("read"):
                block = mosaic.image.read(region, None)
            metrics.count("read", block.nbytes)
        with lane.timed("compute"):
            means[tile] = _mean(np.abs(block))
        return block.nbytes

    run_pipeline(
        mosaic.tiling.imaged_tiles,
        one,
        label="STITCH: comparing",
        workers=mosaic.workers,
        metrics=metrics,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {mosaic.image.path}",
    )
    return means


def _refine_depths(
    views: Views, fit: TileFit, stated: Depths, name: str, metrics: Metrics
) -> Depths:
    """Refine the depths of tiles that fit their neighbours deeper; say if some stay."""
    if all(tile.planes is None for tile in fit.findings[1]):
        return stated
    with metrics.timed("check"):
        depths, stay = refine_depths(views.profiles, fit.starts, fit.misplaced_tiles, stated)
    if stay:
        tiles = ", ".join(f"row {row}, column {column}" for row, column in stay)
        metrics.warn_in_report(
            f"{name}: --stitch_refine left {tiles} at the stated depth, because two halves of the "
            "overlaps show other shifts along z."
        )
        metrics.figures["not_refined_along_z"] = stay
    return depths


def _note_refinement(
    mosaic: Mosaic,
    stated: TilePlacement,
    refinement: Refinement,
    max_shift: float,
    metrics: Metrics,
) -> None:
    """Record how far tiles moved; say if they stay, or if some reached ``max_shift``."""
    name, positions = mosaic.image.path.name, refinement.positions
    if refinement.reason:
        logger.info("STITCH: %s keeps its tiles as stated: %s", name, refinement.reason)
    moves = [np.subtract(positions[tile], place) for tile, place in stated.positions.items()]
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
