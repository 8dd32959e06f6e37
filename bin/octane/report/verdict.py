"""The verdict on a subject: checks of its records, each with its limit and, if needed, a remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from octane.core.records import LevelFigures, N4Figures, StackFigures, StitchFigures, fitting
from octane.report.summary import BRIGHTNESS, SectionQuality, title_of

SEAM = 0.15
"""Largest seam of an axis: phantoms of 1 to 16 looks with up to 30 % of vignetting stay below 0.1,
and exceed 0.13 where the given overlap is wrong by 0.05."""
STILL = 10.0
"""Last change of the field over N4's threshold: up to it, more iterations change little."""
FIELD = 10.0
"""Largest over smallest value of a bias field: beyond it, N4 fits what is no bias."""
MOST_NAMED = 6
"""Sections or tiles that a sentence names."""


@dataclass(frozen=True)
class Check:
    """One check of a subject.

    ``value`` and ``limit`` have their units; ``sentence`` says where to look and what to do, or why
    something is not checked, and is empty for what is good.
    """

    name: str
    value: str
    limit: str
    state: Literal["good", "warning", "not checked"]
    sentence: str = ""


def checks(
    quality: Sequence[SectionQuality],
    stitched: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    threshold: float | None = None,
) -> list[Check]:
    """List all checks of a subject in the order of the workflow.

    ``stitched`` has the names of the records, ``threshold`` is N4's of convergence.
    """
    sections = {title_of(name, own.section): own for name, own in stitched.items()}
    found = [_absent(quality)]
    if sections:
        found += [_seams(axis, sections) for axis in "yx"]
        found += [_overlap(axis, sections) for axis in "yx"]
        found += [_places(sections), _covered(sections)]
        found.append(_alike("Seams of a section", "seam outlier", "seams", "STITCH", quality))
    if stack:
        found += [_depth(stack), _bright(stack), _turned(stack)]
    if n4:
        found += [_converged(n4, threshold), _field(n4), _variation(n4)]
        found.append(_alike("Variation of a section", "CV outlier", "variation", "N4", quality))
    return found


def _judged(name: str, value: str | None, limit: str, sentence: str | None) -> Check:
    """A check that is not made without a value, and good without a sentence."""
    if value is None:
        return Check(name, "–", limit, "not checked", sentence or "")
    return Check(name, value, limit, "warning" if sentence else "good", sentence or "")


def _named(titles: Sequence[str]) -> str:
    """Some titles in words: Sections 2, 3 and 4 more."""
    numbers = [title.removeprefix("Section ") for title in titles]
    alike = len(titles) > 1 and all(number.isdigit() for number in numbers)
    named = ", ".join((numbers if alike else titles)[:MOST_NAMED])
    more = f" and {len(titles) - MOST_NAMED} more" if len(titles) > MOST_NAMED else ""
    return ("Sections " if alike else "") + named + more


def _absent(quality: Sequence[SectionQuality]) -> Check:
    gone = {
        state: [s.title for s in quality if s.state == state] for state in ("missing", "unrecorded")
    }
    said = {
        "missing": "missing, blank slabs stand there, as --allow_missing_sections permits",
        "unrecorded": "in the volume, but without a record of STITCH",
    }
    sentence = "; ".join(f"{_named(own)}: {said[state]}" for state, own in gone.items() if own)
    value = f"{sum(map(len, gone.values()))} of {len(quality)}" if quality else None
    return _judged("Missing sections", value, "none", sentence and f"{sentence}.")


def _seams(axis: str, sections: Mapping[str, StitchFigures]) -> Check:
    of = {title: getattr(own, f"seam_{axis}") for title, own in sections.items()}
    known = {title: seam for title, seam in of.items() if seam is not None}
    if not known:
        text = "No tiles overlap along this axis."
        return _judged(f"Seams along {axis}", None, f"{SEAM:.0%}", text)
    high = [title for title, seam in known.items() if seam > SEAM]
    text = (
        f"{_named(high)}: neighbouring tiles differ much where they overlap along {axis}; check "
        "--overlap or --positions, and try --stitch_refine."
    )
    value = f"{max(known.values()):.1%}"
    return _judged(f"Seams along {axis}", value, f"{SEAM:.0%}", text if high else None)


def _overlap(axis: str, sections: Mapping[str, StitchFigures]) -> Check:
    name = f"Overlap along {axis}"
    known = {t: o for t, own in sections.items() for o in own.overlaps if o.axis == axis}
    measured = [own for own in known.values() if own.found is not None]
    if not measured:
        text = "Too few neighbouring tiles have structure in common."
        return _judged(name, None, "as given", text)
    given, found = (float(np.median([getattr(o, k) for o in measured])) for k in ("given", "found"))
    other = [title for title, own in known.items() if own.better]
    every = [overlap for own in sections.values() for overlap in own.overlaps]
    text = (
        f"{_named(other)}: tiles correlate where they overlap by {found:.2g} of a tile along "
        f"{axis}, not {given:.2g}; give --overlap {fitting(every)}, or correct --positions."
    )
    return _judged(
        name, f"{found:.3f} of a tile", f"{given:.3g}, as given", text if other else None
    )


