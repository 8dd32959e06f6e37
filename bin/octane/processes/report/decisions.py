"""What octane decided by the data: the first table of the report."""

from collections.abc import Mapping, Sequence

import numpy as np

from octane.config.types import AUTO
from octane.core.records import Decision
from octane.processes.n4.record import N4Figures
from octane.processes.report.brightness import median_seams
from octane.processes.report.check import Settings
from octane.processes.stack.record import MEASURED, SectionFigures, StackFigures
from octane.processes.stitch.parameters import ESTIMATE
from octane.processes.stitch.record import HeldOutFigures, StitchFigures

POSITIONS_FLAG = "--positions SUBJECT_positions.csv"
DISPLACEMENTS_FLAG = "--displacements SUBJECT_displacements.csv"
"""Flags for the tables that a run writes."""


def list_decisions(
    preflight_decisions: Sequence[Decision],
    sections: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    settings: Settings,
) -> list[Decision]:
    """List what PREFLIGHT decided, and what the steps decided by what they measured."""
    decisions = [*preflight_decisions]
    stitched = [*sections.values()]
    if stitched and settings.stitch.get("refine"):
        decisions.append(_places(stitched))
    if any(section.flat_held_out for section in stitched):
        decisions.append(_flat_field(stitched, is_auto=settings.stitch.get("flat_field") == AUTO))
    if any(section.gains_held_out for section in stitched):
        decisions.append(_gains(stitched))
    if stack is not None:
        imaged = [section for section in stack.sections if not section.missing]
        if settings.stack.get("section_surface") == AUTO:
            decisions.append(_surface(imaged))
        if settings.stack.get("section_thickness") == AUTO:
            decisions.append(_thickness(imaged))
        if settings.stack.get("align") not in (None, "none") and len(imaged) > 1:
            decisions.append(_displacement(imaged, stack))
    fits = [] if n4 is None else [n4.relative_entropy, *(s.relative_entropy for s in n4.sections)]
    if n4 is not None and any(fits):
        decisions.append(_levels(n4))
    return decisions


def _places(sections: Sequence[StitchFigures]) -> Decision:
    moved = [section for section in sections if section.largest_move > 0]
    reasons = dict.fromkeys(section.not_refined for section in sections if section.not_refined)
    largest = max((section.largest_move for section in moved), default=0.0)
    return Decision(
        subject="Places of tiles",
        evidence="; ".join(
            [f"halves of the overlaps agree on others in {_count_of(moved, sections)}", *reasons]
        ),
        done=f"moved by up to {largest:.1f} µm" if moved else "as stated",
        flag=POSITIONS_FLAG,
    )


def _flat_field(sections: Sequence[StitchFigures], *, is_auto: bool) -> Decision:
    judged = [section.flat_held_out for section in sections if section.flat_held_out is not None]
    used = [figures for figures in judged if figures.lowers_seams or not is_auto]
    return Decision(
        subject="Flat field",
        evidence=_seams(judged),
        done=f"applied in {_count_of(used, sections)}" if used else "not applied",
        flag=f"--stitch_flat_field {AUTO if is_auto and used else ESTIMATE if used else 'none'}",
    )


def _gains(sections: Sequence[StitchFigures]) -> Decision:
    judged = [section.gains_held_out for section in sections if section.gains_held_out is not None]
    used = [figures for figures in judged if figures.lowers_seams]
    return Decision(
        subject="Gains of tiles",
        evidence=_seams(judged),
        done=f"applied in {_count_of(used, sections)}" if used else "not applied",
        flag="--stitch_gain SUBJECT_gains.csv",
    )


def _seams(judged: Sequence[HeldOutFigures]) -> str:
    """Seams in overlaps to which a correction of light was not fitted."""
    before, after = median_seams(judged)
    return f"seams that it was not fitted to: {before:.1f} % before, {after:.1f} % after"


def _surface(sections: Sequence[SectionFigures]) -> Decision:
    measured = [section for section in sections if section.surface_from == MEASURED]
    depths = [section.surface for section in measured if section.surface is not None]
    return Decision(
        subject="Surface of sections",
        evidence=f"measured in {_count_of(depths, sections)}",
        done=f"cropped {min(depths):.1f} to {max(depths):.1f} µm deep" if depths else "as imaged",
        flag=f"--section_surface {AUTO}" if depths else "--section_surface 0",
    )


def _thickness(sections: Sequence[SectionFigures]) -> Decision:
    measured = [section.measured_thickness for section in sections]
    sizes = [size for size in measured if size is not None]
    return Decision(
        subject="Thickness of sections",
        evidence=f"measured on shared planes in {_count_of(sizes, sections)}",
        done=f"{min(sizes):.4g} to {max(sizes):.4g} µm" if sizes else "as stated, or imaged",
        flag=DISPLACEMENTS_FLAG,
    )


def _displacement(sections: Sequence[SectionFigures], stack: StackFigures) -> Decision:
    moved = [section for section in sections if section.moved]
    aside = [np.hypot(*section.shift) for section in moved if section.shift is not None]
    by = f" by up to {max(aside):.1f} µm" if aside else ""
    return Decision(
        subject="Displacement of sections",
        evidence=f"{_count_of(moved, sections)} displaced relative to their neighbours{by}",
        done=f"moved back ({stack.align})" if moved else "as imaged",
        flag=DISPLACEMENTS_FLAG if moved else "--stack_align none",
    )


def _levels(n4: N4Figures) -> Decision:
    entropy = n4.relative_entropy or next(s.relative_entropy for s in n4.sections)
    levels = len(n4.levels) if n4.relative_entropy else len(n4.sections[0].levels)
    figures = ", ".join(f"{value:.3f}" for value in entropy)
    return Decision(
        subject="Levels of N4",
        evidence=f"relative entropy of the histogram with 0, 1 … levels: {figures}",
        done=f"{levels} levels" if levels else "N4 left out",
        flag=f"--n4_levels {levels}",
    )


def _count_of(some: Sequence[object], every: Sequence[object]) -> str:
    return f"{len(some)} of {len(every)} sections"
