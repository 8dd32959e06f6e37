#!/usr/bin/env python3
"""Correct a volume's bias field with N4, ITK's algorithm and options."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, InputParameters, LeaseParameters, N4Parameters
from octane.steps.n4 import correct_bias

app = command(__doc__)


@app.default
def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: Annotated[N4Parameters | None, FLAT] = None,
    reading: Annotated[InputParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    sharing: Annotated[LeaseParameters | None, FLAT] = None,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
    settings: Settings = None,
    metrics: RecordFile = None,
    preview: RecordFile = None,
    dry_run: bool = False,
) -> None:
    """Correct a volume's bias field with N4, ITK's algorithm and options.

    Parameters
    ----------
    source
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    destination
        The corrected volume, in any of these.
    save_bias_field
        Where to write the multiplicative bias field at full resolution.
    truth
        A phantom's truth folder; adds figures against it.
    metrics
        Where to write the record of what was done, as JSON.
    preview
        Where to write slices and profiles for the report, as NPZ.
    dry_run
        Print what would be fitted, how finely, and the memory it takes; do nothing.
    """
    made = correct_bias(
        source,
        destination,
        settle(parameters, N4Parameters, settings),
        settle(reading, InputParameters, settings),
        settle(execution, ExecutionParameters, settings),
        settle(sharing, LeaseParameters, settings),
        save_bias_field=save_bias_field,
        truth=truth,
        dry_run=dry_run,
    )
    if not dry_run:
        made.save(metrics, preview)


if __name__ == "__main__":
    launch(app)
