"""Reading and decoding of mosaics, by octane and by other readers of zarr."""

import logging
import statistics
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _common import scratch_folder
from _processes import run_script
from _resample_stores import Mosaic, mosaic

logger = logging.getLogger(__name__)

TILE, THREADS = (256, 256, 256), 2

OWN = ("octane, streamed", "octane", "zarr")
PEERS = ("zarrs", "tensorstore")
"""Readers that run in octane's Python, and those that need another one."""

STORES: dict[str, tuple[npt.DTypeLike, tuple[int, int, int]]] = {
    "uint16": (np.uint16, TILE),
    "float32": (np.float32, TILE),
    "float32, chunks of 64³ in shards": (np.float32, (64, 64, 64)),
}
"""Stores, with the type of their voxels and their chunks."""


def reading(quick: bool, peers: Path | None) -> dict[str, object]:
    """Read every store with every reader, tile by tile with two threads, each in a process."""
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        for name, (dtype, chunks) in STORES.items():
            counts = (2, 2) if quick else (4, 4)
            with mosaic(Path(scratch), "zstd", TILE, counts, dtype=dtype, chunks=chunks) as source:
                cases.append(read_case(name, source, 1 if quick else 5, peers))
    return {"tile": list(TILE), "threads": THREADS, "cases": cases}


def read_case(name: str, source: Mosaic, rounds: int, peers: Path | None) -> dict[str, object]:
    """Time all readers on one store, alternately; those that return voxels must agree."""
    source.warm()
    pythons = dict.fromkeys(OWN) | (dict.fromkeys(PEERS, peers) if peers is not None else {})
    cpu: dict[str, list[float]] = {reader: [] for reader in pythons}
    peaks: dict[str, list[int]] = {reader: [] for reader in pythons}
    versions: dict[str, str] = {}
    checksums: set[int] = set()
    for _ in range(rounds):
        for reader, python in pythons.items():
            request = {
                "reader": reader,
                "source": str(source.path),
                "tile": list(source.tile),
                "threads": THREADS,
                "runs": 3,
            }
            found, run = run_script("_resample_peers.py", request, python=python, cores=THREADS)
            cpu[reader].append(found["cpu_seconds"])
            peaks[reader].append(run.peak_bytes)
            versions |= found["versions"]
            checksums |= {found["checksum"]} - {None}
    if len(checksums) > 1:
        raise RuntimeError(f"readers of {name} differ in the voxels of its first tile")
    medians = {reader: statistics.median(seconds) for reader, seconds in cpu.items()}
    logger.info("reading, %s: %s", name, {r: f"{s:.2f} CPU s" for r, s in medians.items()})
    return {
        "store": name,
        "tiles": source.tiles,
        "bytes": source.bytes,
        "compression_ratio": source.ratio,
        "readers": {
            reader: {"cpu_seconds": spent, "peak_bytes": max(peaks[reader])}
            for reader, spent in medians.items()
        },
        "reader_versions": versions,
    }
