#!/usr/bin/env python3
"""Correct a volume's bias field with N4, ITK's algorithm and options."""

import sys
from pathlib import Path

from octane.config.cli import run
from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    N4Parameters,
    StepParameters,
    parameter,
)


class Files(StepParameters):
    """Additional files of N4."""

    save_bias_field: Path | None = parameter(
        None, "Where to write the multiplicative bias field at full resolution."
    )
    truth: Path | None = parameter(None, "A phantom's truth folder; the record compares with it.")
    metrics: Path | None = parameter(None, "Where to write the step's record, as JSON.")
    preview: Path | None = parameter(
        None, "Where to write slices and profiles for the report, as NPZ."
    )


def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters,
    files: Files,
    dry_run: bool = False,
) -> None:
    """Correct a volume's bias field with N4, ITK's algorithm and options.

    Parameters
    ----------
    source
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    destination
        The corrected volume, in any of these formats.
    dry_run
        Only print the plan of the fit, its resolution and the memory it needs.
    """
    from octane.steps.n4 import correct_bias, prepare

    given = (source, destination, parameters, reading, execution)
    prepared = prepare(*given, save_bias_field=files.save_bias_field, truth=files.truth)
    if dry_run:
        sys.stdout.write("\n".join(prepared.plan.lines()) + "\n")
        return
    correct_bias(prepared, sharing).save(files.metrics, files.preview)


if __name__ == "__main__":
    run(main)
