"""Figures of a subject for MultiQC (custom content, ``*_mqc.json``).

MultiQC joins the tables of several subjects by their ``id``.
"""

from octane.report.summary import Summary

PERCENT = {"suffix": "%", "format": "{:,.2f}", "min": 0}
COUNT = {"format": "{:,.0f}", "min": 0}
COLUMNS = {
    "sections": ("Sections", "Sections, missing ones included", COUNT),
    "missing": ("Missing", "Sections that are blank in the volume", COUNT),
    "flagged": ("Marked", "Sections with an outlying figure", COUNT),
    "seam": ("Seam", "Mismatch at seams, median over sections", PERCENT),
    "cv_before": ("CV before", "Variation in tissue before N4", PERCENT),
    "cv_after": ("CV after", "Variation in tissue after N4", PERCENT),
    "hours": ("Hours", "Computing time of all tasks", {"format": "{:,.2f}", "min": 0}),
}
"""Title, description and form of each column."""


def multiqc_content(subject: str, summary: Summary) -> dict[str, object]:
    """Make a subject's row of MultiQC's general statistics."""
    shares = {"seam": summary.seam_median} | {n: getattr(summary, n) for n in COLUMNS if "cv" in n}
    row = {
        "sections": summary.sections,
        "missing": summary.missing,
        "flagged": len(summary.flagged),
        # MultiQC shows an empty cell for a figure that is not there, and "None" for null.
        **{name: 100 * share for name, share in shares.items() if share is not None},
        "hours": summary.seconds / 3600,
    }
    columns = [
        {name: {"title": title, "description": text, "namespace": "octane", **form}}
        for name, (title, text, form) in COLUMNS.items()
    ]
    data = {subject: row}
    return {"id": "octane", "plot_type": "generalstats", "pconfig": columns, "data": data}
