"""Resampling of one tile in memory on one core, by octane's compiled loops and other methods."""

import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _common import scratch_folder
from _processes import run_script
from _resample_stores import RESOLUTION, SPACING, speckle
from scipy import ndimage

logger = logging.getLogger(__name__)

TILES = ((256, 256, 256), (400, 512, 512))

RUNS, FEW = 15, 2
"""Timed calls per round of octane's loops, and of other methods, which take longer."""


def kernel(quick: bool, peers: Path | None) -> dict[str, object]:
    """Time every method on every tile, and compare with the float64 reference."""
    cases = [run_case(tile, 1 if quick else 3, peers) for tile in TILES[: 1 if quick else None]]
    return {"spacing": SPACING, "resolution": RESOLUTION, "cases": cases}


def run_case(tile: tuple[int, int, int], rounds: int, peers: Path | None) -> dict[str, object]:
    """Time all methods on one tile, alternately."""
    voxels = speckle(tile)
    shape = [round(n * SPACING / RESOLUTION) for n in tile]
    expected = reference(voxels, SPACING, RESOLUTION, shape)
    pythons = {
        "octane": None,
        "zoom": None,
        "affine": None,
        **({} if peers is None else {"skimage": peers}),
    }
    seconds: dict[str, list[float]] = {method: [] for method in pythons}
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        paths = {name: str(Path(folder, f"{name}.npy")) for name in ("tile", "result")}
        np.save(paths["tile"], voxels)
        for _ in range(rounds):
            for method, python in pythons.items():
                request = {
                    **paths,
                    "method": method,
                    "spacing": SPACING,
                    "target": RESOLUTION,
                    "shape": shape,
                    "runs": RUNS if method == "octane" else FEW,
                }
                found, _ = run_script("_resample_peers.py", request, python=python, cores=1)
                seconds[method].append(found["median"])
                errors[method] = largest_error(np.load(paths["result"]), expected)
    medians = {method: statistics.median(found) for method, found in seconds.items()}
    logger.info("kernel, %s: %s", tile, {m: f"{s * 1e3:.1f} ms" for m, s in medians.items()})
    return {
        "tile": list(tile),
        "bytes": voxels.nbytes,
        "methods": {
            method: {
                "seconds": spent,
                "error": errors[method],
                "octane_times_faster": spent / medians["octane"],
            }
            for method, spent in medians.items()
        },
    }


def reference(
    voxels: npt.NDArray[np.float32], spacing: float, target: float, shape: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the definition in float64: Gaussian, then linear interpolation, pixel-centred."""
    values = voxels.astype(np.float64)
    where = []
    for axis, (n, m) in enumerate(zip(voxels.shape, shape, strict=True)):
        sigma = (target / spacing - 1) / 2
        values = ndimage.gaussian_filter1d(values, sigma, axis=axis, mode="reflect")
        # Both grids have their centre at n * spacing / 2; sample k is at (k + 0.5) * spacing.
        physical = n * spacing / 2 + (np.arange(m) - (m - 1) / 2) * target
        where.append(physical / spacing - 0.5)
    return ndimage.map_coordinates(
        values, np.meshgrid(*where, indexing="ij"), order=1, mode="reflect"
    )


def largest_error(result: npt.NDArray, expected: npt.NDArray[np.float64]) -> float:
    """Return the largest relative difference of any voxel; the speckle is never 0."""
    return float(np.abs(result / expected - 1).max())
