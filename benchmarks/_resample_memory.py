"""Peak memory of the resampling command: against the number of tiles, and what it predicts."""

import json
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from _common import cores, scratch_folder
from _processes import run
from _resample_end_to_end import command, warm_up
from _resample_stores import Mosaic, mosaic

__all__ = ["memory"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """A mosaic grid, and the numbers of workers that resample it."""

    tile: tuple[int, int, int]
    counts: tuple[int, int]
    workers: tuple[int, ...] = (2,)
    quick: bool = False


SMALL, MIDDLE, LARGE = (64, 128, 128), (256, 256, 256), (400, 512, 512)

CASES = (
    Case(SMALL, (4, 4), quick=True),
    Case(SMALL, (8, 8), quick=True),
    Case(SMALL, (12, 12)),
    Case(SMALL, (20, 20)),
    Case(MIDDLE, (2, 2), (1, 2), quick=True),
    Case(MIDDLE, (4, 4)),
    Case(MIDDLE, (6, 6)),
    Case(LARGE, (2, 2), (1, 2)),
)


def memory(quick: bool) -> dict[str, object]:
    """Resample mosaics of more and more tiles, and tiles of every size with one worker and two."""
    start = time.perf_counter()
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with warm_up(folder):
            for case in CASES:
                if case.quick or not quick:
                    with mosaic(folder, "zstd", case.tile, case.counts) as source:
                        cases += [run_case(folder, source, workers) for workers in case.workers]
    return {"cores_used": cores(), "cases": cases, "seconds": time.perf_counter() - start}


def run_case(folder: Path, source: Mosaic, workers: int) -> dict[str, object]:
    """Resample one mosaic with the command itself."""
    record, destination = folder / "resample.json", folder / "resampled.ome.zarr"
    found = run(command(source.path, destination, record, workers))
    rmtree(destination)
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    predicted = figures.get("predicted_memory_bytes")
    logger.info(
        "memory, %d tiles of %s, %d workers: peak %.0f MB, predicted %s",
        source.tiles,
        source.tile,
        workers,
        found.peak_bytes / 1e6,
        "-" if predicted is None else f"{predicted / 1e6:.0f} MB",
    )
    return {
        "tile": list(source.tile),
        "tiles": source.tiles,
        "workers": workers,
        "bytes": source.bytes,
        "peak_bytes": found.peak_bytes,
        "predicted_bytes": predicted,
    }
