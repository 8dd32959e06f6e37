"""The kernels of N4 and RESAMPLE one by one, on data that are on the GPU.

As a script, ``python _gpu_kernels.py [quick]`` runs each kernel once or twice, for a profiler.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import numpy as np
from _gpu_device import REPEATS, median_ms
from _n4_agreement import tissue_volume
from _resample_stores import RESOLUTION, SPACING
from _timing import timed
from cupyx.scipy import ndimage
from resampling import operators_of, pushed

from octane.core.arrays import to_host
from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.pipeline.lanes import Lane
from octane.processes.n4 import bspline
from octane.processes.n4 import fit as n4
from octane.processes.n4.apply import FieldPart, correct_block
from octane.processes.n4.cuda import CudaSteps
from octane.processes.n4.grid import FitVoxels
from octane.processes.n4.sharpening import Sharpening
from octane.resample.cpu import CompiledResampler
from octane.resample.gpu import CudaResampler
from octane.resample.operator import AxisOperator

LEVELS = 3
FACTOR = RESOLUTION / SPACING
BATCH = 32
"""Planes that are pushed at once."""

Shape = tuple[int, int, int]
Kernel = Callable[..., None]


class Sizes(NamedTuple):
    """Sizes of a full or a quick run."""

    shrunk: Shape  # that N4 fits
    volume: Shape  # that it corrects
    tile: Shape
    iterations: int
    ballast: int  # bytes


FULL = Sizes((64, 256, 192), (256, 1024, 769), (256, 256, 256), 30, 1 << 28)
QUICK = Sizes((8, 12, 10), (4, 12, 20), (16, 16, 16), 1, 1 << 10)


class Stopwatch:
    """Times launches by events in the stream: milliseconds by the kernels' names."""

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        self._events: list[tuple[str, object, object]] = []

    def timing(self, name: str, kernel: Kernel) -> Kernel:
        """Return the kernel with an event before and after each launch."""

        def launch(*arguments: object) -> None:
            start, end = self._xp.cuda.Event(), self._xp.cuda.Event()
            start.record()
            kernel(*arguments)
            end.record()
            self._events.append((name, start, end))

        return launch

    def milliseconds(self) -> dict[str, list[float]]:
        """Return the times since the last call, after waiting for the device."""
        self._xp.cuda.Device().synchronize()
        found = defaultdict(list)
        for name, start, end in self._events:
            found[name].append(self._xp.cuda.get_elapsed_time(start, end))
        self._events.clear()
        return found


