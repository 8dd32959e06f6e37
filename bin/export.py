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
        OME-Zarr image.
    destination
        File to create; its suffix says the format: .ozx.
    """
    from octane.steps.export import export_volume

    export_volume(store, destination, parameters, reading, execution)


if __name__ == "__main__":
    run(main)
