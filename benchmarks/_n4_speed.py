"""N4 end to end against SimpleITK, and its fit alone against n4ax, on the same cores."""

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from _common import cores, scratch_folder
from _n4_agreement import compare
from _n4_cases import MASKS, tissue_volume
from _peers import n4ax, simpleitk
from _timing import timed

from octane.n4 import fit as n4
from octane.n4.iteration import Steps

__all__ = ["speed"]

logger = logging.getLogger(__name__)

RUNS = 7
"""Runs of octane after the first; SimpleITK, whose runs take tens of seconds, has one."""


@dataclass(frozen=True)
class Case:
    """A volume at full resolution and its options; sequences in z, y, x.

    With a threshold of 0 every iteration is done, so that all do the same number.
    """

    shape: tuple[int, int, int]
    shrink: int
    iterations: tuple[int, ...] = (40, 40, 40)
    mask: str = "none"
    threshold: float = 0.0
    quick: bool = False


CASES = {
    "128x256x256": Case((128, 256, 256), 4, quick=True),
    "128x256x256, masked": Case((128, 256, 256), 4, mask="Otsu", quick=True),
    "128x256x256, ITK's defaults": Case(
        (128, 256, 256), 4, iterations=(50, 50, 50, 50), threshold=1e-3
    ),
    "64x128x128": Case((64, 128, 128), 2, quick=True),
    "96x200x180, masked": Case((96, 200, 180), 3, mask="Otsu"),
    "48x96x96": Case((48, 96, 96), 1, iterations=(20, 20)),
    "256x512x512": Case((256, 512, 512), 4),
}


def speed(quick: bool, n4ax_python: Path | None) -> dict[str, object]:
    """Time all cases, or the quick ones."""
    start = time.perf_counter()
    chosen = {name: case for name, case in CASES.items() if case.quick or not quick}
    cases = []
    for number, (name, case) in enumerate(chosen.items(), 1):
        figures = run_case(case, n4ax_python)
        cases.append({"name": name, **figures})
        logger.info(
            "speed %d of %d, %s: %.3f s, SimpleITK %.1f s, %.0f times",
            number,
            len(chosen),
            name,
            figures["octane"]["median"],
            figures["simpleitk"]["total"],
            figures["ratio"],
        )
    return {"cases": cases, "seconds": time.perf_counter() - start}


def run_case(case: Case, n4ax_python: Path | None) -> dict:
    """Time one case."""
    volume = tissue_volume(case.shape, extent=(0.95, 0.9, 0.9))
    mask = MASKS[case.mask](volume)
    shrink = (case.shrink,) * 3
    keep = n4.shrink_slices(volume.shape, shrink)
    shrunk = volume[keep]
    small_mask = None if mask is None else mask[keep]
    included = shrunk.size if small_mask is None else int(small_mask.sum())
    (corrected, fit), octane = timed(
        lambda: n4.n4_bias_field_correction(
            volume,
            mask,
            shrink_factor=shrink,
            iterations=case.iterations,
            convergence_threshold=case.threshold,
            workers=cores(),
        ),
        RUNS,
    )
    done = [level.iterations for level in fit.levels]

    def fit_alone(workers: int, runs: int = RUNS) -> dict[str, float]:
        _, seconds = timed(
            lambda: n4.fit_bias_field(
                shrunk,
                small_mask,
                iterations=case.iterations,
                convergence_threshold=case.threshold,
                workers=workers,
            ),
            runs,
        )
        per_voxel = seconds["median"] / included / sum(done) * 1e9
        return {**seconds, "ns_per_voxel_and_iteration": per_voxel}

    fits = {str(workers): fit_alone(workers) for workers in (1, 2)}
    with mock.patch.object(n4, "steps_for", return_value=Steps):
        fits["arrays"] = fit_alone(1, runs=1)
    itk = simpleitk(
        volume,
        mask,
        shrink=shrink,
        iterations=case.iterations,
        threshold=case.threshold,
        threads=cores(),
    )
    fitted = n4.log_field(fit, shrunk.shape)
    figures = {
        "shape": list(case.shape),
        "shrink": case.shrink,
        "mask": case.mask,
        "included": included,
        "included_fraction": included / shrunk.size,
        "threshold": case.threshold,
        "iterations": done,
        "octane": octane,
        "octane_fit": fits,
        "simpleitk": itk.seconds,
        "simpleitk_iterations": itk.iterations,
        "simpleitk_ns_per_voxel_and_iteration": itk.seconds["fit"]
        / included
        / sum(itk.iterations)
        * 1e9,
        "ratio": itk.seconds["total"] / octane["median"],
        "corrected": {
            "median": float(np.median(error := np.abs(corrected / itk.corrected - 1))),
            "max": float(error.max()),
        },
        "fit_against_simpleitk": compare(fitted, itk.fitted_field),
    }
    if n4ax_python is not None:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            log_field, peer = n4ax(n4ax_python, Path(folder), shrunk, small_mask, done)
        # Its authors compare without the global scale, which N4 leaves open.
        shift = np.mean(log_field - itk.fitted_field, dtype=np.float64)
        against = compare(log_field - np.float32(shift), itk.fitted_field)
        figures["n4ax"] = {**peer, "fit_against_simpleitk_but_for_scale": against}
    return figures
