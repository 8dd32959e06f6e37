"""STITCH: the tiles of one section placed and blended into one image."""

import functools
import logging
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.config.types import INTERMEDIATE
from octane.core.arrays import require_cpu
from octane.core.errors import InputError
from octane.core.files import writing
from octane.core.geometry import Grid, Region, blocks, bounds
from octane.core.metrics import Metrics
from octane.core.units import bytes_of
from octane.layout.mosaic import MosaicGrid, Tile, idle_overlap, scale_remark
from octane.layout.placement import TilePlacement
from octane.layout.sections import number_of
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.processes.stitch.attenuation import MOST_STEADY, REACH, Compensation
from octane.processes.stitch.blocks import blend_block
from octane.processes.stitch.checks_before import (
    applicable_parameters,
    given_flat_field,
    given_gains,
    require_compensable,
)
from octane.processes.stitch.flat_field import FlatField
from octane.processes.stitch.layout import nominal_depths, nominal_positions
from octane.processes.stitch.light import Light
from octane.processes.stitch.measurement import Measurement, Mosaic, measure
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.record import (
    COMPENSATION,
    CORRECT_PLACES,
    FROM_TABLE,
    KEEP_PLACES,
    STRONG,
    StitchFigures,
    SurfaceFigures,
    depth_words,
    overlap_values,
)
from octane.processes.stitch.reference import reference_of
from octane.store.channels import is_nearest, name_of
from octane.store.image import Image, open_image
from octane.store.stated import Attributes, stated_orientation
from octane.store.volumes import override_warnings
from octane.store.writer import DirectWriter, Level, create_image

logger = logging.getLogger(__name__)

PROFILE = 128
"""Longest edge of a flat field in the report, pixels."""
THUMBNAIL = 384
"""Longest edge of a section's picture in the report, pixels."""

MOST_NAMED = 12
"""Most tiles that a warning about gains names."""

