"""STITCH: the tiles of one section placed and blended into one image."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.config.params import (
    ESTIMATE,
    ExecutionParameters,
    InputParameters,
    StitchParameters,
    bytes_of,
)
from octane.core.arrays import as_dtype, require_cpu
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.core.geometry import Region, blocks
from octane.core.metrics import Metrics
from octane.core.records import (
    MisplacedFigures,
    OverlapFigures,
    ShadingFigures,
    StitchFigures,
    fitting,
)
from octane.core.timing import span
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, plan_workers, read_blocks
from octane.stitch.blending import LEAST, accumulate, overlap, seam
from octane.stitch.checks import Neighbours, seam_without_speckle
from octane.stitch.flat_field import FlatField, estimate, fitted_to
from octane.stitch.placement import TilePlacement
from octane.stitch.registration import Pair, neighbours, overlap_shift, solve
from octane.store.image import Image, open_image
from octane.store.mosaic_grid import MosaicGrid, Position, Tile, read_positions
from octane.store.sections import number_of
from octane.store.tiff_files import FAULTS
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

PASSES = 2
"""Passes of refinement: a third one gains little."""
PROFILE = 128
"""Longest edge of a flat field in the report, pixels."""
THUMBNAIL = 384
"""Longest edge of a section's picture in the report, pixels."""


@dataclass(frozen=True)
class Run:
    """One section that is stitched.

    Attributes
    ----------
    image, tiling
        The mosaic grid as it is stored, and its tiles.
    working
        Type that tiles are blended in.
    workers
        Threads.
    kept
        Whether the mosaic is read once and kept in memory.
    """

    image: Image
    tiling: MosaicGrid
    working: np.dtype
    workers: int
    kept: bool
    parameters: StitchParameters
    execution: ExecutionParameters
    metrics: Metrics


def nominal_positions(
    image: Image, tiling: MosaicGrid, parameters: StitchParameters, positions: Path | None
) -> dict[Tile, Position]:
    """Positions of the tiles before any refinement: table, overlap or metadata, in this order.

    Raises
    ------
    OctaneError
        When none of the three is there: an overlap is never guessed.
    """
    if positions is not None:
        return read_positions(positions, number_of(image), tiling)
    if parameters.overlap is not None:
        y, x = (
            extent * (1 - overlap)
            for extent, overlap in zip(tiling.tile_extent[1:], parameters.overlap, strict=True)
        )
        return tiling.positions((y, x))
    if tiling.pitch is not None:
        return tiling.positions(tiling.pitch)
    raise OctaneError(
        f"{image.path} does not say how its tiles overlap; give --overlap (a fraction of a tile, "
        "0 where they abut) or --positions; if it is a whole volume, give the workflow "
        "--input_kind volume."
    )


def given_flat_field(
    image: Image, tiling: MosaicGrid, placement: TilePlacement, parameters: StitchParameters
) -> npt.NDArray[np.float32] | None:
    """Flat field of the file that the parameters name; None where they name none.

    Raises
    ------
    OctaneError
        Where the file is no flat field of these tiles, or they show none to be estimated.
    """
    chosen = parameters.flat_field
    if parameters.dark_offset and (chosen == "none" or image.dtype.kind == "c"):
        raise OctaneError(
            "--dark-offset acts with a flat field alone, and on real voxels; give --flat-field as "
            "well, or leave it out."
        )
    shared = (place.before for pair in placement.places.values() for place in pair)
    if chosen == ESTIMATE and max(shared) < LEAST:
        raise OctaneError(
            f"{image.path}: its tiles do not overlap, and a flat field is estimated from overlaps; "
            "give --flat-field FILE, or none."
        )
    if chosen in (ESTIMATE, "none"):
        return None
    from tifffile import imread

    path = Path(chosen)
    try:
        with path.open("rb") as stream:
            if path.suffix.lower() == ".npy":
                given = np.load(stream, allow_pickle=False)
            else:
                given = imread(stream)
        return fitted_to(given, (tiling.tile[1], tiling.tile[2]))
    except (OSError, EOFError, *FAULTS) as error:
        raise OctaneError(
            f"{path.resolve()} cannot be read as a flat field; give a TIFF or .npy file."
        ) from error
    except OctaneError as error:
        raise OctaneError(f"{path.resolve()} {error}") from error


def _lit(
    run: Run,
    projections: dict[Tile, npt.NDArray],
    placement: TilePlacement,
    profile: npt.NDArray[np.float32] | None,
) -> tuple[FlatField | None, FlatField | None]:
    """Flat field that the tiles show, and the one by which they are evened out."""
    dtype, dark = run.image.dtype, run.parameters.dark_offset
    largest = float(np.iinfo(dtype).max) if dtype.kind in "iu" else np.inf
    known = None if dark == ESTIMATE else float(dark)
    found = estimate(projections, placement, dark=known, largest=largest)
    if profile is not None:
        return found, FlatField(profile, found.dark if found else known or 0.0)
    return found, found if run.parameters.flat_field == ESTIMATE else None


