"""Agreement of octane's N4 with SimpleITK's in many cases, and of SimpleITK's with itself."""

import itertools
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk
from _common import cores, scratch_folder
from _n4_peers import itk_weighted, simpleitk

from octane.processes.n4 import fit as n4

logger = logging.getLogger(__name__)

BOUNDS = {"one_minus_r": 1e-8, "median": 1e-5, "max": 2e-4}
"""Largest differences from SimpleITK's field; the iterations of every level must be equal."""

Volume = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]


def tissue_volume(
    shape: tuple[int, int, int], extent: tuple[float, float, float] = (0.9, 0.75, 0.8)
) -> Volume:
    """Two tissues in a dark background under a smooth bias, with noise, along (z, y, x).

    The tissue is an ellipsoid whose half axes are ``extent`` times the volume's half edges.
    """
    rng = np.random.default_rng(0)
    z, y, x = (
        np.linspace(-1, 1, n, dtype=np.float32).reshape([-1 if a == axis else 1 for a in range(3)])
        for axis, n in enumerate(shape)
    )
    a, b, c = extent
    tissue = np.where((z / a) ** 2 + (y / b) ** 2 + (x / c) ** 2 < 1, 100.0, 8.0)
    tissue = np.where((x / 0.4) ** 2 + (y / 0.35) ** 2 + (z / 0.5) ** 2 < 1, 160.0, tissue)
    bias = np.exp(0.35 * (0.8 * x - 0.5 * y**2 + 0.4 * z * y + 0.3 * np.sin(2 * x + z)))
    speckle = rng.standard_normal(shape, dtype=np.float32)
    speckle *= np.float32(0.04)
    speckle += 1
    return (tissue * bias).astype(np.float32) * speckle


def _none(_volume: Volume) -> None:
    return None


def _otsu(volume: Volume) -> Mask:
    image = sitk.OtsuThreshold(sitk.GetImageFromArray(volume), 0, 1, 200)
    return sitk.GetArrayFromImage(image).astype(np.uint8)


def _thin(volume: Volume) -> Mask:
    """A slanted sheet: few voxels in each row, but a bounding box almost as large as the volume."""
    z, y, x = np.ogrid[tuple(slice(n) for n in volume.shape)]
    nz, ny, nx = volume.shape
    height = z / nz + 0.4 * y / ny + 0.3 * x / nx
    return (np.abs(height - 0.85) < 0.12).astype(np.uint8)


