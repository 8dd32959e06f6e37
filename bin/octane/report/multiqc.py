"""A subject's figures in the form that MultiQC takes as custom content (``*_mqc.json``).

MultiQC puts the same table of several subjects together by its ``id``, so that one page of a cohort
shows octane's figures beside those of other tools, without a plugin.
"""

from collections.abc import Sequence

from octane.report.summary import SectionQuality, Summary

__all__ = ["general_content", "sections_content"]

Content = dict[str, object]

PERCENT: Content = {"suffix": "%", "format": "{:,.2f}", "min": 0}
COUNT: Content = {"format": "{:,.0f}", "min": 0}


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _known(row: Content) -> Content:
    # MultiQC shows an empty cell for a figure that is not there, and "None" for null.
    return {name: value for name, value in row.items() if value is not None}


def general_content(subject: str, summary: Summary) -> Content:
    """A subject's row of MultiQC's general statistics.

    Parameters
    ----------
    subject
        The sample's name.
    summary
        Its figures.
    """
    columns: list[tuple[str, str, str, Content]] = [
        ("sections", "Sections", "Sections, missing ones included", COUNT),
        ("missing", "Missing", "Sections that are blank in the volume", COUNT | {"scale": "Reds"}),
        ("flagged", "Marked", "Sections with a figure out of line", COUNT | {"scale": "Reds"}),
        ("seam", "Seam", "Mismatch at seams, median over sections", PERCENT),
        ("cv_before", "CV before", "Variation in tissue before N4", PERCENT | {"hidden": True}),
        ("cv_after", "CV after", "Variation in tissue after N4", PERCENT),
        ("hours", "Hours", "Computing time of all tasks", {"format": "{:,.2f}", "min": 0}),
    ]
    row = {
        "sections": summary.sections,
        "missing": summary.missing,
        "flagged": len(summary.flagged),
        "seam": _percent(summary.seam_median),
        "cv_before": _percent(summary.cv_before),
        "cv_after": _percent(summary.cv_after),
        "hours": summary.seconds / 3600,
    }
    return {
        "id": "octane",
        "plot_type": "generalstats",
        "pconfig": [
            {name: {"title": title, "description": told, "namespace": "octane", **form}}
            for name, title, told, form in columns
        ],
        "data": {subject: _known(row)},
    }


def sections_content(subject: str, sections: Sequence[SectionQuality]) -> Content:
    """A table with a row for each section.

    Parameters
    ----------
    subject
        Begins the name of each row.
    sections
        Their figures.
    """
    columns: list[tuple[str, str, str, Content]] = [
        ("state", "State", "Whether the section was imaged", {}),
        ("tiles", "Tiles", "Tiles that were stitched", COUNT | {"hidden": True}),
        ("seam", "Seam", "Mismatch at seams, median", PERCENT),
        ("seam_max", "Largest seam", "Mismatch at seams, largest", PERCENT),
        ("cv_before", "CV before", "Variation in tissue before N4", PERCENT),
        ("cv_after", "CV after", "Variation in tissue after N4", PERCENT),
        ("marked", "Marked", "What is out of line", {}),
    ]
    rows = {
        f"{subject} {section.title}": _known(
            {
                "state": section.state,
                "tiles": section.tiles,
                "seam": _percent(section.seam_median),
                "seam_max": _percent(section.seam_max),
                "cv_before": _percent(section.cv_before),
                "cv_after": _percent(section.cv_after),
                "marked": ", ".join(section.flags) or None,
            }
        )
        for section in sections
    }
    return {
        "id": "octane_sections",
        "section_name": "octane: sections",
        "description": "Quality of every section: mismatch where tiles overlap, and the "
        "coefficient of variation in tissue before and after N4.",
        "plot_type": "table",
        "pconfig": {"id": "octane_sections_table", "title": "octane: sections"},
        "headers": {
            name: {"title": title, "description": told, **form}
            for name, title, told, form in columns
        },
        "data": rows,
    }
