#!/usr/bin/env python3
"""Write the report of a subject from the records and previews of its steps."""

import json
from pathlib import Path
from typing import Annotated

from octane.config.cli import FLAT, Settings, command, launch, settle
from octane.config.params import ExecutionParameters, ReportParameters
from octane.steps.report import write_report

app = command(__doc__)


@app.default
def main(
    destination: Path,
    /,
    *,
    subject: str,
    records: list[Path],
    previews: list[Path] | None = None,
    run: Path | None = None,
    parameters: Annotated[ReportParameters | None, FLAT] = None,
    execution: Annotated[ExecutionParameters | None, FLAT] = None,
    settings: Settings = None,
) -> None:
    """Write the report of a subject from the records and previews of its steps.

    Parameters
    ----------
    destination
        HTML file to be made; pictures go into previews/ beside it.
    subject
        Name of the subject.
    records
        The steps' metrics, JSON.
    previews
        The steps' previews, NPZ.
    run
        JSON of what is known about the run: versions of Nextflow and of the code, profile.
    """
    write_report(
        records,
        previews or [],
        destination,
        settle(parameters, ReportParameters, settings),
        subject=subject,
        run=json.loads(run.read_text(encoding="utf-8")) if run is not None else None,
        execution=settle(execution, ExecutionParameters, settings),
    )


if __name__ == "__main__":
    launch(app)
