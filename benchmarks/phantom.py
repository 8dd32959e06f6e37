"""How well the steps recover a phantom's truth: seams, geometry and bias field.

Writes benchmarks/results/phantom.json. ``--quick`` changes nothing: it takes some ten seconds.
"""

import logging
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import save, scratch_folder

from octane.metrics import Metrics
from octane.omezarr import open_image
from octane.params import (
    ExecutionParameters,
    InputParameters,
    N4Parameters,
    PhantomParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.step_n4 import correct_bias
from octane.step_phantom import make_phantom
from octane.step_resample import resample_image
from octane.step_stack import stack_sections
from octane.step_stitch import stitch_section

READING = InputParameters()
EXECUTION = ExecutionParameters(backend="cpu", overwrite=True)
RESOLUTION = (10.0, 10.0, 10.0)


def volume_of(folder: Path, phantom: PhantomParameters, stitch: StitchParameters) -> Path:
    """Make a phantom and bring it to a stacked volume."""
    make_phantom(folder, phantom, EXECUTION)
    sections = []
    for mosaic in sorted((folder / "mosaics").iterdir()):
        resampled, section = folder / "resampled" / mosaic.name, folder / "sections" / mosaic.name
        resample_image(
            mosaic, resampled, ResampleParameters(resolution=RESOLUTION), READING, EXECUTION
        )
        stitch_section(resampled, section, stitch, READING, EXECUTION)
        sections.append(section)
    volume = folder / "volume.ome.zarr"
    stack_sections(sections, volume, StackParameters(), READING, EXECUTION)
    return volume


def error_against_truth(folder: Path, volume: Path) -> dict[str, float]:
    """Relative error of a volume without speckle, shading and attenuation against its truth."""
    whole = (slice(None),) * 3
    found, tissue, bias = (
        np.asarray(open_image(path).array[whole], np.float64)
        for path in (volume, folder / "truth/tissue.ome.zarr", folder / "truth/bias.ome.zarr")
    )
    true = tissue * bias
    error = (found - true) / true.max()
    return {"rms": float(np.sqrt((error**2).mean())), "max": float(np.abs(error).max())}


def corrected(folder: Path, volume: Path, iterations: tuple[int, ...]) -> Metrics:
    """N4 on a phantom's volume, with figures against the truth."""
    return correct_bias(
        volume,
        folder / "corrected.ome.zarr",
        N4Parameters(mask="tissue", shrink_factor=(2, 2, 2), iterations=iterations),
        READING,
        EXECUTION,
        truth=folder / "truth",
    )


def main() -> None:
    """Run all cases and write the result."""
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        start = time.perf_counter()
        clean = Path(scratch) / "clean"
        plain = PhantomParameters(sections=2, speckle_looks=0, shading=0, attenuation=0)
        geometry = error_against_truth(clean, volume_of(clean, plain, StitchParameters()))
        demo = Path(scratch) / "demo"
        volume = volume_of(demo, PhantomParameters(), StitchParameters())
        levels: dict[str, object] = {}
        for count in (1, 2, 3):
            figures = corrected(demo, volume, (50,) * count).figures
            levels[str(count)] = {
                "truth": figures["truth"],
                "cv_before": figures["cv_before"],
                "cv_after": figures["cv_after"],
                "iterations": [level["iterations"] for level in figures["levels"]],  # ty: ignore
            }
        save(
            "phantom",
            {
                "error_of_clean_volume_against_truth": geometry,
                "n4_by_fitting_levels": levels,
                "seconds": time.perf_counter() - start,
            },
        )


if __name__ == "__main__":
    main()
