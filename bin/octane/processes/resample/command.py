"""Resample a mosaic grid tile by tile, or a volume, to a target voxel size."""

from pathlib import Path

from octane.config.cli import command
from octane.config.flags import StoreName
from octane.config.parameters import ExecutionParameters, InputParameters, LeaseParameters
from octane.processes.resample.parameters import ResampleParameters


@command()
def main(
    source: Path,
    destination: StoreName,
    /,
    *,
    parameters: ResampleParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters,
    metrics: Path | None = None,
    preview: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Resample a mosaic grid tile by tile, or a volume, to a target voxel size.

    Parameters
    ----------
    source
        OME-Zarr image, or a volume file with --layout volume.
    destination
        OME-Zarr image to create.
    metrics
        Where to write the step's record, as JSON.
    preview
        Where to write central slices of a volume for the report, as NPZ.
    dry_run
        Only print what would be done, with how many workers and how much memory.
    """
    from octane.processes.resample.step import resample_image

    result = resample_image(
        source, destination, parameters, reading, execution, sharing, dry_run=dry_run
    )
    if not dry_run:
        result.save(metrics, preview)