def _places(sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = "Tiles out of place", "none"
    if not any(o.found is not None or s.misplaced for s in sections.values() for o in s.overlaps):
        text = "Too few neighbouring tiles have structure in common."
        return _judged(name, None, limit, text)
    odd = [f"{t}, {tile.sentence}" for t, own in sections.items() for tile in own.misplaced]
    text = f"{'; '.join(odd[:MOST_NAMED])}; correct --positions, or try --stitch_refine."
    return _judged(name, str(len(odd)), limit, text if odd else None)


def _covered(sections: Mapping[str, StitchFigures]) -> Check:
    open_ = [title for title, own in sections.items() if own.uncovered_pixels]
    pixels = sum(own.uncovered_pixels for own in sections.values())
    text = f"{_named(open_)}: pixels between tiles are zero; check --overlap or --positions."
    return _judged("Pixels without a tile", str(pixels), "0", text if open_ else None)


def _alike(name: str, flag: str, what: str, step: str, quality: Sequence[SectionQuality]) -> Check:
    """No section stands out; compared are the sections of one subject."""
    known = [s for s in quality if (s.seam_median if step == "STITCH" else s.cv_after) is not None]
    out = [section.title for section in known if flag in section.flags]
    text = f"{_named(out)}: {what} far above those of the other sections; look at the pictures."
    value = f"{len(out)} of {len(known)} stand out" if len(known) > 2 else None
    if value is None:
        return _judged(name, None, "none stands out", "Fewer than three sections have figures.")
    return _judged(name, value, "none stands out", text if out else None)


def _depth(stack: StackFigures) -> Check:
    beyond = stack.planes_not_imaged
    text = "Planes below the imaged depth are zero; check --section_thickness."
    return _judged("Planes not imaged", str(beyond), "0", text if beyond else None)


def _bright(stack: StackFigures) -> Check:
    name, limit = "Section brightness", "{:g} to {:g} of its neighbours'".format(*BRIGHTNESS)
    known = {f"Section {s.number}": s.brightness for s in stack.sections if s.brightness}
    if not known:
        return _judged(name, None, limit, "No neighbouring sections have tissue in common.")
    low, high = min(known.values()), max(known.values())
    odd = [
        f"{title} has {own:.2g} of its neighbours' brightness"
        for title, own in known.items()
        if not BRIGHTNESS[0] <= own <= BRIGHTNESS[1]
    ]
    text = f"{_named(odd)}; check how it was imaged, and see --n4_mode two_pass."
    return _judged(name, f"{low:.2f} to {high:.2f}", limit, text if odd else None)


def _turned(stack: StackFigures) -> Check:
    known = [s for s in stack.sections if s.flipped is not None]
    if not known:
        text = "No neighbouring sections have structure in common."
        return _judged("Section orientation", None, "all alike", text)
    odd = [f"Section {s.number} fits flipped in {s.flipped}" for s in known if s.flipped]
    text = f"{_named(odd)}; turn its mosaic over, and run again."
    value = f"{len(odd)} of {len(known)} flipped"
    return _judged("Section orientation", value, "all alike", text if odd else None)


def _converged(n4: N4Figures, threshold: float | None) -> Check:
    """The last level, in which the field is finest, must end by the threshold."""
    name, limit = "N4 convergence", "–" if threshold is None else f"{STILL * threshold:g}"
    fits: dict[str, list[LevelFigures]] = {own.name: own.levels for own in n4.sections}
    fits |= {"the volume": n4.levels} if n4.levels else {}
    last = {
        title: own[-1].convergence[-1] for title, own in fits.items() if own and own[-1].convergence
    }
    if threshold is None or not last:
        return _judged(name, None, limit, "No iterations were made.")
    still = [title for title, change in last.items() if change > STILL * threshold * (1 + 1e-9)]
    text = f"The field of {_named(still)} still changed when N4 stopped; raise --n4_iterations."
    return _judged(name, f"{max(last.values()):.2g}", limit, text if still else None)


def _field(n4: N4Figures) -> Check:
    ratio = n4.field_max / n4.field_min if n4.field_min > 0 else np.inf
    text = "The field varies more than illumination does; check the mask and --n4_control_points."
    value, limit = f"{ratio:.3g}, largest over smallest", f"{FIELD:g}"
    return _judged("Range of the bias field", value, limit, text if ratio > FIELD else None)


def _variation(n4: N4Figures) -> Check:
    rose = n4.cv_after > n4.cv_before
    text = "The variation in tissue rose; check the mask and the settings."
    value = f"{n4.cv_before:.1%} before, {n4.cv_after:.1%} after N4"
    return _judged("Variation in tissue", value, "not higher after N4", text if rose else None)


def verdict(found: Sequence[Check], notes: int) -> str:
    """Say in one sentence what to look at; ``notes`` counts the remarks of tasks."""
    warned = [check.name for check in found if check.state == "warning"]
    made = [check for check in found if check.state != "not checked"]
    beside = f" {notes} {'note' if notes == 1 else 'notes'} of the tasks." if notes else ""
    if warned:
        return f"Look at {len(warned)} of {len(made)} checks: {', '.join(warned)}.{beside}"
    if not made:
        return f"Nothing could be checked.{beside}"
    return f"Good: {len(made)} checks, nothing to look at.{beside}"
