#!/usr/bin/env python3
"""Stack the sections of a subject into one volume."""

from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, RecordFile, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, InputParameters, StackParameters
from octane.steps.stack import stack_sections

app = command(__doc__)


@app.default
def main(
    destination: Path,
    sources: list[Path],
    /,
    *,
    parameters: Annotated[StackParameters | None, FLAT] = None,
    reading: Annotated[InputParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    settings: Settings = None,
    metrics: RecordFile = None,
) -> None:
    """Stack the sections of a subject into one volume.

    Parameters
    ----------
    destination
        OME-Zarr volume to be made.
    sources
        OME-Zarr sections, in any order; their numbers decide.
    metrics
        Where to write the record of what was done, as JSON.
    """
    made = stack_sections(
        sources,
        destination,
        settle(parameters, StackParameters, settings),
        settle(reading, InputParameters, settings),
        settle(execution, ExecutionParameters, settings),
    )
    made.save(metrics, None)


if __name__ == "__main__":
    launch(app)
