"""Part ``flat_field``: the residual of a simulated shading of 30 %, and the cost of the fit."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from _common import PROJECT, cores, scratch_folder
from _processes import run
from tutorial import template

from octane.core.geometry import Vector, vector
from octane.layout.mosaic import MosaicGrid, Tile
from octane.layout.placement import TilePlacement
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import Subject, render_tile, shading
from octane.processes.stitch.flat_field import FlatField, estimate_flat_field, shading_of

SHADING = 0.3
SIZES: dict[str, Mapping[str, object]] = {
    "2 x 2 tiles of 128 px": {"tiles": 2, "tile_shape": (24, 128, 128)},
    "3 x 3 tiles of 128 px": {"tiles": 3, "tile_shape": (24, 128, 128)},
    "8 x 8 tiles of 96 px": {"tiles": 8, "tile_shape": (24, 96, 96)},
    "3 x 3, overlap 0.1": {"tiles": 3, "tile_shape": (24, 128, 128), "overlap": 0.1},
    "brain, 4 x 3 tiles of 64 px": {},
}
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle; 0 for no speckle."""
SEEDS = (1, 2, 3, 4, 5)
RUNS = 9

Image = npt.NDArray[np.float32]

BASIC = """
import sys, numpy as np
from basicpy import BaSiC
basic = BaSiC(get_darkfield=False)
basic.fit(np.load(sys.argv[1]))
np.save(sys.argv[2], basic.flatfield)
"""


Seen = tuple[dict[Tile, Image], TilePlacement, Image]
"""Mean over depth of the tiles of a section, their placement and their flat field."""


def phantom(
    settings: Mapping[str, object], looks: int, seed: int, strength: float = SHADING
) -> Seen:
    """Tiles of the second section of a phantom, whose shading has this ``strength``."""
    more = {"speckle_looks": looks, "seed": seed, "edge_fraction": 0, "sections": 3}
    p = PhantomParameters.model_validate({**settings, **more, "shading": strength})
    subject, (depth, height, width) = Subject.of(p), p.tile_shape
    tile, pitch = (depth, height, width), subject.pitch
    grid = grid_of(tile, (p.tiles[0], p.tiles[1]), vector(*p.voxel_size), pitch)
    places = grid.positions(pitch)
    tiles = {t: render_tile(p, 1, t, tile, place).mean(axis=0) for t, place in places.items()}
    return tiles, TilePlacement(grid, places), light(tile, p.voxel_size, strength)


