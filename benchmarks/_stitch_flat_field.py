"""Part ``flat_field``: the shading that is left where 30 % was put in, and what the fit costs."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from _common import PROJECT, cores, scratch_folder
from _processes import run

from octane.config.params import PhantomParameters
from octane.steps.phantom import Subject, render_tile, shading
from octane.stitch.flat_field import estimate
from octane.stitch.placement import TilePlacement
from octane.store.mosaic_grid import MosaicGrid

SHADING = 0.3
SIZES: dict[str, Mapping[str, object]] = {
    "2 x 2 tiles of 128 px": {"tiles": (2, 2), "tile_shape": (24, 128, 128)},
    "3 x 3 tiles of 128 px": {"tiles": (3, 3), "tile_shape": (24, 128, 128)},
    "6 x 6 tiles of 96 px": {"tiles": (6, 6), "tile_shape": (24, 96, 96)},
    "3 x 3, overlap 0.1": {"tiles": (3, 3), "tile_shape": (24, 128, 128), "overlap": (0.1, 0.1)},
}
LOOKS = (1, 4, 16, 0)
"""Independent looks in the speckle; 0: none."""
SEEDS = (1, 2, 3, 4, 5)
RUNS = 9

Tiles = dict[tuple[int, int], npt.NDArray[np.float32]]

BASIC = """
import sys, numpy as np
from basicpy import BaSiC
given = np.load(sys.argv[1])
made = {}
for name in given.files:
    basic = BaSiC(get_darkfield=False)
    basic.fit(given[name])
    made[name] = basic.flatfield
np.savez(sys.argv[2], **made)
"""


def seen(parameters: PhantomParameters) -> tuple[Tiles, TilePlacement]:
    """Mean over depth of the tiles of a section through its middle, and their placement."""
    subject = Subject.of(parameters)
    nz, ny, nx = parameters.tile_shape
    rows, columns = parameters.tiles
    shape = (nz, rows * ny, columns * nx)
    z, y, x = parameters.voxel_size
    extent = (nz * z, shape[1] * y, shape[2] * x)
    grid = MosaicGrid(
        shape, (nz, ny, nx), (z, y, x), (0.0, 0.0, 0.0), subject.tile_extent, extent, subject.pitch
    )
    positions = grid.positions(subject.pitch)
    tiles = {
        tile: render_tile(parameters, 1, tile, (nz, ny, nx), place).mean(axis=0)
        for tile, place in positions.items()
    }
    return tiles, TilePlacement(grid, positions, subpixel=True)


def light(parameters: PhantomParameters) -> npt.NDArray[np.float64]:
    """Flat field that was put in."""
    _, height, width = Subject.of(parameters).tile_extent
    counts = zip(parameters.tile_shape[1:], parameters.voxel_size[1:], strict=True)
    y, x = ((np.arange(n) + 0.5) * size for n, size in counts)
    return shading(parameters.shading, (height, width), y, x).astype(np.float64)


def left(found: npt.NDArray, true: npt.NDArray) -> float:
    """Root mean square of the shading that is left, over its mean."""
    ratio = true / found
    return float(ratio.std() / ratio.mean())


def of_others(tiles: Tiles) -> dict[str, npt.NDArray]:
    """Flat fields by means over tiles: that of all, and that of tiles brought to one brightness."""
    stack = np.stack([*tiles.values()])
    each = stack / stack.mean(axis=(1, 2), keepdims=True)
    return {"mean over tiles": stack.mean(axis=0), "median over tiles": np.median(each, axis=0)}


def accuracy(quick: bool, basic: Path | None) -> list[dict[str, object]]:
    """Largest residual over the seeds, by size and looks, of each method."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        given, made = Path(scratch) / "tiles.npz", Path(scratch) / "flat.npz"
        script = Path(scratch) / "basic.py"
        script.write_text(BASIC, encoding="utf-8")
        for size, settings in list(SIZES.items())[: 2 if quick else None]:
            for looks in LOOKS:
                errors: dict[str, list[float]] = {}
                kept: dict[str, npt.NDArray] = {}
                even: list[float] = []
                measured: list[float] = []
                for seed in seeds:
                    more = {"speckle_looks": looks, "edge_fraction": 0, "seed": seed, "sections": 3}
                    parameters = PhantomParameters.model_validate(
                        {**settings, **more, "shading": SHADING}
                    )
                    true = light(parameters)
                    tiles, placement = seen(parameters)
                    flat = estimate(tiles, placement)
                    # The same speckle in even light.
                    plain = estimate({t: v / true for t, v in tiles.items()}, placement)
                    if flat is None or plain is None:
                        raise RuntimeError(f"{size}: nothing to compare")
                    methods = {"octane": flat.profile, **of_others(tiles)}
                    for name, field in methods.items():
                        errors.setdefault(name, []).append(left(field, true))
                    even.append(left(plain.profile, np.ones_like(true)))
                    measured += [flat.shading, plain.shading]
                    kept[str(seed)] = np.stack([*tiles.values()])
                if basic is not None:
                    np.savez(given, allow_pickle=False, **kept)
                    run([basic, script, given, made])
                    with np.load(made) as fields:
                        errors["BaSiCPy"] = [left(fields[name], true) for name in fields.files]
                rows.append(
                    {
                        "size": size,
                        "looks": looks,
                        "seeds": len(seeds),
                        "put_in": float(true.std() / true.mean()),
                        "largest": {name: max(own) for name, own in errors.items()},
                        "even_light": max(even),
                        "measured_in_even_light": max(measured[1::2]),
                    }
                )
    return rows


def cost(quick: bool) -> dict[str, object]:
    """CPU seconds and peak memory of STITCH without, and with, a flat field, in turns."""
    words = ["--sections", "1", "--tiles", "2" if quick else "5", "--edge-fraction", "0"]
    words += ["--tile-shape", "64", "256", "256", "--shading", str(SHADING)]
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        run([sys.executable, PROJECT / "bin" / "phantom.py", folder / "made", *words])
        (source,) = (folder / "made" / "mosaics").iterdir()
        size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
        for _ in range(3 if quick else RUNS):
            for name in ("none", "estimate"):
                start = time.perf_counter()
                given = ["--flat-field", name, "--metrics", folder / "m.json", "--overwrite"]
                given += ["--workers", str(cores()), "--codec", "blosc-lz4"]
                command = [sys.executable, PROJECT / "bin" / "stitch.py", source, folder / "s.zarr"]
                done = run([*command, *given])
                own = found.setdefault(name, {"seconds": [], "step_seconds": [], "peak_bytes": []})
                own["seconds"].append(time.perf_counter() - start)
                record = json.loads((folder / "m.json").read_text(encoding="utf-8"))
                own["step_seconds"].append(record["seconds"]["total"])
                own["peak_bytes"].append(done.peak_bytes)
    medians = {name: {k: median(v) for k, v in own.items()} for name, own in found.items()}
    return {"bytes": size, **medians}


def flat_field(quick: bool, basic: Path | None) -> dict[str, object]:
    """Measure residual shading on phantoms, and time and memory on top of STITCH."""
    return {"rows": accuracy(quick, basic), "cost": cost(quick)}
