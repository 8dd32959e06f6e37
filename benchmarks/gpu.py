"""A GPU: copies to and from it, N4 and RESAMPLE on it against the CPU and against their floors.

Each part has its place in benchmarks/results/gpu.json, from which `make generate` writes the tables
of docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` takes small data and writes into the
scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. Without a GPU it says so, writes nothing
and exits with 3. The full run needs 10 GB of scratch space and as much page cache.

The floors are measured in the same run: a copy from page-locked memory for the bytes that go over
PCIe, and reading and decoding alone for a store. SimpleITK's fit of a large volume takes many
minutes: a few iterations of every level are timed and scaled to all.
"""

import itertools
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from types import ModuleType

import numpy as np
from _common import PROJECT, command_line, cores, run_parts, scratch_folder
from _n4_agreement import tissue_volume
from _n4_peers import simpleitk
from _n4_speed import write_noise
from _processes import run, run_script
from _resample_stores import RESOLUTION, SPACING, Mosaic, mosaic, speckle
from _timing import timed
from device import NoDeviceError, cupy_with_device

from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.n4 import fit as n4
from octane.pipeline.lanes import Lane
from octane.resample.gpu import CudaResampler
from octane.resample.operator import resampler
from octane.resample.resampler import resample

logger = logging.getLogger("gpu")

PARTS = ("transfers", "n4", "resample")
NO_DEVICE = 3
"""Exit code by which `make bench` tells a skipped benchmark from one that failed."""

DIRECTIONS = {
    "to_device": ("to_device",),
    "to_host": ("to_host",),
    "both_at_once": ("to_device", "to_host"),
}
SIZES = tuple(1 << k for k in range(20, 29))
QUICK_SIZES = (1 << 20, 1 << 24, 1 << 28)
COPIES = 7

SHRINK, LEVELS, ITERATIONS, ITK_ITERATIONS = 4, 3, 40, 4
VOLUMES = ((64, 256, 256), (256, 1024, 768))

TILE = (256, 256, 256)
COUNTS, QUICK_COUNTS = ((4, 4), (12, 12)), ((2, 2), (4, 4))
REPEATS = 5


class Copier:
    """Copies of one size in one direction, in a separate stream."""

    def __init__(self, xp: ModuleType, size: int, direction: str, *, pinned: bool) -> None:
        runtime = xp.cuda.runtime
        self.copy_async, self.size = runtime.memcpyAsync, size
        self.stream = xp.cuda.Stream(non_blocking=True)
        memory = xp.cuda.alloc_pinned_memory(size) if pinned else bytearray(size)
        self.host = np.frombuffer(memory, np.uint8, size)
        self.host[...] = 1
        self.device = xp.zeros(size, np.uint8)
        self.pointers = self.device.data.ptr, self.host.ctypes.data
        self.kind = runtime.memcpyHostToDevice
        if direction == "to_host":
            self.pointers, self.kind = self.pointers[::-1], runtime.memcpyDeviceToHost

    def copy(self, times: int, *, waited: bool) -> None:
        """Copy several times; wait for each copy, or for all of them."""
        for _ in range(times):
            self.copy_async(*self.pointers, self.size, self.kind, self.stream.ptr)
            if waited:
                self.stream.synchronize()
        self.stream.synchronize()


