"""N4 and RESAMPLE on a GPU and on the CPU: in memory, as commands, and their cold start."""

import itertools
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from _common import PROJECT, cores, scratch_folder
from _gpu_device import DIRECTIONS, REPEATS, copy_rate
from _n4_agreement import tissue_volume
from _n4_speed import write_noise
from _processes import run, run_script
from _resample_stores import RESOLUTION, mosaic
from _timing import timed
from cupyx import empty_pinned

from octane.processes.n4 import fit as n4

SHRINK, LEVELS, ITERATIONS = 4, 3, 40

WORDS = {
    "n4": ("--n4_mask", "none", "--n4_shrink_factor", *[str(SHRINK)] * 3),
    "resample": ("--resolution", f"{RESOLUTION:g}"),
}
"""Flags of the commands."""

RUNS_IN_MEMORY = 3

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
    """Measure commands with an empty and a filled kernel cache of CuPy."""
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


def n4_part(xp: ModuleType, sizes: Sizes) -> dict[str, object]:
    """Measure N4 on volumes of several sizes."""
    return {"cases": [n4_case(xp, shape, sizes) for shape in sizes.volumes]}


def n4_case(xp: ModuleType, shape: Shape, sizes: Sizes) -> dict[str, object]:
    """Measure N4 on one volume: the fit, the volume in memory, and the command."""
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
        "in_memory": in_memory(xp, volume),
        "command": commands,
    }


def in_memory(xp: ModuleType, volume: np.ndarray) -> dict[str, dict[str, float]]:
    """Measure the correction of a volume in host memory, on the GPU and on the CPU."""
    correct = partial(
        n4.n4_bias_field_correction,
        shrink_factor=SHRINK,
        iterations=(ITERATIONS,) * LEVELS,
        convergence_threshold=0.0,
    )
    locked = empty_pinned(volume.shape, volume.dtype)
    locked[...] = volume
    calls = {
        "gpu": partial(correct, volume, xp=xp),
        "gpu_page_locked": partial(correct, locked, xp=xp),
        "cpu": partial(correct, volume, workers=cores()),
    }
    return {name: timed(call, RUNS_IN_MEMORY)[1] for name, call in calls.items()}


def resample_part(xp: ModuleType, sizes: Sizes) -> dict[str, object]:
    """Measure the command on entire mosaics, and the copy of a tile to the device."""
    size = 4 * int(np.prod(sizes.tile))
    rate = copy_rate(xp, size, DIRECTIONS["to_device"], pinned=True)
    return {
        "tile": sizes.tile,
        "end_to_end": [mosaics(kind, sizes, size / rate) for kind in sizes.stores],
    }


def mosaics(kind: str, sizes: Sizes, pcie_floor: float) -> dict[str, object]:
    """Measure a small and a large mosaic; their difference gives the time per tile.

    It excludes the start of the process and of CUDA, which both mosaics need.
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
    """Measure one mosaic on GPU and CPU, and reading and decoding it alone."""
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
