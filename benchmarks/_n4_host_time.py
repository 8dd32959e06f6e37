"""Host time of N4 on a GPU: Python's and CuPy's part of an iteration, a level and a slab.

Printed as JSON, in microseconds. It runs on the emulated CUDA with EMU_SKIP_KERNELS=1, where
kernels do nothing and what is left is the host's time: that of this machine's CPU, not of a GPU.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace

import cupy
import numpy as np

from octane.n4.apply import FieldPart, correct_block
from octane.n4.cuda import CudaSteps
from octane.n4.grid import Slab
from octane.n4.iteration import Sharpening

SHAPE = (64, 256, 192)
SLAB = (8, 1024, 769)
LATTICES = (4, 5, 7)


def microseconds(work: Callable[[], object], times: int) -> float:
    """Median of some calls, the first left out."""
    seconds = []
    for _ in range(1 + times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return round(1e6 * median(seconds[1:]), 1)


def main() -> None:
    """Measure, and print."""
    if os.environ.get("EMU_SKIP_KERNELS") != "1":
        sys.exit("EMU_SKIP_KERNELS is not 1; run this on the emulated CUDA with it.")
    size = int(np.prod(SHAPE))
    whole = Slab(0, slice(0, SHAPE[0] * SHAPE[1]), slice(0, size), None)
    # FitVoxels looks at the voxels, which kernels that do nothing cannot.
    grid = SimpleNamespace(
        xp=cupy,
        shape=SHAPE,
        box_shape=SHAPE,
        box=[slice(0, n) for n in SHAPE],
        size=size,
        weights=None,
        values=cupy.ones(size, np.float32),
        slabs=[whole],
    )
    steps = CudaSteps(grid, Sharpening(200, 0.15, 0.01))  # ty: ignore[invalid-argument-type]
    levels = {}
    for points in LATTICES:
        begin = microseconds(lambda shape=(points,) * 3: steps.begin_level(shape), 10)
        lattice = cupy.zeros((points,) * 3, np.float32)
        levels[points] = {
            "begin_level": begin,
            "iteration": microseconds(lambda lattice=lattice: steps.iterate(lattice), 300),
        }
    slab = cupy.zeros(SLAB, np.float32)
    points = np.zeros((7, 7, 7), np.float32)
    part = FieldPart(points, (256, *SLAB[1:]), tuple(slice(0, n) for n in SLAB))
    found = {
        "levels_by_control_points": levels,
        "correct_block": microseconds(lambda: correct_block(slab, [part]), 50),
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
