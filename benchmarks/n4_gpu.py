"""N4 on a GPU: the kernels against arrays on the same GPU, and SimpleITK on the host's cores.

Writes benchmarks/results/n4_gpu.json. ``--quick`` takes the small volume alone. Without a GPU it
says so, writes nothing and exits with 3. All do the same number of iterations (threshold 0).

SimpleITK's fit of the large volume takes many minutes, so a part of the iterations of every level
is timed and scaled to all (``--itk-iterations``; the result says so).
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from unittest import mock

import numpy as np
import SimpleITK as sitk
from _common import save
from _gpu import bandwidth, device_or_exit, seconds

from octane.gpu.device import describe
from octane.n4 import bspline
from octane.n4 import fit as n4
from octane.n4.cuda import apply_rows
from octane.n4.iteration import Steps

log = logging.getLogger("n4_gpu")

SHRINK = 4
LEVELS = 3
ITERATIONS = 40
QUICK, LARGE = (64, 256, 192), (256, 1024, 769)
# Planes that are corrected at a time.
PLANES = 32
REPEATS = 7


def volume(shape: tuple[int, int, int]) -> np.ndarray:
    """Blocks of tissue with shading and noise: float32, positive."""
    rng = np.random.default_rng(0)
    z, y, x = np.meshgrid(
        *(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij", sparse=True
    )
    image = rng.standard_normal(shape, np.float32)
    image *= 0.04
    image += 1
    image *= np.where(np.sin(9 * x) * np.sin(7 * y) * np.cos(5 * z) > 0, 100, 40).astype(np.float32)
    image *= np.exp(0.4 * x - 0.3 * y**2 + 0.2 * z * x)
    return image


def timed(xp: ModuleType, work: Callable[[], object], repeats: int) -> dict[str, object]:
    """The first time, in which kernels are compiled or loaded, and those after it."""
    first, *others = seconds(xp, work, repeats + 1)
    return {"median_s": statistics.median(others), "first_s": first, "all_s": others}


def fitted(image: np.ndarray) -> n4.BiasFit:
    """Fit an image that is shrunk already."""
    return n4.fit_bias_field(image, iterations=(ITERATIONS,) * LEVELS, convergence_threshold=0.0)


def slabs(shape: tuple[int, int, int]) -> list[tuple[slice, slice, slice]]:
    """The parts of a volume that are corrected at a time."""
    return [
        (slice(z, min(z + PLANES, shape[0])), slice(0, shape[1]), slice(0, shape[2]))
        for z in range(0, shape[0], PLANES)
    ]


def by_kernel(
    xp: ModuleType, fit: n4.BiasFit, shape: tuple[int, int, int], region: tuple[slice, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Correct a slab that is on the device, by the fused kernel."""

    def correct(block: np.ndarray) -> np.ndarray:
        bases = [
            xp.asarray(bspline.basis(n, c, part.start, part.stop))
            for n, c, part in zip(shape[:2], fit.lattice.shape[:2], region[:2], strict=True)
        ]
        lattice = xp.asarray(fit.lattice.astype(np.float64))
        rows = bspline.expand_rows(lattice, bases).astype(xp.float32)
        return apply_rows(block, rows, bspline.axis_weights(shape[2], fit.lattice.shape[2]))

    return correct


