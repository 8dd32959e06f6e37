"""Figures that judge a subject: the quality of each section, and the subject in one line.

The report, its JSON twin and the page of a cohort show the same figures.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from octane.core.records import N4Figures, Record, StackFigures, StitchFigures

FLOOR = (0.1, 0.005)
"""Least deviation from the median that counts as one, relative and absolute: sections that are
alike to a tenth are no outliers of each other."""
BRIGHTNESS = (0.5, 2.0)
"""Brightness over that of neighbouring sections: refocusing and staining change it by less."""

COMPARED = 5
"""Fewest sections whose variation is compared: of fewer, each may show another anatomy."""


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
    seam_median
        Mismatch at the seams, median over all sections.
    flagged
        Titles of the sections with a mark.
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
    flagged: list[str] = []
    cv_before: float | None = None
    cv_after: float | None = None
    seconds: float
    gpu_wait_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    devices: list[str] = []
    retried: int = 0


def outliers(values: Sequence[float | None]) -> tuple[float, list[bool]]:
    """Find the median + 3 median absolute deviations, and the known values above it.

    A deviation is at least that of ``FLOOR``.
    """
    known = np.array([v for v in values if v is not None and math.isfinite(v)])
    if known.size == 0:
        return math.nan, [False] * len(values)
    middle = float(np.median(known))
    deviation = float(np.median(np.abs(known - middle)))
    limit = middle + 3 * max(deviation, FLOOR[0] * middle, FLOOR[1])
    return limit, [v is not None and v > limit for v in values]


def title_of(name: str, number: int | None) -> str:
    """Title of a section; ``name`` is that of its record, for a section without a number."""
    return name if number is None else f"Section {number}"


def qualities(
    stitched: Mapping[str, StitchFigures], stack: StackFigures | None, n4: N4Figures | None
) -> list[SectionQuality]:
    """List the sections of a subject in order; ``stitched`` has the names of their records."""
    found = [
        SectionQuality(
            number=s.section,
            title=title_of(name, s.section),
            tiles=s.tiles,
            seam_median=s.seam_median,
            seam_max=s.seam_max,
            uncovered=s.uncovered_pixels,
        )
        for name, s in stitched.items()
    ]
    states = dict.fromkeys((section.number for section in found), "")
    unstitched = "unrecorded" if stitched else "imaged"
    for s in stack.sections if stack else ():
        states.setdefault(s.number, "missing" if s.missing else unstitched)
    # For a volume that is no stack, N4 notes the variation of the whole as that of one section.
    varied = {v.number: v for v in n4.variation} if n4 and len(n4.variation) > 1 else {}
    for number in varied:
        states.setdefault(number, "imaged")
    found += [
        SectionQuality(number=number, title=title_of("", number), state=state)
        for number, state in states.items()
        if state
    ]
    for section in found:
        own = varied.get(section.number) if section.number is not None else None
        if own is not None:
            section.cv_before, section.cv_after = own.cv_before, own.cv_after
    found.sort(key=lambda s: (s.number is None, s.number or 0))
    seams = outliers([s.seam_median for s in found])[1]
    known = sum(s.cv_after is not None for s in found)
    variations = outliers([s.cv_after if known >= COMPARED else None for s in found])[1]
    own = {title_of(name, s.section): s for name, s in stitched.items()}
    placed = {s.number: s for s in stack.sections} if stack else {}
    for section, seam, variation in zip(found, seams, variations, strict=True):
        tiles, slab = own.get(section.title), placed.get(section.number)
        bright = slab.brightness if slab else None
        marks = {
            "seam outlier": seam,
            "another overlap fits": tiles and any(o.better for o in tiles.overlaps),
            "tiles out of place": tiles and tiles.misplaced,
            "CV outlier": variation,
            f"{section.uncovered} pixels uncovered": section.uncovered,
            f"{bright or 1:.2g} of its neighbours' brightness": bright
            and not BRIGHTNESS[0] <= bright <= BRIGHTNESS[1],
            f"flipped in {slab and slab.flipped}": slab and slab.flipped,
            section.state: section.state in ("missing", "unrecorded"),
        }
        section.flags = [mark for mark, given in marks.items() if given]
    return found


def summary_of(
    records: Sequence[Record], sections: Sequence[SectionQuality], n4: N4Figures | None
) -> Summary:
    """Sum up a subject."""
    seams = [s.seam_median for s in sections if s.seam_median is not None]
    leases = [lease for record in records if (lease := record.lease) is not None]
    return Summary(
        sections=len(sections),
        missing=sum(s.state == "missing" for s in sections),
        seam_median=float(np.median(seams)) if seams else None,
        flagged=[s.title for s in sections if s.flags],
        cv_before=n4.cv_before if n4 else None,
        cv_after=n4.cv_after if n4 else None,
        seconds=sum(r.total for r in records),
        gpu_wait_seconds=sum(lease.slot_wait_seconds for lease in leases),
        peak_memory_bytes=max((r.peak_memory_bytes or 0 for r in records), default=0) or None,
        devices=sorted({str(r.device["device"]) for r in records if r.on_gpu}) or ["CPU"],
        retried=sum(r.attempt > 1 for r in records),
    )
