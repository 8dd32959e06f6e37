#!/usr/bin/env python3
"""Check a run's parameters and inputs before any work is queued, and write its plan."""

from pathlib import Path

from octane.config.cli import command, launch
from octane.steps.preflight import make_plan
from octane.steps.preflights import make_plans

app = command(__doc__)


@app.default
def main(
    source: Path,
    output: Path,
    /,
    *,
    request: Path,
    positions: Path | None = None,
    cohort: bool = False,
) -> None:
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
    cohort
        The request holds subjects; inputs and tables lie in folders of their numbers.
    """
    if cohort:
        make_plans(request, source, output, positions or source)
    else:
        make_plan(request, source, output, positions)


if __name__ == "__main__":
    launch(app)
