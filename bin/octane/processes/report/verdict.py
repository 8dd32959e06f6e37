"""The verdict on a subject: checks of its records, each with its limit and, if needed, a remedy."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from octane.config.validation import as_flips, as_ranges
from octane.core.records import Outcome
from octane.core.units import counted
from octane.processes.n4.record import N4Figures
from octane.processes.report.brightness import (
    check_attenuation,
    check_boundaries,
    check_boundary_jumps,
    check_convergence,
    check_effect,
    check_field_range,
    check_focus,
    check_saturation,
    check_section_brightness,
    check_shading,
    check_tile_brightness,
    check_variation,
    show_held_out_seams,
)
from octane.processes.report.check import (
    NO_SETTINGS,
    Check,
    Settings,
    join_names,
    join_titles,
    judge,
    missing_comparison,
    skip,
)
from octane.processes.report.summary import MISSING_STATES, SectionQuality, outliers, title_of
from octane.processes.stack.record import (
    AS_GIVEN,
    BY_DEPTH,
    MEASURED,
    MEDIAN,
    OrderFigures,
    StackFigures,
)
from octane.processes.stitch.record import (
    CORRECT_PLACES,
    FROM_TABLE,
    SeamFigures,
    StitchFigures,
    overlap_values,
)

SEAM_LIMIT = 0.1
"""Largest acceptable seam along an axis, without shading and speckle: most wrong overlaps exceed
it."""
SHIFT_LIMIT = 1.0
"""Largest acceptable shift of a section, voxels."""
ROTATION_LIMIT = 1.0
"""Largest acceptable rotation of a section, degrees."""
SINGLE_SEAM_LIMIT = 0.2
"""Largest acceptable single seam, without shading and speckle: tissue that differs exceeds it."""
OUTLYING_SEAM_RATIO = 3.0
"""The same over the section's usual seam: where all seams are high, none stands out."""
NO_STRUCTURE = (
    "Neighbouring tiles have too little structure in common, or too much speckle, to tell."
)
NO_OVERLAP = "No tiles overlap along this axis."
LEAST_SECTIONS = 5
"""Minimum number of sections to compare: fewer may each show different anatomy."""
OTHER_TISSUE_SEAM = 0.5
"""Seam above which tiles that correlate nowhere show different tissue: a wrong overlap gives
less."""
LEAST_OVERLAP = 0.05
"""Smallest given overlap, fraction of a tile, in which neighbours can be compared."""
NOISE_STDS = 2.0
"""Standard deviations within which a measured difference tells nothing."""
BRIGHTNESS_FAULTS = (
    *("Missing sections", "Section surface", "Section brightness"),
    *("Section orientation", "Section order", "Section alignment"),
)
"""Checks of faults that make brightness jump where a section begins."""
State = Literal["incomplete", "look", "good"]
"""State of a subject, worst first; ``incomplete`` lacks results that its plan expects."""


