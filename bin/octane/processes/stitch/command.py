"""Stitch the tiles of one section's mosaic grid into one image."""

from pathlib import Path

from octane.config.cli import command
from octane.config.flags import StoreName
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.stitch.parameters import StitchParameters


@command()
def main(
    source: Path,
    destination: StoreName,
    /,
    *,
    parameters: StitchParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    positions: Path | None = None,
    reference: Path | None = None,
    metrics: Path | None = None,
    preview: Path | None = None,
    save_flat_field: Path | None = None,
) -> None:
    """Stitch the tiles of one section's mosaic grid into one image.

    Parameters
    ----------
    source
        OME-Zarr mosaic grid.
    destination
        OME-Zarr section to create.
    positions
        CSV of tile positions (section, row, column, y, x and optionally z in micrometres) instead
        of an overlap.
    reference
        Record (--metrics) of STITCH of the same section of another channel, which gives the tiles'
        places and the surface. --overlap, --stitch_refine, --stitch_max_shift and
        --stitch_check_overlap are not used then.
    metrics
        Where to write the step's record, as JSON.
    preview
        Where to write the section's thumbnail, as NPZ.
    save_flat_field
        Where to write the estimated flat field, as TIFF.
    """
    from octane.processes.stitch.step import stitch_section

    given = (source, destination, parameters, reading, execution)
    made = stitch_section(*given, positions, save_flat_field, reference)
    made.save(metrics, preview)
