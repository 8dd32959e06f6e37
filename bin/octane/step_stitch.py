"""STITCH: the tiles of one section placed and blended into one image."""

import csv
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.backend import describe, select, to_host
from octane.errors import OctaneError
from octane.geometry import Grid, Region, blocks, section_number, vector
from octane.metrics import Metrics
from octane.mosaic import (
    Pair,
    Placement,
    accumulate,
    neighbours,
    overlap_shift,
    seam,
    solve,
)
from octane.omezarr import Image, Level, create_image, open_image
from octane.params import ExecutionParameters, InputParameters, StitchParameters, bytes_of
from octane.progress import progress
from octane.resample import as_dtype
from octane.tiles import plan_workers, run_tiles
from octane.tiling import Position, Tile, Tiling

__all__ = ["nominal_positions", "read_positions", "stitch_section"]

logger = logging.getLogger(__name__)

COLUMNS = ("section", "row", "column", "y", "x")
THUMBNAIL = 384
"""Longest edge of a section's picture in the report, pixels."""


def read_positions(path: Path, section: int | None, tiling: Tiling) -> dict[Tile, Position]:
    """Tile positions of one section from a CSV table, micrometres.

    Raises
    ------
    OctaneError
        When columns, a tile or numbers are missing; names the file and the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError) as error:
        raise OctaneError(f"{path} cannot be read as a table; give a CSV file.") from error
    if not rows or set(COLUMNS) - set(rows[0]):
        raise OctaneError(f"{path} must have the columns {', '.join(COLUMNS)}; correct its header.")
    found: dict[Tile, Position] = {}
    for line, row in enumerate(rows, start=2):
        try:
            if int(row["section"]) == section:
                found[int(row["row"]), int(row["column"])] = (float(row["y"]), float(row["x"]))
        except (TypeError, ValueError) as error:
            raise OctaneError(f"{path}, line {line}: not a row of numbers; correct it.") from error
    missing = [tile for tile in tiling.tiles if tile not in found]
    if missing:
        row, column = missing[0]
        raise OctaneError(
            f"{path} has no position for row {row}, column {column} of section {section} "
            f"({len(missing)} tiles in all); add them."
        )
    return {tile: found[tile] for tile in tiling.tiles}


def nominal_positions(
    image: Image, tiling: Tiling, parameters: StitchParameters, positions: Path | None
) -> dict[Tile, Position]:
    """Where the tiles lie before any refinement: table, overlap or metadata, in this order.

    Raises
    ------
    OctaneError
        When none of the three is there: an overlap is never guessed.
    """
    if positions is not None:
        return read_positions(positions, _number(image), tiling)
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
        "0 where they abut) or --positions."
    )


def _number(image: Image) -> int | None:
    noted = image.attributes.get("section")
    if isinstance(noted, dict) and isinstance(noted.get("number"), int):
        return noted["number"]
    return section_number(image.path.name)


class Layout:
    """A section's grid and the placement of its tiles in it."""

    def __init__(self, tiling: Tiling, positions: dict[Tile, Position], *, subpixel: bool) -> None:
        extents: dict[Tile, Position] = {t: tiling.extent_of(t)[1:] for t in positions}
        low = [min(p[axis] for p in positions.values()) for axis in range(2)]
        high = [max(positions[t][axis] + extents[t][axis] for t in positions) for axis in range(2)]
        edge = vector(tiling.edge[0], tiling.edge[1] + low[0], tiling.edge[2] + low[1])
        self.extent = vector(tiling.extent[0], high[0] - low[0], high[1] - low[1])
        covering = Grid.covering(edge, self.extent, tiling.spacing)
        # Planes stay those of the tiles, whose first one need not touch the surface.
        nz = tiling.shape[0]
        top = edge[0] + (tiling.extent[0] - nz * tiling.spacing[0]) / 2 + tiling.spacing[0] / 2
        self.grid = Grid(
            (nz, *covering.shape[1:]), tiling.spacing, vector(top, *covering.origin[1:])
        )
        self.edge = edge
        self.places: dict[Tile, tuple[Placement, Placement]] = {
            tile: (
                self._place(tiling, positions, extents, tile, 0, low[0], subpixel),
                self._place(tiling, positions, extents, tile, 1, low[1], subpixel),
            )
            for tile in positions
        }

    def _place(
        self,
        tiling: Tiling,
        positions: dict[Tile, Position],
        extents: dict[Tile, Position],
        tile: Tile,
        axis: int,
        low: float,
        subpixel: bool,
    ) -> Placement:
        spacing = tiling.spacing[axis + 1]
        region = tiling.region(tile)[axis + 1]
        start = positions[tile][axis] - low
        shift = (start + tiling.margin(tile)[axis + 1]) / spacing
        if not subpixel or abs(shift - round(shift)) < 1e-6:
            shift = float(round(shift))
        step = (1, 0) if axis == 0 else (0, 1)
        previous = (tile[0] - step[0], tile[1] - step[1])
        following = (tile[0] + step[0], tile[1] + step[1])
        before = after = 0.0
        if previous in positions:
            before = positions[previous][axis] + extents[previous][axis] - positions[tile][axis]
        if following in positions:
            after = positions[tile][axis] + extents[tile][axis] - positions[following][axis]
        # A voxel belongs to a tile when its centre was imaged; at the section's own border the
        # last voxel may reach out by a fraction and is kept.
        size = self.grid.shape[axis + 1]
        end = (start + extents[tile][axis]) / spacing
        first = 0 if previous not in positions else int(np.ceil(start / spacing - 0.5 - 1e-6))
        last = size if following not in positions else int(np.ceil(end - 0.5 - 1e-6))
        return Placement(
            shift,
            region.stop - region.start,
            before / spacing,
            after / spacing,
            max(0, first),
            min(size, last),
        )


