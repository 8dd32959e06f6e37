"""PHANTOM: writes a synthetic subject tile by tile, and the truth beside it."""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.config.params import ExecutionParameters, PhantomParameters, bytes_of
from octane.core.arrays import as_dtype
from octane.core.files import writing
from octane.core.geometry import Grid, Region, blocks, vector
from octane.core.metrics import Metrics, write_json
from octane.core.progress import Advance, progress
from octane.pipeline.workers import plan_workers, run_tiles
from octane.steps.phantom_model import (
    SCALE,
    Subject,
    attenuation,
    bias_field,
    section_gain,
    shading,
    speckle,
    stage_errors,
    tissue,
)
from octane.store.image import Attributes
from octane.store.mosaic_grid import COLUMNS, MosaicGrid, Position, Tile
from octane.store.writer import Level, create_image

SLAB = 8
"""Planes rendered at once, so that the working arrays stay small beside the tile."""
BYTES_PER_VOXEL = 96
"""Working arrays of the analytic tissue: about twelve float64 for each voxel of a slab."""


def _tiling(p: PhantomParameters, subject: Subject) -> MosaicGrid:
    nz, ty, tx = p.tile_shape
    shape = (
        nz,
        (p.tiles[0] - 1) * ty + subject.edge_tile[0],
        (p.tiles[1] - 1) * tx + subject.edge_tile[1],
    )
    spacing = vector(*p.voxel_size)
    size = vector(*(n * s for n, s in zip(shape, spacing, strict=True)))
    grid = Grid.covering((0, 0, 0), size, spacing)
    # A single row or column that is cut leaves no full tile: its own size is the chunk.
    tile = (nz, min(ty, shape[1]), min(tx, shape[2]))
    extent = vector(*(n * s for n, s in zip(tile, spacing, strict=True)))
    return MosaicGrid(shape, tile, spacing, grid.edge, extent, grid.extent, subject.pitch)


def render_tile(
    p: PhantomParameters, section: int, tile: Tile, shape: tuple[int, ...], position: Position
) -> npt.NDArray[np.float32]:
    """Voxels of one tile in grey levels, (z, y, x), as the microscope would see them.

    Parameters
    ----------
    p
        The phantom's parameters.
    section
        Index of the section, from 0.
    tile
        Row and column.
    shape
        Voxels of the tile.
    position
        True edge of the tile in the subject (y, x), micrometres.
    """
    subject = Subject.of(p)
    depth, dy, dx = ((np.arange(n) + 0.5) * s for n, s in zip(shape, p.voxel_size, strict=True))
    z, y, x = depth + section * p.section_thickness, dy + position[0], dx + position[1]
    if p.speckle_looks > 0:
        values = speckle(p.speckle_looks, shape, [p.seed, section, *tile])
    else:
        values = np.ones(shape, np.float32)
    for start in range(0, len(z), SLAB):
        planes = slice(start, start + SLAB)
        values[planes] *= tissue(subject, z[planes], y, x)
        values[planes] *= bias_field(subject, p.bias, z[planes], y, x)
    values *= attenuation(p.attenuation, depth)[:, None, None]
    values *= shading(p.shading, (subject.tile_extent[1], subject.tile_extent[2]), dy, dx)
    values *= SCALE * section_gain(p.seed, section, p.section_steps)
    return values


