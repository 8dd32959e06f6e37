"""The cohort page: one row per subject, from the JSON twins of their reports."""

import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from octane.core.errors import OctaneError
from octane.core.files import read_regular, writing
from octane.core.records import Context
from octane.core.units import counted
from octane.processes.report.check import join_names
from octane.processes.report.gallery import render
from octane.processes.report.summary import Summary, outliers
from octane.processes.report.verdict import State

logger = logging.getLogger(__name__)

OUTLIER_FIGURES = {
    "seam_median": "seams",
    "cv_after": "variation after N4",
    "seconds": "computing time, also for its amount of data,",
}
"""Figures in which a subject may be an outlier, and their names in sentences."""
STATE_WORDS: dict[State, tuple[str, str]] = {
    "incomplete": ("is incomplete", "are incomplete"),
    "look": ("needs a look", "need a look"),
    "good": ("is good", "are good"),
}
"""States, worst first, in words for one subject and for several."""

NO_REPORT = "Incomplete: REPORT failed, so nothing was checked."
"""Verdict on a subject without a report."""


class SubjectSummary(BaseModel):
    """The part of a report's JSON twin that the page shows; ``thumbnail`` is a URI.

    Without a report, only the name, the state and the verdict are set.
    """

    subject: str
    state: State
    verdict: str
    summary: Summary = Summary()
    warnings: list[str] = []
    thumbnail: str | None = None


def _headline(subjects: Sequence[SubjectSummary]) -> str:
    """Name the subjects that are not good, in one line."""
    total, sentences = counted(len(subjects), "subject"), []
    for state, words in STATE_WORDS.items():
        names = [subject.subject for subject in subjects if subject.state == state]
        if names and (state != "good" or not sentences):
            after = "" if state == "good" else f": {join_names(names)}"
            sentences.append(f"{len(names)} of {total} {words[len(names) > 1]}{after}.")
    return " ".join(sentences)


def _rows(subjects: Sequence[SubjectSummary]) -> list[Context]:
    """Make a row per subject, with a link to its report and marks on outlying figures.

    Incomplete subjects are not compared: they took less time.
    """
    marks: list[dict[str, str]] = [{} for _ in subjects]
    known = [None if subject.state == "incomplete" else subject.summary for subject in subjects]
    for figure, words in OUTLIER_FIGURES.items():
        far = _outliers(known, figure)
        for mark in (mark for mark, out in zip(marks, far, strict=True) if out):
            mark[figure] = f"{words} above median + 3 MAD of all subjects"
    return [
        {
            "subject": subject,
            "figures": subject.summary,
            "marks": mark,
            # Only a subject with a report has a summary.
            "link": quote(f"{subject.subject}/{subject.subject}_report.html")
            * ("summary" in subject.model_fields_set),
        }
        for subject, mark in zip(subjects, marks, strict=True)
    ]


def _outliers(summaries: Sequence[Summary | None], figure: str) -> list[bool]:
    """Tell which subjects are outliers in a figure; None stands for one that is not compared.

    An outlier in seconds must also be one for its amount of data. A larger subject, or one of more
    channels, takes longer, and a small one longer per byte, because tasks need time to start.
    """
    far = outliers([getattr(summary, figure, None) for summary in summaries])[1]
    if figure != "seconds":
        return far
    sizes = [summary.data_bytes if summary is not None else 0 for summary in summaries]
    rates = [
        1e9 * summary.seconds / size if summary is not None and size else None
        for summary, size in zip(summaries, sizes, strict=True)
    ]
    slow = outliers(rates)[1]
    return [out and (odd or not size) for out, odd, size in zip(far, slow, sizes, strict=True)]


def _read_summary(path: Path) -> SubjectSummary:
    try:
        return SubjectSummary.model_validate_json(read_regular(path))
    except (OSError, ValidationError) as error:
        raise OctaneError(
            f"{path} is not the JSON of a report; "
            "give SUBJECT_report.json files that this version of octane wrote."
        ) from error


def write_cohort_report(
    reports: Sequence[Path],
    destination: Path,
    *,
    subjects: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Write the cohort page from the ``SUBJECT_report.json`` files of several subjects.

    ``subjects`` without a report count as incomplete. The page links to
    ``SUBJECT/SUBJECT_report.html`` next to it. Unusable files, a subject given twice, and output
    that exists or cannot be written raise an OctaneError; nothing is left half-written.
    """
    summaries: dict[str, SubjectSummary] = {}
    for path in reports:
        one = _read_summary(path)
        if one.subject in summaries:
            raise OctaneError(
                f"{path} is a second report of {one.subject}; give each subject once."
            )
        summaries[one.subject] = one
    for subject in subjects:
        summary = SubjectSummary(subject=subject, state="incomplete", verdict=NO_REPORT)
        summaries.setdefault(subject, summary)
    order = list(STATE_WORDS)
    ordered = sorted(summaries.values(), key=lambda s: (order.index(s.state), s.subject))
    html = render("cohort.html.j2", headline=_headline(ordered), rows=_rows(ordered))
    with writing(destination, overwrite=overwrite) as page:
        page.write_text(html, encoding="utf-8")
    logger.info("Page of %s: %s", counted(len(summaries), "subject"), destination)
