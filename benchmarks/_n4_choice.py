"""Measured rates of the CPU and of a GPU, by which N4 chooses its device."""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from _common import PROJECT, cores, scratch_folder
from _n4_agreement import tissue_volume
from _n4_speed import write_noise
from _processes import run

from octane.n4 import fit as n4
from octane.n4.apply import FieldPart, correct_block
from octane.pipeline.workers import run_tiles

Shape = tuple[int, int, int]


class Sizes(NamedTuple):
    """Sizes of a full or a quick run."""

    launches: Shape  # voxels of a fit on a GPU whose time is that of its launches
    fit: Shape
    block: Shape
    iterations: tuple[int, ...]
    runs: int


FULL = Sizes((32, 32, 32), (64, 256, 192), (256, 256, 256), (10, 10, 10), 7)
QUICK = Sizes((16, 16, 16), (16, 24, 32), (32, 32, 32), (1, 1), 1)


def choice(quick: bool, xp: ModuleType | None = None) -> dict[str, object]:
    """Measure the rates of the CPU and, with CuPy, of the GPU."""
    sizes = QUICK if quick else FULL
    rates = cpu_rates(sizes) | ({} if xp is None else gpu_rates(xp, sizes))
    return {"sizes": sizes._asdict(), "rates": rates}


def cpu_rates(sizes: Sizes) -> dict[str, float]:
    """Measure rates in CPU time while all cores work; other programs do not count."""
    values = tissue_volume(sizes.block)
    results = [np.empty_like(values) for _ in range(cores())]
    part = field_over(values.shape)

    def divide() -> None:
        run_tiles(results, lambda out: correct_block(values, [part], out=out), workers=cores())

    fit = iteration_seconds(np, sizes.fit, sizes, time.process_time)
    return {
        "fit": fit / math.prod(sizes.fit),
        "division": least(divide, time.process_time, sizes.runs) / values.size / cores(),
    }


def gpu_rates(xp: ModuleType, sizes: Sizes) -> dict[str, float]:
    """Measure a GPU's rates; the copies include the division between them."""
    few, many = (
        iteration_seconds(xp, shape, sizes, time.perf_counter)
        for shape in (sizes.launches, sizes.fit)
    )
    values = tissue_volume(sizes.block)
    source, result = (
        np.frombuffer(xp.cuda.alloc_pinned_memory(values.nbytes), np.float32, values.size)
        for _ in range(2)
    )
    source[...] = values.ravel()
    block, part = xp.empty(values.shape, xp.float32), field_over(values.shape)

    def divide() -> None:
        block.set(source.reshape(values.shape))
        xp.asnumpy(correct_block(block, [part])[0], out=result.reshape(values.shape))

    return {
        "gpu_start": start_seconds(sizes.runs),
        "gpu_iteration": few,
        "gpu_fit": (many - few) / (math.prod(sizes.fit) - math.prod(sizes.launches)),
        "link": 2 * values.nbytes / least(divide, time.perf_counter, sizes.runs),
    }


def start_seconds(runs: int) -> float:
    """Return how many seconds longer the command takes on a GPU, with tiny data, kernels cached."""
    found: dict[str, list[float]] = {"gpu": [], "cpu": []}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        source, result = Path(folder) / "noise.ome.zarr", Path(folder) / "corrected.ome.zarr"
        write_noise(source, (16, 24, 20))
        words = ("--n4_mask", "none", "--n4_iterations", "2", "--overwrite", "--backend")
        for _ in range(1 + runs):
            for backend, seconds in found.items():
                command = [sys.executable, PROJECT / "bin" / "n4.py", source, result]
                seconds.append(run([*command, *words, backend]).seconds)
    gpu, cpu = (statistics.median(seconds[1:]) for seconds in found.values())
    return gpu - cpu


def iteration_seconds(
    xp: ModuleType, shape: Shape, sizes: Sizes, clock: Callable[[], float]
) -> float:
    """Return the seconds of an iteration on voxels that are on their device."""
    voxels = xp.asarray(tissue_volume(shape))

    def fit() -> n4.BiasFit:
        return n4.fit_bias_field(
            voxels, iterations=sizes.iterations, convergence_threshold=0.0, workers=cores()
        )

    return least(fit, clock, sizes.runs) / sum(sizes.iterations)


def field_over(shape: tuple[int, ...]) -> FieldPart:
    """Return a field of as many control points as three levels have."""
    lattice = np.random.default_rng(0).normal(0, 0.1, (7, 7, 7)).astype(np.float32)
    return FieldPart(lattice, shape, tuple(slice(0, n) for n in shape))


def least(work: Callable[[], object], clock: Callable[[], float], runs: int) -> float:
    """Return the least seconds of a call, after one that is not counted."""
    seconds = []
    for _ in range(1 + runs):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds[1:])
