"""What more of something gains: workers, processes, tiles fetched ahead, GPUs and slots.

RESAMPLE of one mosaic all through, but for the last part.

What this machine does not have is simulated and says so: storage that is slow to answer, and GPUs,
of which the locks and the waiting are real and the work is a pause.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from _common import cores, save, scratch_folder
from _resample_end_to_end import warm_up
from _resample_scaling import sections, summary
from _resample_stores import RESOLUTION, Mosaic, mosaic

from octane.config.params import ExecutionParameters, InputParameters, ResampleParameters
from octane.core.metrics import Metrics
from octane.core.timing import span
from octane.gpu.lease import lease
from octane.gpu.simulated import SimulatedGpus
from octane.steps.resample import resample_image
from octane.store.reader import DirectReader

WORKERS = (1, 2, 3, 4, 8)
AHEAD = (0, 1, 2, 4, 8)
GPUS = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2))
"""Numbers of GPUs and of slots on each."""

ANSWER = 0.15
"""Seconds until the simulated storage begins to give a file, unless it was asked for before."""
ON_GPU, OFF_GPU, TASKS = 1.0, 1.0, 24
"""Seconds of a simulated task on its GPU and beside it, under one lease, and number of tasks."""


def resampled(source: Mosaic, *, workers: int | None = None, prefetch: int | None = None) -> dict:
    """RESAMPLE of a mosaic: figures of its pipeline."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        metrics: Metrics = resample_image(
            source.path,
            Path(folder) / "out.ome.zarr",
            ResampleParameters(resolution=(RESOLUTION,) * 3),
            InputParameters(),
            ExecutionParameters(backend="cpu", workers=workers, prefetch=prefetch),
        )
    return metrics.figures["pipeline"]["RESAMPLE"]  # ty: ignore[not-subscriptable]


def in_turn(cases: Sequence[int], runs: int, one: Callable[[int], dict]) -> list[list[dict]]:
    """Each case's runs, taken in turn, so that a slow minute hits all alike."""
    found: list[list[dict]] = [[] for _ in cases]
    for _ in range(runs):
        for number, case in enumerate(cases):
            found[number].append(one(case))
    return found


def median(runs: list[dict]) -> dict:
    """The run of median length."""
    return sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]


def by_workers(source: Mosaic, runs: int) -> list[dict[str, object]]:
    """One worker to many, the files in the page cache."""
    resampled(source)
    found = in_turn(WORKERS, runs, lambda workers: resampled(source, workers=workers))
    alone = median(found[0])["seconds"]
    return [
        {
            "workers": workers,
            "derived": workers == cores(),
            "seconds": median(runs)["seconds"],
            "speed_up": alone / median(runs)["seconds"],
            # Of what so many cores can give at most.
            "efficiency": alone / median(runs)["seconds"] / min(workers, cores()),
            "bound": median(runs)["bound"],
        }
        for workers, runs in zip(WORKERS, found, strict=True)
    ]


