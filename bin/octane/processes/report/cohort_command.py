"""Write the cohort page from the JSON files of the subjects' reports."""

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
    """Write the cohort page from the JSON files of the subjects' reports.

    Parameters
    ----------
    destination
        HTML file to create. It links to SUBJECT/SUBJECT_report.html next to it.
    reports
        The subjects' SUBJECT_report.json files.
    subjects
        Names of all subjects. Those without a report count as incomplete.
    overwrite
        Replace an existing page.
    """
    from octane.processes.report.cohort import write_cohort_report

    write_cohort_report(reports or [], destination, subjects=subjects or [], overwrite=overwrite)
