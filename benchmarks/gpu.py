"""A GPU: copies to and from it; N4 and RESAMPLE on it, compared with the CPU and lower bounds.

Each part is stored in benchmarks/results/gpu.json, from which `make generate` writes the tables of
docs/benchmarks.md. ``--only`` chooses parts. ``--quick`` uses tiny data, which only show that all
parts run, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. Without a
GPU (or, for a full run, with an emulated one) it logs an error, writes nothing and exits with 3.
The full run needs 10 GB of scratch space and as much page cache.

The lower bounds are measured in the same run: a copy from page-locked memory for the bytes that
cross PCIe, and only reading and decoding for a store.
"""

import itertools
import json
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from _common import PROJECT, command_line, cores, run_parts, scratch_folder
from _gpu_choice import choice
from _n4_agreement import tissue_volume
from _n4_speed import write_noise
from _processes import run, run_script
from _resample_stores import RESOLUTION, mosaic
from _timing import timed
from device import NoDeviceError, cupy_with_device

from octane.gpu.device import describe
from octane.n4 import fit as n4

logger = logging.getLogger("gpu")

PARTS = ("transfers", "cold_start", "choice", "n4", "resample")
NO_DEVICE = 3
"""Exit code by which `make bench` tells a skipped benchmark from one that failed."""

DIRECTIONS = {
    "to_device": ("to_device",),
    "to_host": ("to_host",),
    "both_at_once": ("to_device", "to_host"),
}
REPEATS = 7

SHRINK, LEVELS, ITERATIONS = 4, 3, 40

WORDS = {
    "n4": ("--n4_mask", "none", "--n4_shrink_factor", *[str(SHRINK)] * 3),
    "resample": ("--resolution", f"{RESOLUTION:g}"),
}
"""Flags of the commands."""

Shape = tuple[int, int, int]


class Sizes(NamedTuple):
    """Sizes of a full or a quick run."""

    copies: tuple[int, ...]  # bytes
    volumes: tuple[Shape, ...]
    tile: Shape
    counts: tuple[tuple[int, int], ...]  # of tiles along y and x
    stores: tuple[str, ...]
    uncounted: int  # runs before those that count
    runs: int


SIZES = tuple(1 << k for k in range(20, 29))
VOLUMES, COUNTS = ((64, 256, 256), (256, 1024, 769)), ((4, 4), (12, 12))
FULL = Sizes(SIZES, VOLUMES, (256, 256, 256), COUNTS, ("uncompressed", "zstd"), 1, 3)
QUICK = Sizes((1024,), ((16, 24, 20),), (16, 16, 16), ((1, 1), (1, 2)), ("zstd",), 0, 1)


def copier(
    xp: ModuleType, size: int, direction: str, times: int, *, pinned: bool
) -> Callable[[], None]:
    """Return a call that copies several times in a separate stream, and waits."""
    stream = xp.cuda.Stream(non_blocking=True)
    memory = xp.cuda.alloc_pinned_memory(size) if pinned else bytearray(size)
    host, device = np.frombuffer(memory, np.uint8, size), xp.zeros(size, np.uint8)
    host[...] = 1

    def copy() -> None:
        for _ in range(times):
            if direction == "to_device":
                device.set(host, stream)
            else:
                device.get(stream, out=host, blocking=False)
        stream.synchronize()

    return copy


