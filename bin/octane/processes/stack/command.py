"""Stack the sections of a subject into one volume."""

from pathlib import Path

from octane.config.cli import command
from octane.config.flags import StoreName
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.stack.parameters import StackParameters


@command()
def main(
    destination: StoreName,
    sources: list[Path],
    /,
    *,
    parameters: StackParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    metrics: Path | None = None,
    preview: Path | None = None,
    displacements: Path | None = None,
    save_displacements: Path | None = None,
    reference: Path | None = None,
) -> None:
    """Stack the sections of a subject into one volume.

    Parameters
    ----------
    destination
        OME-Zarr volume to create.
    sources
        OME-Zarr sections in any order; they are stacked by number.
    metrics
        Where to write the step's record, as JSON.
    preview
        Where to write central slices for the report, as NPZ.
    displacements
        CSV of section displacements (section, y, x in micrometres, rotation in degrees) to undo
        instead of measured ones.
    save_displacements
        Where to write the displacement of each section, as CSV.
    reference
        Record (JSON) of STACK of another channel of the same sections: these are placed, moved,
        levelled and blended alike, and the parameters about that have no effect.
    """
    from octane.processes.stack.step import stack_sections

    given = (sources, destination, parameters, reading, execution)
    done = stack_sections(*given, displacements, save_displacements, reference)
    done.save(metrics, preview)