def _projections(image: Image, tiling: Tiling, workers: int) -> dict[Tile, npt.NDArray]:
    """Mean over depth of every tile: enough to compare overlaps, and small."""

    def project(tile: Tile) -> npt.NDArray:
        return np.abs(image.read(tiling.region(tile))).mean(axis=0, dtype=np.float32)

    found = run_tiles(
        tiling.tiles,
        project,
        workers=workers,
        describe=lambda tile: f"tile row {tile[0]}, column {tile[1]} of {image.path}",
    )
    return dict(zip(tiling.tiles, found, strict=True))


def _common(
    layout: Layout, projections: dict[Tile, npt.NDArray], first: Tile, second: Tile
) -> tuple[npt.NDArray, npt.NDArray] | None:
    """What both tiles saw, each placed on the section's grid; None where they do not overlap."""
    spans = [
        slice(max(a.first, b.first), min(a.last, b.last))
        for a, b in zip(layout.places[first], layout.places[second], strict=True)
    ]
    if any(s.stop - s.start < 4 for s in spans):
        return None
    seen = []
    for tile in (first, second):
        block = np.zeros((1, *(s.stop - s.start for s in spans)), np.float32)
        accumulate(
            block,
            np.zeros(block.shape[1:], np.float32),
            (slice(0, 1), *spans),
            projections[tile][None],
            layout.places[tile],
            blend="none",
        )
        seen.append(block[0])
    return seen[0], seen[1]


def _refined(
    layout: Layout,
    projections: dict[Tile, npt.NDArray],
    positions: dict[Tile, Position],
    tiling: Tiling,
    max_shift: float,
) -> dict[Tile, Position]:
    spacing = tiling.spacing[1:]
    reach = max_shift / min(spacing)
    pairs = []
    for first, second in neighbours(list(positions)):
        common = _common(layout, projections, first, second)
        if common is not None:
            # Two tiles may each be off by max_shift, to opposite sides.
            shift, peak = overlap_shift(*common, 2 * reach)
            pairs.append(Pair(first, second, shift, peak))
    pixels = {t: (p[0] / spacing[0], p[1] / spacing[1]) for t, p in positions.items()}
    solved = solve(pixels, pairs, reach)
    return {t: (p[0] * spacing[0], p[1] * spacing[1]) for t, p in solved.items()}