def by_arrays(
    xp: ModuleType, fit: n4.BiasFit, shape: tuple[int, int, int], region: tuple[slice, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Correct a slab that is on the device, by array operations."""
    return lambda block: n4.correct(block, n4.log_field(fit, shape, region, xp=xp))


def on_device(xp: ModuleType, image: np.ndarray, kind: str) -> tuple[dict[str, object], np.ndarray]:
    """Time the fit alone, the correction alone, and both from host memory to host memory.

    Returns the times and the log field on the shrunk grid.
    """
    shape = image.shape
    keep = n4.shrink_slices(shape, (SHRINK,) * 3)
    shrunk = xp.asarray(np.ascontiguousarray(image[keep]))
    correct = by_kernel if kind == "kernels" else by_arrays
    fit = fitted(shrunk)
    whole = xp.asarray(image)

    def apply() -> None:
        for region in slabs(shape):
            correct(xp, fit, shape, region)(whole[region])

    def end_to_end() -> None:
        found = fitted(xp.asarray(np.ascontiguousarray(image[keep])))
        result = np.empty_like(image)
        for region in slabs(shape):
            block = xp.asarray(image[region])
            result[region] = xp.asnumpy(correct(xp, found, shape, region)(block))

    times: dict[str, object] = {
        "fit": timed(xp, lambda: fitted(shrunk), REPEATS),
        "apply": timed(xp, apply, REPEATS),
        "host_to_host": timed(xp, end_to_end, 3),
    }
    return times, n4.log_field(fit, shrunk.shape)


def simpleitk(image: np.ndarray, iterations: int) -> dict[str, object]:
    """Time SimpleITK on all cores; the fit with fewer iterations is scaled to all."""
    start = time.perf_counter()
    full = sitk.GetImageFromArray(image)
    shrunk = sitk.Shrink(full, [SHRINK] * 3)
    prepared = time.perf_counter()
    corrector = sitk.N4BiasFieldCorrectionImageFilter()
    corrector.SetMaximumNumberOfIterations([iterations] * LEVELS)
    corrector.SetConvergenceThreshold(0.0)
    corrector.Execute(shrunk)
    done = time.perf_counter()
    corrected = full / sitk.Exp(corrector.GetLogBiasFieldAsImage(full))
    sitk.GetArrayFromImage(corrected)
    fit = (done - prepared) * ITERATIONS / iterations
    rest = prepared - start + time.perf_counter() - done
    return {
        "threads": sitk.ProcessObject.GetGlobalDefaultNumberOfThreads(),
        "iterations_timed": iterations,
        "scaled_by": ITERATIONS / iterations,
        "fit": {"median_s": fit},
        "host_to_host": {"median_s": fit + rest},
    }


def case(
    xp: ModuleType, shape: tuple[int, int, int], ceiling: float, itk_iterations: int
) -> dict[str, object]:
    """Everything about one volume."""
    image = volume(shape)
    kernels, field = on_device(xp, image, "kernels")
    with mock.patch.object(n4, "device_steps", return_value=Steps):
        arrays, other_field = on_device(xp, image, "arrays")
    shrunk = n4.shrink_slices(shape, (SHRINK,) * 3)
    voxels = image[shrunk].size
    log.info("SimpleITK on %s", shape)
    return {
        "shape": shape,
        "shrink": SHRINK,
        "fitted_voxels": voxels,
        "iterations": LEVELS * ITERATIONS,
        # Counted: what the kernels must move, at the rate of a copy.
        "counted_bytes_per_voxel_and_iteration": 16,
        "counted_fit_s": 16 * voxels * LEVELS * ITERATIONS / ceiling,
        "counted_apply_s": 2 * image.nbytes / ceiling,
        "kernels": kernels,
        "arrays": arrays,
        "largest_difference_of_log_fields": float(np.abs(field - other_field).max()),
        "simpleitk": simpleitk(image, itk_iterations),
    }


def main() -> None:
    """Run on a GPU, or say that there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small volume alone")
    parser.add_argument(
        "--itk-iterations", type=int, default=4, help="of SimpleITK, per level, timed and scaled"
    )
    options = parser.parse_args()
    xp = device_or_exit("n4_gpu")
    ceiling = bandwidth(xp)
    shapes = [QUICK] if options.quick else [QUICK, LARGE]
    cases = [case(xp, shape, ceiling, options.itk_iterations) for shape in shapes]
    save(
        "n4_gpu",
        {"device": describe(xp), "copy_bytes_per_s": ceiling, "cases": cases},
        quick=options.quick,
    )


if __name__ == "__main__":
    main()
