"""Write a volume, or a part of it, for other programs."""

import sys
from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.tools.export.parameters import BidsParameters, ExportParameters


@command()
def main(
    store: Path,
    destination: Path | None = None,
    /,
    *,
    bids: Path | None = None,
    named: BidsParameters,
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
    from octane.tools.export.step import export_bids, export_volume

    if bids is not None and destination is None:
        volume = export_bids(store, bids, named, parameters, reading, execution)
        sys.stdout.write(f"Wrote {volume}.\n")
    elif destination is not None and bids is None and named == BidsParameters():
        export_volume(store, destination, parameters, reading, execution)
    else:
        raise InputError(
            "Give either DESTINATION, the file to create, or --bids DATASET; --bids_subject, "
            "--bids_sample and --bids_suffix go with --bids."
        )
