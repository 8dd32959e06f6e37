#!/usr/bin/env python3
"""Check a run's parameters and inputs before any work is queued, and write its plans."""

from pathlib import Path

from octane.config.cli import run


def main(
    sources: Path,
    output: Path,
    /,
    *,
    request: Path,
    beside: Path,
    samplesheet: Path | None = None,
) -> None:
    """Check a run's parameters and inputs before any work is queued, and write its plans.

    Parameters
    ----------
    sources
        A folder with each subject's input in a folder of its number from 1.
    output
        The plans to be made, JSON, or the problems that stand against them.
    request
        JSON: the run's parameters and its subjects.
    beside
        A folder with tables of tile positions, masks, truths and flat fields, in the same way.
    samplesheet
        The samplesheet of a cohort.
    """
    from octane.steps.preflight import make_plans

    make_plans(request, sources, output, beside, samplesheet)


if __name__ == "__main__":
    run(main, problems="output")
