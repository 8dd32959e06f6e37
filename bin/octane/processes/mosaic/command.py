"""Write the microscope's tiles as mosaic grids, one OME-Zarr per section."""

from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.stitch.parameters import OverlapParameters


@command()
def main(
    tiles: Path,
    mosaics: Path | None = None,
    /,
    *,
    parameters: TileParameters,
    reading: InputParameters,
    placing: OverlapParameters,
    execution: ExecutionParameters,
    tile_list: Path | None = None,
    metrics: Path | None = None,
    preview: Path | None = None,
    compare: bool = False,
    dry_run: bool = False,
) -> None:
    """Write the microscope's tiles as mosaic grids, one OME-Zarr per section.

    Parameters
    ----------
    tiles
        Folder of the tiles: TIFF, PNG, NIfTI, MHA, NRRD, raw voxels or OME-Zarr.
    mosaics
        Folder for section_01.ome.zarr and so on, and for positions.csv if places are known;
        not needed with --dry_run.
    tile_list
        PREFLIGHT's table of the tiles' files, in place of their names, order and places.
    compare
        With --tile_list: compare neighbouring tiles, as is done without it.
    metrics
        Where to write the step's record, as JSON.
    preview
        SVG to write: the tiles of the middle section as placed, over a thumbnail.
    dry_run
        Only print the grid of tiles, its source, missing tiles and doubts.
    """
    from octane.processes.mosaic.step import write_mosaics, write_tile_list

    given = parameters, reading, placing, execution
    if dry_run:
        write_mosaics(tiles, None, *given, preview=preview)
        return
    if mosaics is None:
        raise InputError("MOSAICS is missing; give the folder to write, or --dry_run.")
    if tile_list is None:
        made = write_mosaics(tiles, mosaics, *given, preview=preview)
    else:
        given = parameters, reading, execution, placing if compare else None
        made = write_tile_list(tiles, tile_list, mosaics, *given)
    made.save(metrics, None)
