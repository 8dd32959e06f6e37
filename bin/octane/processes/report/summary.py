"""Figures that judge a subject: the quality of each section, and the subject in one line.

The report, its JSON twin and the page of a cohort show the same figures.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, Field

from octane.core.records import Record
from octane.processes.n4.record import N4Figures
from octane.processes.stack.record import SectionFigures, StackFigures
from octane.processes.stitch.record import StitchFigures, SurfaceFigures

DEVIATION_FLOOR = (0.1, 0.005)
"""Floor of the median absolute deviation, relative to the median and absolute, so that nearly equal
sections are not outliers."""

MISSING_STATES = ("missing", "unfinished")
"""States of sections that the volume lacks."""


class SectionQuality(BaseModel):
    """Quality of one section.

    ``state`` is ``stitched`` or ``missing``, ``imaged`` if STITCH left no record of it,
    ``excluded`` by the user, or ``unfinished`` if one of its tasks failed. Seams are the mismatch
    in overlaps, over its mean; ``not_imaged`` counts tiles that are declared so, ``moved_in_z``
    those that STITCH placed deeper or higher, ``uncovered`` pixels outside all tiles; ``cv_before``
    and ``cv_after`` are coefficients of variation in tissue before and after N4; ``flags`` names
    the checks that mark the section. ``surface`` is what STITCH measured. ``rise`` is the largest
    difference in depth over it that STACK left, and its standard deviation, in micrometres.
    ``slab`` is STACK's record of the section.
    """

    number: int | None
    title: str
    state: str = "stitched"
    tiles: int | None = None
    not_imaged: int = 0
    moved_in_z: int = 0
    seam_median: float | None = None
    seam_max: float | None = None
    uncovered: int = 0
    cv_before: float | None = None
    cv_after: float | None = None
    surface: SurfaceFigures | None = None
    rise: tuple[float, float] | None = None
    slab: SectionFigures | None = Field(default=None, exclude=True)
    flags: list[str] = []


class Summary(BaseModel):
    """Quality and cost of one subject.

    ``sections`` counts all but the ``excluded`` ones, which the user left out; ``missing`` counts
    blank and unfinished sections; ``seam_median`` is the median over all sections; ``flagged``
    lists the titles of marked sections. Seconds are sums over all tasks, like ``data_bytes``, those
    of voxels read and written; ``peak_memory_bytes`` is that of the largest task, and ``retried``
    counts tasks with more than one attempt.
    """

    sections: int = 0
    missing: int = 0
    excluded: int = 0
    seam_median: float | None = None
    flagged: list[str] = []
    cv_before: float | None = None
    cv_after: float | None = None
    seconds: float = 0.0
    data_bytes: int = 0
    gpu_wait_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    devices: list[str] = []
    retried: int = 0


def outliers(values: Sequence[float | None]) -> tuple[float, list[bool]]:
    """Return the limit, median + 3 median absolute deviations, and which values exceed it.

    The deviation is at least ``FLOOR``.
    """
    known = np.array([v for v in values if v is not None and math.isfinite(v)])
    if known.size == 0:
        return math.nan, [False] * len(values)
    middle = float(np.median(known))
    deviation = float(np.median(np.abs(known - middle)))
    limit = middle + 3 * max(deviation, DEVIATION_FLOOR[0] * middle, DEVIATION_FLOOR[1])
    return limit, [v is not None and v > limit for v in values]


def title_of(name: str, number: int | None) -> str:
    """Title of a section: its number, or the ``name`` of its record if it lacks one."""
    return name if number is None else f"Section {number}"


def _rise(stitched: StitchFigures, stack: StackFigures | None) -> tuple[float, float] | None:
    """The rise of a section's surface in the volume; None if unknown."""
    if stack is None or stitched.surface is None or stitched.surface.tilt is None:
        return None
    levelled = {s.number: s.levelled for s in stack.sections}.get(stitched.number)
    (_, height, width), (_, y, x) = stitched.shape, stack.voxel_size
    return stitched.surface.rise((height * y, width * x), levelled)


def section_qualities(
    stitched: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    unfinished: Sequence[str] = (),
) -> list[SectionQuality]:
    """List the sections of a subject in order.

    ``stitched`` is keyed by record name; ``unfinished`` names sections without a record.
    """
    sections = [
        SectionQuality(
            number=s.section,
            title=title_of(name, s.section),
            tiles=s.tiles,
            not_imaged=len(s.not_imaged),
            moved_in_z=len(s.depths),
            seam_median=s.seam_median,
            seam_max=s.seam_max,
            uncovered=s.uncovered_pixels,
            surface=s.surface,
            rise=_rise(s, stack),
        )
        for name, s in stitched.items()
    ]
    # For a volume that is not a stack, N4 records the entire volume as one section.
    varied = {v.number: v for v in n4.variation} if n4 and len(n4.variation) > 1 else {}
    states = dict.fromkeys(varied, "imaged")
    slabs = {section.number: section for section in stack.sections} if stack else {}
    states |= {number: "missing" if s.missing else "imaged" for number, s in slabs.items()}
    states |= dict.fromkeys(stack.excluded_sections if stack else (), "excluded")
    # A section without a number is the only one; STACK numbers it 1.
    known = {1 if section.number is None else section.number for section in sections}
    sections += [
        SectionQuality(number=number, title=title_of("", number), state=state)
        for number, state in states.items()
        if number not in known
    ]
    for section in sections:
        section.slab = slabs.get(1 if section.number is None else section.number)
        variation = varied.get(section.number) if section.number is not None else None
        if variation is not None:
            section.cv_before, section.cv_after = variation.cv_before, variation.cv_after
    sections.sort(key=lambda s: (s.number is None, s.number or 0))
    return sections + [
        SectionQuality(number=None, title=name, state="unfinished") for name in unfinished
    ]


def summary_of(
    records: Sequence[Record], sections: Sequence[SectionQuality], n4: N4Figures | None
) -> Summary:
    """Sum up a subject."""
    seams = [s.seam_median for s in sections if s.seam_median is not None]
    return Summary(
        sections=sum(s.state != "excluded" for s in sections),
        excluded=sum(s.state == "excluded" for s in sections),
        missing=sum(s.state in MISSING_STATES for s in sections),
        seam_median=float(np.median(seams)) if seams else None,
        flagged=[s.title for s in sections if s.flags],
        cv_before=n4.cv_before if n4 else None,
        cv_after=n4.cv_after if n4 else None,
        seconds=sum(r.total for r in records),
        data_bytes=sum(r.moved for r in records),
        gpu_wait_seconds=sum(r.waited for r in records),
        peak_memory_bytes=max((r.peak_memory_bytes or 0 for r in records), default=0) or None,
        devices=sorted({str(r.device["device"]) for r in records if r.on_gpu}) or ["CPU"],
        retried=sum(r.attempt > 1 for r in records),
    )
