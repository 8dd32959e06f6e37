"""Volumes with a known bias field, SimpleITK's own N4 on them, and plans of N4."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk

from octane.config.parameters import ExecutionParameters
from octane.core.geometry import Grid
from octane.layout.sections import Section
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import Plan, plan_n4
from octane.store.volumes import ArrayVolume


def biased_ball(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float32]:
    """A ball of intensity 100 in a background of 20, with 5 % noise and a smooth bias."""
    z, y, x = np.meshgrid(*[np.linspace(-1, 1, n) for n in shape], indexing="ij")
    tissue = np.where(x**2 + y**2 + z**2 < 0.8, 100.0, 20.0)
    noise = 1 + 0.05 * np.random.default_rng(seed).standard_normal(shape)
    return (tissue * np.exp(0.3 * x - 0.2 * y**2 + 0.1 * z) * noise).astype(np.float32)


@dataclass
class Result:
    """Log field at full resolution, iterations per level, and last convergence measure."""

    field: npt.NDArray[np.float32]
    iterations: list[int]
    measure: float


def simpleitk(
    volume: npt.NDArray,
    mask: npt.NDArray | None,
    shrink: tuple[int, ...],
    iterations: tuple[int, ...] | list[int],
    control_points: tuple[int, ...] = (4, 4, 4),
    threads: int = 1,
    spacing: tuple[float, ...] = (1, 1, 1),
    threshold: float = 1e-3,
) -> Result:
    """SimpleITK's N4 on a shrunk volume, as its documentation recommends; all axes z, y, x."""
    previous = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    try:
        image = sitk.GetImageFromArray(np.ascontiguousarray(volume))
        image.SetSpacing(spacing[::-1])
        inputs = [sitk.Shrink(image, list(shrink[::-1]))]
        if mask is not None:
            whole = sitk.GetImageFromArray(mask.astype(np.uint8))
            whole.CopyInformation(image)
            inputs.append(sitk.Shrink(whole, list(shrink[::-1])))
        n4_filter = sitk.N4BiasFieldCorrectionImageFilter()
        n4_filter.SetMaximumNumberOfIterations(list(iterations))
        n4_filter.SetNumberOfControlPoints(list(control_points[::-1]))
        n4_filter.SetConvergenceThreshold(threshold)
        done = [0] * len(iterations)

        def count() -> None:
            # After the run, ITK reports only the last level's iterations, and one too many.
            done[n4_filter.GetCurrentLevel()] += 1

        n4_filter.AddCommand(sitk.sitkIterationEvent, count)
        n4_filter.Execute(*inputs)
        n4_filter.RemoveAllCommands()
        return Result(
            sitk.GetArrayFromImage(n4_filter.GetLogBiasFieldAsImage(image)),
            done,
            n4_filter.GetCurrentConvergenceMeasurement(),
        )
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(previous)


def planned(
    folder: Path,
    shape: tuple[int, int, int],
    memory: str = "4GB",
    sections: Sequence[Section] = (),
    *,
    dtype: str = "float32",
    workers: int = 2,
    **settings: object,
) -> Plan:
    """Plan N4, with what is not given derived, on a volume of any size, which takes no memory."""
    parameters = N4Parameters.model_validate(
        {"shrink_factor": "auto", "iterations": "auto", **settings}
    )
    execution = ExecutionParameters(backend="cpu", workers=workers, memory=memory)
    voxels, grid = np.broadcast_to(np.zeros((), dtype), shape), Grid(shape, (10.0, 10.0, 10.0))
    volume = ArrayVolume(folder / "v.ome.zarr", voxels, grid, {})
    return plan_n4(volume, sections, parameters, execution, whole_files=0)
