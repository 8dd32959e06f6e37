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

POSITIONS = "--positions SUBJECT_positions.csv"
DISPLACEMENTS = "--displacements SUBJECT_displacements.csv"
"""Flags for the tables that a run writes."""


def decisions(
    before: Sequence[Decision],
    sections: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    settings: Settings,
) -> list[Decision]:
    """List what was decided ``before`` any work, and what the steps measured and then decided."""
    found = [*before]
    own = [*sections.values()]
    if own and settings.stitch.get("refine"):
        found.append(_places(own))
    if any(section.flat_held_out for section in own):
        found.append(_flat_field(own, is_auto=settings.stitch.get("flat_field") == AUTO))
    if any(section.gains_held_out for section in own):
        found.append(_gains(own))
    if stack is not None:
        imaged = [section for section in stack.sections if not section.missing]
        if settings.stack.get("section_surface") == AUTO:
            found.append(_surface(imaged))
        if settings.stack.get("section_thickness") == AUTO:
            found.append(_thickness(imaged))
        if settings.stack.get("align") not in (None, "none") and len(imaged) > 1:
            found.append(_displacement(imaged, stack))
    fits = [] if n4 is None else [n4.relative_entropy, *(s.relative_entropy for s in n4.sections)]
    if n4 is not None and any(fits):
        found.append(_levels(n4))
    return found


def _places(sections: Sequence[StitchFigures]) -> Decision:
    moved = [own for own in sections if own.largest_move > 0]
    reasons = dict.fromkeys(own.not_refined for own in sections if own.not_refined)
    largest = max((own.largest_move for own in moved), default=0.0)
    return Decision(
        subject="Places of tiles",
        evidence="; ".join(
            [f"halves of the overlaps agree on others in {_of(moved, sections)}", *reasons]
        ),
        done=f"moved by up to {largest:.1f} µm" if moved else "as stated",
        flag=POSITIONS,
    )


def _flat_field(sections: Sequence[StitchFigures], *, is_auto: bool) -> Decision:
    judged = [own.flat_held_out for own in sections if own.flat_held_out is not None]
    used = [own for own in judged if own.helped or not is_auto]
    return Decision(
        subject="Flat field",
        evidence=_seams(judged),
        done=f"applied in {_of(used, sections)}" if used else "not applied",
        flag=f"--stitch_flat_field {AUTO if is_auto and used else ESTIMATE if used else 'none'}",
    )


def _gains(sections: Sequence[StitchFigures]) -> Decision:
    judged = [own.gains_held_out for own in sections if own.gains_held_out is not None]
    used = [own for own in judged if own.helped]
    return Decision(
        subject="Gains of tiles",
        evidence=_seams(judged),
        done=f"applied in {_of(used, sections)}" if used else "not applied",
        flag="--stitch_gain SUBJECT_gains.csv",
    )


def _seams(judged: Sequence[HeldOutFigures]) -> str:
    """Seams in overlaps to which a correction of light was not fitted."""
    before, after = median_seams(judged)
    return f"seams that it was not fitted to: {before:.1f} % before, {after:.1f} % after"


def _surface(sections: Sequence[SectionFigures]) -> Decision:
    known = [own for own in sections if own.surface_from == MEASURED and own.surface is not None]
    depths = [own.surface for own in known if own.surface is not None]
    return Decision(
        subject="Surface of sections",
        evidence=f"found in {_of(known, sections)}",
        done=f"cropped {min(depths):.1f} to {max(depths):.1f} µm deep" if depths else "as imaged",
        flag=f"--section_surface {AUTO}" if depths else "--section_surface 0",
    )


def _thickness(sections: Sequence[SectionFigures]) -> Decision:
    sizes = [own.measured_thickness for own in sections if own.measured_thickness is not None]
    return Decision(
        subject="Thickness of sections",
        evidence=f"shared planes show that of {_of(sizes, sections)}",
        done=f"{min(sizes):.4g} to {max(sizes):.4g} µm" if sizes else "as stated, or imaged",
        flag=DISPLACEMENTS,
    )


def _displacement(sections: Sequence[SectionFigures], stack: StackFigures) -> Decision:
    moved = [own for own in sections if own.moved]
    aside = [np.hypot(*own.shift) for own in moved if own.shift is not None]
    by = f" by up to {max(aside):.1f} µm" if aside else ""
    return Decision(
        subject="Displacement of sections",
        evidence=f"neighbours show that {_of(moved, sections)} lie aside{by}",
        done=f"moved back ({stack.align})" if moved else "as imaged",
        flag=DISPLACEMENTS if moved else "--stack_align none",
    )


def _levels(n4: N4Figures) -> Decision:
    entropy = n4.relative_entropy or next(s.relative_entropy for s in n4.sections)
    taken = len(n4.levels) if n4.relative_entropy else len(n4.sections[0].levels)
    figures = ", ".join(f"{own:.3f}" for own in entropy)
    return Decision(
        subject="Levels of N4",
        evidence=f"relative entropy of the histogram with 0, 1 … levels: {figures}",
        done=f"{taken} levels" if taken else "N4 left out",
        flag=f"--n4_levels {taken}",
    )


def _of(some: Sequence[object], every: Sequence[object]) -> str:
    return f"{len(some)} of {len(every)} sections"
