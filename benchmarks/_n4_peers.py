"""N4 of SimpleITK, and of n4ax and ITK in separate Pythons, on the same data."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk


@dataclass
class ItkRun:
    """Result of SimpleITK's N4 on a volume; seconds by stage, where ``fit`` is only the fit.

    ``fitted_field`` is the log field on the shrunk grid; its computation is not timed.
    """

    log_field: npt.NDArray[np.float32]
    fitted_field: npt.NDArray[np.float32]
    corrected: npt.NDArray[np.float32]
    convergence: list[list[float]]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def iterations(self) -> list[int]:
        """Iterations done at every level."""
        return [len(level) for level in self.convergence]


def simpleitk(
    volume: npt.NDArray[np.float32],
    mask: npt.NDArray[np.uint8] | None = None,
    *,
    shrink: Sequence[int] = (1, 1, 1),
    iterations: Sequence[int],
    control_points: Sequence[int] = (4, 4, 4),
    threshold: float = 1e-3,
    spacing: Sequence[float] = (1.0, 1.0, 1.0),
    threads: int = 1,
) -> ItkRun:
    """Shrink, fit, evaluate the field at full resolution and divide; sequences in z, y, x."""
    previous = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    seconds: dict[str, float] = {}
    try:
        images = []
        for array in (volume, mask):
            if array is not None:
                images.append(sitk.GetImageFromArray(array))
                images[-1].SetSpacing(spacing[::-1])
        start = time.perf_counter()
        shrunk = [sitk.Shrink(image, list(shrink[::-1])) for image in images]
        seconds["shrink"] = time.perf_counter() - start
        correction = sitk.N4BiasFieldCorrectionImageFilter()
        correction.SetMaximumNumberOfIterations(list(iterations))
        correction.SetNumberOfControlPoints(list(control_points[::-1]))
        correction.SetConvergenceThreshold(threshold)
        convergence: list[list[float]] = [[] for _ in iterations]

        def note() -> None:
            # GetElapsedIterations is not enough: after the run it is one too large.
            level = convergence[correction.GetCurrentLevel()]
            level.append(correction.GetCurrentConvergenceMeasurement())

        correction.AddCommand(sitk.sitkIterationEvent, note)
        start = time.perf_counter()
        correction.Execute(*shrunk)
        seconds["fit"] = time.perf_counter() - start
        correction.RemoveAllCommands()
        start = time.perf_counter()
        log_field = correction.GetLogBiasFieldAsImage(images[0])
        seconds["field"] = time.perf_counter() - start
        start = time.perf_counter()
        corrected = sitk.Divide(images[0], sitk.Exp(log_field))
        seconds["divide"] = time.perf_counter() - start
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(previous)
    seconds["total"] = sum(seconds.values())
    return ItkRun(
        sitk.GetArrayFromImage(log_field),
        sitk.GetArrayFromImage(correction.GetLogBiasFieldAsImage(shrunk[0])),
        sitk.GetArrayFromImage(corrected),
        convergence,
        seconds,
    )


N4AX = """
import json, sys, time
from importlib.metadata import version
import numpy as np
import n4ax

request = json.loads(sys.argv[1])
volume = np.load(request["volume"])
mask = np.load(request["mask"]) if request["mask"] else np.ones(volume.shape, np.uint8)
seconds = []
for _ in range(request["runs"]):
    start = time.perf_counter()
    _, log_bias = n4ax.n4(
        volume, mask, iters=request["iterations"], over_relax=1.0, conv_threshold=0.0,
        return_bias=True,
    )
    log_bias = np.asarray(log_bias)
    seconds.append(time.perf_counter() - start)
