"""Write the page over several subjects from the JSON twins of their reports."""

from pathlib import Path

from octane.config.cli import command


@command()
def main(
    destination: Path,
    /,
    *,
    reports: list[Path] | None = None,
    subjects: list[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the page over several subjects from the JSON twins of their reports.

    Parameters
    ----------
    destination
        HTML file to create; it links to SUBJECT/SUBJECT_report.html next to it.
    reports
        The subjects' SUBJECT_report.json files.
    subjects
        Names of all subjects; those without a report are shown as incomplete.
    overwrite
        Replace an existing page.
    """
    from octane.processes.report.cohort import write_cohort_report

    write_cohort_report(reports or [], destination, subjects=subjects or [], overwrite=overwrite)
