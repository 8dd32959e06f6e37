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
from octane.processes.report.check import (
    Check,
    Settings,
    join_names,
    join_titles,
    judge,
    missing_comparison,
    skip,
)
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

LAST_CHANGE_LIMIT = 10.0
"""Ratio of the field's last change to N4's threshold up to which more iterations gain little."""
FIELD_RANGE_LIMIT = 10.0
"""Ratio of a bias field's largest to smallest value above which N4 fits more than bias."""
BRIGHTNESS_LIMITS = (0.5, 2.0)
"""Brightness relative to neighbouring sections that refocusing and staining explain."""
VARIATION_RISE_LIMIT = 0.01
"""Relative rise of the variation that a field fitted to noise or sparse labels may cause."""
NO_FIELD_REMEDIES = {
    "all voxels": (
        "values of 0 or less, or far from all others, stretch its histogram; omit --use_all_voxels"
    ),
    "histogram": (
        "its histogram cannot resolve values so many orders of magnitude apart; give a mask "
        "without the smallest"
    ),
    "iterations": "it had too few iterations; raise --n4_iterations",
    "levels": (
        "no level's field sharpens the histogram of tissue; leave N4 out, or give --n4_levels a "
        "number if the pictures show shading"
    ),
}
"""Faults that keep N4 from a field, and their remedies."""
FLAT_FIELD_CAUSES = (
    "tissue is even, or its own variation hides the field; if the pictures show shading, lower "
    "--n4_convergence_threshold, or average speckle by a coarser --resolution"
)
"""What else leaves the field flat."""
Z_PROFILE_REMEDY = "--n4_z_profile_gain if light is lost with depth"
MATCHING_REMEDY = "--n4_histogram_matching section if sections differ"
JUMP_LIMIT = 0.05
"""Largest acceptable brightness jump between sections: volumes without bands stay below it."""


