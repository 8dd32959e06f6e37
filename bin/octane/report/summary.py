"""Figures that judge a subject: the quality of each section, and the subject in one line.

The report, its JSON twin, the table for MultiQC and the page of a cohort show the same figures; an
outlier in one of them is an outlier in all.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from octane.core.geometry import Vector
from octane.core.records import LeaseFigures, N4Figures, Record, StackFigures, StitchFigures


class SectionQuality(BaseModel):
    """Quality of one section.

    Attributes
    ----------
    state
        ``stitched``; ``imaged``, where the section came stitched; ``unrecorded``, where STITCH left
        no record of it; ``missing``.
    seam_median, seam_max
        Mismatch where tiles overlap, over their mean.
    uncovered
        Number of pixels that no tile covers.
    cv_before, cv_after
        Coefficient of variation in tissue before and after N4.
    flags
        Reasons for a mark, in words.
    """

    number: int | None
    title: str
    state: str = "stitched"
    tiles: int | None = None
    seam_median: float | None = None
    seam_max: float | None = None
    uncovered: int = 0
    cv_before: float | None = None
    cv_after: float | None = None
    flags: list[str] = []


class Summary(BaseModel):
    """Quality and cost of one subject.

    Attributes
    ----------
    sections, missing
        Number of sections, and of those that are blank.
    seam_median, seam_worst
        Mismatch at the seams over all sections.
    flagged
        Titles of the sections with a mark.
    field_correlation
        Correlation with the true field, where it is known.
    seconds, gpu_wait_seconds
        Sums over all tasks.
    peak_memory_bytes
        Memory of the largest task.
    retried
        Number of tasks that needed more than one try.
    """

    sections: int
    missing: int = 0
    seam_median: float | None = None
    seam_worst: float | None = None
    flagged: list[str] = []
    cv_before: float | None = None
    cv_after: float | None = None
    field_correlation: float | None = None
    voxel_size: Vector | None = None
    seconds: float
    gpu_wait_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    devices: list[str] = []
    retried: int = 0


def outliers(values: Sequence[float | None]) -> tuple[float, list[bool]]:
    """Find the median + 3 median absolute deviations, and the known values above it."""
    known = np.array([v for v in values if v is not None and math.isfinite(v)])
    if known.size == 0:
        return math.nan, [False] * len(values)
    middle = float(np.median(known))
    limit = middle + 3 * float(np.median(np.abs(known - middle)))
    # Equal values may differ in their last digit; they are no outliers.
    return limit, [v is not None and v > limit * (1 + 1e-9) for v in values]


def qualities(
    stitched: Mapping[str, StitchFigures], stack: StackFigures | None, n4: N4Figures | None
) -> list[SectionQuality]:
    """List the sections of a subject in order; ``stitched`` has the names of their records."""
    found = [
        SectionQuality(
            number=s.section,
            title=name if s.section is None else f"Section {s.section}",
            tiles=s.tiles,
            seam_median=s.seam_median,
            seam_max=s.seam_max,
            uncovered=s.uncovered_pixels,
        )
        for name, s in stitched.items()
    ]
    numbers = {section.number for section in found}
    unstitched = "unrecorded" if stitched else "imaged"
    for s in stack.sections if stack else ():
        if s.number not in numbers:
            state = "missing" if s.missing else unstitched
            found.append(SectionQuality(number=s.number, title=f"Section {s.number}", state=state))
    # For a volume that is no stack, N4 notes the variation of the whole as that of one section.
    varied = {v.number: v for v in n4.variation} if n4 and len(n4.variation) > 1 else {}
    for number in sorted(varied.keys() - {section.number for section in found}):
        found.append(SectionQuality(number=number, title=f"Section {number}", state="imaged"))
    for section in found:
        own = varied.get(section.number) if section.number is not None else None
        if own is not None:
            section.cv_before, section.cv_after = own.cv_before, own.cv_after
    found.sort(key=lambda s: (s.number is None, s.number or 0))
    for word, values in (
        ("seam", [s.seam_median for s in found]),
        ("CV", [s.cv_after for s in found]),
    ):
        for section, far in zip(found, outliers(values)[1], strict=True):
            section.flags += [f"{word} outlier"] if far else []
    for section in found:
        section.flags += [f"{section.uncovered} pixels uncovered"] if section.uncovered else []
        section.flags += [section.state] if section.state in ("missing", "unrecorded") else []
    return found


def summary_of(
    records: Sequence[Record],
    sections: Sequence[SectionQuality],
    n4: N4Figures | None,
    voxel_size: Vector | None,
) -> Summary:
    """Sum up a subject."""
    seams = [s.seam_median for s in sections if s.seam_median is not None]
    worst = [s.seam_max for s in sections if s.seam_max is not None]
    leases = [lease for record in records if (lease := LeaseFigures.of(record)) is not None]
    peaks = [r.peak_memory_bytes for r in records if r.peak_memory_bytes is not None]
    gpus = {str(r.device["device"]) for r in records if r.on_gpu}
    return Summary(
        sections=len(sections),
        missing=sum(s.state == "missing" for s in sections),
        seam_median=float(np.median(seams)) if seams else None,
        seam_worst=max(worst, default=None),
        flagged=[s.title for s in sections if s.flags],
        cv_before=n4.cv_before if n4 else None,
        cv_after=n4.cv_after if n4 else None,
        field_correlation=n4.truth.get("field_correlation") if n4 and n4.truth else None,
        voxel_size=voxel_size,
        seconds=sum(r.total for r in records),
        gpu_wait_seconds=sum(lease.slot_wait_seconds for lease in leases),
        peak_memory_bytes=max(peaks, default=None),
        devices=sorted(gpus) or ["CPU"],
        retried=sum(r.attempt > 1 for r in records),
    )