def kernels(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Measure every kernel."""
    sizes = QUICK if quick else FULL
    image = tissue_volume(sizes.shrunk)
    half = image.copy()
    half[: len(half) // 2] = 20  # all of these voxels are counted in one bin
    return {
        "n4_shape": sizes.shrunk,
        "n4": fit_kernels(xp, image, None, sizes),
        "n4_masked": fit_kernels(xp, image, image > 50, sizes),
        "n4_half_constant": fit_kernels(xp, half, None, sizes),
        "apply": application(xp, sizes),
        "resample": [passes(xp, sizes.tile, dtype) for dtype in ("f4", "u2")],
        "cupyx_zoom_ms": zoom(xp, sizes.tile),
    }


def fit_kernels(
    xp: ModuleType, image: np.ndarray, mask: np.ndarray | None, sizes: Sizes
) -> list[dict[str, object]]:
    """Measure the kernels of N4's iteration on every level, and whole iterations."""
    # Work that keeps the device busy while the host launches: events then time only the kernels,
    # not the gaps between launches.
    ballast = xp.zeros(sizes.ballast, xp.uint8)
    found: list[dict[str, object]] = []
    with FitVoxels(image, mask, None, 1, CudaSteps.SLAB, xp) as grid:
        steps = CudaSteps(grid, Sharpening(200, 0.15, 0.01))
        lattice = np.zeros((4, 4, 4), np.float32)
        plain, watch = steps.kernels, Stopwatch(xp)
        watched = {name: watch.timing(name, kernel) for name, kernel in plain.items()}
        for level in range(LEVELS):
            lattice = xp.asarray(bspline.refine(to_host(lattice)) if level else lattice)
            start = time.perf_counter()
            steps.begin_level(lattice.shape)
            xp.cuda.Device().synchronize()
            begin = time.perf_counter() - start
            lattice = iterated(steps, lattice)
            steps.kernels = watched
            for _ in range(sizes.iterations):
                ballast += 1
                lattice = iterated(steps, lattice)
            times = {k: statistics.median(v) for k, v in watch.milliseconds().items()}
            steps.kernels = plain
            _, whole = timed(lambda state=lattice: iterated(steps, state), sizes.iterations)
            found.append(
                {
                    "lattice": lattice.shape,
                    "begin_level_ms": begin * 1e3,
                    "iteration_us": whole["median"] * 1e6,
                    "kernels_us": {name: ms * 1e3 for name, ms in times.items()},
                    "sum_us": sum(times.values()) * 1e3,
                }
            )
    return found


def iterated(steps: CudaSteps, lattice: np.ndarray) -> np.ndarray:
    """Do one iteration, and return the lattice."""
    done = steps.iterate(lattice)
    if done is None:
        raise RuntimeError("N4 found the same value in all voxels")
    return done[0]


def application(xp: ModuleType, sizes: Sizes) -> dict[str, float]:
    """Measure the division of a whole volume by its field."""
    voxels = xp.ones(sizes.volume, xp.float32)
    part = field_over(sizes.volume)
    ms = median_ms(xp, lambda: correct_block(voxels, [part]), REPEATS)
    return {"ms": ms, "GB_per_s": 2 * voxels.nbytes / ms / 1e6}


def field_over(shape: tuple[int, ...]) -> FieldPart:
    """Return a field of as many control points as three levels have."""
    lattice = np.random.default_rng(0).normal(0, 0.1, (7, 7, 7)).astype(np.float32)
    return FieldPart(lattice, shape, tuple(slice(0, n) for n in shape))


@contextmanager
def resampler(xp: ModuleType) -> Generator[CudaResampler]:
    """Give a resampler in a lane of its own."""
    metrics = Metrics("gpu")
    with HostMemory(xp) as host:
        lane = Lane(xp, metrics, host, metrics.timeline.track("lane"))
        with lane.active():
            yield CudaResampler(lane)


def passes(xp: ModuleType, shape: Shape, dtype: str) -> dict[str, object]:
    """Measure the three passes of a tile, and compare its bits with the CPU's."""
    tile = (np.random.default_rng(0).standard_gamma(4, shape) * 200).astype(dtype)
    operators = operators_of(shape, (FACTOR,) * 3)
    expected = pushed(CompiledResampler(), tile, operators, batch=BATCH)
    watch = Stopwatch(xp)
    with resampler(xp) as own:
        made = pushed(own, tile, operators, batch=BATCH)
        for _ in range(REPEATS):
            watched_tile(own, watch, tile, operators)
        times = {name: sum(ms) / REPEATS for name, ms in watch.milliseconds().items()}
        _, whole = timed(lambda: pushed(own, tile, operators, batch=BATCH), REPEATS)
    return {
        "dtype": str(tile.dtype),
        "shape": shape,
        "made": made.shape,
        "taps": [operator.taps for operator in operators],
        "passes_ms": times,
        "tile_ms": whole["median"] * 1e3,
        "same_bits": bool((made == expected).all()),
    }


def watched_tile(
    own: CudaResampler, watch: Stopwatch, tile: np.ndarray, operators: list[AxisOperator]
) -> None:
    """Resample a tile, as `pushed`, with its launches timed."""
    own.begin(operators, tile.shape[1:], tile.dtype, tile.dtype)
    own.kernels = [watch.timing(*one) for one in zip("zyx", own.kernels, strict=True)]
    for first in range(0, len(tile), BATCH):
        own.push(tile[first : first + BATCH])
    own.finish()


def zoom(xp: ModuleType, shape: Shape) -> float:
    """Return the milliseconds of CuPy's own functions for the same grid, on device data."""
    tile = xp.ones(shape, xp.float32)
    target = [round(n / FACTOR) / n for n in shape]

    def work() -> None:
        smooth = ndimage.gaussian_filter(tile, sigma=(FACTOR - 1) / 2)
        ndimage.zoom(smooth, target, order=1)

    return median_ms(xp, work, REPEATS)


def main() -> None:
    """Run one iteration of N4's last level, one application and one tile of RESAMPLE."""
    import cupy

    sizes = QUICK if "quick" in sys.argv[1:] else FULL
    image = cupy.asarray(tissue_volume(sizes.shrunk))
    n4.fit_bias_field(image, iterations=(0, 0, 1), convergence_threshold=0.0)
    correct_block(cupy.ones(sizes.volume, cupy.float32), [field_over(sizes.volume)])
    tile = np.ones(sizes.tile, np.float32)
    with resampler(cupy) as own:
        pushed(own, tile, operators_of(sizes.tile, (FACTOR,) * 3), batch=BATCH)


if __name__ == "__main__":
    main()
