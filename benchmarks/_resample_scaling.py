"""One thread and two, one process and two: what doubling gains, and which stage bounds it."""

import logging
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

from _common import cores, scratch_folder
from _processes import run_script
from _resample_end_to_end import request_of, warm_up
from _resample_stores import Mosaic, mosaic

__all__ = ["SIDES", "scaling"]

logger = logging.getLogger(__name__)

SIDES = {"read": ("read", "decode"), "compute": ("copy", "compute"), "write": ("encode", "write")}
"""Stages of the input, of the device and of the output."""

TILE, COUNTS = (256, 256, 256), (4, 4)


def scaling(quick: bool) -> dict[str, object]:
    """Resample one section with one worker and two, and two sections at once by two processes."""
    start = time.perf_counter()
    counts = (2, 2) if quick else COUNTS
    found: dict[str, list[dict]] = {"one worker": [], "two workers": [], "two processes": []}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with (
            warm_up(folder) as small,
            mosaic(folder, "zstd", TILE, counts, "first") as first,
            mosaic(folder, "zstd", TILE, counts, "second") as second,
        ):
            first.warm()
            second.warm()
            for _ in range(2 if quick else 5):
                found["one worker"].append(sections(folder, [first], small, 1))
                found["two workers"].append(sections(folder, [first], small, 2))
                found["two processes"].append(sections(folder, [first, second], small, 1))
    cases = {name: summary(runs) for name, runs in found.items()}
    alone = cases["one worker"]["seconds"]
    return {
        "tile": list(TILE),
        "tiles": counts[0] * counts[1],
        "cases": cases,
        # Twice the work in the same time, or the same in half of it, is 1.
        "thread_efficiency": alone / cases["two workers"]["seconds"] / 2,
        "process_efficiency": alone / cases["two processes"]["seconds"],
        "seconds": time.perf_counter() - start,
    }


def sections(folder: Path, sources: list[Mosaic], small: Mosaic, workers: int) -> dict[str, float]:
    """Resample these sections at once, a process each: seconds of all, and of the stages."""
    ready = [str(source.path.with_suffix(".ready")) for source in sources]

    def one(number: int) -> dict:
        source = sources[number]
        destination = folder / f"{source.path.name.split('.')[0]}_10um.ome.zarr"
        request = {
            **request_of("octane", source, small, destination),
            "cores": workers,
            "together": [*ready[number:], *ready[:number]],
        }
        figures, _ = run_script("_resample_programs.py", request, cores=cores())
        rmtree(destination)
        return figures

    with ThreadPoolExecutor(len(sources)) as pool:
        figures = list(pool.map(one, range(len(sources))))
    for file in ready:
        Path(file).unlink()
    logger.info("scaling, %d at once, %d workers: %s", len(sources), workers, figures)
    # The record sums a stage over the workers; here it is the mean of a worker.
    return {
        "seconds": max(run["seconds"] for run in figures),
        **{
            side: statistics.mean(
                sum(run["stages"].get(stage, 0.0) for stage in stages) for run in figures
            )
            / workers
            for side, stages in SIDES.items()
        },
    }


def summary(runs: list[dict[str, float]]) -> dict:
    """Medians, and the stage in which a worker spends most of its time."""
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**medians, "bound_by": max(SIDES, key=lambda side: medians[side])}
