"""Check a run's parameters and inputs before any work is queued, and write its plans."""

from pathlib import Path

from octane.config.cli import command


@command(problems="output")
def main(output: Path, /, *, request: Path) -> None:
    """Check a run's parameters and inputs before any work is queued, and write its plans.

    Parameters
    ----------
    output
        JSON file to create, with the plans, or the problems that prevent them.
    request
        JSON file with the run's parameters and subjects.
    """
    from octane.processes.preflight.step import answer_request

    answer_request(request, output)
