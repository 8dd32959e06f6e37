#!/usr/bin/env python3
"""Check a samplesheet and the parameters of its run, and write the subjects."""

from pathlib import Path

from octane.config.cli import run


def main(
    output: Path,
    /,
    *,
    request: Path,
    samplesheet: Path,
    unseen: bool = False,
) -> None:
    """Check a samplesheet and the parameters of its run, and write the subjects.

    Parameters
    ----------
    output
        The subjects, JSON, or the problems of their rows.
    request
        JSON of all workflow parameters.
    samplesheet
        CSV or YAML: one row for each subject.
    unseen
        Do not look whether the paths of the rows exist.
    """
    from octane.steps.cohort import make_cohort

    make_cohort(request, samplesheet, output, look=not unseen)


if __name__ == "__main__":
    run(main, problems="output")
