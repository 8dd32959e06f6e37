"""Check a run's parameters and inputs before any work is queued, and write its plans."""

from pathlib import Path

from octane.config.cli import command


@command(problems="output")
def main(
    sources: Path,
    output: Path,
    /,
    *,
    request: Path,
    beside: Path,
    samplesheet: Path | None = None,
    stub: bool = False,
) -> None:
    """Check a run's parameters and inputs before any work is queued, and write its plans.

    Parameters
    ----------
    sources
        A folder with one folder per subject, numbered from 1, that holds its input.
    output
        JSON file to create, with the plans, or the problems that prevent them.
    request
        JSON file with the run's parameters and subjects.
    beside
        A folder laid out like SOURCES, with tile positions, masks, truths and flat fields.
    samplesheet
        The samplesheet of a cohort.
    stub
        Plan from the names of the inputs alone, as for -stub-run.
    """
    if stub:
        from octane.processes.preflight.stub import make_stub_plans

        return make_stub_plans(request, sources, output, beside)
    from octane.processes.preflight.step import make_plans

    make_plans(request, sources, output, beside, samplesheet)
    return None