def stitch_section(
    source: Path,
    destination: Path,
    parameters: StitchParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    positions_table: Path | None = None,
) -> Metrics:
    """Stitch one section's mosaic grid.

    Parameters
    ----------
    source, destination
        OME-Zarr stores: a mosaic grid, and the section to be written.
    parameters, reading, execution
        See :mod:`octane.params`.
    positions_table
        CSV of tile positions in place of an overlap.

    Raises
    ------
    OctaneError
        For input or output that is not usable; nothing is left half-written.
    """
    image = open_image(source, input_unit=reading.input_unit, missing=reading.missing_chunks)
    tiling = Tiling.of(image)
    metrics = Metrics("stitch", settings=parameters.model_dump(mode="json"))
    xp = select(execution.backend)
    metrics.device = describe(xp)
    memory = bytes_of(execution.memory)
    positions = nominal_positions(image, tiling, parameters, positions_table)
    layout = Layout(tiling, positions, subpixel=parameters.subpixel)
    level = Level.volume(layout.grid)
    working = np.promote_types(image.dtype, np.float32)
    block = int(np.prod(np.minimum(level.owned, layout.grid.shape)))
    need = (2 * block + 3 * int(np.prod(tiling.tile))) * working.itemsize
    regions = blocks(layout.grid.shape, level.owned)
    workers = plan_workers(need, memory, execution.workers, max(len(regions), len(tiling.tiles)))

    with metrics.timed("overlaps"):
        projections = _projections(image, tiling, workers)
        if parameters.refine:
            refined = _refined(layout, projections, positions, tiling, parameters.max_shift)
            moved = [
                float(np.hypot(refined[t][0] - positions[t][0], refined[t][1] - positions[t][1]))
                for t in positions
            ]
            metrics.figures["refinement_micrometer"] = {
                "median": float(np.median(moved)),
                "max": max(moved),
            }
            positions = refined
            layout = Layout(tiling, positions, subpixel=parameters.subpixel)
            level = Level.volume(layout.grid)
            regions = blocks(layout.grid.shape, level.owned)
        seams = {
            f"{first[0]},{first[1]}-{second[0]},{second[1]}": seam(*common)
            for first, second in neighbours(list(positions))
            if (common := _common(layout, projections, first, second)) is not None
        }
    del projections

    attributes = {
        **{k: v for k, v in image.attributes.items() if k != "mosaic"},
        "kind": "section",
        "section": {
            **_noted_section(image),
            "edge": list(layout.edge),
            "extent": list(layout.extent),
        },
    }
    step = max(1, -(-max(layout.grid.shape[1:]) // THUMBNAIL))
    thumbnail = np.zeros([-(-n // step) for n in layout.grid.shape[1:]], np.float32)
    uncovered = 0
    with (
        create_image(
            destination, [level], image.dtype, attributes=attributes, overwrite=execution.overwrite
        ) as (array,),
        progress("STITCH", len(regions)) as advance,
    ):

        def work(region: Region) -> int:
            shape = [r.stop - r.start for r in region]
            total = xp.zeros(shape, working)
            weights = xp.zeros(shape[1:], np.float32)
            for tile, places in layout.places.items():
                if _meets(places, region):
                    with metrics.timed("read"):
                        voxels = image.read((region[0], *tiling.region(tile)[1:]))
                    metrics.count("read", voxels.nbytes)
                    with metrics.timed("compute"):
                        accumulate(
                            total,
                            weights,
                            region,
                            xp.asarray(voxels),
                            places,
                            blend=parameters.blend,
                        )
            with metrics.timed("compute"):
                if parameters.blend == "linear":
                    total /= xp.where(weights > 0, weights, 1)
                result = to_host(as_dtype(total, image.dtype))
                _sample(thumbnail, result, region, step)
            with metrics.timed("write"):
                array[region] = result
            metrics.count("written", result.nbytes)
            advance(result.nbytes)
            return int((weights == 0).sum())

        uncovered = sum(
            run_tiles(
                regions,
                work,
                workers=min(workers, len(regions)),
                describe=lambda r: f"block {r} of {source}",
            )
        )
    if uncovered:
        metrics.warn(
            f"{source.name}: {uncovered} pixels lie between tiles and are zero; "
            "check --overlap or --positions."
        )
    values = list(seams.values())
    metrics.figures.update(
        section=_number(image),
        shape=list(layout.grid.shape),
        tiles=len(tiling.tiles),
        seam_median=float(np.median(values)) if values else None,
        seam_max=max(values) if values else None,
        seams=seams,
        uncovered_pixels=uncovered,
        positions={f"{r},{c}": list(p) for (r, c), p in positions.items()},
    )
    metrics.previews["thumbnail"] = thumbnail
    return metrics


def _noted_section(image: Image) -> dict[str, object]:
    noted = image.attributes.get("section")
    return {"number": _number(image), **(noted if isinstance(noted, dict) else {})}


def _meets(places: tuple[Placement, ...], region: Region) -> bool:
    return all(
        p.first < r.stop and p.last > r.start for p, r in zip(places, region[1:], strict=True)
    )


def _sample(thumbnail: npt.NDArray, block: npt.NDArray, region: Region, step: int) -> None:
    """Put every ``step``-th pixel of the block's mean over depth into the section's picture."""
    if region[0].start != 0:
        return
    y, x = (np.arange(-(-r.start // step), -(-r.stop // step)) for r in region[1:])
    mean = np.abs(block).mean(axis=0)
    thumbnail[np.ix_(y, x)] = mean[np.ix_(y * step - region[1].start, x * step - region[2].start)]
