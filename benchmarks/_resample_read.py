"""Reading and decoding by octane's reader and others, from stores of every kind."""

import logging
import statistics
import tempfile
from pathlib import Path

from _common import scratch_folder
from _processes import run_script
from _resample_stores import KINDS, Mosaic, mosaic

logger = logging.getLogger(__name__)

TILE, COUNTS = (256, 256, 256), (4, 4)
QUICK_KINDS = ("zstd", "zstd, shards of 4 x 4", "uncompressed")
THREADS = (1, 2)
RUNS = 1
"""Readings of the whole store in every process, after a first one."""


def read(quick: bool, peers: Path | None) -> dict[str, object]:
    """Time every reader on every kind of store, with one thread and with two."""
    pythons: dict[str, Path | None] = {
        "octane": None,
        "octane, streamed": None,
        "zarr-python": None,
    }
    if peers is not None:
        pythons |= {"zarrs": peers, "tensorstore": peers}
    cases = []
    for kind in QUICK_KINDS if quick else KINDS:
        with (
            tempfile.TemporaryDirectory(dir=scratch_folder()) as folder,
            mosaic(Path(folder), kind, TILE, COUNTS) as source,
        ):
            cases.append(run_case(kind, source, 1 if quick else 3, pythons))
    return {"tile": list(TILE), "cases": cases}


def run_case(
    kind: str, source: Mosaic, rounds: int, pythons: dict[str, Path | None]
) -> dict[str, object]:
    """All readers on one store, taking turns."""
    source.warm()
    found: dict[str, dict[str, list[float]]] = {
        reader: {str(n): [] for n in THREADS} for reader in pythons
    }
    for _ in range(rounds):
        for reader, python in pythons.items():
            for threads in THREADS:
                request = {
                    "reader": reader,
                    "source": str(source.path),
                    "threads": threads,
                    "runs": RUNS,
                }
                figures, _ = run_script("_resample_peers.py", request, python=python, cores=threads)
                found[reader][str(threads)].append(figures["median"] / figures["tiles"] * 1e3)
    readers = {
        reader: {threads: statistics.median(values) for threads, values in by_threads.items()}
        for reader, by_threads in found.items()
    }
    logger.info("read, %s, ms a tile: %s", kind, readers)
    return {"store": kind, "compression_ratio": source.ratio, "ms_per_tile": readers}