np.save(request["field"], log_bias)
versions = {name: version(name) for name in ("n4ax", "jax")}
print(json.dumps({"cold": seconds[0], "warm": min(seconds[1:]), "versions": versions}))
"""


def n4ax(
    python: Path,
    folder: Path,
    shrunk: npt.NDArray[np.float32],
    mask: npt.NDArray[np.uint8] | None,
    iterations: Sequence[int],
    runs: int = 4,
) -> tuple[npt.NDArray[np.float32], dict[str, object]]:
    """Fit with n4ax; return the log field on the grid of the fit, and the seconds.

    n4ax receives the shrunk volume, as it cannot evaluate the field at another resolution. Its
    over-relaxation is off: its steps are larger than ITK's, so equal iterations would not be
    comparable. The seconds of the first call, which compiles, are ``cold``.
    """
    np.save(folder / "volume.npy", shrunk)
    if mask is not None:
        np.save(folder / "mask.npy", mask)
    request = {
        "volume": str(folder / "volume.npy"),
        "mask": None if mask is None else str(folder / "mask.npy"),
        "field": str(folder / "field.npy"),
        "iterations": list(iterations),
        "runs": runs,
    }
    figures = _run(python, N4AX, request)
    return np.load(folder / "field.npy"), figures


ITK = """
import json, sys
import itk
import numpy as np

request = json.loads(sys.argv[1])
itk.MultiThreaderBase.SetGlobalDefaultNumberOfThreads(request["threads"])
real, label = itk.Image[itk.F, 3], itk.Image[itk.UC, 3]
correction = itk.N4BiasFieldCorrectionImageFilter[real, label, real].New()
correction.SetInput(itk.image_from_array(np.load(request["volume"])))
correction.SetMaskImage(itk.image_from_array(np.load(request["mask"])))
correction.SetConfidenceImage(itk.image_from_array(np.load(request["weights"])))
levels, points = itk.FixedArray[itk.UI, 3](), itk.FixedArray[itk.UI, 3]()
levels.Fill(len(request["iterations"]))
for axis, count in enumerate(reversed(request["control_points"])):
    points.SetElement(axis, count)
correction.SetNumberOfFittingLevels(levels)
correction.SetNumberOfControlPoints(points)
correction.SetMaximumNumberOfIterations(request["iterations"])
correction.SetConvergenceThreshold(request["threshold"])
done = [0] * len(request["iterations"])
def note():
    done[correction.GetCurrentLevel()] += 1
correction.AddObserver(itk.IterationEvent(), note)
correction.Update()
lattice = correction.GetLogBiasFieldControlPointLattice()
nx, ny, nz = lattice.GetLargestPossibleRegion().GetSize()
values = np.array(
    [[[lattice.GetPixel([x, y, z])[0] for x in range(nx)] for y in range(ny)] for z in range(nz)],
    np.float32,
)
np.save(request["lattice"], values)
print(json.dumps({"iterations": done, "version": itk.Version.GetITKVersion()}))
"""


def itk_weighted(
    python: Path,
    folder: Path,
    shrunk: npt.NDArray[np.float32],
    mask: npt.NDArray[np.uint8] | None,
    weights: npt.NDArray[np.float32],
    iterations: Sequence[int],
    control_points: Sequence[int],
    threads: int,
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Fit a shrunk volume with a confidence image: the lattice, the iterations of every level.

    SimpleITK does not support confidence images; ITK's own Python package does.
    """
    np.save(folder / "volume.npy", shrunk)
    np.save(folder / "mask.npy", np.ones(shrunk.shape, np.uint8) if mask is None else mask)
    np.save(folder / "weights.npy", weights)
    request = {
        **{name: str(folder / f"{name}.npy") for name in ("volume", "mask", "weights", "lattice")},
        "iterations": list(iterations),
        "control_points": list(control_points),
        "threshold": 1e-3,
        "threads": threads,
    }
    figures = _run(python, ITK, request)
    return np.load(folder / "lattice.npy"), figures["iterations"]


def _run(python: Path, script: str, request: Mapping[str, object]) -> dict:
    done = subprocess.run(
        [python, "-c", script, json.dumps(request)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"a peer failed under {python}: {last[0]}")
    return json.loads(done.stdout)
