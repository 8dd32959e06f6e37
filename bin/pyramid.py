#!/usr/bin/env python3
"""Write a volume as OME-Zarr with several resolutions."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, InputParameters, PyramidParameters
from octane.steps.pyramid import build_pyramid

app = command(__doc__)


@app.default
def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: Annotated[PyramidParameters | None, FLAT] = None,
    reading: Annotated[InputParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    settings: Settings = None,
    metrics: RecordFile = None,
    preview: RecordFile = None,
) -> None:
    """Write a volume as OME-Zarr with several resolutions.

    Parameters
    ----------
    source
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    destination
        OME-Zarr image to be made.
    metrics
        Where to write the record of what was done, as JSON.
    preview
        Where to write central slices for the report, as NPZ.
    """
    made = build_pyramid(
        source,
        destination,
        settle(parameters, PyramidParameters, settings),
        settle(reading, InputParameters, settings),
        settle(execution, ExecutionParameters, settings),
    )
    made.save(metrics, preview)


if __name__ == "__main__":
    launch(app)