def check_subject(
    quality: Sequence[SectionQuality],
    stitched: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    threshold: float | None = None,
    outcome: Outcome | None = None,
    settings: Settings = NO_SETTINGS,
) -> list[Check]:
    """List all checks of a subject in the order of the workflow.

    ``stitched`` is keyed by record name, ``threshold`` is N4's convergence threshold, and ``lost``
    is None if the results are complete; ``settings`` tell which remedies were taken.
    """
    sections = {title_of(name, figures.section): figures for name, figures in stitched.items()}
    checks = [] if outcome is None else [_check_results(outcome)]
    checks.append(_check_missing(quality, sections))
    if sections:
        checks += [_check_seams(axis, sections) for axis in "yx"]
        checks += [_check_overlap(axis, sections, settings) for axis in "yx"]
        checks += [_check_places(sections), _check_coverage(sections)]
        checks.append(check_tile_brightness(sections, settings))
        checks += [check_saturation(sections), check_focus(sections)]
        if any(section.not_imaged for section in sections.values()):
            checks.append(_check_holes(sections))
        checks.append(check_shading(sections, settings))
        checks += [check for check in [show_held_out_seams(sections)] if check]
        seams = {s.title: s.seam_median for s in quality}
        checks.append(_check_outliers("Seams of a section", seams))
        shaded = {title: section.shading_before for title, section in sections.items()}
        checks.append(_check_outliers("Shading of a section", shaded, LEAST_SECTIONS))
    if stack:
        cuts = (_check_surface(quality, stack.voxel_size[0], settings), _check_thickness(stack))
        checks += [check for check in cuts if check]
        off_surface = _off_surface(quality, stack.voxel_size[0])
        checks += [_check_depth(stack), check_section_brightness(stack, settings)]
        checks += [check for check in [check_attenuation(stack)] if check]
        checks.append(_check_orientation(stack))
        if stack.order is not None:
            copies = checks[0 if outcome is None else 1].sections
            checks.append(_check_order(stack.order, off_surface, copies))
        checks.append(_check_alignment(stack, off_surface))
    if n4:
        checks.append(check_convergence(n4, threshold))
        checks += [check for check in [check_effect(n4)] if check]
        checks += [check_field_range(n4), check_variation(n4)]
        varied = {s.title: s.cv_after for s in quality}
        checks.append(_check_outliers("Variation of a section", varied, LEAST_SECTIONS))
    if stack or n4:
        faults = [check for check in checks if check.name in BRIGHTNESS_FAULTS]
        marked = {title for check in faults for title in check.sections}
        if stack and _has_other_distance(stack):
            marked |= {title_of("", s.number) for s in stack.sections}
        checks.append(check_boundaries(stack, n4, settings, marked))
        if n4 and (check := check_boundary_jumps(n4, settings)):
            checks.append(check)
    return checks


def _check_results(outcome: Outcome) -> Check:
    missing = counted(len(outcome.missing), "task")
    value = f"{missing} not done" if outcome.missing else "of changed input"
    return Check("Results", value, "all", "incomplete", outcome.sentence, tuple(outcome.sections))


def _check_missing(
    quality: Sequence[SectionQuality], sections: Mapping[str, StitchFigures]
) -> Check:
    name, limit = "Missing sections", "none"
    if not quality:
        return skip(name, limit, "The volume does not consist of sections.")
    gone = [section.title for section in quality if section.state in MISSING_STATES]
    text = f"{join_titles(gone)}: missing and left blank, as --allow_missing_sections permits."
    if any(section.state == "unfinished" for section in quality):
        text = f"{join_titles(gone)}: not finished."
    first: dict[object, str] = {}
    # Records of earlier versions lack a digest.
    seams = {title: (section.seam_median, section.seam_max) for title, section in sections.items()}
    keys = {
        t: section.digest or (seams[t] if seams[t][0] else "") for t, section in sections.items()
    }
    same = {t: first[key] for t, key in keys.items() if key and first.setdefault(key, t) != t}
    if same:
        pairs = join_titles([f"{t} holds the same image as {other}" for t, other in same.items()])
        right = "correct image" if len(same) == 1 else "correct images"
        text = f"{pairs}; copy the {right}." + (f" {text}" if gone else "")
    odd = [*gone, *same]
    excluded = [s.number for s in quality if s.state == "excluded" and s.number is not None]
    value = f"{len(odd)} of {len(quality) - len(excluded)}"
    value += f"; excluded by the user: {as_ranges(excluded)}" if excluded else ""
    return judge(name, limit, value, odd, text)