def _border(volume: Volume) -> Mask:
    """A block that touches three borders and runs through the background."""
    mask = np.zeros(volume.shape, np.uint8)
    mask[: volume.shape[0] // 2, :, volume.shape[2] // 3 :] = 1
    return mask


MASKS: dict[str, Callable[[Volume], Mask | None]] = {
    "none": _none,
    "Otsu": _otsu,
    "thin": _thin,
    "border": _border,
}


def confidence(volume: Volume) -> Volume:
    """Weights from 1 to 0.1 that decrease towards the last plane, without one corner."""
    weights = np.broadcast_to(
        np.linspace(1, 0.1, volume.shape[0], dtype=np.float32)[:, None, None], volume.shape
    ).copy()
    weights[:, : volume.shape[1] // 6, : volume.shape[2] // 6] = 0
    return weights


def control_points_of(
    shape: tuple[int, ...], spacing: tuple[float, ...], distance: tuple[float, ...]
) -> tuple[int, ...]:
    """Control points per axis for a spline distance, as users of ITK derive them."""
    return tuple(
        int(np.ceil((n - 1) * s / d)) + 3 for n, s, d in zip(shape, spacing, distance, strict=True)
    )


@dataclass(frozen=True)
class Case:
    """One volume and its options; sequences in z, y, x, ``shape`` at full resolution."""

    shape: tuple[int, int, int]
    mask: str = "none"
    shrink: tuple[int, int, int] = (1, 1, 1)
    iterations: tuple[int, ...] = (20, 20)
    control_points: tuple[int, int, int] = (4, 4, 4)
    spline_distance: tuple[float, float, float] | None = None
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    weights: bool = False
    values: str = "positive"
    quick: bool = False

    def volume(self) -> npt.NDArray[np.float32]:
        """Return the data, with the values of ``values`` set."""
        volume = tissue_volume(self.shape)
        if self.values == "zeros and negatives":
            volume[::3, ::4, ::5] = 0
            volume[1::4, 2::5, ::3] = -5
        elif self.values == "zeros":
            volume[::3, ::4, ::5] = 0
        elif self.values == "first is minimum":
            volume[tuple(part.start for part in n4.shrink_slices(self.shape, self.shrink))] = 2
        return volume


CASES: dict[str, Case] = {
    "even cube": Case((48, 48, 48), iterations=(30,), quick=True),
    "odd cube": Case((51, 51, 51), iterations=(20, 20)),
    "non-cubic, odd and even": Case((37, 60, 83), iterations=(10, 10, 10), quick=True),
    "flat": Case((12, 121, 134), iterations=(20, 20)),
    "a million voxels": Case((64, 128, 128), iterations=(8,)),
    "Otsu": Case((60, 72, 81), "Otsu", iterations=(50, 50, 50), quick=True),
    "thin": Case((70, 80, 91), "thin", iterations=(20, 20), quick=True),
    "touching the border": Case((61, 70, 85), "border", iterations=(15, 15), quick=True),
    "four levels of 50, no mask": Case((45, 52, 61), iterations=(50, 50, 50, 50)),
    "four levels of 50, Otsu": Case((64, 75, 83), "Otsu", iterations=(50, 50, 50, 50)),
    "shrink 2": Case((100, 118, 131), "Otsu", (2, 2, 2), (40, 40, 40)),
    "shrink 3": Case((150, 179, 200), "Otsu", (3, 3, 3), (30, 30, 30)),
    "shrink 4": Case((128, 256, 256), "Otsu", (4, 4, 4), (40, 40, 40), quick=True),
    "shrink 4, no mask": Case((160, 200, 239), "none", (4, 4, 4), (15, 15, 15, 15)),
    "shrink 5": Case((213, 244, 266), "Otsu", (5, 5, 5), (20, 20, 20)),
    "shrink 6": Case((251, 279, 326), "Otsu", (6, 6, 6), (20, 20, 20)),
    "shrink 1, 4 and 6": Case((55, 220, 371), "Otsu", (1, 4, 6), (20, 20)),
    "spacing 3.5, 10 and 4": Case(
        (52, 61, 70), "Otsu", iterations=(20, 20, 20), spacing=(3.5, 10.0, 4.0)
    ),
    "control points 5, 4, 7": Case(
        (52, 61, 70), "Otsu", iterations=(20, 20), control_points=(5, 4, 7)
    ),
    "spline distance 30 mm": Case(
        (52, 61, 70),
        "Otsu",
        iterations=(20, 20),
        spacing=(2.0, 1.0, 1.5),
        spline_distance=(30.0, 30.0, 30.0),
        quick=True,
    ),
    "spline distance 15, 20, 40 mm": Case(
        (104, 122, 140),
        "Otsu",
        (2, 2, 2),
        (20, 20),
        spacing=(1.0, 0.5, 0.75),
        spline_distance=(15.0, 20.0, 40.0),
    ),
    "zeros in the mask": Case((52, 61, 70), iterations=(20, 20), values="zeros"),
    "zeros and negatives in the mask": Case(
        (52, 61, 70), iterations=(20, 20), values="zeros and negatives"
    ),
    "first voxel the minimum": Case(
        (52, 61, 70), iterations=(10, 10), values="first is minimum", quick=True
    ),
    "weights": Case((52, 61, 70), iterations=(10, 10), weights=True, quick=True),
    "weights and Otsu, shrink 2": Case(
        (104, 122, 140), "Otsu", (2, 2, 2), (20, 20, 20), weights=True
    ),
}


def agreement(quick: bool, itk_python: Path | None) -> dict[str, object]:
    """Run all cases, or the quick ones; those with weights need a Python with ITK."""
    chosen = {name: case for name, case in CASES.items() if case.quick or not quick}
    # The spread of ITK with 8 threads does not depend on the number of cores.
    threads = (1, 2) if quick else (1, 2, 8)
    cases = []
    for number, (name, case) in enumerate(chosen.items(), 1):
        if case.weights and itk_python is None:
            logger.warning("%s: skipped, because SimpleITK lacks weights; give --itk_python", name)
            continue
        figures = run_case(case, threads, itk_python)
        cases.append({"name": name, **figures})
        logger.info(
            "agreement %d of %d, %s: median %.1e, max %.1e (ITK itself %.1e, %.1e), %s",
            number,
            len(chosen),
            name,
            figures["median"],
            figures["max"],
            figures["itk_median"],
            figures["itk_max"],
            "holds" if figures["holds"] else "MISSES A BOUND",
        )
    return {"bounds": BOUNDS, "cases": cases}


def compare(log_field: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return 1 - r, and the median and maximum relative difference of two bias fields."""
    a, b = log_field.astype(np.float64), other.astype(np.float64)
    error = np.abs(np.expm1(a - b))
    return {
        "one_minus_r": float(1 - np.corrcoef(np.exp(a).ravel(), np.exp(b).ravel())[0, 1]),
        "median": float(np.median(error)),
        "max": float(error.max()),
    }


def run_case(case: Case, threads: tuple[int, ...], itk_python: Path | None) -> dict[str, object]:
    """Fit one case with octane, and with ITK for each number of threads."""
    start = time.perf_counter()
    volume = case.volume()
    mask = MASKS[case.mask](volume)
    keep = n4.shrink_slices(volume.shape, case.shrink)
    shrunk = volume[keep]
    small_mask = None if mask is None else mask[keep]
    weights = confidence(shrunk) if case.weights else None
    points = case.control_points
    if case.spline_distance is not None:
        spacing = tuple(s * f for s, f in zip(case.spacing, case.shrink, strict=True))
        points = control_points_of(shrunk.shape, spacing, case.spline_distance)
    fit = n4.fit_bias_field(
        shrunk,
        small_mask,
        weights=weights,
        iterations=case.iterations,
        control_points=points,
        workers=cores(),
    )
    log_field = n4.log_field(fit, volume.shape)
    done = [level.iterations for level in fit.levels]
    most = list(case.iterations)
    fields: dict[int, npt.NDArray[np.float32]] = {}
    counts: dict[int, list[int]] = {}
    for n in threads:
        if weights is not None and itk_python is not None:
            with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
                lattice, counts[n] = itk_weighted(
                    itk_python,
                    Path(folder),
                    shrunk,
                    small_mask,
                    weights,
                    list(case.iterations),
                    points,
                    n,
                )
            fields[n] = n4.log_field(n4.BiasFit(lattice, ()), volume.shape)
        else:
            run = simpleitk(
                volume,
                mask,
                shrink=case.shrink,
                iterations=most,
                control_points=points,
                threshold=1e-3,
                spacing=case.spacing,
                threads=n,
            )
            fields[n], counts[n] = run.log_field, run.iterations
    against = {n: compare(log_field, field) for n, field in fields.items()}
    # ITK's number of iterations may depend on its number of threads, and then its field does too.
    nearest = min(threads, key=lambda n: (counts[n] != done, against[n]["median"]))
    spread = [compare(fields[a], fields[b]) for a, b in itertools.combinations(threads, 2)]
    holds = counts[nearest] == done and all(
        against[nearest][figure] <= bound for figure, bound in BOUNDS.items()
    )
    inside = np.ones(shrunk.shape, bool) if small_mask is None else small_mask > 0
    if weights is not None:
        inside &= weights > 0
    return {
        "shape": list(case.shape),
        "shrink": list(case.shrink),
        "fit_shape": list(shrunk.shape),
        "included": int(inside.sum()),
        "mask": case.mask,
        "weights": case.weights,
        "values": case.values,
        "spacing": list(case.spacing),
        "control_points": list(points),
        "most_iterations": most,
        "iterations": done,
        "itk_iterations": {str(n): count for n, count in counts.items()},
        "nearest_threads": nearest,
        **against[nearest],
        "itk_one_minus_r": max(s["one_minus_r"] for s in spread),
        "itk_median": max(s["median"] for s in spread),
        "itk_max": max(s["max"] for s in spread),
        "holds": holds,
        "seconds": time.perf_counter() - start,
    }
