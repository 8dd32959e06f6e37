#!/usr/bin/env python3
"""Resample a mosaic grid tile by tile, or a volume, to a target voxel size."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    ResampleParameters,
)
from octane.steps.resample import resample_image

app = command(__doc__)


@app.default
def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: Annotated[ResampleParameters | None, FLAT] = None,
    reading: Annotated[InputParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    sharing: Annotated[LeaseParameters | None, FLAT] = None,
    settings: Settings = None,
    metrics: RecordFile = None,
    dry_run: bool = False,
) -> None:
    """Resample a mosaic grid tile by tile, or a volume, to a target voxel size.

    Parameters
    ----------
    source
        OME-Zarr image, or a volume file with --layout volume.
    destination
        OME-Zarr image to be made.
    metrics
        Where to write the record of what was done, as JSON.
    dry_run
        Tell what would be done, with how many workers and how much memory, and do nothing.
    """
    made = resample_image(
        source,
        destination,
        settle(parameters, ResampleParameters, settings),
        settle(reading, InputParameters, settings),
        settle(execution, ExecutionParameters, settings),
        settle(sharing, LeaseParameters, settings),
        dry_run=dry_run,
    )
    if not dry_run:
        made.save(metrics, None)


if __name__ == "__main__":
    launch(app)
