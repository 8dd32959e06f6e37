"""The page over all subjects of a run, from the JSON twins of their reports."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from octane.config.validation import place_of
from octane.core.errors import OctaneError
from octane.core.files import writing
from octane.report.cohort import Told, cohort_page

__all__ = ["write_cohort_report"]

logger = logging.getLogger(__name__)


def _read(path: Path) -> Told:
    try:
        return Told.model_validate_json(path.read_bytes())
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
    """Write the page.

    Parameters
    ----------
    reports
        The subjects' ``SUBJECT_report.json`` files.
    destination
        HTML file to be written; it links to ``SUBJECT/SUBJECT_report.html`` beside it.
    heading
        Of the page; unset: how many subjects there are.
    overwrite
        Replace what exists.

    Raises
    ------
    OctaneError
        For a twin that is not usable, a subject that is there twice, and output that exists or
        cannot be written; nothing is left half-written.
    """
    found: dict[str, Told] = {}
    for path in reports:
        told = _read(path)
        if told.subject in found:
            raise OctaneError(f"{path} is of {told.subject}, as another is; give each one once.")
        found[told.subject] = told
    with writing(destination, overwrite=overwrite) as page:
        html = cohort_page(list(found.values()), heading or f"{len(found)} subjects")
        page.write_text(html, encoding="utf-8")
    logger.info("Page of %d subjects: %s", len(found), destination)