def check_tile_brightness(sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    """Check that tiles are as bright as their neighbours."""
    name, limit = "Tile brightness", f"{1 / EXPOSED:.2g} to {EXPOSED:g} times its neighbours'"
    if not any(section.seam_median is not None for section in sections.values()):
        return skip(name, limit, "No tiles overlap.")
    odd = [(title, tile) for title, section in sections.items() for tile in section.uneven]
    lit = [f"{title}, {tile.sentence}" for title, tile in odd if tile.brightness > 0]
    it, its = ("it", "its") if len(lit) == 1 else ("them", "their")
    estimates = settings.stitch.get("gain") == ESTIMATE
    remedy = f"correct {its} grey levels" if estimates else f"give --stitch_gain {ESTIMATE}"
    dark = Counter(title for title, tile in odd if tile.brightness == 0)
    gaps = [
        f"{counted(n, 'tile')} of {title} {'was' if n == 1 else 'were'} not imaged"
        for title, n in dark.items()
    ]
    texts = [f"{join_titles(lit)}; image {it} again, or {remedy}."] if lit else []
    texts += [f"{join_titles(gaps)}; copy or image the missing data."] if gaps else []
    return judge(name, limit, f"{len(odd)} outside", [title for title, _ in odd], " ".join(texts))


def check_saturation(sections: Mapping[str, StitchFigures]) -> Check:
    """Check that few voxels of a tile sit at its highest value."""
    name, limit = "Saturated tiles", f"{SATURATED:.0%} of a tile's voxels"
    shares = [section.saturation for section in sections.values() if section.saturation is not None]
    if not shares:
        return skip(name, limit, "No values were counted.")
    odd = [(title, tile) for title, section in sections.items() for tile in section.saturated]
    text = f"{join_titles([f'{title}, {tile.sentence}' for title, tile in odd])}; "
    text += "image with less light or gain, since brighter values are lost."
    return judge(name, limit, f"up to {max(shares):.2%}", [title for title, _ in odd], text)


def check_focus(sections: Mapping[str, StitchFigures]) -> Check:
    """Check that tiles are as sharp as their neighbours."""
    name, limit = "Tiles out of focus", "none"
    if not any(section.seam_median is not None for section in sections.values()):
        return skip(name, limit, "No tiles overlap.")
    odd = [(title, tile) for title, section in sections.items() for tile in section.blurred]
    text = f"{join_titles([f'{title}, {tile.sentence}' for title, tile in odd])}; image "
    text += "it again." if len(odd) == 1 else "them again."
    return judge(name, limit, str(len(odd)), [title for title, _ in odd], text)


def check_shading(sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    """Check the median shading of the sections: they share a microscope."""
    name, limit = "Shading of tiles", f"{100 * SHADING:.0f} %"
    kinds = zip(
        *((section.shading_before, section.shading_after) for section in sections.values()),
        strict=True,
    )
    known = ([value for value in kind if value is not None] for kind in kinds)
    before, after = (float(np.median(values)) if values else None for values in known)
    shading = before if after is None else after
    if shading is None:
        return skip(name, limit, "No overlapping tiles share tissue.")
    value = f"{100 * shading:.1f} %"
    if after is None:
        text = "Tiles are darker in parts; give --stitch_flat_field estimate."
    else:
        value += "" if before is None else f", {100 * before:.1f} % before"
        estimates = settings.stitch.get("flat_field") in (ESTIMATE, AUTO)
        text = "The flat field does not fit these tiles; give "
        text += "--stitch_flat_field FILE." if estimates else f"--stitch_flat_field {ESTIMATE}, or "
        text += "" if estimates else "another FILE."
    return judge(name, limit, value, shading > SHADING, text)


def median_seams(known: Iterable[HeldOutFigures]) -> tuple[float, float]:
    """Medians of seams before and after a correction that was not fitted to them, percent."""
    pairs = [(pair.before, pair.after) for pair in known]
    before, after = (100 * float(np.median(values)) for values in zip(*pairs, strict=True))
    return before, after


def show_held_out_seams(sections: Mapping[str, StitchFigures]) -> Check | None:
    """Show how estimates of light change seams that they were not fitted to; None without any."""
    gains = [gain for section in sections.values() for gain in section.gains.values()]
    words = [f"gains {min(gains):.2f} to {max(gains):.2f}"] if gains else []
    kinds = {"flat field": "flat_held_out", "gains": "gains_held_out"}
    for name, kind in kinds.items():
        every = {title: getattr(section, kind) for title, section in sections.items()}
        known = {title: figures for title, figures in every.items() if figures is not None}
        if not known:
            continue
        before, after = median_seams(known.values())
        text = f"{name}: {before:.1f} % before, {after:.1f} % after"
        idle = [title for title, figures in known.items() if not figures.lowers_seams]
        words.append(f"{text}, not helped: {join_titles(idle)}" if idle else text)
    name, limit = "Seams that light was not fitted to", "lower after it"
    return Check(name, "; ".join(words), limit, "good") if words else None


def check_section_brightness(stack: StackFigures, settings: Settings) -> Check:
    """Check that sections are about as bright as their neighbours."""
    name, (low, high) = "Section brightness", BRIGHTNESS_LIMITS
    limit = f"{low:g} to {high:g} times its neighbours'"
    every = {title_of("", s.number): s.brightness for s in stack.sections}
    known = {title: ratio for title, ratio in every.items() if ratio is not None}
    if not known:
        return skip(name, limit, missing_comparison(stack, "tissue"))
    words = "{} has {:.2g} times its neighbours' brightness"
    odd = {
        title: words.format(title, ratio) if ratio else f"{title} is blank"
        for title, ratio in known.items()
        if not low <= ratio <= high
    }
    ratios = [*known.values()]
    for before, section in pairwise(s for s in stack.sections if s.brightness is not None):
        near, title = (title_of("", s.number) for s in (before, section))
        # A single odd section makes two steps.
        step, is_alone = section.step, odd.keys().isdisjoint((near, title))
        if step and not low <= step <= high and is_alone:
            odd[title] = f"{title} and later ones have {step:.2g} times the brightness before"
            ratios.append(step)
    were = "it was" if len(odd) == 1 else "they were"
    text = f"{join_titles([*odd.values()])}; check how {were} imaged"
    is_matched = settings.n4.get("histogram_matching") == "section"
    text += "." if is_matched else ", or try --n4_histogram_matching section."
    return judge(name, limit, f"{min(ratios):.2f} to {max(ratios):.2f}", odd, text)


def check_convergence(n4: N4Figures, threshold: float | None) -> Check:
    """Check that the last and finest level nearly reached the threshold."""
    name = "N4 convergence"
    fits = [(section.name, section.levels) for section in n4.sections] + [("the volume", n4.levels)]
    ends = [(title, levels[-1]) for title, levels in fits if levels]
    last = {title: level.convergence[-1] for title, level in ends if level.convergence}
    if threshold is None or not last:
        return skip(name, "–", "No iterations were made.")
    limit = LAST_CHANGE_LIMIT * threshold
    still = [title for title, change in last.items() if change > limit * (1 + 1e-9)]
    fields = "field" if len(still) == 1 else "fields"
    text = f"N4 stopped while the {fields} of {join_titles(still)} still changed; "
    text += "raise --n4_iterations."
    return judge(name, f"{limit:g}", f"{max(last.values()):.2g}", bool(still), text)


def check_field_range(n4: N4Figures) -> Check:
    """Check that the bias field varies no more than illumination does."""
    ratio = n4.field_max / n4.field_min if n4.field_min > 0 else np.inf
    text = "Check the mask and --n4_control_points: the field varies more than illumination does."
    value = f"{ratio:.3g}, largest over smallest"
    return judge(
        "Range of the bias field", f"{FIELD_RANGE_LIMIT:g}", value, ratio > FIELD_RANGE_LIMIT, text
    )


def check_effect(n4: N4Figures) -> Check | None:
    """Check that N4 changed something; None if it was not asked to.

    Even tissue, and speckle that hides its field, leave nothing to correct, which is no fault.
    """
    if n4.unchanged is None:
        return None
    name, limit = "Effect of N4", "more than 0.1 %"
    regions: dict[str, list[str]] = {}
    for region in n4.unchanged:
        regions.setdefault(region.cause, []).append(region.name)
    texts = [
        f"N4 changed nothing in {join_names(regions[c])}: {why}."
        for c, why in NO_FIELD_REMEDIES.items()
        if c in regions
    ]
    if texts:
        faulty = [region for cause in NO_FIELD_REMEDIES for region in regions.get(cause, ())]
        return judge(name, limit, f"none in {join_names(faulty)}", True, " ".join(texts))
    if regions:
        names = join_names(regions["converged"])
        return skip(name, limit, f"N4 changed nothing in {names}: {FLAT_FIELD_CAUSES}.")
    return judge(name, limit, "more", False, "")


def check_variation(n4: N4Figures) -> Check:
    """Check that N4 made tissue more uniform, but for a rise by chance."""
    kind = "cv_against_truth" if n4.truth else "cv"
    before, after = ((n4.truth or dict(n4))[f"{kind}_{when}"] for when in ("before", "after"))
    value = f"{100 * before:.1f} % before, {100 * after:.1f} % after N4"
    value += ", over the true tissue" if n4.truth else ""
    text = "Check the mask, and give --n4_iterations fewer levels: variation in tissue rose."
    rose = after > before * (1 + VARIATION_RISE_LIMIT)
    return judge("Variation in tissue", "not higher after N4", value, rose, text)


def check_boundary_jumps(n4: N4Figures, settings: Settings) -> Check | None:
    """Check that maps of sections and planes lower what they are for; None without such maps."""
    flags = ["--n4_z_profile_gain"] if settings.n4.get("z_profile_gain") else []
    if settings.n4.get("histogram_matching") not in (None, "none"):
        flags.append("--n4_histogram_matching")
    return _check_jumps("Jumps at section boundaries", n4.jumps, flags)


def check_attenuation(stack: StackFigures) -> Check | None:
    """Check that compensated attenuation lowers jumps at boundaries; None if there is none."""
    return _check_jumps("Light lost with depth", stack.compensated, ["--stitch_attenuation"])


def _check_jumps(name: str, jumps: JumpFigures | None, flags: Sequence[str]) -> Check | None:
    """Check that what was ``given`` lowers the jumps at section boundaries."""
    if jumps is None:
        return None
    value = f"jumps of {100 * jumps.before:.1f} % before, {100 * jumps.after:.1f} % after"
    omitted = "one of them" if flags[1:] else "it"
    text = f"{' and '.join(flags)} did not lower the mean jump at section boundaries; "
    text += f"omit {omitted}."
    return judge(name, "lower", value, jumps.after >= jumps.before, text)


def check_boundaries(
    stack: StackFigures | None, n4: N4Figures | None, settings: Settings, marked: Collection[str]
) -> Check:
    """Check the brightness jump at each section boundary, in N4's volume or else in STACK's.

    Boundaries of ``marked`` sections are left out: their own fault makes brightness jump there.
    """
    name, limit = "Section boundaries", f"{100 * JUMP_LIMIT:.0f} %"
    jumps = [
        {
            title_of("", number): max(ratio, 1 / ratio) - 1
            for number, ratio in boundaries.items()
            if {title_of("", number - 1), title_of("", number)}.isdisjoint(marked)
        }
        for boundaries in (figures.boundaries for figures in (stack, n4) if figures is not None)
    ]
    last = jumps[-1]
    known = n4 or stack
    if not last and known and known.boundaries:
        why = (
            "All boundaries touch sections whose surface, brightness or place another check marks."
        )
        return skip(name, limit, why)
    if not last:
        why = "No neighbouring sections share tissue."
        return skip(name, limit, missing_comparison(stack, "tissue") if stack else why)
    odd = [title for title, jump in last.items() if jump > JUMP_LIMIT]
    value = f"{100 * max(last.values()):.1f} %"
    if jumps[1:] and jumps[0]:
        value = f"{100 * max(jumps[0].values()):.1f} % before, {value} after N4"
    remedies = [] if settings.n4.get("z_profile_gain") else [Z_PROFILE_REMEDY]
    remedies += [] if settings.n4.get("histogram_matching") == "section" else [MATCHING_REMEDY]
    text = f"{join_titles(odd)}: bands, brightness jumps from the section before; "
    text += f"try {', '.join(remedies)}." if remedies else "check how the sections were imaged."
    return judge(name, limit, value, odd, text)


def check_brightness(
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
    checks = []
    if sections:
        checks += [
            check_tile_brightness(sections, settings),
            check_saturation(sections),
            check_shading(sections, settings),
        ]
        checks += [check for check in [show_held_out_seams(sections)] if check]
    if stack:
        checks.append(check_section_brightness(stack, settings))
        checks += [check for check in [check_attenuation(stack)] if check]
    if n4:
        checks.append(check_convergence(n4, threshold))
        checks += [check for check in [check_effect(n4)] if check]
        checks += [check_field_range(n4), check_variation(n4)]
    return [replace(check, name=f"{check.name} ({channel})") for check in checks]
