"""STITCH: the tiles of one section placed and blended into one image."""

import logging
import math
from collections.abc import Collection
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
from octane.core.errors import InputError
from octane.core.files import writing
from octane.core.geometry import Region, blocks, bounds, shape_of
from octane.core.metrics import Metrics
from octane.core.records import StitchFigures, fitting
from octane.layout.mosaic import MosaicGrid, Position, Tile, nominal_positions
from octane.layout.placement import TilePlacement
from octane.layout.sections import number_of
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, plan_workers
from octane.stitch.blending import accumulate, imaged, overlap, seam, shared
from octane.stitch.checks import Findings, Neighbours, block_seam, speckle_seam
from octane.stitch.flat_field import FlatField, estimate, given_flat_field, shading_of
from octane.stitch.registration import TilePair, neighbours, overlap_shift, solve_positions
from octane.store.image import Image, open_image
from octane.store.volumes import overruled_units
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

PASSES = 2
"""Passes of refinement: a third one gains little."""
PROFILE = 128
"""Longest edge of a flat field in the report, pixels."""
THUMBNAIL = 384
"""Longest edge of a section's picture in the report, pixels."""


class StitchedSection:
    """A section while it is stitched: its mosaic, where the tiles lie and how they are lit.

    ``voxels`` is the mosaic, read once, where there is room for it in memory; ``projections`` has
    the means over depth of the tiles, enough to compare overlaps; ``measured`` is the flat field
    that the tiles show, ``flat`` the one by which they are evened out.
    """

    def __init__(
        self,
        image: Image,
        parameters: StitchParameters,
        execution: ExecutionParameters,
        metrics: Metrics,
        table: Path | None,
    ) -> None:
        self.image, self.tiling, self.table = image, MosaicGrid.of(image), table
        self.parameters, self.execution, self.metrics = parameters, execution, metrics
        self._place(nominal_positions(image, self.tiling, parameters, table))
        self.given = given_flat_field(image, self.tiling, self.placement, parameters)
        self.measured: FlatField | None = None
        self.flat: FlatField | None = None
        self.projections: dict[Tile, npt.NDArray] = {}
        self.empty: set[Tile] = set()
        # Type that tiles are blended in.
        self.working = np.promote_types(image.dtype, np.float32)
        memory, tiles = bytes_of(execution.memory), len(self.tiling.tiles)
        grid, owned = self.placement.grid, Level.volume(self.placement.grid).owned
        block = math.prod(np.minimum(owned, grid.shape).tolist())
        need = (2 * block + 3 * math.prod(self.tiling.tile)) * self.working.itemsize
        most = max(len(blocks(grid.shape, owned)), tiles)
        self.workers = plan_workers(need, memory, execution.workers, most)
        # Every tile is needed for the overlaps and for each block that it meets.
        size = math.prod(self.tiling.shape) * image.dtype.itemsize
        kept = PROCESS_BYTES + self.workers * need + size <= memory
        self.voxels = np.empty(self.tiling.shape, image.dtype) if kept else None
        metrics.figures["kept_in_memory"] = kept
        logger.info(
            "STITCH: %s, %d worker(s) with %.0f MB each, the mosaic %s",
            *(image.path.name, self.workers, need / 1e6),
            "read once and kept in memory" if kept else "read block by block",
        )

    def _place(self, positions: dict[Tile, Position]) -> None:
        self.positions = positions
        self.placement = TilePlacement(self.tiling, positions)

    def project(self) -> None:
        """Read every tile."""

        def one(tile: Tile, lane: Lane) -> int:
            region = self.tiling.region(tile)
            with lane.timed("read"):
                memory = None if self.voxels is None else self.voxels[region]
                block = self.image.read(region, memory)
            self.metrics.count("read", block.nbytes)
            with lane.timed("compute"):
                bright = np.abs(block)
                mean = bright.mean(axis=0, dtype=np.float32)
                if not np.isfinite(mean).all():
                    # NaN and Inf would end the comparison of overlaps.
                    known = np.ma.masked_invalid(bright)
                    mean = known.mean(axis=0, dtype=np.float32).filled(0)
                self.projections[tile] = mean
            return block.nbytes

        run_pipeline(
            self.tiling.tiles,
            one,
            label="STITCH: reading",
            workers=self.workers,
            metrics=self.metrics,
            describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {self.image.path}",
        )
        # In one order on any number of threads.
        self.projections = {tile: self.projections[tile] for tile in self.tiling.tiles}
        # What was not imaged must not darken what its neighbours saw.
        self.empty = {tile for tile, own in self.projections.items() if not own.any()}
        if 0 < len(self.empty) < len(self.projections):
            count = f"{len(self.empty)} of {len(self.projections)} tiles of {self.image.path.name}"
            self.metrics.warn(
                f"{count} were not imaged: nothing but 0 or NaN is in them, and they are left out."
            )

    def light(self) -> None:
        """Measure the flat field where the tiles overlap."""
        dark = self.parameters.dark_offset
        self.measured = estimate(self.projections, self.placement, dark=dark)
        if self.given is not None:
            self.flat = FlatField(self.given, dark)
        elif self.parameters.flat_field == ESTIMATE:
            self.flat = self.measured

    def evened(self) -> dict[Tile, npt.NDArray]:
        """Projections in even light, as far as the tiles are evened out."""
        return {t: self.flat.correct(p) if self.flat else p for t, p in self.projections.items()}

    def refine(self) -> None:
        """Find the positions that fit the overlaps best, in passes that see better aligned ones."""
        sy, sx = self.tiling.spacing[1:]
        reach = (self.parameters.max_shift / sy, self.parameters.max_shift / sx)
        nominal, projections = self.positions, self.evened()
        positions = nominal
        start = pixels = {t: (y / sy, x / sx) for t, (y, x) in nominal.items()}
        for _ in range(PASSES):
            placement = TilePlacement(self.tiling, positions)
            pairs = []
            for first, second in neighbours([*positions]):
                common = overlap(placement, projections, first, second)
                if common is not None:
                    # Two tiles may each be off by max_shift, to opposite sides.
                    shift, peak = overlap_shift(*common, (2 * reach[0], 2 * reach[1]))
                    pairs.append(TilePair(first, second, shift, peak))
            solved, pixels = solve_positions(pixels, pairs, reach), {}
            for tile, place in solved.items():
                y, x = np.clip(place, np.subtract(start[tile], reach), np.add(start[tile], reach))
                pixels[tile] = (float(y), float(x))
            positions = {t: (y * sy, x * sx) for t, (y, x) in pixels.items()}
        moved = [float(np.hypot(*np.subtract(positions[t], nominal[t]))) for t in nominal]
        most = 0.999 * self.parameters.max_shift
        held = sum(np.abs(np.subtract(positions[t], nominal[t])).max() > most for t in nominal)
        if held:
            self.metrics.warn(
                f"{self.image.path.name}: {held} of {len(moved)} tiles are moved by "
                "--stitch_max_shift, the most that refinement may; give --positions, or a larger "
                "--stitch_max_shift."
            )
        noted = {"median": float(np.median(moved)), "max": max(moved)}
        self.metrics.figures["refinement_micrometer"] = noted
        self._place(positions)

    def check(self, projections: dict[Tile, npt.NDArray]) -> Findings:
        """Compare the tiles where they overlap.

        It is an OctaneError where most pairs correlate at another overlap, and not at the given
        one.
        """
        tiling, name = self.tiling, self.image.path.name
        starts = {tile: (y.shift, x.shift) for tile, (y, x) in self.placement.places.items()}
        sizes = (tiling.tile_extent[1:], tiling.spacing[1:])
        compared = Neighbours(projections, starts, self.positions, *sizes)
        overlaps, misplaced, uneven = compared.findings()
        wrong = [own for own in overlaps if own.better and own.found is not None]
        if wrong:
            text = " and ".join(
                f"by {o.found:.3f} along {o.axis}, not {o.given:.3g}" for o in wrong
            )
            text = f"{name}: its tiles correlate where they overlap {text}; "
            text += f"correct {self.table}" if self.table else f"give --overlap {fitting(overlaps)}"
            if any(o.certain for o in wrong) and self.parameters.check_overlap == "error":
                raise InputError(
                    f"{text}, or --stitch_check_overlap warning to leave them as they are."
                )
            self.metrics.warn(f"{text}.")
        # Those without light were named before.
        lit = [tile for tile in uneven if tile.brightness > 0]
        if odd := [tile.sentence for tile in (*misplaced, *lit)]:
            self.metrics.warn(f"{name}: {', '.join(odd)}.")
        return overlaps, misplaced, uneven

    def left(self, projections: dict[Tile, npt.NDArray]) -> FlatField | None:
        """Flat field that the evened projections still show; None where none was measured."""
        if self.given is not None:
            return estimate(projections, self.placement)
        return None if self.flat else self.measured

    def shading(self, rest: FlatField | None) -> tuple[float | None, float | None]:
        """Shading before and after, the latter of a given flat field from the ``rest`` it left.

        The picture of the flat field is kept for the report.
        """
        measured, flat = self.measured, self.flat
        if measured is None and self.parameters.flat_field == ESTIMATE:
            text = "fewer than two pairs of tiles share anything above 0; all stay as they are"
            self.metrics.warn(f"{self.image.path.name}: {text}.")
        if shown := flat or measured:
            step = -(-max(shown.profile.shape) // PROFILE)
            self.metrics.previews["flat_field"] = shown.profile[::step, ::step]
        if measured is None:
            return None, None
        left = measured.error if flat else None
        if self.given is not None:
            left = shading_of(rest.profile) if rest else None
        return shading_of(measured.profile), left

    def write(self, destination: Path, odd: Collection[Tile]) -> None:
        """Blend the section block by block, and its thumbnail.

        The ``odd`` tiles are noted, by which sections are not to be compared.
        """
        image, placement, grid = self.image, self.placement, self.placement.grid
        attributes = {k: v for k, v in image.attributes.items() if k != "mosaic"}
        noted = attributes.get("section")
        attributes["kind"] = "section"
        attributes["section"] = {
            "number": number_of(image),
            **(noted if isinstance(noted, dict) else {}),
            "edge": list(placement.edge),
            "extent": list(placement.extent),
            **({"not_compared": [placement.box(tile) for tile in sorted(odd)]} if odd else {}),
        }
        if not placement.covered().all():
            # The border of what was imaged is ragged, and no tissue.
            attributes["section"]["imaged"] = [*map(placement.box, placement.places)]
        level = Level.volume(grid)
        step = max(1, -(-max(grid.shape[1:]) // THUMBNAIL))
        thumbnail = np.zeros([-(-n // step) for n in grid.shape[1:]], np.float32)
        self.metrics.previews["thumbnail"] = thumbnail
        with create_image(
            destination,
            [level],
            image.dtype,
            codec=self.parameters.codec,
            attributes=attributes,
            overwrite=self.execution.overwrite,
        ) as (writer,):

            def work(region: Region, lane: Lane) -> int:
                result = self._blended(region, lane)
                with lane.timed("compute"):
                    _sample(thumbnail, result, region, step)
                with lane.timed("write"):
                    writer[region] = result
                self.metrics.count("written", result.nbytes)
                return result.nbytes

            run_pipeline(
                blocks(grid.shape, level.owned),
                work,
                label="STITCH",
                workers=self.workers,
                metrics=self.metrics,
                describe=lambda region: f"block {bounds(region)} of {image.path}",
            )

    def _blended(self, region: Region, lane: Lane) -> npt.NDArray:
        """One block of the section, of the mosaic's voxels or read from its store."""
        shape = shape_of(region)
        total = np.zeros(shape, self.working)
        weights = np.zeros(shape[1:], np.float32)
        flat = self.flat
        gain, dark = (flat.gain, flat.dark) if flat else (None, 0.0)
        for tile, places in self.placement.places.items():
            spans = zip(places, region[1:], strict=True)
            met = all(p.first < r.stop and p.last > r.start for p, r in spans)
            if not met or tile in self.empty:
                continue
            seen = (region[0], *self.tiling.region(tile)[1:])
            if self.voxels is not None:
                block = self.voxels[seen]
            else:
                with lane.timed("read"):
                    memory = lane.buffer("tile", shape_of(seen), self.image.dtype)
                    block = self.image.read(seen, memory)
                self.metrics.count("read", block.nbytes)
            with lane.timed("compute"):
                accumulate(total, weights, region, block, places, gain=gain, dark=dark)
        with lane.timed("compute"):
            total /= np.where(weights > 0, weights, 1)
            return as_dtype(total, self.image.dtype)


def _seams(
    placement: TilePlacement, projections: dict[Tile, npt.NDArray], rest: FlatField | None
) -> tuple[dict[tuple[Tile, Tile], float], dict[str, float]]:
    """Mismatch at each seam; and figures of the section, medians of those along y and along x.

    The figures are of even light: without ``rest``, what the projections show of shading.
    """
    seams: dict[tuple[Tile, Tile], float] = {}
    along: dict[str, list[float]] = {}
    for pair in neighbours([*placement.places]):
        area, common = shared(placement, *pair), overlap(placement, projections, *pair)
        if area is None or common is None:
            continue
        seams[pair] = seam(*common)
        even = {tile: projections[tile] for tile in pair}
        if rest is not None:
            even = {tile: rest.correct(image) for tile, image in even.items()}
            common = overlap(placement, even, *pair) or common
        own = (imaged(placement.places[tile], image, area) for tile, image in even.items())
        axis = "yx"[pair[0][0] == pair[1][0]]
        along.setdefault(f"seam_{axis}", []).append(block_seam(*common))
        along.setdefault(f"speckle_{axis}", []).append(speckle_seam(*own))
    return seams, {name: float(np.median(own)) for name, own in along.items()}


def _sample(thumbnail: npt.NDArray, block: npt.NDArray, region: Region, step: int) -> None:
    """Put every ``step``-th pixel of the block's mean over depth into the section's picture."""
    if region[0].start != 0:
        return
    y, x = (np.arange(-(-r.start // step), -(-r.stop // step)) for r in region[1:])
    mean = np.abs(block).mean(axis=0)
    thumbnail[np.ix_(y, x)] = mean[np.ix_(y * step - region[1].start, x * step - region[2].start)]


def stitch_section(
    source: Path,
    destination: Path,
    parameters: StitchParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    positions_table: Path | None = None,
    save_flat_field: Path | None = None,
) -> Metrics:
    """Stitch one section's mosaic grid, its tiles placed by a CSV table or an overlap.

    ``save_flat_field`` names a TIFF that is written where a flat field is estimated. An OctaneError
    names what is not usable; nothing is left half-written.
    """
    metrics = Metrics("stitch", settings=parameters.recorded(reading))
    require_cpu(execution.backend, "STITCH")
    image = open_image(source, reading)
    for text in overruled_units([image]):
        metrics.warn_in_report(text)
    section = StitchedSection(image, parameters, execution, metrics, positions_table)
    with metrics.timed("project"):
        section.project()
    with metrics.timed("overlaps"):
        section.light()
        if parameters.refine:
            # Evened tiles show better where they fit, and tiles in place how they are lit.
            section.refine()
            section.light()
        evened = section.evened()
        section.projections.clear()
        rest = section.left(evened)
        seams, along = _seams(section.placement, evened, rest)
    with metrics.timed("check"):
        overlaps, misplaced, uneven = section.check(evened)
    before, after = section.shading(rest)
    alone = [axis for axis in "yx" if f"seam_{axis}" in along]
    if section.flat is not None and section.given is None and len(alone) == 1:
        one, other = ("x", "y") if alone == ["x"] else ("y", "x")
        metrics.warn_in_report(
            f"The tiles overlap along {one} alone, and shading along {other} stays; give a flat "
            "field by --stitch_flat_field FILE if there is some."
        )
    if save_flat_field is not None and section.given is None and section.flat is not None:
        from tifffile import imwrite

        with writing(save_flat_field, overwrite=execution.overwrite) as partial:
            imwrite(partial, section.flat.profile)
    del evened
    section.write(destination, section.empty | {(tile.row, tile.column) for tile in uneven})
    if uncovered := section.placement.uncovered():
        metrics.warn(
            f"{source.name}: {uncovered} pixels lie between tiles and are zero; "
            "check --overlap or --positions."
        )
    values = list(seams.values())
    found = StitchFigures(
        section=number_of(image),
        shape=section.placement.grid.shape,
        tiles=len(section.positions),
        seam_median=float(np.median(values)) if values else None,
        seam_max=max(values, default=None),
        **along,
        overlaps=overlaps,
        misplaced=misplaced,
        uneven=uneven,
        shading_before=before,
        shading_after=after,
        uncovered_pixels=uncovered,
    )
    metrics.add_figures(found)
    metrics.figures["seams"] = {f"{a[0]},{a[1]}-{b[0]},{b[1]}": v for (a, b), v in seams.items()}
    metrics.figures["positions"] = {f"{r},{c}": list(p) for (r, c), p in section.positions.items()}
    return metrics