T = TypeVar("T")
Shown = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""First plane that tiles show at each pixel (y, x), and the one after the last."""


def _plan_mosaic(
    image: Image,
    tiling: MosaicGrid,
    grid: Grid,
    parameters: StitchParameters,
    execution: ExecutionParameters,
) -> Mosaic:
    """Plan the memory; keep the mosaic if it fits."""
    memory, tiles = bytes_of(execution.memory), len(tiling.tiles)
    owned = blended = Level.volume(grid).object_shape
    if parameters.attenuation != "none":
        blended = (grid.shape[0], *(n + 2 * REACH for n in owned[1:]))
    block = math.prod(np.minimum(blended, grid.shape).tolist())
    nearest = is_nearest(image.attributes)
    working = image.dtype if nearest else np.promote_types(image.dtype, np.float32)
    need = (2 * block + 3 * math.prod(tiling.tile)) * working.itemsize
    most = max(len(blocks(grid.shape, owned)), tiles)
    workers = plan_workers(need, memory, execution.workers, most)
    # A tile is read for its overlaps and again for each block that it meets.
    size = math.prod(tiling.shape) * image.dtype.itemsize
    kept = PROCESS_BYTES + workers * need + size <= memory
    logger.info(
        "STITCH: %s, %d worker(s) with %.0f MB each, the mosaic %s",
        *(image.path.name, workers, need / 1e6),
        "read once and kept in memory" if kept else "read block by block",
    )
    voxels = np.empty(tiling.shape, image.dtype) if kept else None
    return Mosaic(image, tiling, working, workers, voxels, nearest)


def _check_findings(
    name: str,
    measured: Measurement,
    parameters: StitchParameters,
    metrics: Metrics,
    *,
    is_placed: bool,
) -> None:
    """Warn of what the comparison of tiles found.

    ``is_placed`` if a table places them. Raises an OctaneError if most pairs correlate at another
    overlap, or under another orientation, and not as given.
    """
    overlaps, misplaced, uneven = measured.findings
    if measured.turned is not None:
        text = f"{name}: its tiles fit their neighbours only if {measured.turned.best.said}; "
        mended = "write the grid so, or give --positions"
        text += CORRECT_PLACES if is_placed else mended
        if measured.turned.is_certain and parameters.check_overlap == "error":
            raise InputError(f"{text}, {KEEP_PLACES}.")
        metrics.warn_in_report(f"{text}.")
    wrong = [o for o in overlaps if o.better and o.found is not None]
    if wrong:
        text = " and ".join(f"{o.found:.3f} along {o.axis}, not {o.given:.3g}" for o in wrong)
        scaled = scale_remark(wrong) if is_placed else ""
        text = f"{name}: its tiles correlate at an overlap of {text}{scaled}; "
        mended = f"give --overlap {overlap_values(overlaps)}"
        text += CORRECT_PLACES if is_placed else mended
        if any(o.certain for o in wrong) and parameters.check_overlap == "error":
            raise InputError(f"{text}, {KEEP_PLACES}.")
        metrics.warn(f"{text}.")
    # Tiles without light were named before.
    lit = [tile for tile in uneven if tile.brightness > 0]
    others = (*measured.blurred, *measured.saturated_tiles)
    if odd := [tile.sentence for tile in (*misplaced, *lit, *others)]:
        metrics.warn(f"{name}: {', '.join(odd)}.")


def _note_light(
    name: str, measured: Measurement, parameters: StitchParameters, metrics: Metrics
) -> None:
    """Keep the flat field's picture; warn if none can be estimated, or only along one axis."""
    light = measured.light
    if shown := light.applied or light.measured:
        step = -(-max(shown.profile.shape) // PROFILE)
        metrics.previews["flat_field"] = shown.profile[::step, ::step]
    if parameters.flat_field == ESTIMATE and light.measured is None:
        text = "too few overlaps show light to estimate a flat field; none is applied"
        metrics.warn(f"{name}: {text}.")
    if light.is_given or light.applied is None:
        return
    alone = [axis for axis in "yx" if f"seam_{axis}" in measured.seams.along]
    if len(alone) == 1:
        one, other = ("x", "y") if alone == ["x"] else ("y", "x")
        metrics.warn_in_report(
            f"The tiles overlap only along {one}, so shading along {other} remains; if there is "
            "any, give --stitch_flat_field FILE."
        )


def _note_gains(
    name: str, measured: Measurement, parameters: StitchParameters, metrics: Metrics
) -> None:
    """Warn if gains cannot be estimated, lower no seam, or are unknown for some tiles."""
    if parameters.gain != ESTIMATE:
        return
    judged, dim, gains = measured.gains_held_out, measured.dim, measured.gains
    if judged is None:
        metrics.warn(
            f"{name}: too few overlaps show light, and the same tissue, to estimate gains; none "
            "are applied."
        )
    elif not judged.lowers_seams:
        metrics.warn_in_report(
            "--stitch_gain estimate does not lower the seams that it was not fitted to; no gains "
            "are applied."
        )
    elif dim:
        tiles = [f"row {row}, column {column}" for row, column in dim]
        more = f" and {len(tiles) - MOST_NAMED} more" if len(tiles) > MOST_NAMED else ""
        metrics.warn(
            f"{name}: {len(dim)} of {len(gains)} tiles keep the gain 1, because their overlaps "
            "show too little light, or they are saturated, blurred or out of place: "
            f"{', '.join(tiles[:MOST_NAMED])}{more}."
        )


def _warn_of_decay(name: str, steady: float, metrics: Metrics) -> None:
    """Record how much of the light does not decay with depth; warn if that is too much."""
    metrics.figures["steady_light"] = steady
    if steady > MOST_STEADY:
        metrics.warn(
            f"{name}: {steady:.0%} of the light does not decay with depth, as "
            "--stitch_attenuation assumes; omit it, or subtract the noise with "
            "--stitch_dark_offset."
        )


def _flat_field(light: Light, tiling: MosaicGrid, parameters: StitchParameters) -> FlatField | None:
    """The flat field to apply; an even one if only the dark offset is to be subtracted."""
    is_used = {parameters.attenuation, parameters.gain} != {"none"}
    if light.applied is None and is_used and parameters.dark_offset:
        return FlatField(np.ones(tiling.tile[1:], np.float32), parameters.dark_offset)
    return light.applied


def _surface(surface: SurfaceFigures) -> Attributes:
    """Metadata of a section's surface: where it lies, or the reason why that is not known."""
    if surface.reason:
        return {"reason": surface.reason}
    return surface.model_dump(mode="json", include={"depth", "tilt", "tilt_std"})


def _attributes(
    image: Image, placement: TilePlacement, odd: Collection[Tile], surface: SurfaceFigures
) -> Attributes:
    """Metadata of the section, with the ``odd`` tiles, on which it must not be compared."""
    attributes = {k: v for k, v in image.attributes.items() if k != "mosaic"}
    noted = attributes.get("section")
    section: Attributes = {
        "number": number_of(image),
        **(noted if isinstance(noted, dict) else {}),
        "edge": list(placement.edge),
        "extent": list(placement.extent),
        "surface": _surface(surface),
        **({"not_compared": [placement.box(tile) for tile in sorted(odd)]} if odd else {}),
    }
    if not placement.coverage().all():
        # The border of the imaged area is ragged, and not one of tissue.
        section["imaged"] = [*map(placement.box, placement.places)]
    return {**attributes, "kind": "section", "section": section}


def _write(
    mosaic: Mosaic,
    writer: DirectWriter,
    grid: Grid,
    blend: Callable[[Region, Lane], npt.NDArray],
    shown: Shown | None,
    metrics: Metrics,
) -> None:
    """Make the section block by block, and its thumbnail of the planes that are ``shown``."""
    step = max(1, -(-max(grid.shape[1:]) // THUMBNAIL))
    thumbnail = np.zeros([-(-n // step) for n in grid.shape[1:]], np.float32)
    metrics.previews["thumbnail"] = thumbnail

    def work(region: Region, lane: Lane) -> int:
        result = blend(region, lane)
        with lane.timed("compute"):
            _sample(thumbnail, result, region, step, shown, nearest=mosaic.nearest)
        with lane.timed("write"):
            writer[region] = result
        metrics.count("written", result.nbytes)
        return result.nbytes

    run_pipeline(
        blocks(grid.shape, Level.volume(grid).object_shape),
        work,
        label="STITCH",
        workers=mosaic.workers,
        metrics=metrics,
        describe=lambda region: f"block {bounds(region)} of {mosaic.image.path}",
    )


def _sample(
    thumbnail: npt.NDArray,
    block: npt.NDArray,
    region: Region,
    step: int,
    shown: Shown | None,
    *,
    nearest: bool,
) -> None:
    """Put every ``step``-th pixel of the block's mean over depth into the section's picture.

    Of values that must not be averaged, it shows the block's middle plane.
    """
    if region[0].start != 0:
        return
    y, x = (np.arange(-(-r.start // step), -(-r.stop // step)) for r in region[1:])
    if block.dtype.kind == "c":
        block = np.abs(block)
    seen = block[len(block) // 2] if nearest else np.abs(block).mean(axis=0)
    if shown is not None and not nearest:
        first, stop = (np.minimum(planes[region[1:]], len(block)) for planes in shown)
        seen = seen * (len(block) / np.maximum(1, stop - first))
    thumbnail[np.ix_(y, x)] = seen[np.ix_(y * step - region[1].start, x * step - region[2].start)]


def stitch_section(
    source: Path,
    destination: Path,
    parameters: StitchParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    positions_table: Path | None = None,
    save_flat_field: Path | None = None,
    reference_record: Path | None = None,
) -> Metrics:
    """Stitch one section's mosaic grid.

    The tiles are placed by a CSV table or an overlap, or, for a further channel, as the record of
    the reference channel says: then the table, refinement and checks of places are not used.
    ``save_flat_field`` is a TIFF to write if a flat field is estimated. Raises an OctaneError that
    names what is not usable; nothing is left half-written.
    """
    places = {"positions": _origin(positions_table, reference_record)}
    require_cpu(execution.backend, "STITCH")
    image = open_image(source, reading)
    settings = places | parameters.recorded(reading)
    metrics = Metrics(
        "stitch",
        channel=name_of(image.attributes),
        orientation=stated_orientation(image.attributes),
        settings=settings,
    )
    for text in override_warnings([image]):
        metrics.warn_in_report(text)
    tiling = MosaicGrid.of(image)
    parameters = applicable_parameters(parameters, image, is_placed=reference_record is not None)
    if parameters.attenuation != "none":
        require_compensable(str(image.path), image.dtype, tiling.shape[0])
    reference = None if reference_record is None else reference_of(reference_record, image, tiling)
    if reference is None:
        nominal = nominal_positions(image, tiling, parameters, positions_table)
        if positions_table is not None and parameters.overlap is not None:
            placed = [(nominal, tiling)]
            if text := idle_overlap(parameters.overlap, placed, str(positions_table)):
                raise InputError(f"{text}; omit one of the two.")
        depths = nominal_depths(image, tiling, positions_table)
    else:
        nominal, depths = reference.positions, reference.depths
    placement = TilePlacement(tiling, nominal, depths)
    given = given_flat_field(image, tiling, placement, parameters)
    mosaic = _plan_mosaic(image, tiling, placement.grid, parameters, execution)
    metrics.figures["kept_in_memory"] = mosaic.voxels is not None
    gains = given_gains(image, tiling, parameters)
    measured = measure(mosaic, placement, given, parameters, reference, metrics, gains)
    placement, light = measured.placement, measured.light
    is_placed = positions_table is not None
    _check_findings(image.path.name, measured, parameters, metrics, is_placed=is_placed)
    _note_light(image.path.name, measured, parameters, metrics)
    _note_gains(image.path.name, measured, parameters, metrics)
    if save_flat_field is not None and light.applied is not None and not light.is_given:
        from tifffile import imwrite

        with writing(save_flat_field, overwrite=execution.overwrite) as partial:
            imwrite(partial, light.applied.profile)
    overlaps, misplaced, uneven = measured.findings
    dark = {(tile.row, tile.column) for tile in uneven if tile.brightness == 0}
    uneven = [one for one in uneven if (one.row, one.column) not in tiling.not_imaged]
    # Outside the tiles that were imaged, a section is smaller than others, and lacks nothing.
    outside = {tile for tile in dark & tiling.not_imaged if not tiling.surrounds(tile)}
    strong = [one for one in uneven if not 1 / STRONG <= one.brightness <= STRONG]
    odd = measured.empty | {(tile.row, tile.column) for tile in strong} | placement.depths.keys()
    _log_depths(image.path.name, placement)
    shown = placement.plane_ranges(placement.places.keys() - measured.empty)
    flat = _flat_field(light, tiling, parameters)
    blend = functools.partial(blend_block, mosaic, placement, measured.empty, flat, measured.gains)
    compensation = None
    if parameters.attenuation != "none":
        coefficient = parameters.attenuation == "coefficient"
        # Columns without a tile lack nothing.
        lacking = None if shown is None else (placement.grid.shape[0] - shown[1]) * (shown[1] > 0)
        compensation = Compensation(blend, placement.grid, lacking, coefficient=coefficient)
        blend = compensation.block
    attributes = _attributes(image, placement, odd, measured.surface)
    with create_image(
        destination,
        [Level.volume(placement.grid)],
        image.dtype,
        codec=INTERMEDIATE,
        attributes=attributes,
        overwrite=execution.overwrite,
    ) as (writer,):
        _write(mosaic, writer, placement.grid, blend, shown, metrics)
        if compensation is not None:
            # STACK judges it by them.
            attributes[COMPENSATION] = compensation.factors
    if compensation is not None:
        _warn_of_decay(image.path.name, compensation.steady, metrics)
    uncovered = placement.gap_pixels()
    # The reference's record names them once for all channels.
    if uncovered and reference is None:
        metrics.warn(
            f"{source.name}: {uncovered} pixels lie between tiles and are zero; "
            "check --overlap or --positions."
        )
    seams, (before, after) = measured.seams, light.shading(measured.left)
    values = list(seams.each.values())
    noted = StitchFigures(
        section=number_of(image),
        shape=placement.grid.shape,
        voxel_size=tiling.spacing,
        tiles=len(nominal),
        seam_median=float(np.median(values)) if values else None,
        seam_max=max(values, default=None),
        **seams.along,
        worst_y=seams.worst.get("y"),
        worst_x=seams.worst.get("x"),
        overlaps=overlaps,
        misplaced=misplaced,
        not_in_z=measured.not_in_z,
        not_refined=measured.not_refined,
        uneven=uneven,
        blurred=measured.blurred,
        saturated=measured.saturated_tiles,
        saturation=max((share for share, _ in measured.shares.values()), default=None),
        surface=measured.surface,
        digest=measured.digest,
        shading_before=before,
        shading_after=after,
        gains=_by_name(measured.gains),
        gains_held_out=measured.gains_held_out,
        flat_held_out=measured.flat_held_out,
        uncovered_pixels=uncovered,
        tile_extent=tiling.tile_extent[1:],
        mosaic_extent=tiling.extent[1:],
        not_imaged=sorted(tiling.not_imaged),
        holes=sorted(tiling.holes | (dark & tiling.not_imaged) - outside),
        positions=_by_name(placement.positions),
        nominal_positions=_by_name(nominal) if parameters.refine else {},
        depths=_by_name(placement.depths),
    )
    metrics.add_figures(noted)
    each = seams.each.items()
    metrics.figures["seams"] = {f"{a[0]},{a[1]}-{b[0]},{b[1]}": v for (a, b), v in each}
    return metrics


def _log_depths(name: str, placement: TilePlacement) -> None:
    """Name the tiles that are moved along z, of which as many planes are cut."""
    for (row, column), depth in placement.depths.items():
        logger.info(
            "STITCH: %s: row %d, column %d lies %s; its %s %s cut",
            *(name, row, column, depth_words(depth), "last" if depth > 0 else "first"),
            "plane is" if abs(depth) == 1 else f"{abs(depth)} planes are",
        )


def _origin(table: Path | None, reference: Path | None) -> str:
    """Name for the record what places the tiles; refuse two sources."""
    if table is not None and reference is not None:
        raise InputError(f"{reference} places the tiles; omit --positions, or --reference.")
    if reference is not None:
        return "from the reference channel"
    return "unset" if table is None else FROM_TABLE


def _by_name(tiles: Mapping[Tile, T]) -> dict[str, T]:
    """What belongs to tiles by "row,column"."""
    return {f"{row},{column}": value for (row, column), value in tiles.items()}
