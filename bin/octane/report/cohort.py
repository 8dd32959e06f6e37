"""The page of a cohort: one row per subject, from the reports' twins, and what is out of line."""

from collections.abc import Sequence
from urllib.parse import quote

from pydantic import BaseModel

from octane.report.pages import rendered
from octane.report.summary import Summary, outliers

__all__ = ["Told", "cohort_page"]

COMPARED = {
    "seam_median": "seams",
    "cv_after": "variation after N4",
    "seconds": "computing time",
}
"""Figures in which a subject may be an outlier among the others, in words."""


class Told(BaseModel):
    """What a report's twin tells of its subject.

    Attributes
    ----------
    subject
        Name.
    summary
        Key figures.
    warnings
        Of the report.
    thumbnail
        A small picture as a URI, where there is one.
    """

    subject: str
    summary: Summary
    warnings: list[str] = []
    thumbnail: str | None = None


def cohort_page(subjects: Sequence[Told], heading: str) -> str:
    """Make the page.

    Parameters
    ----------
    subjects
        Of one run, or of several with the same settings.
    heading
        Of the page.

    Returns
    -------
    str
        One HTML file that holds its pictures. It links to ``SUBJECT/SUBJECT_report.html``.
    """
    ordered = sorted(subjects, key=lambda told: told.subject)
    marks: dict[str, dict[str, str]] = {told.subject: {} for told in ordered}
    for figure, words in COMPARED.items():
        values = [getattr(told.summary, figure) for told in ordered]
        for told, far in zip(ordered, outliers(values)[1], strict=True):
            if far:
                marks[told.subject][figure] = f"{words} above median + 3 MAD of all subjects"
    rows = [
        {
            "told": told,
            "figures": told.summary,
            "marks": marks[told.subject],
            "link": f"{quote(told.subject)}/{quote(told.subject)}_report.html",
        }
        for told in ordered
    ]
    return rendered("cohort.html.j2", heading=heading, rows=rows)
