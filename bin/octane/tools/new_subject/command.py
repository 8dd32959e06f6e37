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
    preview: Path | None = None,
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
    preview
        SVG to write: the tiles of the middle mosaic as placed, over a thumbnail.
    overwrite
        Replace an existing config and preview.
    """
    from octane.tools.new_subject.step import write_subject

    written, call = write_subject(
        data, name, overrides, tiles, config=config, preview=preview, overwrite=overwrite
    )
    if preview is not None:
        sys.stdout.write(f"Drew the tiles in {preview}.\n")
    sys.stdout.write(f"Wrote {written}. Check it, then run:\n    {call}\n")
