"""Checks of brightness, which are made on every channel; places are those of the reference."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from octane.config.types import AUTO
from octane.core.records import JumpFigures
from octane.core.units import counted
from octane.processes.n4.record import N4Figures
from octane.processes.report.check import Check, Settings, judged, listed, titled, unchecked, unlike
from octane.processes.report.summary import title_of
from octane.processes.stack.record import StackFigures
from octane.processes.stitch.parameters import ESTIMATE
from octane.processes.stitch.record import (
    EXPOSED,
    SATURATED,
    SHADING,
    HeldOutFigures,
    StitchFigures,
)

STILL = 10.0
"""Ratio of the field's last change to N4's threshold up to which more iterations gain little."""
FIELD = 10.0
"""Ratio of a bias field's largest to smallest value above which N4 fits more than bias."""
BRIGHTNESS = (0.5, 2.0)
"""Brightness relative to neighbouring sections that refocusing and staining explain."""
CHANCE = 0.01
"""Relative rise of the variation that a field fitted to noise or sparse labels may cause."""
CAUSES = {
    "all voxels": (
        "values of 0 or less, or far from all others, stretch its histogram; leave out "
        "--use_all_voxels"
    ),
    "histogram": (
        "the values to fit differ by so many orders of magnitude that its histogram cannot resolve "
        "them; give a mask without the smallest"
    ),
    "iterations": "it had too few iterations; raise --n4_iterations",
    "levels": (
        "no level's field makes the histogram of tissue clearer, so N4 does not help; leave it "
        "out, or give --n4_levels a number if the pictures show shading"
    ),
}
"""Faults that keep N4 from a field, and their remedies."""
EVEN = (
    "tissue is even, or its own variation hides the field; if the pictures show shading, lower "
    "--n4_convergence_threshold, or average speckle by a coarser --resolution"
)
"""What else leaves the field flat."""
Z_PROFILE = "--n4_z_profile_gain if light is lost with depth"
MATCHING = "--n4_histogram_matching section if sections differ"
BAND = 0.05
"""Largest acceptable brightness jump between sections: volumes without bands stay below it."""


