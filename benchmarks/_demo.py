"""The phantom of `make demo`, brought to a volume and corrected."""

from pathlib import Path

from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    N4Parameters,
    PhantomParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.core.metrics import Metrics
from octane.steps.n4 import correct_bias
from octane.steps.phantom import make_phantom
from octane.steps.resample import resample_image
from octane.steps.stack import stack_sections
from octane.steps.stitch import stitch_section

__all__ = ["corrected", "volume_of"]

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
