"""Entire mosaics from store to store by octane and others: seconds, floors and memory."""

import hashlib
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import numpy as np
import zarr
from _common import PROJECT, cores, scratch_folder
from _processes import Run, run, run_script
from _resample_stores import KINDS, RESOLUTION, SPACING, Mosaic, mosaic
from _timing import median_ratio

logger = logging.getLogger(__name__)

OWN = ("linumpy",)
OTHERS = ("ngff-zarr", "tensorstore")
"""Programs that run in octane's Python, and those that need another one."""


@dataclass(frozen=True)
class Case:
    """A mosaic grid, and the programs that resample it besides octane."""

    kind: str
    tile: tuple[int, int, int]
    counts: tuple[int, int]
    programs: tuple[str, ...]
    quick: bool = False


SMALL, LARGE = (256, 256, 256), (400, 512, 512)
ALL = (*OWN, *OTHERS)

CASES = (
    *(
        Case(kind, SMALL, (4, 4), ALL if full else ("tensorstore",), quick=full)
        for kind in KINDS
        for full in [kind in ("zstd", "zstd, shards of 4 x 4")]
    ),
    Case("zstd", LARGE, (2, 3), ("linumpy", "tensorstore")),
)


def end_to_end(quick: bool, peers: Path | None) -> dict[str, object]:
    """Resample every case with every program; time octane warm, and only reading and decoding."""
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with warm_up(folder) as small:
            for case in CASES:
                if case.quick or not quick:
                    with mosaic(folder, case.kind, case.tile, case.counts) as source:
                        cases.append(
                            run_case(folder, case, source, small, 1 if quick else 3, peers)
                        )
    return {"resolution": RESOLUTION, "spacing": SPACING, "cases": cases}


@contextmanager
def warm_up(folder: Path) -> Generator[Mosaic]:
    """Resample a few small tiles, so that compiled loops are in the cache, and yield them."""
    with mosaic(folder, "zstd", (32, 32, 32), (2, 2), "small") as small:
        run(command(small.path, folder / "small_10um.ome.zarr", folder / "small.json", cores()))
        rmtree(folder / "small_10um.ome.zarr")
        yield small


def command(source: Path, destination: Path, record: Path, workers: int) -> list[str | Path]:
    """Return the command that a user runs, with the compression of the other programs."""
    return [
        sys.executable,
        PROJECT / "bin" / "resample.py",
        source,
        destination,
        *("--resolution", f"{RESOLUTION:g}", "--backend", "cpu", "--codec", "zstd"),
        *("--workers", str(workers), "--memory", "4GB"),
        *("--metrics", record),
    ]


def run_case(
    folder: Path, case: Case, source: Mosaic, small: Mosaic, rounds: int, peers: Path | None
) -> dict[str, object]:
    """Run all programs on one mosaic, alternately."""
    source.warm()
    names = ["octane", *(n for n in case.programs if n in OWN or peers is not None)]
    runs: dict[str, list[tuple[float, Run]]] = {name: [] for name in names}
    versions: dict[str, str] = {}
    digest = ""
    destination = folder / "resampled.ome.zarr"
    for _ in range(rounds):
        for name in names:
            figures, found = run_script(
                "_resample_peers.py",
                request_of(name, source, small, destination),
                python=peers if name in OTHERS else None,
                cores=cores(),
            )
            own = figures["seconds"]
            versions |= figures["versions"]
            rmtree(destination)
            if name == "octane":
                # Users of octane run its command; the other programs need a script.
                found = run(command(source.path, destination, folder / "made.json", cores()))
                digest = checksum(destination)
                rmtree(destination)
            runs[name].append((own, found))
            logger.info(
                "%s, %d tiles of %s, %s: %.2f s, command %.2f s, peak %.0f MB",
                case.kind,
                source.tiles,
                source.tile,
                name,
                own,
                found.seconds,
                found.peak_bytes / 1e6,
            )
    return {
        "store": case.kind,
        "tile": list(source.tile),
        "tiles": source.tiles,
        "bytes": source.bytes,
        "compression_ratio": source.ratio,
        "octane_checksum": digest,
        "programs": {name: summary(found) for name, found in runs.items()},
        "program_versions": versions,
        "stages": floor(source, small, destination, max(2, rounds)),
    }


def request_of(name: str, source: Mosaic, small: Mosaic, destination: Path) -> dict[str, object]:
    """Return the request for a program, on all cores."""
    return {
        "program": name,
        "source": str(source.path / "0"),
        "small": str(small.path / "0"),
        "destination": str(destination),
        "factor": RESOLUTION / SPACING,
        "cores": cores(),
    }


def summary(found: list[tuple[float, Run]]) -> dict[str, object]:
    """Return median seconds of the work and of the entire command, and the highest peak."""
    return {
        "seconds": statistics.median(own for own, _ in found),
        "command_seconds": statistics.median(run.seconds for _, run in found),
        "peak_bytes": max(run.peak_bytes for _, run in found),
        "runs": [own for own, _ in found],
    }


def floor(source: Mosaic, small: Mosaic, destination: Path, runs: int) -> dict[str, object]:
    """Time octane from store to store, and only reading and decoding, alternately."""
    rounds: dict[str, list[float]] = {"read": [], "total": []}
    reading = {
        "reader": "octane, streamed",
        "source": str(source.path),
        "threads": cores(),
        "runs": 1,
    }
    for _ in range(runs):
        figures, _ = run_script("_resample_peers.py", reading, cores=cores())
        rounds["read"].append(figures["median"])
        request = request_of("octane", source, small, destination)
        figures, _ = run_script("_resample_peers.py", request, cores=cores())
        rounds["total"].append(figures["seconds"])
        rmtree(destination)
    return {
        "seconds": {name: statistics.median(seconds) for name, seconds in rounds.items()},
        "rounds": rounds,
        "total_over_read": median_ratio(rounds["total"], rounds["read"]),
    }


def checksum(path: Path) -> str:
    """Return a checksum of all voxels."""
    voxels = np.asarray(zarr.open_array(path / "0", mode="r")[:])
    return hashlib.sha256(voxels.tobytes()).hexdigest()


@dataclass(frozen=True)
class MemoryCase:
    """A mosaic grid, and the numbers of workers that resample it."""

    tile: tuple[int, int, int]
    counts: tuple[int, int]
    workers: tuple[int, ...] = (2,)
    quick: bool = False


TINY = (64, 128, 128)

MEMORY_CASES = (
    MemoryCase(TINY, (4, 4), quick=True),
    MemoryCase(TINY, (8, 8), quick=True),
    MemoryCase(TINY, (12, 12)),
    MemoryCase(TINY, (20, 20)),
    MemoryCase(SMALL, (2, 2), (1, 2), quick=True),
    MemoryCase(SMALL, (4, 4)),
    MemoryCase(SMALL, (6, 6)),
    MemoryCase(LARGE, (2, 2), (1, 2)),
)


def memory(quick: bool) -> dict[str, object]:
    """Resample mosaics of growing size, and tiles of every size with one and two workers."""
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with warm_up(folder):
            for case in MEMORY_CASES:
                if case.quick or not quick:
                    with mosaic(folder, "zstd", case.tile, case.counts) as source:
                        cases += [peak_of(folder, source, workers) for workers in case.workers]
    return {"cases": cases}


def peak_of(folder: Path, source: Mosaic, workers: int) -> dict[str, object]:
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
