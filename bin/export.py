#!/usr/bin/env python3
"""Write a volume, or a part of it, for other programs."""

from pathlib import Path

from octane.config.cli import run
from octane.config.params import ExecutionParameters, ExportParameters, InputParameters


def main(
    store: Path,
    destination: Path,
    /,
    *,
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
    """
    from octane.steps.export import export_volume

    export_volume(store, destination, parameters, reading, execution)


if __name__ == "__main__":
    run(main)
