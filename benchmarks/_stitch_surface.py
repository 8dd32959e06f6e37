"""Part ``surface``: errors of a section's surface against phantoms' truth, and its cost."""

import numpy as np
from _stitch_cost import section_cost
from uneven_sections import UnevenParameters, render_tile, surfaces

from octane.compare.columns import columns
from octane.core.geometry import vector
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement
from octane.processes.phantom.step import Subject
from octane.processes.stitch.record import SurfaceFigures
from octane.processes.stitch.surface import measure_surface

VOXEL = 10.0
"""Voxel size, micrometres."""
SIZES = ((2, 64), (3, 64), (3, 128))
"""Tiles along y and x, and their pixels along both."""
PLANES = 40
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle of a voxel; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
SECTIONS = 2
WATER = {"surface": 15 * VOXEL, "surface_jitter": 3 * VOXEL, "tilt": 1}
"""Surfaces of the sections in micrometres and degrees."""
RUNS = 3


def phantom(tiles: int, pixels: int, looks: float, seed: int, **given: float) -> UnevenParameters:
    """Return a subject whose sections begin within the tissue, if no surface is given."""
    made = {
        "tiles": tiles,
        "tile_shape": (PLANES, pixels, pixels),
        "edge_fraction": 0,
        "voxel_size": VOXEL,
        "section_thickness": 20 * VOXEL,
        "sections": SECTIONS,
        "speckle_looks": looks,
        "seed": seed,
    }
    return UnevenParameters.model_validate({**made, **given})


def measured(p: UnevenParameters, section: int) -> SurfaceFigures:
    """Measure the surface of a section, whose tiles are rendered in memory."""
    subject, (depth, height, width) = Subject.of(p), p.tile_shape
    shape = (depth, p.tiles[0] * height, p.tiles[1] * width)
    spacing, extent = vector(*p.voxel_size), vector(*np.multiply(shape, p.voxel_size))
    tile, own = (depth, height, width), vector(*subject.tile_extent)
    grid = MosaicGrid(shape, tile, spacing, vector(0, 0, 0), own, extent, subject.pitch)
    places = grid.positions(subject.pitch)
    seen = {t: columns(render_tile(p, section, t, tile, place)) for t, place in places.items()}
    return measure_surface(seen, TilePlacement(grid, places))


def row(tiles: int, pixels: int, looks: int, seeds: tuple[int, ...]) -> dict[str, object]:
    """Measure the sections of all seeds, with water above the tissue and without."""
    errors: list[tuple[float, float]] = []
    false = 0
    for seed in seeds:
        wet = phantom(tiles, pixels, looks, seed, **WATER)
        for section, true in enumerate(surfaces(wet)):
            found = measured(wet, section)
            if found.depth is not None and found.tilt is not None:
                tilt = np.abs(np.subtract(found.tilt, true.tilt)).max()
                errors.append((abs(found.depth - true.depth) / VOXEL, float(tilt)))
            dry = measured(phantom(tiles, pixels, looks, seed), section)
            false += dry.depth is not None
    depth, tilt = np.percentile(errors, 95, axis=0).tolist() if errors else (None, None)
    return {
        "name": f"{tiles} x {tiles} tiles of {pixels} px",
        "looks": looks,
        "sections": SECTIONS * len(seeds),
        "found": len(errors),
        "depth": depth,
        "tilt": tilt,
        "false": false,
    }


def surface(quick: bool) -> dict[str, object]:
    """Measure the errors by size and speckle, and the cost."""
    rows = [
        row(*size, looks, SEEDS[:1] if quick else SEEDS)
        for size in (SIZES[:1] if quick else SIZES)
        for looks in LOOKS
    ]
    size = (2, 1) if quick else (6, RUNS)
    return {"rows": rows, "cost": section_cost(*size, "surface", measure_surface)}