def brain(settings: Mapping[str, object], looks: int, seed: int) -> Seen:
    """Tiles of a slab of the brain of docs/tutorial.md."""
    depth, n, pitch = 32, 64, 48
    slab = template()[18 + 30 * (seed - 1) :][:depth].astype(np.float32)
    rows, columns = ((size - n) // pitch + 1 for size in slab.shape[1:])
    grid = grid_of((depth, n, n), (rows, columns), vector(1, 1, 1), (pitch, pitch))
    true = light((depth, n, n), (1.0, 1.0, 1.0))
    generator, tiles = np.random.default_rng(seed), {}
    for tile, (y, x) in (places := grid.positions((pitch, pitch))).items():
        voxels = slab[:, int(y) : int(y) + n, int(x) : int(x) + n] * true
        noise = generator.standard_gamma(looks, voxels.shape, np.float32) / looks if looks else 1
        tiles[tile] = (voxels * noise).mean(axis=0)
    return tiles, TilePlacement(grid, places), true


def grid_of(
    tile: tuple[int, int, int], count: tuple[int, int], voxel: Vector, pitch: tuple[float, float]
) -> MosaicGrid:
    """Mosaic of complete tiles."""
    shape = (tile[0], count[0] * tile[1], count[1] * tile[2])
    own, whole = (vector(*np.multiply(n, voxel)) for n in (tile, shape))
    return MosaicGrid(shape, tile, voxel, vector(0, 0, 0), own, whole, pitch)


def light(tile: tuple[int, ...], voxel: Sequence[float], strength: float = SHADING) -> Image:
    """The simulated flat field."""
    _, y, x = ((np.arange(n) + 0.5) * size for n, size in zip(tile, voxel, strict=True))
    return shading(strength, (tile[1] * voxel[1], tile[2] * voxel[2]), y, x)


def left(found: npt.NDArray, true: npt.NDArray) -> tuple[float, float]:
    """Root mean square of the residual shading, relative to its mean, and its 99th percentile."""
    error = true / found / (true / found).mean() - 1
    return float(error.std()), float(np.percentile(np.abs(error), 99))


def fitted(tiles: dict[Tile, Image], placement: TilePlacement) -> FlatField:
    """Octane's flat field."""
    flat = estimate_flat_field(tiles, placement)
    if flat is None:
        raise RuntimeError("nothing to compare")
    return flat


def case(
    settings: Mapping[str, object], looks: int, seeds: tuple[int, ...], basic: Path | None
) -> dict[str, object]:
    """Figures of the worst seed; BaSiCPy, which is slow, runs only on the first."""
    errors: dict[str, list[tuple[float, float]]] = {}
    even: list[FlatField] = []
    for seed in seeds:
        make = phantom if settings else brain
        tiles, placement, true = make(settings, looks, seed)
        stack = np.stack([*tiles.values()])
        fields = {"octane": fitted(tiles, placement).profile}
        if settings:
            # Values around the brain are 0, by which other methods would divide.
            fields["mean"] = stack.mean(axis=0)
        if settings and basic is not None and seed == seeds[0]:
            with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
                source, made = Path(scratch) / "tiles.npy", Path(scratch) / "flat.npy"
                np.save(source, stack)
                run([basic, "-c", BASIC, source, made])
                fields["BaSiCPy"] = np.load(made)
        for name, field in fields.items():
            errors.setdefault(name, []).append(left(field, true))
        # The same speckle in even light.
        even.append(fitted({t: v / true for t, v in tiles.items()}, placement))
    return {
        "looks": looks,
        "seeds": len(seeds),
        "put_in": left(np.ones_like(true), true)[0],
        "left": {name: max(rms for rms, _ in own) for name, own in errors.items()},
        "left_99": max(most for _, most in errors["octane"]),
        "even": max(left(flat.profile, np.ones_like(true))[0] for flat in even),
        "measured_in_even": max(shading_of(flat.profile) for flat in even),
    }


def cost(quick: bool) -> dict[str, object]:
    """CPU seconds and peak memory of STITCH without and with a flat field, alternately."""
    words = ["--sections", "1", "--tiles", "2" if quick else "6", "--edge_fraction", "0"]
    words += ["--tile_shape", "64", "256", "256", "--shading", str(SHADING)]
    found: dict[str, list[tuple[float, int]]] = {"none": [], "estimate": []}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        run([sys.executable, PROJECT / "bin" / "phantom.py", folder / "made", *words])
        (source,) = (folder / "made" / "mosaics").iterdir()
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
        command = [sys.executable, PROJECT / "bin" / "stitch.py", source, folder / "s.ome.zarr"]
        command += ["--overwrite", "--workers", str(cores())]
        for _ in range(3 if quick else RUNS):
            for name, own in found.items():
                done = run([*command, "--stitch_flat_field", name])
                own.append((done.cpu_seconds, done.peak_bytes))
    names = ("cpu_seconds", "peak_bytes")
    figures = {
        way: dict(zip(names, map(median, zip(*own, strict=True)), strict=True))
        for way, own in found.items()
    }
    return {"bytes": size, **figures}


def flat_field(quick: bool, basic: Path | None) -> dict[str, object]:
    """Measure residual shading on phantoms, and time and memory on top of STITCH."""
    sizes = dict(list(SIZES.items())[1:2]) if quick else SIZES
    rows = [
        {"size": name, **case(settings, looks, SEEDS[:1] if quick else SEEDS, basic)}
        for name, settings in sizes.items()
        for looks in LOOKS
    ]
    return {"rows": rows, "cost": cost(quick)}
