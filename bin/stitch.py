#!/usr/bin/env python3
"""Stitch the tiles of one section's mosaic grid into one image."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, InputParameters, StitchParameters
from octane.steps.stitch import stitch_section

app = command(__doc__)


@app.default
def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: Annotated[StitchParameters | None, FLAT] = None,
    reading: Annotated[InputParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    positions: Path | None = None,
    settings: Settings = None,
    metrics: RecordFile = None,
    preview: RecordFile = None,
) -> None:
    """Stitch the tiles of one section's mosaic grid into one image.

    Parameters
    ----------
    source
        OME-Zarr mosaic grid.
    destination
        OME-Zarr section to be made.
    positions
        CSV of tile positions (section, row, column, y, x in micrometer) in place of an overlap.
    metrics
        Where to write the record of what was done, as JSON.
    preview
        Where to write the section's thumbnail, as NPZ.
    """
    made = stitch_section(
        source,
        destination,
        settle(parameters, StitchParameters, settings),
        settle(reading, InputParameters, settings),
        settle(execution, ExecutionParameters, settings),
        positions,
    )
    made.save(metrics, preview)


if __name__ == "__main__":
    launch(app)