def exposed(sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    """Check that tiles are as bright as their neighbours."""
    name, limit = "Tile brightness", f"{1 / EXPOSED:.2g} to {EXPOSED:g} times its neighbours'"
    if not any(own.seam_median is not None for own in sections.values()):
        return unchecked(name, limit, "No tiles overlap.")
    odd = [(title, tile) for title, own in sections.items() for tile in own.uneven]
    lit = [f"{title}, {tile.sentence}" for title, tile in odd if tile.brightness > 0]
    it, its = ("it", "its") if len(lit) == 1 else ("them", "their")
    taken = settings.stitch.get("gain") == ESTIMATE
    mended = f"correct {its} grey levels" if taken else f"give --stitch_gain {ESTIMATE}"
    dark = Counter(title for title, tile in odd if tile.brightness == 0)
    lost = [
        f"{counted(n, 'tile')} of {title} {'was' if n == 1 else 'were'} not imaged"
        for title, n in dark.items()
    ]
    texts = [f"{titled(lit)}; image {it} again, or {mended}."] if lit else []
    texts += [f"{titled(lost)}; restore the missing data."] if lost else []
    return judged(name, limit, f"{len(odd)} outside", [title for title, _ in odd], " ".join(texts))


def saturated(sections: Mapping[str, StitchFigures]) -> Check:
    """Check that few voxels of a tile sit at its highest value."""
    name, limit = "Saturated tiles", f"{SATURATED:.0%} of a tile's voxels"
    shares = [own.saturation for own in sections.values() if own.saturation is not None]
    if not shares:
        return unchecked(name, limit, "No values were counted.")
    odd = [(title, tile) for title, own in sections.items() for tile in own.saturated]
    text = f"{titled([f'{title}, {tile.sentence}' for title, tile in odd])}; what is brighter is "
    text += "lost: image with less light or gain."
    return judged(name, limit, f"up to {max(shares):.2%}", [title for title, _ in odd], text)


def focused(sections: Mapping[str, StitchFigures]) -> Check:
    """Check that tiles are as sharp as their neighbours."""
    name, limit = "Tiles out of focus", "none"
    if not any(own.seam_median is not None for own in sections.values()):
        return unchecked(name, limit, "No tiles overlap.")
    odd = [(title, tile) for title, own in sections.items() for tile in own.blurred]
    text = f"{titled([f'{title}, {tile.sentence}' for title, tile in odd])}; image "
    text += "it again." if len(odd) == 1 else "them again."
    return judged(name, limit, str(len(odd)), [title for title, _ in odd], text)


def even(sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    """Check the median shading of the sections: they share a microscope."""
    name, limit = "Shading of tiles", f"{100 * SHADING:.0f} %"
    kinds = zip(
        *((own.shading_before, own.shading_after) for own in sections.values()), strict=True
    )
    known = ([value for value in kind if value is not None] for kind in kinds)
    before, after = (float(np.median(values)) if values else None for values in known)
    left = before if after is None else after
    if left is None:
        return unchecked(name, limit, "No overlapping tiles share tissue.")
    value = f"{100 * left:.1f} %"
    if after is None:
        text = "Tiles are shaded: parts of them are darker; give --stitch_flat_field estimate."
    else:
        value += "" if before is None else f", {100 * before:.1f} % before"
        taken = settings.stitch.get("flat_field") in (ESTIMATE, AUTO)
        text = "The flat field does not fit these tiles; give "
        text += "--stitch_flat_field FILE." if taken else f"--stitch_flat_field {ESTIMATE}, or "
        text += "" if taken else "another FILE."
    return judged(name, limit, value, left > SHADING, text)


def median_seams(known: Iterable[HeldOutFigures]) -> tuple[float, float]:
    """Medians of seams before and after a correction that was not fitted to them, percent."""
    pairs = [(own.before, own.after) for own in known]
    before, after = (100 * float(np.median(own)) for own in zip(*pairs, strict=True))
    return before, after


def held_out(sections: Mapping[str, StitchFigures]) -> Check | None:
    """Show how estimates of light change seams that they were not fitted to; None without any."""
    gains = [gain for own in sections.values() for gain in own.gains.values()]
    words = [f"gains {min(gains):.2f} to {max(gains):.2f}"] if gains else []
    kinds = {"flat field": "flat_held_out", "gains": "gains_held_out"}
    for name, kind in kinds.items():
        every = {title: getattr(own, kind) for title, own in sections.items()}
        known = {title: own for title, own in every.items() if own is not None}
        if not known:
            continue
        before, after = median_seams(known.values())
        text = f"{name}: {before:.1f} % before, {after:.1f} % after"
        idle = [title for title, own in known.items() if not own.helped]
        words.append(f"{text}, not helped: {titled(idle)}" if idle else text)
    name, limit = "Seams that light was not fitted to", "lower after it"
    return Check(name, "; ".join(words), limit, "good") if words else None


def bright(stack: StackFigures, settings: Settings) -> Check:
    """Check that sections are about as bright as their neighbours."""
    name, (low, high) = "Section brightness", BRIGHTNESS
    limit = f"{low:g} to {high:g} times its neighbours'"
    every = {title_of("", s.number): s.brightness for s in stack.sections}
    known = {title: bright for title, bright in every.items() if bright is not None}
    if not known:
        return unchecked(name, limit, unlike(stack, "tissue"))
    words = "{} has {:.2g} times its neighbours' brightness"
    odd = {
        title: words.format(title, own) if own else f"{title} is blank"
        for title, own in known.items()
        if not low <= own <= high
    }
    seen = [*known.values()]
    for before, own in pairwise(s for s in stack.sections if s.brightness is not None):
        near, title = (title_of("", s.number) for s in (before, own))
        # A single odd section makes two steps.
        if own.step and not low <= own.step <= high and odd.keys().isdisjoint((near, title)):
            odd[title] = f"{title} and later ones have {own.step:.2g} times the brightness before"
            seen.append(own.step)
    were = "it was" if len(odd) == 1 else "they were"
    text = f"{titled([*odd.values()])}; check how {were} imaged"
    matched = settings.n4.get("histogram_matching") == "section"
    text += "." if matched else ", or try --n4_histogram_matching section."
    return judged(name, limit, f"{min(seen):.2f} to {max(seen):.2f}", odd, text)


def converged(n4: N4Figures, threshold: float | None) -> Check:
    """Check that the last and finest level nearly reached the threshold."""
    name = "N4 convergence"
    fits = [(own.name, own.levels) for own in n4.sections] + [("the volume", n4.levels)]
    last = {title: own[-1].convergence[-1] for title, own in fits if own and own[-1].convergence}
    if threshold is None or not last:
        return unchecked(name, "–", "No iterations were made.")
    limit = STILL * threshold
    still = [title for title, change in last.items() if change > limit * (1 + 1e-9)]
    fields = "field" if len(still) == 1 else "fields"
    text = f"N4 stopped while the {fields} of {titled(still)} still changed; raise --n4_iterations."
    return judged(name, f"{limit:g}", f"{max(last.values()):.2g}", bool(still), text)


def field(n4: N4Figures) -> Check:
    """Check that the bias field varies no more than illumination does."""
    ratio = n4.field_max / n4.field_min if n4.field_min > 0 else np.inf
    text = "The field varies more than illumination does; check the mask and --n4_control_points."
    value = f"{ratio:.3g}, largest over smallest"
    return judged("Range of the bias field", f"{FIELD:g}", value, ratio > FIELD, text)


def effect(n4: N4Figures) -> Check | None:
    """Check that N4 changed something; None if it was not asked to.

    Even tissue, and speckle that hides its field, leave nothing to correct, which is no fault.
    """
    if n4.unchanged is None:
        return None
    name, limit = "Effect of N4", "more than 0.1 %"
    of: dict[str, list[str]] = {}
    for own in n4.unchanged:
        of.setdefault(own.cause, []).append(own.name)
    texts = [
        f"N4 changed nothing in {listed(of[c])}: {why}." for c, why in CAUSES.items() if c in of
    ]
    if texts:
        faulty = [own for cause in CAUSES for own in of.get(cause, ())]
        return judged(name, limit, f"none in {listed(faulty)}", True, " ".join(texts))
    if of:
        return unchecked(name, limit, f"N4 changed nothing in {listed(of['converged'])}: {EVEN}.")
    return judged(name, limit, "more", False, "")


def variation(n4: N4Figures) -> Check:
    """Check that N4 made tissue more uniform, but for a rise by chance."""
    kind = "cv_against_truth" if n4.truth else "cv"
    before, after = ((n4.truth or dict(n4))[f"{kind}_{when}"] for when in ("before", "after"))
    value = f"{100 * before:.1f} % before, {100 * after:.1f} % after N4"
    value += ", over the true tissue" if n4.truth else ""
    text = "The variation in tissue rose; check the mask, and use fewer levels of --n4_iterations."
    return judged(
        "Variation in tissue", "not higher after N4", value, after > before * (1 + CHANCE), text
    )


def jumps(n4: N4Figures, settings: Settings) -> Check | None:
    """Check that maps of sections and planes lower what they are for; None without such maps."""
    given = ["--n4_z_profile_gain"] if settings.n4.get("z_profile_gain") else []
    if settings.n4.get("histogram_matching") not in (None, "none"):
        given.append("--n4_histogram_matching")
    return _lowered("Jumps at section boundaries", n4.jumps, given)


def compensated(stack: StackFigures) -> Check | None:
    """Check that compensated attenuation lowers jumps at boundaries; None if there is none."""
    return _lowered("Light lost with depth", stack.compensated, ["--stitch_attenuation"])


def _lowered(name: str, found: JumpFigures | None, given: Sequence[str]) -> Check | None:
    """Check that what was ``given`` lowers the jumps at section boundaries."""
    if found is None:
        return None
    value = f"jumps of {100 * found.before:.1f} % before, {100 * found.after:.1f} % after"
    omitted = "one of them" if given[1:] else "it"
    text = f"{' and '.join(given)} did not lower the mean jump at section boundaries; "
    text += f"omit {omitted}."
    return judged(name, "lower", value, found.after >= found.before, text)


def banded(
    stack: StackFigures | None, n4: N4Figures | None, settings: Settings, marked: Collection[str]
) -> Check:
    """Check the brightness jump at each section boundary, in N4's volume or else in STACK's.

    Boundaries of ``marked`` sections are left out: their own fault makes brightness jump there.
    """
    name, limit = "Section boundaries", f"{100 * BAND:.0f} %"
    jumps = [
        {
            title_of("", number): max(ratio, 1 / ratio) - 1
            for number, ratio in own.items()
            if {title_of("", number - 1), title_of("", number)}.isdisjoint(marked)
        }
        for own in (figures.boundaries for figures in (stack, n4) if figures is not None)
    ]
    last = jumps[-1]
    known = n4 or stack
    if not last and known and known.boundaries:
        why = (
            "All boundaries touch sections whose surface, brightness or place another check marks."
        )
        return unchecked(name, limit, why)
    if not last:
        why = unlike(stack, "tissue") if stack else "No neighbouring sections share tissue."
        return unchecked(name, limit, why)
    odd = [title for title, jump in last.items() if jump > BAND]
    value = f"{100 * max(last.values()):.1f} %"
    if jumps[1:] and jumps[0]:
        value = f"{100 * max(jumps[0].values()):.1f} % before, {value} after N4"
    left = [] if settings.n4.get("z_profile_gain") else [Z_PROFILE]
    left += [] if settings.n4.get("histogram_matching") == "section" else [MATCHING]
    text = f"{titled(odd)}: bands, brightness jumps from the section before; "
    text += f"try {', '.join(left)}." if left else "check how the sections were imaged."
    return judged(name, limit, value, odd, text)


def brightness_checks(
    channel: str,
    sections: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    threshold: float | None,
    settings: Settings,
) -> list[Check]:
    """List the checks of a channel that lies where the reference channel was measured.

    ``sections`` are keyed by title, and ``threshold`` is N4's convergence threshold. Seams and
    section boundaries are left out: sparse labels differ there without any fault.
    """
    found = []
    if sections:
        found += [exposed(sections, settings), saturated(sections), even(sections, settings)]
        found += [own for own in [held_out(sections)] if own]
    if stack:
        found.append(bright(stack, settings))
        found += [own for own in [compensated(stack)] if own]
    if n4:
        made = (converged(n4, threshold), effect(n4), field(n4), variation(n4))
        found += [own for own in made if own]
    return [replace(own, name=f"{own.name} ({channel})") for own in found]
