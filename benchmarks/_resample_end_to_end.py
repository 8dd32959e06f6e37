"""Whole mosaic grids from store to store, each program a process of its own on the same cores."""

import hashlib
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import numpy as np
import zarr
from _common import PROJECT, cores, scratch_folder
from _processes import Run, run, run_script
from _resample_stores import KINDS, RESOLUTION, SPACING, Mosaic, mosaic

__all__ = ["command", "end_to_end", "request_of", "warm_up"]

logger = logging.getLogger(__name__)

OWN = ("linumpy", "scipy-workers")
OTHERS = ("dask-image", "ngff-zarr", "tensorstore")
"""The latter need a Python that has them."""


@dataclass(frozen=True)
class Case:
    """A mosaic grid, and which programs resample it; octane does always."""

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
    Case("zstd", LARGE, (2, 3), ("linumpy", "dask-image", "tensorstore")),
)


def end_to_end(quick: bool, peers: Path | None) -> dict[str, object]:
    """Resample every case by every program, and time octane's stages apart."""
    start = time.perf_counter()
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
    return {
        "resolution": RESOLUTION,
        "spacing": SPACING,
        "cases": cases,
        "seconds": time.perf_counter() - start,
    }


@contextmanager
def warm_up(folder: Path) -> Generator[Mosaic]:
    """Resample a few small tiles, so that compiled loops are in the cache on disk; gives them."""
    with mosaic(folder, "zstd", (32, 32, 32), (2, 2), "small") as small:
        run(command(small.path, folder / "small_10um.ome.zarr", folder / "small.json", cores()))
        rmtree(folder / "small_10um.ome.zarr")
        yield small


def command(
    source: Path, destination: Path, record: Path, workers: int, codec: str = "zstd"
) -> list[str | Path]:
    """What a user would type; compressed as the other programs do it, unless told otherwise."""
    return [
        sys.executable,
        PROJECT / "bin" / "resample.py",
        source,
        destination,
        *("--resolution", f"{RESOLUTION:g}", "--backend", "cpu", "--codec", codec),
        *("--workers", str(workers), "--memory", "4GB"),
        *("--metrics", record),
    ]


def run_case(
    folder: Path, case: Case, source: Mosaic, small: Mosaic, rounds: int, peers: Path | None
) -> dict[str, object]:
    """All programs on one mosaic, taking turns."""
    source.warm()
    names = ["octane", *(n for n in case.programs if n in OWN or peers is not None)]
    runs: dict[str, list[tuple[float, Run]]] = {name: [] for name in names}
    told: list[float] = []
    versions: dict[str, str] = {}
    digest = ""
    destination = folder / "resampled.ome.zarr"
    for _ in range(rounds):
        for name in names:
            figures, found = run_script(
                "_resample_programs.py",
                request_of(name, source, small, destination),
                python=peers if name in OTHERS else None,
                cores=cores(),
            )
            own = figures["seconds"]
            versions |= figures["versions"]
            rmtree(destination)
            if name == "octane":
                # Its command is what users run; those of the others are no more than the script.
                recorded, found = by_command(folder, source, destination)
                told.append(recorded)
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
        "octane_recorded_seconds": statistics.median(told),
        "programs": {name: summary(found) for name, found in runs.items()},
        "program_versions": versions,
        "stages": stages(folder, source, 2 if rounds == 1 else rounds),
    }


def request_of(name: str, source: Mosaic, small: Mosaic, destination: Path) -> dict[str, object]:
    """What a program is asked to do, on all cores."""
    return {
        "program": name,
        "source": str(source.path / "0"),
        "small": str(small.path / "0"),
        "destination": str(destination),
        "factor": RESOLUTION / SPACING,
        "cores": cores(),
    }


def by_command(folder: Path, source: Mosaic, destination: Path) -> tuple[float, Run]:
    """Run the command as users do; the seconds of its own record, and its run."""
    record = folder / "resample.json"
    found = run(command(source.path, destination, record, cores()))
    made = json.loads(record.read_text(encoding="utf-8"))
    return made["seconds"]["total"], found


def summary(found: list[tuple[float, Run]]) -> dict[str, object]:
    """Medians of the seconds of the work and of the whole command; the highest peak."""
    return {
        "seconds": statistics.median(own for own, _ in found),
        "command_seconds": statistics.median(run.seconds for _, run in found),
        "peak_bytes": max(run.peak_bytes for _, run in found),
        "runs": [own for own, _ in found],
    }


def stages(folder: Path, source: Mosaic, runs: int) -> dict[str, object]:
    """The stages of octane each alone, and the whole, in one process that is warm."""
    request = {
        "source": str(source.path),
        "scratch": str(folder),
        "resolution": RESOLUTION,
        "workers": cores(),
        "runs": runs,
    }
    rounds, _ = run_script("_resample_stages.py", request, cores=cores())
    apart = map(sum, zip(rounds["read"], rounds["compute"], rounds["write"], strict=True))
    return {
        "seconds": {name: statistics.median(seconds) for name, seconds in rounds.items()},
        "rounds": rounds,
        # Within a round, where the machine was most alike.
        "total_over_sum": median_ratio(rounds["total"], apart),
        "total_over_read": median_ratio(rounds["total"], rounds["read"]),
    }


def median_ratio(seconds: Iterable[float], others: Iterable[float]) -> float:
    """Median of the ratios of two rows of figures."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def checksum(path: Path) -> str:
    """Of all voxels, whatever the store."""
    voxels = np.asarray(zarr.open_array(path / "0", mode="r")[:])
    return hashlib.sha256(voxels.tobytes()).hexdigest()
