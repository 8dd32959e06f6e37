"""The N4 command under a memory limit, on volumes up to several times that limit."""

import json
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import PROJECT, cores, scratch_folder
from _processes import run

from octane.config.params import bytes_of
from octane.core.geometry import Grid, Region, blocks, vector
from octane.pipeline.workers import run_tiles
from octane.store.writer import SHARD, Level, create_image

__all__ = ["memory"]

logger = logging.getLogger(__name__)

LIMIT = "2GB"
# Multiples of a shard, so that the size is the only thing that grows; 0.5, 1, 3 and 13 GB.
SHAPES = ((256, 512, 1024), (256, 1024, 1024), (512, 1024, 1536), (1024, 1536, 2048))


def memory(quick: bool, shrink_factor: str) -> dict[str, object]:
    """Correct volumes of growing size under the same limit."""
    start = time.perf_counter()
    cases = []
    for shape in SHAPES[:2] if quick else SHAPES:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            cases.append(run_case(Path(folder), shape, shrink_factor))
        logger.info(
            "memory, %.1f GB: peak %.2f GB, predicted %.2f GB, %.0f s",
            cases[-1]["bytes"] / 1e9,
            cases[-1]["peak_bytes"] / 1e9,
            cases[-1]["predicted_bytes"] / 1e9,
            cases[-1]["seconds"],
        )
    return {
        "limit": LIMIT,
        "limit_bytes": bytes_of(LIMIT),
        "limited_by": "RLIMIT_DATA",
        "cases": cases,
        "seconds": time.perf_counter() - start,
    }


def run_case(folder: Path, shape: tuple[int, int, int], shrink_factor: str) -> dict:
    """Correct one volume with the command itself."""
    source, record = folder / "noise.ome.zarr", folder / "n4.json"
    write_noise(source, shape)
    command = [
        sys.executable,
        str(PROJECT / "bin" / "n4.py"),
        str(source),
        str(folder / "corrected.ome.zarr"),
        *("--shrink-factor", shrink_factor),
        *("--memory", LIMIT, "--workers", str(cores()), "--backend", "cpu"),
        *("--metrics", str(record)),
    ]
    found = run(command, limit=bytes_of(LIMIT))
    made = json.loads(record.read_text(encoding="utf-8"))
    predicted = made["figures"]["predicted_memory_bytes"]
    stored = sum(f.stat().st_size for f in source.rglob("*") if f.is_file())
    return {
        "shape": list(shape),
        "bytes": stored,
        "fit_shape": made["figures"]["shrunk_shape"],
        "iterations": [level["iterations"] for level in made["figures"]["levels"]],
        "peak_bytes": found.peak_bytes,
        "predicted_bytes": predicted,
        "peak_over_predicted": found.peak_bytes / predicted,
        "seconds": found.seconds,
        "ns_per_voxel": found.seconds / float(np.prod(shape)) * 1e9,
        "stages": made["seconds"],
    }


def write_noise(path: Path, shape: tuple[int, int, int]) -> None:
    """Write noise under a smooth bias, uncompressed: nothing is smaller on disk than in memory."""
    noise = np.random.default_rng(0).normal(100, 10, (SHARD,) * 3).astype(np.float32)
    ramps = [np.exp(np.linspace(-0.2, 0.2, n, dtype=np.float32)) for n in shape]
    level = Level.volume(Grid(shape, vector(10, 10, 10), vector(0, 0, 0)))
    with create_image(path, [level], np.float32, codec="none") as (writer,):

        def work(region: Region) -> None:
            bias = np.einsum("i,j,k", *(r[part] for r, part in zip(ramps, region, strict=True)))
            inside = tuple(slice(n) for n in bias.shape)
            writer[region] = noise[inside] * bias

        run_tiles(blocks(shape, level.owned), work, workers=cores())
