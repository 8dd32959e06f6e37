"""Part ``surface``: errors of a section's surface against phantoms' truth, and its cost."""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from _common import PROJECT, cores, scratch_folder
from _processes import run

from octane.config.params import PhantomParameters, StitchParameters
from octane.core.geometry import vector
from octane.core.records import SurfaceFigures
from octane.layout.mosaic import MosaicGrid, nominal_positions
from octane.layout.placement import TilePlacement
from octane.steps.phantom import Subject, render_tile, surfaces
from octane.stitch.columns import columns
from octane.stitch.surface import measured_surface
from octane.store.image import open_image

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


def phantom(tiles: int, pixels: int, looks: float, seed: int, **given: float) -> PhantomParameters:
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
    return PhantomParameters.model_validate({**made, **given})


def measured(p: PhantomParameters, section: int) -> SurfaceFigures:
    """Measure the surface of a section, whose tiles are rendered in memory."""
    subject, (depth, height, width) = Subject.of(p), p.tile_shape
    shape = (depth, p.tiles[0] * height, p.tiles[1] * width)
    spacing, extent = vector(*p.voxel_size), vector(*np.multiply(shape, p.voxel_size))
    tile, own = (depth, height, width), vector(*subject.tile_extent)
    grid = MosaicGrid(shape, tile, spacing, vector(0, 0, 0), own, extent, subject.pitch)
    places = grid.positions(subject.pitch)
    seen = {t: columns(render_tile(p, section, t, tile, place)) for t, place in places.items()}
    return measured_surface(seen, TilePlacement(grid, places))


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


def cost(tiles: int, runs: int) -> dict[str, object]:
    """CPU seconds of STITCH and STACK of a section, and of the surface's part of STITCH."""
    words = ["--sections", "1", "--tiles", str(tiles), "--tile_shape", "64", "256", "256"]
    found: dict[str, list[float]] = {"stitch": [], "stack": [], "columns": [], "surface": []}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        run([sys.executable, PROJECT / "bin" / "phantom.py", folder / "made", *words])
        (mosaic,) = (folder / "made" / "mosaics").iterdir()
        image = open_image(mosaic)
        grid = MosaicGrid.of(image)
        placement = TilePlacement(grid, nominal_positions(image, grid, StitchParameters(), None))
        blocks = {tile: image.read(grid.region(tile)) for tile in grid.imaged}
        more = ["--overwrite", "--workers", str(cores())]

        def command(name: str, *given: Path) -> float:
            return run([sys.executable, PROJECT / "bin" / name, *given, *more]).cpu_seconds

        for _ in range(runs):
            section = folder / mosaic.name
            found["stitch"].append(command("stitch.py", mosaic, section))
            found["stack"].append(command("stack.py", folder / "stack.ome.zarr", section))
            times = [time.process_time()]
            seen = {tile: columns(block) for tile, block in blocks.items()}
            times.append(time.process_time())
            measured_surface(seen, placement)
            times.append(time.process_time())
            for name, seconds in zip(("columns", "surface"), np.diff(times), strict=True):
                found[name].append(float(seconds))
    own = {name: median(seconds) for name, seconds in found.items()}
    return {"shape": placement.grid.shape, **own}


def surface(quick: bool) -> dict[str, object]:
    """Measure the errors by size and speckle, and the cost."""
    rows = [
        row(*size, looks, SEEDS[:1] if quick else SEEDS)
        for size in (SIZES[:1] if quick else SIZES)
        for looks in LOOKS
    ]
    return {"rows": rows, "cost": cost(2, 1) if quick else cost(6, RUNS)}
