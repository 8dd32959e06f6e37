"""Write a volume as OME-Zarr with several resolutions."""

from pathlib import Path

from octane.config.cli import command
from octane.config.flags import StoreName
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.pyramid.parameters import PyramidParameters


@command()
def main(
    source: Path,
    destination: StoreName,
    /,
    *,
    parameters: PyramidParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    metrics: Path | None = None,
    preview: Path | None = None,
) -> None:
    """Write a volume as OME-Zarr with several resolutions.

    Parameters
    ----------
    source
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    destination
        OME-Zarr image to create.
    metrics
        Where to write the step's record, as JSON.
    preview
        Where to write central slices for the report, as NPZ.
    """
    from octane.processes.pyramid.step import build_pyramid

    build_pyramid(source, destination, parameters, reading, execution).save(metrics, preview)
