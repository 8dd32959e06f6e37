#!/usr/bin/env python3
"""Correct a volume's bias field with N4, ITK's algorithm and options."""

import sys
from pathlib import Path

from octane.config.cli import RecordFile, run
from octane.config.params import ExecutionParameters, InputParameters, LeaseParameters, N4Parameters
from octane.steps.n4 import correct_bias, prepare


def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters,
    save_bias_field: Path | None = None,
    truth: Path | None = None,
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
    if dry_run:
        planned = prepare(
            source,
            destination,
            parameters,
            reading,
            execution,
            save_bias_field=save_bias_field,
        )
        sys.stdout.write("\n".join(planned.plan.lines()) + "\n")
        return
    made = correct_bias(
        source,
        destination,
        parameters,
        reading,
        execution,
        sharing,
        save_bias_field=save_bias_field,
        truth=truth,
    )
    made.save(metrics, preview)


if __name__ == "__main__":
    run(main)