def copy_rate(xp: ModuleType, size: int, directions: tuple[str, ...], *, pinned: bool) -> float:
    """Return the bytes per second of all directions together, the median of several rounds.

    Every direction has its own thread and stream, because a copy of pageable memory blocks the
    thread that starts it.
    """
    times = min(max(2, (1 << 28) // size), 256)
    copies = [copier(xp, size, direction, times, pinned=pinned) for direction in directions]

    def work() -> None:
        threads = [threading.Thread(target=copy) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return times * size * len(directions) / timed(work, REPEATS)[1]["median"]


def transfers(xp: ModuleType, sizes: Sizes) -> dict[str, object]:
    """Measure copies by size, direction and kind of host memory."""
    cases = []
    for size, memory in itertools.product(sizes.copies, ("pageable", "pinned")):
        rates = {
            name: copy_rate(xp, size, directions, pinned=memory == "pinned") / 1e9
            for name, directions in DIRECTIONS.items()
        }
        cases.append({"bytes": size, "memory": memory, "GB_per_s": rates})
        logger.info("%s", cases[-1])
    return {"cases": cases}


def by_command(
    name: str, source: Path, backend: str, variables: dict[str, str] | None = None
) -> dict:
    """Run a command; return its seconds and the step's own figures."""
    destination, record = source.with_name("result.ome.zarr"), source.with_name("record.json")
    done = run(
        [
            *(sys.executable, PROJECT / "bin" / f"{name}.py", source, destination),
            *("--backend", backend, "--workers", str(cores()), "--memory", "64GB"),
            *("--metrics", record, *WORDS[name]),
        ],
        environment=variables,
    )
    shutil.rmtree(destination)
    made = json.loads(record.read_text(encoding="utf-8"))
    return {"command_seconds": done.seconds, "stages": made["seconds"]}


def by_backend(name: str, source: Path, sizes: Sizes) -> dict[str, dict]:
    """Return the median run of a command on each device."""
    found = {}
    for backend in ("gpu", "cpu"):
        runs = [by_command(name, source, backend) for _ in range(sizes.uncounted + sizes.runs)]
        runs = sorted(runs[sizes.uncounted :], key=lambda one: one["stages"]["total"])
        found[backend] = runs[len(runs) // 2]
    return found


def cold_start(sizes: Sizes) -> dict[str, object]:
    """Measure commands with an empty and with a full kernel cache of CuPy."""
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as name:
        folder = Path(name)
        write_noise(folder / "n4.ome.zarr", QUICK.volumes[0])
        with mosaic(folder, "zstd", QUICK.tile, (1, 1), "resample"):
            for command in WORDS:
                found[command] = {"empty": [], "warm": []}
                for number, state in itertools.product(range(sizes.runs), found[command]):
                    cache = {"CUPY_CACHE_DIR": str(folder / f"{command} {number}")}
                    done = by_command(command, folder / f"{command}.ome.zarr", "gpu", cache)
                    found[command][state].append(done["command_seconds"])
    return {"command_seconds": found}


def n4_case(xp: ModuleType, shape: Shape, sizes: Sizes) -> dict[str, object]:
    """Measure N4 on one volume: the fit, and the command."""
    volume = tissue_volume(shape)
    shrunk = np.ascontiguousarray(volume[n4.shrink_slices(shape, (SHRINK,) * 3)])
    iterations = (ITERATIONS,) * LEVELS
    fit = partial(n4.fit_bias_field, iterations=iterations, convergence_threshold=0.0)
    on_gpu, gpu = timed(partial(fit, xp.asarray(shrunk)), REPEATS)
    on_cpu, cpu = timed(partial(fit, shrunk, workers=cores()), REPEATS)
    fields = [n4.log_field(found, shrunk.shape) for found in (on_gpu, on_cpu)]
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        source = Path(scratch) / "noise.ome.zarr"
        write_noise(source, shape)
        commands = by_backend("n4", source, sizes)
    return {
        "shape": shape,
        "shrink": SHRINK,
        "levels": LEVELS,
        "iterations": LEVELS * ITERATIONS,
        "fit": {"gpu": gpu, "cpu": cpu},
        "largest_difference_of_log_fields": float(np.abs(fields[0] - fields[1]).max()),
        "command": commands,
    }


def resample_part(xp: ModuleType, sizes: Sizes) -> dict[str, object]:
    """Measure the command on entire mosaics, and the copy of a tile to the device."""
    size = 4 * int(np.prod(sizes.tile))
    rate = copy_rate(xp, size, DIRECTIONS["to_device"], pinned=True)
    return {
        "tile": sizes.tile,
        "end_to_end": [mosaics(kind, sizes, size / rate) for kind in sizes.stores],
    }


def mosaics(kind: str, sizes: Sizes, pcie_floor: float) -> dict[str, object]:
    """Measure a small and a large mosaic; their difference is the time of one more tile.

    In a small mosaic, the start of the process and of CUDA dominates.
    """
    small, large = (one_mosaic(kind, count, sizes) for count in sizes.counts)
    more = large["tiles"] - small["tiles"]
    return {
        "store": kind,
        "ms_per_tile": {
            "pcie_floor": pcie_floor * 1e3,
            **{
                name: (large["seconds"][name] - small["seconds"][name]) / more * 1e3
                for name in ("read_and_decode", "gpu", "cpu")
            },
        },
        "mosaics": [small, large],
    }


def one_mosaic(kind: str, counts: tuple[int, int], sizes: Sizes) -> dict:
    """Measure one mosaic on GPU and CPU, and only reading and decoding it."""
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as name,
        mosaic(Path(name), kind, sizes.tile, counts) as source,
    ):
        source.warm()
        runs = by_backend("resample", source.path, sizes)
        request = {"source": str(source.path), "threads": cores(), "runs": 3}
        request["reader"] = "octane, streamed"
        reading, _ = run_script("_resample_peers.py", request, cores=cores())
        return {
            "tiles": source.tiles,
            "bytes": source.bytes,
            "compression_ratio": source.ratio,
            "seconds": {
                "read_and_decode": reading["median"],
                **{backend: found["stages"]["total"] for backend, found in runs.items()},
            },
            "runs": runs,
        }


def main() -> None:
    """Run the chosen parts on a GPU; exit with :data:`NO_DEVICE` without one."""
    chosen = command_line(__doc__, PARTS).parse_args()
    sizes = QUICK if chosen.quick else FULL
    try:
        xp = cupy_with_device()
        device = {"device": describe(xp)}
        if not chosen.quick and "Emulated" in str(device["device"]["device"]):
            raise NoDeviceError("CUDA is emulated, which only --quick supports")
    except NoDeviceError as error:
        logger.error("gpu was not measured: %s", error)
        sys.exit(NO_DEVICE)
    parts = {
        "transfers": lambda: transfers(xp, sizes),
        "cold_start": lambda: cold_start(sizes),
        "choice": lambda: choice(chosen.quick, xp),
        "n4": lambda: {"cases": [n4_case(xp, shape, sizes) for shape in sizes.volumes]},
        "resample": lambda: resample_part(xp, sizes),
    }
    named = {name: lambda part=part: device | part() for name, part in parts.items()}
    run_parts("gpu", named, chosen)


if __name__ == "__main__":
    main()
