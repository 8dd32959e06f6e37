"""Choice of N4's device by the estimated seconds of computing on the CPU and on a GPU.

Reading and writing are left out, as the same on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from octane.core.arrays import Backend
from octane.core.units import counted
from octane.n4.plan import Plan

CONVERGED = 0.5
"""Expected fraction of the maximum iterations if levels may converge."""


@dataclass(frozen=True)
class Load:
    """Sizes of a run.

    Attributes
    ----------
    iterations
        Of all fits together.
    fitted
        Voxels of each fit times its iterations, summed over the fits.
    divided
        Voxels at full resolution.
    copied
        Bytes that a GPU receives and returns.
    """

    iterations: float
    fitted: float
    divided: int
    copied: int


@dataclass(frozen=True)
class Rates:
    """Cost of N4's work, in seconds except for the link.

    Attributes
    ----------
    fit
        One core, per voxel and iteration.
    division
        One core, per voxel.
    gpu_start
        By how much the start takes longer on a GPU than on the CPU, with kernels already compiled.
    gpu_iteration
        A GPU, per iteration of any size: launches, and waits for small results.
    gpu_fit
        A GPU, per voxel and iteration.
    link
        Bytes per second between host and GPU, one copy after another, with the division in between.
    """

    fit: float
    division: float
    gpu_start: float
    gpu_iteration: float
    gpu_fit: float
    link: float

    def cpu_seconds(self, load: Load, workers: int) -> float:
        """Estimate a run on this number of cores."""
        return (self.fit * load.fitted + self.division * load.divided) / workers

    def gpu_seconds(self, load: Load) -> float:
        """Estimate a run on a GPU."""
        fit = self.gpu_iteration * load.iterations + self.gpu_fit * load.fitted
        return self.gpu_start + fit + load.copied / self.link


# `benchmarks/n4.py --only choice` measured the CPU's rates. The GPU's are predictions until
# `benchmarks/gpu.py --only choice` measures them. Those of the fit follow from the instructions of
# the compiled kernels and an H100's data sheet, and the link from PCIe 4.0 x16. The start is 1.1 s
# for CuPy's import, CUDA's context and the lease, less 0.6 s for numba's import, which only the CPU
# needs.
RATES = Rates(
    fit=7.5e-9,
    division=2.5e-9,
    gpu_start=0.5,
    gpu_iteration=5e-5,
    gpu_fit=1.3e-11,
    link=25e9,
)


class Choice(NamedTuple):
    """A backend, and the reason as a clause: "auto" if a GPU is expected to be faster."""

    backend: Backend
    reason: str


def load_of(plan: Plan, convergence_threshold: float, results: Sequence[np.dtype]) -> Load:
    """Return the sizes of a planned run that writes volumes of these types.

    All voxels count, because the plan does not know the mask.
    """
    parts = [*plan.sections, *([] if plan.whole is None else [plan.whole])]
    expected = CONVERGED if convergence_threshold > 0 else 1.0
    iterations = [expected * sum(part.mesh.iterations) for part in parts]
    planes = [part.kept.stop - part.kept.start for part in parts]
    fitted = sum(n * its for n, its in zip(planes, iterations, strict=True))
    voxels = math.prod(plan.volume.grid.shape)
    each = plan.volume.dtype.itemsize + sum(dtype.itemsize for dtype in results)
    return Load(sum(iterations), fitted * math.prod(plan.shrunk_shape[1:]), voxels, voxels * each)


def choose(load: Load, workers: int, rates: Rates = RATES) -> Choice:
    """Choose the CPU unless a GPU would take less time, its start included."""
    cpu, gpu = rates.cpu_seconds(load, workers), rates.gpu_seconds(load)
    reason = (
        f"N4 is estimated to take {cpu:.1f} s on {counted(workers, 'core')}, and {gpu:.1f} s on a "
        "GPU with its start and copies"
    )
    return Choice("auto" if gpu < cpu else "cpu", reason)
