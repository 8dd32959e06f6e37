#!/usr/bin/env python3
"""Check a run's parameters and its samplesheet, and write its subjects."""

from pathlib import Path

from octane.config.cli import command, launch
from octane.steps.cohort import make_cohort

app = command(__doc__)


@app.default
def main(
    output: Path,
    /,
    *,
    request: Path,
    samplesheet: Path | None = None,
    unseen: bool = False,
) -> None:
    """Check a run's parameters and its samplesheet, and write its subjects.

    Parameters
    ----------
    output
        The subjects, JSON.
    request
        JSON of all workflow parameters.
    samplesheet
        CSV, YAML or JSON: one row for each subject.
    unseen
        Do not look whether the paths of the rows exist.
    """
    make_cohort(request, output, samplesheet, look=not unseen)


if __name__ == "__main__":
    launch(app)
