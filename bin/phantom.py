#!/usr/bin/env python3
"""Make a synthetic serial-section OCT subject: mosaic grids, tile positions and the truth."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, PhantomParameters
from octane.steps.phantom import make_phantom

app = command(__doc__)


@app.default
def main(
    destination: Path,
    /,
    *,
    parameters: Annotated[PhantomParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    settings: Settings = None,
    metrics: RecordFile = None,
) -> None:
    """Make a synthetic serial-section OCT subject.

    Parameters
    ----------
    destination
        Folder to be made: mosaics/, truth/ and positions.csv.
    metrics
        Where to write the record of what was done, as JSON.
    """
    made = make_phantom(
        destination,
        settle(parameters, PhantomParameters, settings),
        settle(execution, ExecutionParameters, settings),
    )
    made.save(metrics, None)


if __name__ == "__main__":
    launch(app)