def _evened(
    projections: dict[Tile, npt.NDArray], flat: FlatField | None
) -> dict[Tile, npt.NDArray]:
    return {t: flat.correct(p) for t, p in projections.items()} if flat else projections


def _noted(
    run: Run, measured: FlatField | None, applied: FlatField | None, left: FlatField | None
) -> ShadingFigures | None:
    """Figures of the shading before and after; its picture is kept for the report."""
    shown = applied or measured
    if shown is None:
        if run.parameters.flat_field == ESTIMATE:
            text = "its tiles have no voxels above 0 in common, and are left as they are"
            run.metrics.warn(f"{run.image.path.name}: {text}.")
        return None
    step = -(-max(shown.profile.shape) // PROFILE)
    run.metrics.previews["flat_field"] = shown.profile[::step, ::step]
    return ShadingFigures(
        before=measured.shading if measured else None,
        after=left.shading if left else None,
        dark_offset=applied.dark if applied else None,
    )


def _projections(run: Run, voxels: npt.NDArray | None) -> dict[Tile, npt.NDArray]:
    """Mean over depth of every tile: enough to compare overlaps, and small.

    All voxels are kept in ``voxels`` where it is given.
    """
    image, tiling = run.image, run.tiling

    def project(tile: Tile) -> tuple[npt.NDArray, int]:
        region = tiling.region(tile)
        with span("read"):
            block = image.read(region, None if voxels is None else voxels[region])
        run.metrics.count("read", block.nbytes)
        with span("compute"):
            return np.abs(block).mean(axis=0, dtype=np.float32), block.nbytes

    found = read_blocks(
        tiling.tiles,
        project,
        label="STITCH: reading",
        workers=run.workers,
        metrics=run.metrics,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    return dict(zip(tiling.tiles, found, strict=True))


def _seams(
    placement: TilePlacement, projections: dict[Tile, npt.NDArray]
) -> tuple[dict[tuple[Tile, Tile], float], list[float | None]]:
    """Mismatch at each seam, and the median without speckle of those along y and along x."""
    seams: dict[tuple[Tile, Tile], float] = {}
    along: tuple[list[float], list[float]] = ([], [])
    for first, second in neighbours([*placement.places]):
        if (common := overlap(placement, projections, first, second)) is not None:
            seams[first, second] = fine = seam(*common)
            along[second[0] == first[0]].append(seam_without_speckle(*common, fine))
    return seams, [float(np.median(own)) if own else None for own in along]


def _refined(
    projections: dict[Tile, npt.NDArray],
    nominal: dict[Tile, Position],
    tiling: MosaicGrid,
    max_shift: float,
) -> dict[Tile, Position]:
    """Positions that fit the overlaps best, in passes: each sees better aligned overlaps."""
    sy, sx = tiling.spacing[1:]
    reach = (max_shift / sy, max_shift / sx)
    start = {t: (y / sy, x / sx) for t, (y, x) in nominal.items()}
    pixels = start
    for _ in range(PASSES):
        positions = {t: (y * sy, x * sx) for t, (y, x) in pixels.items()}
        placement = TilePlacement(tiling, positions, subpixel=True)
        pairs = []
        for first, second in neighbours(list(positions)):
            common = overlap(placement, projections, first, second)
            if common is not None:
                # Two tiles may each be off by max_shift, to opposite sides.
                shift, peak = overlap_shift(*common, (2 * reach[0], 2 * reach[1]))
                pairs.append(Pair(first, second, shift, peak))
        solved, pixels = solve(pixels, pairs, reach), {}
        for tile, place in solved.items():
            y, x = np.clip(place, np.subtract(start[tile], reach), np.add(start[tile], reach))
            pixels[tile] = (float(y), float(x))
    return {t: (y * sy, x * sx) for t, (y, x) in pixels.items()}


def _moved(
    run: Run, projections: dict[Tile, npt.NDArray], positions: dict[Tile, Position]
) -> dict[Tile, Position]:
    """Refined positions; how far tiles moved is recorded."""
    refined = _refined(projections, positions, run.tiling, run.parameters.max_shift)
    moved = [float(np.hypot(*np.subtract(refined[t], positions[t]))) for t in positions]
    noted = {"median": float(np.median(moved)), "max": max(moved)}
    run.metrics.figures["refinement_micrometer"] = noted
    return refined


def _checked(
    run: Run,
    projections: dict[Tile, npt.NDArray],
    positions: dict[Tile, Position],
    placement: TilePlacement,
    table: Path | None,
) -> tuple[list[OverlapFigures], list[MisplacedFigures]]:
    """Compare the overlaps with those at which tiles correlate, and find tiles out of place.

    Raises
    ------
    OctaneError
        Where most pairs of tiles correlate at another overlap, and not at the given one.
    """
    tiling, name = run.tiling, run.image.path.name
    starts = {tile: (y.shift, x.shift) for tile, (y, x) in placement.places.items()}
    compared = Neighbours(projections, starts)
    overlaps, misplaced = compared.findings(positions, tiling.tile_extent[1:], tiling.spacing[1:])
    wrong = [own for own in overlaps if own.better and own.found is not None]
    if wrong:
        text = " and ".join(f"by {o.found:.2g} along {o.axis}, not {o.given:.3g}" for o in wrong)
        text = f"{name}: its tiles correlate where they overlap {text}; "
        text += f"correct {table}" if table else f"give --overlap {fitting(overlaps)}"
        if any(o.certain for o in wrong) and run.parameters.check_overlap == "error":
            raise OctaneError(
                f"{text}, or --check-overlap warning (in the workflow --stitch_check_overlap) to "
                "leave them as they are."
            )
        run.metrics.warn(f"{text}.")
    if misplaced:
        run.metrics.warn(f"{name}: {', '.join(tile.sentence for tile in misplaced)}.")
    return overlaps, misplaced


def stitch_section(
    source: Path,
    destination: Path,
    parameters: StitchParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    positions_table: Path | None = None,
    save_flat_field: Path | None = None,
) -> Metrics:
    """Stitch one section's mosaic grid.

    Parameters
    ----------
    source, destination
        OME-Zarr stores: a mosaic grid, and the section to be written.
    positions_table
        CSV of tile positions in place of an overlap.
    save_flat_field
        TIFF to be written with the flat field where one is estimated.

    Raises
    ------
    OctaneError
        For input or output that is not usable; nothing is left half-written.
    """
    image = open_image(source, reading)
    tiling = MosaicGrid.of(image)
    metrics = Metrics("stitch", settings=parameters.recorded(reading))
    require_cpu(execution.backend, "STITCH")
    positions = nominal_positions(image, tiling, parameters, positions_table)
    placement = TilePlacement(tiling, positions, subpixel=parameters.subpixel)
    profile = given_flat_field(image, tiling, placement, parameters)
    run = _planned(image, tiling, placement, parameters, execution, metrics)
    voxels = np.empty(tiling.shape, image.dtype) if run.kept else None
    with metrics.timed("project"):
        projections = _projections(run, voxels)
    with metrics.timed("overlaps"):
        measured, flat = _lit(run, projections, placement, profile)
        if parameters.refine:
            # Evened tiles show better where they fit, and tiles in place how they are lit.
            positions = _moved(run, _evened(projections, flat), positions)
            placement = TilePlacement(tiling, positions, subpixel=parameters.subpixel)
            measured, flat = _lit(run, projections, placement, profile)
        projections = _evened(projections, flat)
        seams, (seam_y, seam_x) = _seams(placement, projections)
    with metrics.timed("check"):
        overlaps, misplaced = _checked(run, projections, positions, placement, positions_table)
        left = estimate(projections, placement) if flat else None
    shading = _noted(run, measured, flat, left)
    if save_flat_field is not None and flat is not None and profile is None:
        _save(flat.profile, save_flat_field)
    del projections
    _write(run, placement, voxels, flat, destination)
    uncovered = placement.uncovered()
    if uncovered:
        metrics.warn(
            f"{source.name}: {uncovered} pixels lie between tiles and are zero; "
            "check --overlap or --positions."
        )
    values = list(seams.values())
    found = StitchFigures(
        section=number_of(image),
        shape=placement.grid.shape,
        tiles=len(tiling.tiles),
        seam_median=float(np.median(values)) if values else None,
        seam_max=max(values, default=None),
        seam_y=seam_y,
        seam_x=seam_x,
        overlaps=overlaps,
        misplaced=misplaced,
        shading=shading,
        uncovered_pixels=uncovered,
    )
    metrics.note(found)
    metrics.figures["seams"] = {f"{a[0]},{a[1]}-{b[0]},{b[1]}": v for (a, b), v in seams.items()}
    metrics.figures["positions"] = {f"{r},{c}": list(p) for (r, c), p in positions.items()}
    return metrics


def _save(profile: npt.NDArray[np.float32], path: Path) -> None:
    """Write a flat field as TIFF."""
    from tifffile import imwrite

    with writing(path, overwrite=True) as partial:
        imwrite(partial, profile)


def _planned(
    image: Image,
    tiling: MosaicGrid,
    placement: TilePlacement,
    parameters: StitchParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> Run:
    """Number of threads, and whether there is room for the mosaic in memory."""
    memory = bytes_of(execution.memory)
    level = Level.volume(placement.grid)
    working = np.promote_types(image.dtype, np.float32)
    block = int(np.prod(np.minimum(level.owned, placement.grid.shape)))
    need = (2 * block + 3 * int(np.prod(tiling.tile))) * working.itemsize
    regions = blocks(placement.grid.shape, level.owned)
    workers = plan_workers(need, memory, execution.workers, max(len(regions), len(tiling.tiles)))
    # Every tile is needed for the overlaps and for each block that it meets.
    size = math.prod(tiling.shape) * image.dtype.itemsize
    kept = PROCESS_BYTES + workers * need + size <= memory
    logger.info(
        "STITCH: %s, %d worker(s) with %.0f MB each, the mosaic %s",
        *(image.path.name, workers, need / 1e6),
        "read once and kept in memory" if kept else "read block by block",
    )
    metrics.figures["kept_in_memory"] = kept
    return Run(image, tiling, working, workers, kept, parameters, execution, metrics)


def _write(
    run: Run,
    placement: TilePlacement,
    voxels: npt.NDArray | None,
    flat: FlatField | None,
    destination: Path,
) -> None:
    """Blend the section block by block, and its thumbnail."""
    image, grid, metrics = run.image, placement.grid, run.metrics
    attributes = {k: v for k, v in image.attributes.items() if k != "mosaic"}
    noted = attributes.get("section")
    attributes["kind"] = "section"
    attributes["section"] = {
        "number": number_of(image),
        **(noted if isinstance(noted, dict) else {}),
        "edge": list(placement.edge),
        "extent": list(placement.extent),
    }
    level = Level.volume(grid)
    step = max(1, -(-max(grid.shape[1:]) // THUMBNAIL))
    thumbnail = np.zeros([-(-n // step) for n in grid.shape[1:]], np.float32)
    with create_image(
        destination,
        [level],
        image.dtype,
        codec=run.parameters.codec,
        attributes=attributes,
        overwrite=run.execution.overwrite,
    ) as (writer,):

        def work(region: Region, lane: Lane) -> int:
            result = _blended(run, placement, voxels, flat, region, lane)
            with lane.timed("compute"):
                _sample(thumbnail, result, region, step)
            with lane.timed("write"):
                writer[region] = result
            metrics.count("written", result.nbytes)
            return result.nbytes

        run_pipeline(
            blocks(grid.shape, level.owned),
            work,
            label="STITCH",
            workers=run.workers,
            metrics=metrics,
            describe=lambda region: f"block {region} of {image.path}",
        )
    metrics.previews["thumbnail"] = thumbnail


def _blended(
    run: Run,
    placement: TilePlacement,
    voxels: npt.NDArray | None,
    flat: FlatField | None,
    region: Region,
    lane: Lane,
) -> npt.NDArray:
    """One block of the section, of the mosaic's voxels or read from its store."""
    shape = [r.stop - r.start for r in region]
    total = np.zeros(shape, run.working)
    weights = np.zeros(shape[1:], np.float32)
    blend = run.parameters.blend
    gain, dark = (flat.gain, flat.dark) if flat else (None, 0.0)
    for tile, places in placement.places.items():
        spans = zip(places, region[1:], strict=True)
        if not all(p.first < r.stop and p.last > r.start for p, r in spans):
            continue
        seen = (region[0], *run.tiling.region(tile)[1:])
        if voxels is not None:
            block = voxels[seen]
        else:
            with lane.timed("read"):
                memory = lane.buffer("tile", [r.stop - r.start for r in seen], run.image.dtype)
                block = run.image.read(seen, memory)
            run.metrics.count("read", block.nbytes)
        with lane.timed("compute"):
            accumulate(total, weights, region, block, places, blend=blend, gain=gain, dark=dark)
    with lane.timed("compute"):
        if blend == "linear":
            total /= np.where(weights > 0, weights, 1)
        return as_dtype(total, run.image.dtype)


def _sample(thumbnail: npt.NDArray, block: npt.NDArray, region: Region, step: int) -> None:
    """Put every ``step``-th pixel of the block's mean over depth into the section's picture."""
    if region[0].start != 0:
        return
    y, x = (np.arange(-(-r.start // step), -(-r.stop // step)) for r in region[1:])
    mean = np.abs(block).mean(axis=0)
    thumbnail[np.ix_(y, x)] = mean[np.ix_(y * step - region[1].start, x * step - region[2].start)]
