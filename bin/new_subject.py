#!/usr/bin/env python3
"""Look at a subject's data, and write its config."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from octane.config.cli import RecordFile, run
from octane.config.params import Unit
from octane.steps.new_subject import Wishes, near, next_call, results_folder, write_subject


def main(
    data: Path,
    /,
    *,
    name: str | None = None,
    outdir: Annotated[Path | None, cyclopts.Parameter(show_default=False)] = None,
    resolution: str | None = None,
    overlap: str | None = None,
    section_thickness: float | None = None,
    input_unit: Annotated[Unit | None, cyclopts.Parameter(show_choices=False)] = None,
    input_kind: Annotated[
        Literal["auto", "mosaic", "section", "volume"],
        cyclopts.Parameter(show_default=False, show_choices=False),
    ] = "auto",
    config: RecordFile = None,
    samplesheet: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Look at a subject's data, and write its config for nextflow run -c.

    Parameters
    ----------
    data
        A folder of mosaic grids (one OME-Zarr per section), one mosaic, or one volume.
    name
        Name of the subject; unset: the name of the data.
    outdir
        Folder for the results; unset: results in the current folder, or beside data that it is in.
    resolution
        Target voxel size in micrometres.
    overlap
        Overlap of neighbouring tiles as a fraction of a tile.
    section_thickness
        Distance from one section's surface to the next one's, micrometres.
    input_unit
        Unit of the axes, where the data state none: micrometer, millimeter and so on.
    input_kind
        What the data are, where that cannot be told: mosaic, section or volume.
    config
        File to write; unset: conf/subjects/NAME.config where octane lies.
    samplesheet
        Append a row to this CSV file, or make it, in place of writing a config.
    overwrite
        Replace a config that exists.
    """
    wishes = Wishes(outdir, resolution, overlap, section_thickness, input_unit, input_kind)
    written = write_subject(
        data, name, wishes, config=config, samplesheet=samplesheet, overwrite=overwrite
    )
    results = None if samplesheet is None else results_folder(data, outdir)
    sys.stdout.write(f"Wrote {near(written)}. Look through it, then:\n")
    sys.stdout.write(f"    {next_call(written, results)}\n")


if __name__ == "__main__":
    run(main)
