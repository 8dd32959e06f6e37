"""The page of a cohort: one row per subject, from the JSON twins of their reports."""

import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from octane.config.validation import place_of
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.report.html import rendered
from octane.report.summary import Summary, outliers

logger = logging.getLogger(__name__)

COMPARED = {
    "seam_median": "seams",
    "cv_after": "variation after N4",
    "seconds": "computing time",
}
"""Figures in which a subject may be an outlier among the others, in words."""


class SubjectSummary(BaseModel):
    """The part of a report's JSON twin that the page shows; ``thumbnail`` is a URI."""

    subject: str
    summary: Summary
    warnings: list[str] = []
    thumbnail: str | None = None


def cohort_page(subjects: Sequence[SubjectSummary], heading: str) -> str:
    """Make the page, which links to ``SUBJECT/SUBJECT_report.html``."""
    ordered = sorted(subjects, key=lambda one: one.subject)
    marks: dict[str, dict[str, str]] = {one.subject: {} for one in ordered}
    for figure, words in COMPARED.items():
        values = [getattr(one.summary, figure) for one in ordered]
        for one, far in zip(ordered, outliers(values)[1], strict=True):
            if far:
                marks[one.subject][figure] = f"{words} above median + 3 MAD of all subjects"
    rows = [
        {
            "subject": one,
            "figures": one.summary,
            "marks": marks[one.subject],
            "link": f"{quote(one.subject)}/{quote(one.subject)}_report.html",
        }
        for one in ordered
    ]
    return rendered("cohort.html.j2", heading=heading, rows=rows)


def _read(path: Path) -> SubjectSummary:
    try:
        return SubjectSummary.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OctaneError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except ValidationError as error:
        raise OctaneError(
            f"{path} is no JSON twin of a report ('{place_of(error)}' is wrong or missing); "
            "give the SUBJECT_report.json files of this version of octane."
        ) from error


def write_cohort_report(
    reports: Sequence[Path],
    destination: Path,
    *,
    heading: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write the page over several subjects; nothing is left half-written.

    Parameters
    ----------
    reports
        The subjects' ``SUBJECT_report.json`` files.
    destination
        HTML file to be written; it links to ``SUBJECT/SUBJECT_report.html`` beside it.
    heading
        Heading of the page; unset: the number of subjects.
    overwrite
        Replace an existing page.

    Raises
    ------
    OctaneError
        For a twin that is not usable, a subject that is given twice, and output that exists or
        cannot be written.
    """
    found: dict[str, SubjectSummary] = {}
    for path in reports:
        one = _read(path)
        if one.subject in found:
            raise OctaneError(f"{path} is of {one.subject}, as another is; give each one once.")
        found[one.subject] = one
    with writing(destination, overwrite=overwrite) as page:
        html = cohort_page(list(found.values()), heading or f"{len(found)} subjects")
        page.write_text(html, encoding="utf-8")
    logger.info("Page of %d subjects: %s", len(found), destination)