def _check_seams(axis: str, sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = f"Seams along {axis}", f"{100 * SEAM_LIMIT:.0f} % plus speckle"
    seams = {title: section.mismatch(axis) for title, section in sections.items()}
    known = {title: seam for title, seam in seams.items() if seam is not None}
    if not known:
        return skip(name, limit, NO_OVERLAP)
    high = [title for title, seam in known.items() if seam > SEAM_LIMIT]
    text = (
        f"{join_titles(high)}: overlapping tiles differ strongly along {axis}; check --overlap or "
        "--positions"
    )
    text = f"{text}{_refine_remedy(sections)}." if high else ""
    text += _name_outlying_seams(axis, sections, high)
    worst = sections[max(known, key=lambda title: known[title])]
    seam, speckle = (100 * getattr(worst, f"{kind}_{axis}") for kind in ("seam", "speckle"))
    alone = [
        title for title, section in sections.items() if _outlying_seam(axis, section) is not None
    ]
    value = f"{seam:.1f} %, speckle {speckle:.1f} %"
    most = [pair.mismatch for s in sections.values() if (pair := getattr(s, f"worst_{axis}"))]
    value += f"; up to {100 * max(most):.1f} % without it" if most else ""
    return judge(name, limit, value, [*high, *alone], text)


def _outlying_seam(axis: str, section: StitchFigures) -> SeamFigures | None:
    """The largest seam along an axis, if it stands out among the section's seams."""
    pair, usual = getattr(section, f"worst_{axis}"), section.mismatch(axis) or 0.0
    limit = max(SINGLE_SEAM_LIMIT, OUTLYING_SEAM_RATIO * usual)
    return pair if pair and pair.mismatch > limit else None


def _name_outlying_seams(
    axis: str, sections: Mapping[str, StitchFigures], high: Collection[str]
) -> str:
    """Name the largest seams of sections whose other seams are not ``high``."""
    odd = {t: _outlying_seam(axis, section) for t, section in sections.items() if t not in high}
    words = [
        f"{title}, row {pair.first[0]}, column {pair.first[1]} and row {pair.second[0]}, column "
        f"{pair.second[1]} differ by {pair.mismatch:.0%}"
        for title, pair in odd.items()
        if pair is not None
    ]
    text = f"{join_titles(words)}, far more than other tiles along {axis}; look at their pictures."
    return (" " if high else "") + text if words else ""


def _refine_remedy(sections: Mapping[str, StitchFigures]) -> str:
    """The remedy of refinement, unless it was taken."""
    is_refined = any(section.nominal_positions for section in sections.values())
    return "" if is_refined else ", or try --stitch_refine"


def _check_overlap(axis: str, sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    name = f"Overlap along {axis}"
    overlaps = [(title, o) for title, section in sections.items() for o in section.overlaps]
    known = [
        overlap for _, overlap in overlaps if overlap.axis == axis and overlap.found is not None
    ]
    is_placed = settings.stitch.get("positions") == FROM_TABLE
    turned = {
        title: overlap.turned
        for title, overlap in overlaps
        if overlap.axis == axis and overlap.turned
    }
    if turned:
        words = " or ".join(sorted({*turned.values()}))
        remedy = CORRECT_PLACES if is_placed else "write their mosaics so"
        text = f"{join_titles([*turned])}: tiles fit their neighbours only if {words}; {remedy}."
        return judge(name, "as given", "none", turned, text)
    if not known:
        apart = [
            title
            for title, section in sections.items()
            if (section.mismatch(axis) or 0) > OTHER_TISSUE_SEAM
            and all(o.given >= LEAST_OVERLAP for o in section.overlaps if o.axis == axis)
        ]
        text = (
            f"{join_titles(apart)}: tiles do not fit their neighbours at any overlap along {axis}; "
            "check whether tiles are mirrored, transposed or in another order"
        )
        even = settings.stitch.get("flat_field", "none") != "none"
        text += "." if even else ", and correct their shading with --stitch_flat_field."
        has_overlaps = any(overlap.axis == axis for _, overlap in overlaps)
        unknown = skip(name, "as given", NO_STRUCTURE if has_overlaps else NO_OVERLAP)
        return judge(name, "as given", "none", apart, text) if apart else unknown
    given, fitting_overlap = (
        float(np.median([getattr(o, k) for o in known])) for k in ("given", "found")
    )
    other = {
        title: overlap.found
        for title, overlap in overlaps
        if overlap.axis == axis and overlap.better
    }
    fits = float(np.median([*other.values()] or [fitting_overlap]))
    values = overlap_values([overlap for _, overlap in overlaps])
    remedy = f"give --overlap {values}, or correct --positions"
    text = (
        f"{join_titles([*other])}: tiles correlate at an overlap of {fits:.3f} of a tile along "
        f"{axis}, not {given:.3g}; {CORRECT_PLACES if is_placed else remedy}."
    )
    return judge(name, f"{given:.3g}, as given", f"{fitting_overlap:.3f} of a tile", other, text)


def _check_places(sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = "Tiles out of place", "none"
    if not any(o.found is not None or s.misplaced for s in sections.values() for o in s.overlaps):
        has_overlaps = any(section.overlaps for section in sections.values())
        return skip(name, limit, NO_STRUCTURE if has_overlaps else "No tiles overlap.")
    odd = [
        (title, section, tile) for title, section in sections.items() for tile in section.misplaced
    ]
    plain = [(s, t) for _, s, t in odd if t.planes is None and t.copy_of is None]
    rows = [f"row {s.number},{t.row},{t.column}" for s, t in plain]
    sentences = [(t, f"{title}, {t.sentence}") for title, _, t in odd]
    deep = [text for t, text in sentences if t.planes is not None]
    twice = [text for t, text in sentences if t.copy_of is not None]
    aside = [text for _, text in sentences if text not in (*deep, *twice)]
    texts = []
    if aside:
        texts.append(
            f"{join_titles(aside)}; correct the mosaic, "
            f"or change {rows[0] if len(rows) == 1 else 'their rows'} in a copy of "
            f"SUBJECT_positions.csv and give it as --positions{_refine_remedy(sections)}."
        )
    if twice:
        its = "its image" if len(twice) == 1 else "their images"
        texts.append(f"{join_titles(twice)}; copy {its} again.")
    if deep:
        texts.append(
            f"{join_titles(deep)}; give a copy of SUBJECT_positions.csv with a column z in "
            f"micrometres as --positions{_refine_remedy(sections)}."
        )
    why = "; ".join(dict.fromkeys(s.not_in_z for s in sections.values() if s.not_in_z))
    moved = sum(len(section.depths) for section in sections.values())
    words = [str(len(odd)), *[f"{moved} moved in z"] * bool(moved)]
    words += [f"z not compared ({why})"] if why else []
    return judge(name, limit, "; ".join(words), [title for title, *_ in odd], " ".join(texts))


def _check_coverage(sections: Mapping[str, StitchFigures]) -> Check:
    gaps = {
        t: section.uncovered_pixels for t, section in sections.items() if section.uncovered_pixels
    }
    text = f"{join_titles([*gaps])}: pixels between tiles are zero; check --overlap or --positions."
    return judge("Pixels without a tile", "0", str(sum(gaps.values())), gaps, text)


def _check_holes(sections: Mapping[str, StitchFigures]) -> Check:
    """Check tiles that are declared as not imaged: corners are often left out, tissue is not."""
    total = sum(section.tiles for section in sections.values())
    gone = sum(len(section.not_imaged) for section in sections.values())
    odd = {title: section.holes for title, section in sections.items() if section.holes}
    holes = [
        f"row {tiles[0][0]}, column {tiles[0][1]} of {title}"
        + (f" and {counted(len(tiles) - 1, 'more tile')}" if tiles[1:] else "")
        for title, tiles in odd.items()
    ]
    text = f"{join_titles(holes)}: not imaged, and zero in the volume, although neighbours show "
    text += "tissue there or surround it; image it again."
    return judge("Tiles not imaged", "none in tissue", f"{gone} of {total}", odd, text)


def _check_outliers(name: str, figures: Mapping[str, float | None], least: int = 3) -> Check:
    limit = "none stands out"
    known = sum(figure is not None for figure in figures.values())
    if known < least:
        return skip(name, limit, f"Fewer than {least} sections can be compared.")
    far = zip(figures, outliers([*figures.values()])[1], strict=True)
    out = [title for title, is_far in far if is_far]
    text = f"{join_titles(out)}: far above the other sections; look at the pictures."
    return judge(name, limit, f"{len(out)} of {known}", out, text)


def _join_by_reason(reasons: Mapping[str, str]) -> str:
    """List titles by their reasons: Sections 2, 3 (no light), Section 4 (two interfaces)."""
    groups: dict[str, list[str]] = {}
    for title, reason in reasons.items():
        groups.setdefault(reason, []).append(title)
    return join_names(
        [join_titles(titles) + f" ({why})" * bool(why) for why, titles in groups.items()]
    )


def _format_range(values: Collection[float]) -> str:
    """Format the range of values in micrometres."""
    low, high = (f"{round(end, 1):g}" for end in (min(values), max(values)))
    return f"{low} µm" if low == high else f"{low} to {high} µm"


def _off_surface(quality: Sequence[SectionQuality], plane: float) -> list[str]:
    """Titles of sections whose surface lies elsewhere than at the given depth."""
    return [
        s.title
        for s in quality
        if s.surface is not None and s.surface.depth is not None
        and s.slab is not None and s.slab.surface is not None
        and s.slab.surface_from == AS_GIVEN
        and abs(s.surface.depth - s.slab.surface) > plane + NOISE_STDS * (s.surface.depth_std or 0)
    ]  # fmt: skip


def _check_surface(
    quality: Sequence[SectionQuality], plane: float, settings: Settings
) -> Check | None:
    """Check the surfaces at which STACK cropped the sections; None if none was looked for."""
    slabs = {s.title: s.slab for s in quality if s.slab and not s.slab.missing}
    used = {title: slab.surface for title, slab in slabs.items() if slab.surface is not None}
    surfaces = {s.title: s.surface for s in quality if s.surface and s.title in used}
    depths = {title: s.depth for title, s in surfaces.items() if s.depth is not None}
    reasons = {title: s.reason for title, s in surfaces.items() if s.depth is None}
    auto = any(slabs[title].surface_from != AS_GIVEN for title in used)
    if not (auto or surfaces):
        return None
    name, limit = (
        "Section surface",
        f"{'measured, flat' if auto else 'as given'} within {plane:.4g} µm",
    )
    if not surfaces:
        return skip(name, limit, "Another run stitched these sections; see STACK's log.")
    if not depths:
        return skip(name, limit, f"{_join_by_reason(reasons)}: no surface was measured.")
    off = _off_surface(quality, plane)
    texts = []
    if off:
        there, here = (_format_range([of[title] for title in off]) for of in (depths, used))
        texts.append(f"{join_titles(off)}: the surface lies {there} deep, but {here} is cropped.")
    rises = {s.title: s.rise for s in quality if s.rise and s.title in depths}
    steep = {t: high for t, (high, std) in rises.items() if high > plane + NOISE_STDS * std}
    if steep:
        most = _format_range([max(steep.values())])
        texts.append(
            f"{join_titles([*steep])}: the surface rises by up to {most} across the section."
        )
    options = ["--section_surface auto"] * (not auto) + ["--section_level true"] * bool(
        steep and not settings.stack.get("section_level")
    )
    if texts and options:
        texts.append(f"Give {' and '.join(options)}.")
    unmeasured = [title for title in used if auto and slabs[title].surface_from != MEASURED]
    if unmeasured:
        names = _join_by_reason({title: reasons.get(title, "") for title in unmeasured})
        here = _format_range([used[title] for title in unmeasured])
        texts.append(f"{names}: no surface was measured, {here} is cropped; look at the pictures.")
    rough = {t: s.rough for t, s in surfaces.items() if auto and s.rough and s.rough > plane}
    if rough:
        by = _format_range(rough.values())
        texts.append(
            f"{join_titles([*rough])}: the surface is {by} off a plane; look for torn tissue."
        )
    value = f"{_format_range(depths.values())} deep"
    value += f", {len(depths)} of {len(used)} measured" if 0 < len(depths) < len(used) else ""
    return judge(name, limit, value, [*off, *steep, *unmeasured, *rough], " ".join(texts))


def _check_thickness(stack: StackFigures) -> Check | None:
    """Check that the thickness of each section was measured, or that taken; None if unknown."""
    sections = {title_of("", s.number): s for s in stack.sections}
    unmeasured = {title: s.thickness_reason for title, s in sections.items() if s.thickness_reason}
    known = [s.measured_thickness for s in sections.values() if s.measured_thickness is not None]
    if not (unmeasured or known) and stack.distance is not None:
        distance, plane = stack.distance, stack.voxel_size[0]
        limit = f"{distance.taken:.4g} µm, as taken, within {plane:.4g} µm"
        value, differs = f"{distance.measured:.4g} µm", _has_other_distance(stack)
        return judge("Section thickness", limit, value, differs, distance.sentence)
    if not (unmeasured or known):
        return None
    texts = []
    for source in (MEDIAN, BY_DEPTH, "as stated"):
        affected = {
            title: why
            for title, why in unmeasured.items()
            if sections[title].thickness_from == source
            or (source == "as stated" and sections[title].thickness_from not in (MEDIAN, BY_DEPTH))
        }
        texts += [f"{_join_by_reason(affected)}: not measured, so it is {source}"] * bool(affected)
    are_stated = all(sections[title].thickness_from != BY_DEPTH for title in unmeasured)
    remedy = "look at the pictures" if are_stated else "give --section_thickness"
    text = f"{'; '.join(texts)}; {remedy}."
    value = _format_range(known) if known else "none measured"
    return judge("Section thickness", "measured", value, unmeasured, text)


def _has_other_distance(stack: StackFigures) -> bool:
    """Tell whether neighbours show the same tissue at another distance than was taken."""
    return stack.distance is not None and stack.distance.differs(stack.voxel_size[0])


def _check_depth(stack: StackFigures) -> Check:
    beyond = stack.planes_not_imaged
    text = "Check --section_thickness: planes below the imaged depth are zero."
    return judge("Planes not imaged", "0", str(beyond), beyond > 0, text)


def _check_orientation(stack: StackFigures) -> Check:
    name, limit = "Section orientation", "all alike"
    flips_of = {title_of("", s.number): s.flipped for s in stack.sections}
    known = {title: flipped for title, flipped in flips_of.items() if flipped is not None}
    if not known:
        if stack.order is not None and (stack.order.exchanged or stack.order.repeated):
            return skip(name, limit, "A section in another place fits only by chance.")
        return skip(name, limit, missing_comparison(stack, "structure"))
    odd = {title: f"{title} fits if flipped along {axes}" for title, axes in known.items() if axes}
    # A section that is flipped twice is as imaged.
    flips = {s.number: _combine_flips(s.flip, s.flipped or "") for s in stack.sections}
    value = as_flips({number: axes for number, axes in flips.items() if axes})
    remedy = f"give --flip_sections '{value}'" if value else "omit --flip_sections"
    text = f"{join_titles([*odd.values()])}; {remedy}, and run again."
    return judge(name, limit, f"{len(odd)} of {len(known)} flipped", odd, text)


def _combine_flips(flip: str, other: str) -> str:
    """Axes of two flips, one after the other."""
    return "".join(axis for axis in "yx" if (axis in flip) != (axis in other))


def _check_order(
    order: OrderFigures, off_surface: Collection[str], copies: Collection[str]
) -> Check:
    """Check the order of sections but ``off_surface`` and ``copies``, which other checks name."""

    def both(pairs: Sequence[tuple[int, int]]) -> list[list[str]]:
        titles = [[title_of("", number) for number in pair] for pair in pairs]
        return [pair for pair in titles if not {*pair} & {*off_surface, *copies}]

    exchanged, repeated, unmatched = map(both, (order.exchanged, order.repeated, order.unmatched))
    texts = [f"{join_titles(pair)} fit in each other's place; exchange them" for pair in exchanged]
    texts += [f"{b} shows the tissue of {a} again; leave one of them out" for a, b in repeated]
    in_pairs = {title for pair in (*exchanged, *repeated) for title in pair}
    apart = [pair for pair in unmatched if not {*pair} & in_pairs]
    if apart:
        pairs = ", ".join(join_titles(pair).replace(", ", " and ") for pair in apart)
        texts.append(
            f"{pairs} do not match, even exchanged or flipped, although others do; look at the "
            "pictures"
        )
    odd = [title for pair in (*exchanged, *repeated, *apart) for title in pair]
    value = f"{len(exchanged) + len(repeated) + len(apart)} of {order.compared} pairs"
    return judge("Section order", "all match", value, odd, f"{'; '.join(texts)}.")


def _check_alignment(stack: StackFigures, off_surface: Collection[str]) -> Check:
    """Check displacements but of ``off_surface`` sections, whose first planes show no tissue."""
    name, limit = "Section alignment", f"{SHIFT_LIMIT:g} voxel, {ROTATION_LIMIT:g}°"
    if any(s.flipped for s in stack.sections):
        return skip(name, limit, "A mirrored section fits its neighbours only by chance.")
    if stack.order is not None and (stack.order.exchanged or stack.order.repeated):
        return skip(name, limit, "A section in another place fits only by chance.")
    if _has_other_distance(stack):
        return skip(name, limit, "Sections meet where they show different tissue.")
    if not np.isclose(*stack.voxel_size[1:]):
        return skip(
            name, limit, "Give voxels one size in y and x: only then are sections compared."
        )
    imaged = {title_of("", s.number): s for s in stack.sections if not s.missing}
    given = [title for title, s in imaged.items() if s.given]
    if given and len(given) == len(imaged):
        return skip(name, limit, "The user gave all displacements.")
    # Given ones are as the user wants them.
    compared = {title: s for title, s in imaged.items() if not s.given and title not in off_surface}
    known = {t: (np.hypot(*s.shift), abs(s.rotation or 0)) for t, s in compared.items() if s.shift}
    pairs = join_titles([f"{a} and {b}" for a, b in stack.unlike])
    pairs = f"Sections {pairs}" if pairs else ""
    if not known and (stack.align in (None, "none") or len(compared) < 2):
        if len(compared) < 2 <= len(compared) + len(off_surface):
            return skip(
                name, limit, "The surfaces of these sections do not lie at the given depth."
            )
        reason = f"{pairs}: no structure in common." if pairs else ""
        return skip(name, limit, reason or missing_comparison(stack, "structure"))
    shift, turn = (max((float(v[k]) for v in known.values()), default=0.0) for k in (0, 1))
    if stack.align == "none":
        most = SHIFT_LIMIT * stack.voxel_size[1]
        odd = [title for title, (by, angle) in known.items() if by > most or angle > ROTATION_LIMIT]
        way = "rigid" if turn > ROTATION_LIMIT / 5 else "translation"
        text = f"{join_titles(odd)}: displaced relative to the others; check "
        text += f"--section_thickness, or try --stack_align {way}."
        value = f"up to {shift:.1f} µm and {turn:.2f}°"
        value += f"; {pairs} not compared" if pairs else ""
        value += f"; {join_titles(given)} as given" if given else ""
        value += f"; {join_titles([*off_surface])} not compared" if off_surface else ""
        return judge(name, limit, value, odd, text)
    apart = [title_of("", number) for pair in stack.unlike for number in pair]
    unmatched = [title for title in compared if title not in known and title not in apart]
    text = f"{join_titles(unmatched)}: without a matching neighbour, not moved"
    words = [text] if unmatched else []
    words += [f"{pairs}: no structure in common, not aligned"] if pairs else []
    text = f"{'; '.join(words)}; check --section_surface and the pictures."
    value = f"up to {shift:.1f} µm and {turn:.2f}°, moved back"
    value += f"; {join_titles(given)} as given" if given else ""
    value += f"; {join_titles([*off_surface])} not compared" if off_surface else ""
    return judge(name, "all match", value, [*unmatched, *apart], text)


def state_of(checks: Sequence[Check]) -> State:
    """Return the state of a subject: ``look`` also if nothing could be checked."""
    states = {check.state for check in checks}
    if "incomplete" in states:
        return "incomplete"
    return "good" if "good" in states and "warning" not in states else "look"


def verdict(checks: Sequence[Check], notes: int) -> str:
    """Say in one sentence what to look at; ``notes`` counts the tasks' remarks."""
    if state_of(checks) == "incomplete":
        return f"Incomplete: {checks[0].sentence}"
    warned = [check.name for check in checks if check.state == "warning"]
    count = counted(sum(check.state != "not checked" for check in checks), "check")
    remarks = f" {counted(notes, 'note')} from tasks." if notes else ""
    if warned:
        return f"Look at {len(warned)} of {count}: {', '.join(warned)}.{remarks}"
    if state_of(checks) == "look":
        return f"Nothing could be checked.{remarks}"
    return f"Good: {count} passed.{remarks}"
