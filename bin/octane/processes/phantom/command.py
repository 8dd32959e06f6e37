"""Make a synthetic serial-section OCT subject: mosaic grids, tile positions and ground truth."""

from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import ExecutionParameters
from octane.processes.phantom.parameters import PhantomParameters


@command()
def main(
    destination: Path,
    /,
    *,
    parameters: PhantomParameters,
    execution: ExecutionParameters,
    metrics: Path | None = None,
) -> None:
    """Make a synthetic serial-section OCT subject: mosaic grids, tile positions and ground truth.

    Parameters
    ----------
    destination
        Folder to create, with mosaics/, truth/ and positions.csv.
    metrics
        Where to write the step's record, as JSON.
    """
    from octane.processes.phantom.step import make_phantom

    make_phantom(destination, parameters, execution).save(metrics, None)
