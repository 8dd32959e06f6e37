"""Write the report of a subject from the records and previews of its steps."""

import json
from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import ExecutionParameters


@command()
def main(
    destination: Path,
    /,
    *,
    subject: str,
    records: list[Path] | None = None,
    previews: list[Path] | None = None,
    run: Path | None = None,
    channel: str | None = None,
    execution: ExecutionParameters,
) -> None:
    """Write the report of a subject from the records and previews of its steps.

    Parameters
    ----------
    destination
        HTML file to create. Its pictures go to previews/ next to it.
    subject
        Name of the subject.
    records
        The steps' metrics (JSON).
    previews
        The steps' previews (NPZ).
    run
        JSON file on the run: versions of Nextflow and the code, and the profile. Its "outcome"
        lists what the subject's results lack, its "decisions" what PREFLIGHT decided.
    channel
        Channel that was measured, if the records are of several.
    """
    from octane.core.records import Decision, Outcome
    from octane.processes.report.step import write_report

    facts = json.loads(run.read_text(encoding="utf-8")) if run is not None else {}
    missing, decided = facts.pop("outcome", None), facts.pop("decisions", [])
    write_report(
        records or [],
        previews or [],
        destination,
        subject=subject,
        run=facts if run is not None else None,
        outcome=Outcome.model_validate(missing) if missing else None,
        channel=channel,
        preflight_decisions=[Decision.model_validate(decision) for decision in decided],
        execution=execution,
    )
