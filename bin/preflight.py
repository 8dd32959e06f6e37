#!/usr/bin/env python3
"""Check a run's parameters and inputs before any work is queued, and write its plan."""

from pathlib import Path

from octane.cli import command, launch
from octane.step_preflight import make_plan

app = command(__doc__)


@app.default
def main(source: Path, output: Path, /, *, request: Path, positions: Path | None = None) -> None:
    """Check a run's parameters and inputs before any work is queued, and write its plan.

    Parameters
    ----------
    source
        A folder of mosaic grids, one mosaic, or one volume.
    output
        The plan to be made, JSON.
    request
        JSON of all workflow parameters.
    positions
        CSV of tile positions.
    """
    make_plan(request, source, output, positions)


if __name__ == "__main__":
    launch(app)
