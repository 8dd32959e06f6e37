"""Join volumes of one subject as the channels of one OME-Zarr image."""

from pathlib import Path

from octane.config.cli import command
from octane.config.flags import StoreName
from octane.config.parameters import ExecutionParameters


@command()
def main(
    destination: StoreName,
    sources: list[Path],
    /,
    *,
    execution: ExecutionParameters,
    metrics: Path | None = None,
    preview: Path | None = None,
) -> None:
    """Join volumes of one subject as the channels of one OME-Zarr image.

    Parameters
    ----------
    destination
        OME-Zarr image to create.
    sources
        Volumes in the order of the channels, as PYRAMID, N4, STACK or RESAMPLE wrote them. Their
        chunks are hard-linked, or copied from another file system.
    metrics
        Where to write the step's record, as JSON.
    preview
        Where to write central slices of each channel for the report, as NPZ.
    """
    from octane.processes.channels.step import join_channels

    join_channels(sources, destination, execution).save(metrics, preview)
