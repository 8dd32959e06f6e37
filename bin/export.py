#!/usr/bin/env python3
"""Write a volume, or a part of it, for other programs."""

import sys
from pathlib import Path
from typing import Literal

from octane.config.cli import run
from octane.config.params import (
    ExecutionParameters,
    ExportParameters,
    InputParameters,
    StepParameters,
    parameter,
)
from octane.core.errors import InputError

# fmt: off
Modality = Literal[
    "BF", "CARS", "CONF", "DF", "DIC", "FLUO", "MPE", "NLO", "OCT", "PC", "PLI", "SEM", "SPIM",
    "SR", "TEM", "XPCT", "uCT", "2PE",
]
"""Suffixes of BIDS for microscopy."""
# fmt: on


class Bids(StepParameters):
    """Volume in a BIDS derivative."""

    bids_subject: str | None = parameter(
        None, "Label of the subject, letters and digits. Unset: the name of the store."
    )
    bids_sample: str = parameter("01", "Label of the sample, letters and digits.")
    bids_suffix: Modality = parameter("OCT", "Modality.")


def main(
    store: Path,
    destination: Path | None = None,
    /,
    *,
    bids: Path | None = None,
    named: Bids,
    parameters: ExportParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> None:
    """Write a volume, or a part of it, for other programs.

    Parameters
    ----------
    store
        OME-Zarr image; or NIfTI, MHA, NRRD or TIFF.
    destination
        File to create. Its suffix says the format: .nii, .nii.gz, .nrrd, .mha, .ome.tif, .ozx (an
        OME-Zarr image in one file) or .ome.zarr.
    bids
        BIDS derivative to add the volume to, in place of DESTINATION: a new folder, or one that
        this command has made.
    """
    if (destination is None) == (bids is None):
        raise InputError("Give either DESTINATION, the file to create, or --bids DATASET.")
    if bids is not None:
        from octane.export.bids import write_derivative

        if (parameters, reading) != (ExportParameters(), InputParameters()):
            raise InputError(
                "--bids links a whole store as it is; export it with the other options first, and "
                "give that."
            )
        labels = named.bids_subject, named.bids_sample, named.bids_suffix
        made = write_derivative(store, bids, *labels, overwrite=execution.overwrite)
        sys.stdout.write(f"Wrote {made}.\n")
        return
    if named != Bids():
        raise InputError("--bids_subject, --bids_sample and --bids_suffix need --bids DATASET.")
    from octane.steps.export import export_volume

    assert destination is not None
    export_volume(store, destination, parameters, reading, execution)


if __name__ == "__main__":
    run(main)