def by_processes(runs: int, counts: tuple[int, int]) -> list[dict[str, object]]:
    """Several sections at once, a process with one worker each."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with (
            warm_up(folder) as small,
            mosaic(folder, "zstd", (128, 256, 256), counts, "s0") as first,
            mosaic(folder, "zstd", (128, 256, 256), counts, "s1") as second,
        ):
            for processes in (1, 2):
                sources = [first, second][:processes]
                for source in sources:
                    source.warm()
                found = [sections(folder, sources, small, 1) for _ in range(runs)]
                told = summary(found)
                rows.append(
                    {
                        "processes": processes,
                        "seconds_of_all": told["seconds"],
                        "bound_by": told["bound_by"],
                    }
                )
    alone = rows[0]["seconds_of_all"]
    assert isinstance(alone, float)
    for row in rows:
        processes, seconds = row["processes"], row["seconds_of_all"]
        assert isinstance(processes, int)
        assert isinstance(seconds, float)
        row["speed_up"] = processes * alone / seconds
        row["efficiency"] = processes * alone / seconds / min(processes, cores())
    return rows


def dropped(source: Mosaic) -> None:
    """See that the page cache holds none of the files."""
    for file in source.path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def by_cache(source: Mosaic, runs: int) -> dict[str, object]:
    """The files in memory, or read from the disk."""
    found: dict[str, list[dict]] = {"in memory": [], "from the disk": []}
    for _ in range(runs):
        source.warm()
        found["in memory"].append(resampled(source))
        dropped(source)
        found["from the disk"].append(resampled(source))
    return {
        name: {"seconds": median(of)["seconds"], "bound": median(of)["bound"]}
        for name, of in found.items()
    }


@contextmanager
def slow_to_answer() -> Generator[None]:
    """Storage that takes its time before each file, once, from when it is first asked for it."""
    asked: dict[tuple[int, ...], float] = {}
    fetch, stream = DirectReader.fetch, DirectReader.stream
    lock = threading.Lock()

    def first(position: tuple[int, ...]) -> float:
        with lock:
            return asked.setdefault(tuple(position), time.monotonic())

    def fetched(self: DirectReader, position: tuple[int, ...]) -> None:
        first(position)
        fetch(self, position)

    @contextmanager
    def opened(self: DirectReader, position: tuple[int, ...]) -> Generator:
        with span("read"):
            time.sleep(max(0.0, first(position) + ANSWER - time.monotonic()))
        with stream(self, position) as chunk:
            yield chunk

    with (
        mock.patch.object(DirectReader, "fetch", fetched),
        mock.patch.object(DirectReader, "stream", opened),
    ):
        yield


def by_prefetch(source: Mosaic, runs: int) -> list[dict[str, object]]:
    """Tiles fetched ahead, from storage that is slow to answer."""

    def one(ahead: int) -> dict:
        with slow_to_answer():
            return resampled(source, prefetch=ahead)

    found = in_turn(AHEAD, runs, one)
    none = median(found[0])["seconds"]
    return [
        {
            "prefetch": ahead,
            "derived": ahead == cores(),
            "seconds": median(runs)["seconds"],
            "speed_up": none / median(runs)["seconds"],
            "bound": median(runs)["bound"],
        }
        for ahead, runs in zip(AHEAD, found, strict=True)
    ]


def by_gpus(tasks: int) -> list[dict[str, object]]:
    """Tasks under leases on simulated GPUs; half of a lease's time the GPU has nothing to do."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        for gpus, slots in GPUS:
            folder = Path(scratch) / f"{gpus}x{slots}"
            source = SimulatedGpus(f"{gpus}x40GB")
            busy = {gpu.uuid: threading.Lock() for gpu in source.read()}
            waits: list[float] = []
            queues: list[float] = []

            def task(_: int) -> None:
                with lease("10GB", source=source, folder=folder, slots=slots) as held:  # noqa: B023
                    waits.append(held.waited)  # noqa: B023
                    time.sleep(OFF_GPU)
                    assert held.gpu is not None
                    asked = time.perf_counter()
                    with busy[held.gpu.uuid]:  # noqa: B023
                        queues.append(time.perf_counter() - asked)  # noqa: B023
                        time.sleep(ON_GPU)

            start = time.perf_counter()
            with ThreadPoolExecutor(2 * gpus * slots) as pool:
                list(pool.map(task, range(tasks)))
            seconds = time.perf_counter() - start
            spent = {
                "computing on the GPU": tasks * ON_GPU,
                "work beside the GPU": tasks * OFF_GPU,
                "the GPU, which another slot computes on": sum(queues),
            }
            # The next has not looked yet, or there is none.
            spent["a slot that nobody holds"] = gpus * slots * seconds - sum(spent.values())
            rows.append(
                {
                    "gpus": gpus,
                    "slots": slots,
                    "seconds": seconds,
                    "gpu_busy": tasks * ON_GPU / seconds / gpus,
                    "median_wait": statistics.median(waits),
                    "share_of_slots": {n: s / gpus / slots / seconds for n, s in spent.items()},
                }
            )
    alone = rows[0]["seconds"]
    assert isinstance(alone, float)
    for row, (gpus, slots) in zip(rows, GPUS, strict=True):
        seconds = row["seconds"]
        assert isinstance(seconds, float)
        row["speed_up"] = alone / seconds
        row["efficiency"] = alone / seconds / gpus / slots
    return rows


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data and fewer runs")
    quick = parser.parse_args().quick
    counts, runs = ((2, 2), 1) if quick else ((4, 4), 5)
    with mosaic(scratch_folder(), "zstd", (128, 256, 256), counts) as source:
        source.warm()
        figures: dict[str, object] = {
            "tile": list(source.tile),
            "tiles": source.tiles,
            "cores": cores(),
            "workers": by_workers(source, runs),
            "cache": by_cache(source, runs),
            "prefetch": {
                "simulated": f"storage that answers after {ANSWER * 1000:.0f} ms",
                "cases": by_prefetch(source, runs),
            },
        }
    figures["processes"] = by_processes(runs, counts)
    figures["gpus"] = {
        "simulated": f"{ON_GPU:g} s on the GPU and {OFF_GPU:g} s beside it, under one lease",
        "tasks": TASKS,
        "cases": by_gpus(TASKS // 3 if quick else TASKS),
    }
    save("scaling", figures, quick=quick)


if __name__ == "__main__":
    main()
