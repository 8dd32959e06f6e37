"""Inspect a subject's data, and write its config."""

import sys
from pathlib import Path

from octane.config.cli import command
from octane.processes.mosaic.parameters import TileParameters
from octane.tools.new_subject.parameters import SubjectOverrides


@command()
def main(
    data: Path,
    /,
    *,
    name: str | None = None,
    overrides: SubjectOverrides,
    tiles: TileParameters,
    config: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Inspect a subject's data, and write its config.

    Parameters
    ----------
    data
        A folder of mosaic grids or sections (OME-Zarr) or of tiles in files, a single mosaic grid
        or section, or a volume.
    name
        Name of the subject; unset: the name of the data.
    config
        Config to write; unset: conf/subjects/NAME.config in octane's folder.
    overwrite
        Replace an existing config.
    """
    from octane.tools.new_subject.step import write_subject

    written, call = write_subject(data, name, overrides, tiles, config=config, overwrite=overwrite)
    sys.stdout.write(f"Wrote {written}. Check it, then run:\n    {call}\n")