def copy_rate(
    xp: ModuleType, size: int, directions: tuple[str, ...], *, pinned: bool, waited: bool = False
) -> float:
    """Return bytes per second of all directions together, the median of several rounds.

    Every direction has a thread and a stream, because a copy of pageable memory blocks the thread
    that starts it.
    """
    times = max(2, (1 << 28) // size)
    copiers = [Copier(xp, size, direction, pinned=pinned) for direction in directions]

    def work() -> None:
        threads = [
            threading.Thread(target=c.copy, args=(times,), kwargs={"waited": waited})
            for c in copiers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _, seconds = timed(work, COPIES)
    return times * size * len(directions) / seconds["median"]


def transfers(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Measure copies by size, direction and kind of host memory."""
    cases = []
    sizes = QUICK_SIZES if quick else SIZES
    for size, pinned, waited in itertools.product(sizes, (False, True), (True, False)):
        rates = {
            name: copy_rate(xp, size, directions, pinned=pinned, waited=waited) / 1e9
            for name, directions in DIRECTIONS.items()
        }
        case = {
            "bytes": size,
            "memory": "pinned" if pinned else "pageable",
            "waited": waited,
            "GB_per_s": rates,
        }
        cases.append(case)
        logger.info("%s", case)
    return {"cases": cases}


def on_device(xp: ModuleType, work: Callable[[], object]) -> dict[str, float]:
    """Time a call until the device is done; the first one compiles or loads kernels."""

    def waited() -> None:
        work()
        xp.cuda.Device().synchronize()

    return timed(waited, REPEATS)[1]


def by_command(name: str, source: Path, folder: Path, words: tuple[str, ...]) -> dict[str, dict]:
    """Run a command on the GPU and on the CPU; return median seconds and the steps' own figures."""
    found: dict[str, dict] = {}
    destination, record = folder / "result.ome.zarr", folder / "record.json"
    for backend in ("gpu", "cpu"):
        runs: list[dict] = []
        # The first run compiles or loads its kernels.
        for _ in range(1 + 3):
            done = run(
                [
                    *(sys.executable, PROJECT / "bin" / f"{name}.py", source, destination),
                    *("--backend", backend, "--workers", str(cores()), "--memory", "64GB"),
                    *("--metrics", record, *words),
                ]
            )
            rmtree(destination)
            made = json.loads(record.read_text(encoding="utf-8"))
            runs.append({"command_seconds": done.seconds, "stages": made["seconds"]})
        runs = sorted(runs[1:], key=lambda one: one["stages"]["total"])
        found[backend] = runs[len(runs) // 2]
    return found


def n4_part(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Measure the fit alone and the command, on the GPU and on the CPU, and SimpleITK's fit."""
    return {"cases": [n4_case(xp, shape) for shape in VOLUMES[: 1 if quick else None]]}


def n4_case(xp: ModuleType, shape: tuple[int, int, int]) -> dict[str, object]:
    """Measure N4 on one volume."""
    volume = tissue_volume(shape)
    shrunk = np.ascontiguousarray(volume[n4.shrink_slices(shape, (SHRINK,) * 3)])

    def fitted(image: np.ndarray) -> n4.BiasFit:
        return n4.fit_bias_field(
            image, iterations=(ITERATIONS,) * LEVELS, convergence_threshold=0.0, workers=cores()
        )

    held = xp.asarray(shrunk)
    fields = [n4.log_field(fitted(image), shrunk.shape) for image in (held, shrunk)]
    itk = simpleitk(shrunk, iterations=(ITK_ITERATIONS,) * LEVELS, threshold=0.0, threads=cores())
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        source = Path(scratch) / "noise.ome.zarr"
        write_noise(source, shape)
        words = ("--mask", "none", "--shrink-factor", *[str(SHRINK)] * 3)
        commands = by_command("n4", source, Path(scratch), words)
    found = {
        "shape": shape,
        "shrink": SHRINK,
        "fitted_voxels": shrunk.size,
        "iterations": LEVELS * ITERATIONS,
        "fit": {
            "gpu": on_device(xp, lambda: fitted(held)),
            "cpu": timed(lambda: fitted(shrunk), REPEATS)[1],
            "simpleitk_scaled": itk.seconds["fit"] * ITERATIONS / ITK_ITERATIONS,
        },
        "largest_difference_of_log_fields": float(np.abs(fields[0] - fields[1]).max()),
        "command": commands,
    }
    logger.info("n4: %s", found)
    return found


def resample_part(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Measure one tile from host memory to host memory, and whole mosaics by the command."""
    counts = QUICK_COUNTS if quick else COUNTS
    rate = copy_rate(xp, int(np.prod(TILE)) * 4, DIRECTIONS["to_device"], pinned=True)
    tile, operators = speckle(TILE), [resampler(n, SPACING, RESOLUTION) for n in TILE]
    metrics = Metrics("benchmark")
    with HostMemory(xp) as host:
        lane = Lane(xp, metrics, host, metrics.timeline.track("lane"))
        own = CudaResampler(lane)

        def by_kernels() -> np.ndarray:
            own.begin(operators, TILE[1:], tile.dtype, tile.dtype)
            own.push(tile)
            return own.finish()

        with lane.active():
            result, seconds = timed(lambda: by_kernels().copy(), REPEATS)
    return {
        "pinned_bytes_per_s_to_device": rate,
        "tile": TILE,
        "in_memory": {
            "gpu": seconds,
            "cpu_one_core": timed(lambda: resample(tile, operators), REPEATS)[1],
        },
        "largest_difference_from_cpu": float(np.abs(result - resample(tile, operators)).max()),
        "end_to_end": [mosaics(kind, counts, rate) for kind in ("uncompressed", "zstd")],
    }


def mosaics(
    kind: str, counts: tuple[tuple[int, int], tuple[int, int]], rate: float
) -> dict[str, object]:
    """Measure a small and a large mosaic; their difference is the time of one more tile.

    In a small mosaic alone, the start of the process and of CUDA hides all else.
    """
    small, large = (one_mosaic(kind, count) for count in counts)
    more = large["tiles"] - small["tiles"]
    found: dict[str, object] = {
        "store": kind,
        "ms_per_tile": {
            "pcie_floor": int(np.prod(TILE)) * 4 / rate * 1e3,
            **{
                name: (large["seconds"][name] - small["seconds"][name]) / more * 1e3
                for name in ("read_and_decode", "gpu", "cpu")
            },
        },
        "mosaics": [small, large],
    }
    logger.info("end to end, %s, ms a tile: %s", kind, found["ms_per_tile"])
    return found


def one_mosaic(kind: str, counts: tuple[int, int]) -> dict:
    """Measure one mosaic on GPU and CPU, and reading and decoding it alone."""
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as name,
        mosaic(Path(name), kind, TILE, counts) as source,
    ):
        source.warm()
        runs = by_command("resample", source.path, Path(name), ("--resolution", f"{RESOLUTION:g}"))
        return {
            "tiles": source.tiles,
            "bytes": source.bytes,
            "compression_ratio": source.ratio,
            "seconds": {
                "read_and_decode": floor(source),
                **{backend: found["stages"]["total"] for backend, found in runs.items()},
            },
            "runs": runs,
        }


def floor(source: Mosaic) -> float:
    """Return the seconds of reading and decoding all tiles with all cores."""
    request = {
        "reader": "octane, streamed",
        "source": str(source.path),
        "threads": cores(),
        "runs": 3,
    }
    return run_script("_resample_peers.py", request, cores=cores())[0]["median"]


def main() -> None:
    """Run the chosen parts on a GPU, or say that there is none."""
    chosen = command_line(__doc__, PARTS).parse_args()
    try:
        xp = cupy_with_device()
    except NoDeviceError as error:
        logger.error("gpu was not measured: %s", error)
        sys.exit(NO_DEVICE)
    device = {"device": device_facts(xp)}
    parts = {
        "transfers": lambda: device | transfers(xp, chosen.quick),
        "n4": lambda: device | n4_part(xp, chosen.quick),
        "resample": lambda: device | resample_part(xp, chosen.quick),
    }
    run_parts("gpu", parts, chosen)


def device_facts(xp: ModuleType) -> dict[str, object]:
    """Return name, memory and driver of the device."""
    runtime = xp.cuda.runtime
    properties = runtime.getDeviceProperties(xp.cuda.Device().id)
    return {
        "name": properties["name"].decode(),
        "memory_bytes": properties["totalGlobalMem"],
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
    }


if __name__ == "__main__":
    main()