def make_phantom(
    destination: Path, parameters: PhantomParameters, execution: ExecutionParameters
) -> Metrics:
    """Write a subject: ``mosaics/``, ``truth/`` and ``positions.csv`` under ``destination``.

    Raises
    ------
    OctaneError
        When the destination exists or cannot be written; nothing is left half-written.
    """
    p = parameters
    subject = Subject.of(p)
    tiling = _tiling(p, subject)
    metrics = Metrics("phantom", settings=p.model_dump(mode="json"))
    nominal = tiling.positions(subject.pitch)
    rows: list[tuple[int, int, int, float, float]] = []
    with writing(destination, overwrite=execution.overwrite) as partial:
        partial.mkdir()
        with progress("PHANTOM", p.sections * len(tiling.tiles)) as advance:
            for section in range(p.sections):
                errors = stage_errors(p, section, tiling.tiles)
                true = {t: (y + errors[t][0], x + errors[t][1]) for t, (y, x) in nominal.items()}
                rows += [(section + 1, *t, *true[t]) for t in tiling.tiles]
                store = partial / "mosaics" / f"section_{section + 1:02d}.ome.zarr"
                _write_section(store, p, tiling, section, true, execution, metrics, advance)
        _write_positions(partial / "positions.csv", rows)
        _write_truth(partial / "truth", p, subject, execution)
    metrics.figures.update(
        sections=p.sections,
        tiles=len(tiling.tiles),
        shape=list(tiling.shape),
        extent=list(subject.extent),
    )
    return metrics


def _write_section(
    store: Path,
    p: PhantomParameters,
    tiling: MosaicGrid,
    section: int,
    positions: dict[Tile, Position],
    execution: ExecutionParameters,
    metrics: Metrics,
    advance: Advance,
) -> None:
    shards = (tiling.tile[0], 2 * tiling.tile[1], 2 * tiling.tile[2]) if p.sharded else None
    level = Level(Grid.covering(tiling.edge, tiling.extent, tiling.spacing), tiling.tile, shards)
    attributes: Attributes = {
        "kind": "mosaic",
        "mosaic": tiling.attributes(),
        "section": {"number": section + 1, "thickness": p.section_thickness},
    }
    owners = blocks(tiling.shape, level.owned)
    # The block in its own type, the tile in float32, and a slab's working arrays.
    plane = int(np.prod(level.owned[1:]))
    need = plane * (16 * level.owned[0] + BYTES_PER_VOXEL * SLAB)
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, len(owners))
    with create_image(store, [level], p.dtype, attributes=attributes) as (writer,):

        def work(owned: Region) -> None:
            block = np.empty([r.stop - r.start for r in owned], p.dtype)
            for tile in tiling.tiles:
                region = tiling.region(tile)
                if all(o.start <= r.start < o.stop for o, r in zip(owned, region, strict=True)):
                    shape = tuple(r.stop - r.start for r in region)
                    voxels = render_tile(p, section, tile, shape, positions[tile])
                    place = tuple(
                        slice(r.start - o.start, r.stop - o.start)
                        for r, o in zip(region, owned, strict=True)
                    )
                    block[place] = as_dtype(voxels, p.dtype)
                    advance(voxels.nbytes)
            writer[owned] = block
            metrics.count("written", block.nbytes)

        run_tiles(owners, work, workers=workers)


def _write_positions(path: Path, rows: list[tuple[int, int, int, float, float]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _write_truth(
    folder: Path, p: PhantomParameters, subject: Subject, execution: ExecutionParameters
) -> None:
    """Tissue (grey levels) and bias field on the grid of the stacked volume."""
    spacing = vector(*[p.truth_resolution] * 3)
    level = Level.volume(Grid.covering((0, 0, 0), subject.extent, spacing))
    plane = level.owned[1] * level.owned[2]
    need = plane * (4 * level.owned[0] + BYTES_PER_VOXEL * SLAB)
    regions = blocks(level.grid.shape, level.owned)
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, len(regions))

    def write(name: str) -> None:
        with create_image(folder / f"{name}.ome.zarr", [level], "float32") as (writer,):

            def work(region: Region) -> None:
                block = np.empty([r.stop - r.start for r in region], np.float32)
                z, y, x = ((np.arange(r.start, r.stop) + 0.5) * p.truth_resolution for r in region)
                for start in range(0, len(z), SLAB):
                    planes = slice(start, start + SLAB)
                    if name == "tissue":
                        block[planes] = tissue(subject, z[planes], y, x) * np.float32(SCALE)
                    else:
                        block[planes] = bias_field(subject, p.bias, z[planes], y, x)
                writer[region] = block

            run_tiles(regions, work, workers=workers)

    write("tissue")
    write("bias")
    write_json(folder / "truth.json", p.model_dump(mode="json"))
