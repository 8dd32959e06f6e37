"""The verdict on a subject: checks of its records, each with its limit and, if needed, a remedy."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from octane.config.validation import as_flips, as_ranges
from octane.core.records import Outcome
from octane.core.units import counted
from octane.processes.n4.record import N4Figures
from octane.processes.report.brightness import (
    banded,
    bright,
    compensated,
    converged,
    effect,
    even,
    exposed,
    field,
    focused,
    held_out,
    jumps,
    saturated,
    variation,
)
from octane.processes.report.check import (
    NO_SETTINGS,
    Check,
    Settings,
    judged,
    listed,
    titled,
    unchecked,
    unlike,
)
from octane.processes.report.summary import ABSENT, SectionQuality, outliers, title_of
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
    fitting,
)

SEAM = 0.1
"""Largest acceptable seam along an axis, without shading and speckle: most wrong overlaps exceed
it."""
DISPLACED = 1.0
"""Largest acceptable shift of a section, voxels."""
ROTATED = 1.0
"""Largest acceptable rotation of a section, degrees."""
WORST = 0.2
"""Largest acceptable single seam, without shading and speckle: tissue that differs exceeds it."""
STANDS_OUT = 3.0
"""The same over the section's usual seam: where all seams are high, none stands out."""
UNTEXTURED = "Neighbouring tiles have too little structure in common, or too much speckle, to tell."
SINGLE = "No tiles overlap along this axis."
COMPARED = 5
"""Minimum number of sections to compare: fewer may each show different anatomy."""
UNLIKE = 0.5
"""Seam above which tiles that correlate nowhere show different tissue: a wrong overlap gives
less."""
NARROW = 0.05
"""Smallest given overlap, fraction of a tile, in which neighbours can be compared."""
SURE = 2.0
"""Standard deviations within which a measured difference tells nothing."""
DIMMING = (
    *("Missing sections", "Section surface", "Section brightness"),
    *("Section orientation", "Section order", "Section alignment"),
)
"""Checks of faults that make brightness jump where a section begins."""
State = Literal["incomplete", "look", "good"]
"""State of a subject, worst first; ``incomplete`` lacks results that its plan expects."""


def checks(
    quality: Sequence[SectionQuality],
    stitched: Mapping[str, StitchFigures],
    stack: StackFigures | None,
    n4: N4Figures | None,
    threshold: float | None = None,
    lost: Outcome | None = None,
    settings: Settings = NO_SETTINGS,
) -> list[Check]:
    """List all checks of a subject in the order of the workflow.

    ``stitched`` is keyed by record name, ``threshold`` is N4's convergence threshold, and ``lost``
    is None if the results are complete; ``settings`` tell which remedies were taken.
    """
    sections = {title_of(name, own.section): own for name, own in stitched.items()}
    found = [] if lost is None else [_incomplete(lost)]
    found.append(_absent(quality, sections))
    if sections:
        found += [_seams(axis, sections) for axis in "yx"]
        found += [_overlap(axis, sections, settings) for axis in "yx"]
        found += [_places(sections), _covered(sections), exposed(sections, settings)]
        found += [saturated(sections), focused(sections)]
        if any(own.not_imaged for own in sections.values()):
            found.append(_imaged(sections))
        found.append(even(sections, settings))
        found += [own for own in [held_out(sections)] if own]
        found.append(_alike("Seams of a section", {s.title: s.seam_median for s in quality}))
        shaded = {title: own.shading_before for title, own in sections.items()}
        found.append(_alike("Shading of a section", shaded, COMPARED))
    if stack:
        cut = (_surface(quality, stack.voxel_size[0], settings), _thickness(stack))
        found += [own for own in cut if own]
        covered = _elsewhere(quality, stack.voxel_size[0])
        found += [_depth(stack), bright(stack, settings)]
        found += [own for own in [compensated(stack)] if own]
        found.append(_flipped(stack))
        if stack.order is not None:
            found.append(_ordered(stack.order, covered, found[0 if lost is None else 1].sections))
        found.append(_placed(stack, covered))
    if n4:
        made = (converged(n4, threshold), effect(n4), field(n4), variation(n4))
        found += [own for own in made if own]
        varied = {s.title: s.cv_after for s in quality}
        found.append(_alike("Variation of a section", varied, COMPARED))
    if stack or n4:
        marked = {title for own in found if own.name in DIMMING for title in own.sections}
        if stack and _is_contradicted(stack):
            marked |= {title_of("", s.number) for s in stack.sections}
        found.append(banded(stack, n4, settings, marked))
        if n4 and (own := jumps(n4, settings)):
            found.append(own)
    return found


def _incomplete(lost: Outcome) -> Check:
    value = f"{counted(len(lost.missing), 'task')} not done" if lost.missing else "of changed input"
    return Check("Results", value, "all", "incomplete", lost.sentence, tuple(lost.sections))


def _absent(quality: Sequence[SectionQuality], sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = "Missing sections", "none"
    if not quality:
        return unchecked(name, limit, "The volume does not consist of sections.")
    gone = [section.title for section in quality if section.state in ABSENT]
    text = f"{titled(gone)}: missing and left blank, as --allow_missing_sections permits."
    if any(section.state == "unfinished" for section in quality):
        text = f"{titled(gone)}: not finished."
    first: dict[object, str] = {}
    # Records of earlier versions lack a digest.
    seams = {title: (own.seam_median, own.seam_max) for title, own in sections.items()}
    keys = {t: own.digest or (seams[t] if seams[t][0] else "") for t, own in sections.items()}
    same = {t: first[own] for t, own in keys.items() if own and first.setdefault(own, t) != t}
    if same:
        pairs = titled([f"{t} holds the same image as {other}" for t, other in same.items()])
        right = "correct image" if len(same) == 1 else "correct images"
        text = f"{pairs}; copy the {right}." + (f" {text}" if gone else "")
    odd = [*gone, *same]
    excluded = [s.number for s in quality if s.state == "excluded" and s.number is not None]
    value = f"{len(odd)} of {len(quality) - len(excluded)}"
    value += f"; excluded by the user: {as_ranges(excluded)}" if excluded else ""
    return judged(name, limit, value, odd, text)


def _seams(axis: str, sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = f"Seams along {axis}", f"{100 * SEAM:.0f} % plus speckle"
    of = {title: own.mismatch(axis) for title, own in sections.items()}
    known = {title: seam for title, seam in of.items() if seam is not None}
    if not known:
        return unchecked(name, limit, SINGLE)
    high = [title for title, seam in known.items() if seam > SEAM]
    text = (
        f"{titled(high)}: neighbouring tiles differ strongly in their overlap along {axis}; check "
        "--overlap or --positions"
    )
    text = (f"{text}{_or_refine(sections)}." if high else "") + _stands_out(axis, sections, high)
    worst = sections[max(known, key=lambda title: known[title])]
    seam, speckle = (100 * getattr(worst, f"{kind}_{axis}") for kind in ("seam", "speckle"))
    alone = [title for title, own in sections.items() if _worst(axis, own) is not None]
    value = f"{seam:.1f} %, speckle {speckle:.1f} %"
    most = [pair.mismatch for s in sections.values() if (pair := getattr(s, f"worst_{axis}"))]
    value += f"; up to {100 * max(most):.1f} % without it" if most else ""
    return judged(name, limit, value, [*high, *alone], text)


def _worst(axis: str, section: StitchFigures) -> SeamFigures | None:
    """The largest seam along an axis, if it stands out among the section's seams."""
    pair, usual = getattr(section, f"worst_{axis}"), section.mismatch(axis) or 0.0
    return pair if pair and pair.mismatch > max(WORST, STANDS_OUT * usual) else None


def _stands_out(axis: str, sections: Mapping[str, StitchFigures], high: Collection[str]) -> str:
    """Name the largest seams of sections whose other seams are not ``high``."""
    odd = {t: _worst(axis, own) for t, own in sections.items() if t not in high}
    words = [
        f"{title}, row {pair.first[0]}, column {pair.first[1]} and row {pair.second[0]}, column "
        f"{pair.second[1]} differ by {pair.mismatch:.0%}"
        for title, pair in odd.items()
        if pair is not None
    ]
    text = f"{titled(words)}, far more than other tiles along {axis}; look at their pictures."
    return (" " if high else "") + text if words else ""


def _or_refine(sections: Mapping[str, StitchFigures]) -> str:
    """The remedy of refinement, unless it was taken."""
    taken = any(own.nominal_positions for own in sections.values())
    return "" if taken else ", or try --stitch_refine"


def _overlap(axis: str, sections: Mapping[str, StitchFigures], settings: Settings) -> Check:
    name = f"Overlap along {axis}"
    every = [(title, o) for title, own in sections.items() for o in own.overlaps]
    known = [own for _, own in every if own.axis == axis and own.found is not None]
    is_placed = settings.stitch.get("positions") == FROM_TABLE
    turned = {title: own.turned for title, own in every if own.axis == axis and own.turned}
    if turned:
        words = " or ".join(sorted({*turned.values()}))
        remedy = CORRECT_PLACES if is_placed else "write their mosaics so"
        text = f"{titled([*turned])}: tiles fit their neighbours only if {words}; {remedy}."
        return judged(name, "as given", "none", turned, text)
    if not known:
        apart = [
            title
            for title, own in sections.items()
            if (own.mismatch(axis) or 0) > UNLIKE
            and all(o.given >= NARROW for o in own.overlaps if o.axis == axis)
        ]
        text = (
            f"{titled(apart)}: tiles do not fit their neighbours at any overlap along {axis}; "
            "check whether tiles are mirrored, transposed or in another order"
        )
        even = settings.stitch.get("flat_field", "none") != "none"
        text += "." if even else ", and correct their shading with --stitch_flat_field."
        seen = any(own.axis == axis for _, own in every)
        unknown = unchecked(name, "as given", UNTEXTURED if seen else SINGLE)
        return judged(name, "as given", "none", apart, text) if apart else unknown
    given, found = (float(np.median([getattr(o, k) for o in known])) for k in ("given", "found"))
    other = {title: own.found for title, own in every if own.axis == axis and own.better}
    fits = float(np.median([*other.values()] or [found]))
    remedy = f"give --overlap {fitting([own for _, own in every])}, or correct --positions"
    text = (
        f"{titled([*other])}: tiles correlate at an overlap of {fits:.3f} of a tile along "
        f"{axis}, not {given:.3g}; {CORRECT_PLACES if is_placed else remedy}."
    )
    return judged(name, f"{given:.3g}, as given", f"{found:.3f} of a tile", other, text)


def _places(sections: Mapping[str, StitchFigures]) -> Check:
    name, limit = "Tiles out of place", "none"
    if not any(o.found is not None or s.misplaced for s in sections.values() for o in s.overlaps):
        seen = any(own.overlaps for own in sections.values())
        return unchecked(name, limit, UNTEXTURED if seen else "No tiles overlap.")
    odd = [(title, own, tile) for title, own in sections.items() for tile in own.misplaced]
    plain = [(s, t) for _, s, t in odd if t.planes is None and t.copy_of is None]
    rows = [f"row {s.number},{t.row},{t.column}" for s, t in plain]
    said = [(t, f"{title}, {t.sentence}") for title, _, t in odd]
    deep = [text for t, text in said if t.planes is not None]
    twice = [text for t, text in said if t.copy_of is not None]
    aside = [text for _, text in said if text not in (*deep, *twice)]
    texts = []
    if aside:
        texts.append(
            f"{titled(aside)}; correct the mosaic, "
            f"or change {rows[0] if len(rows) == 1 else 'their rows'} in a copy of "
            f"SUBJECT_positions.csv and give it as --positions{_or_refine(sections)}."
        )
    if twice:
        its = "its image" if len(twice) == 1 else "their images"
        texts.append(f"{titled(twice)}; copy {its} again.")
    if deep:
        texts.append(
            f"{titled(deep)}; give a copy of SUBJECT_positions.csv with a column z in micrometres "
            f"as --positions{_or_refine(sections)}."
        )
    why = "; ".join(dict.fromkeys(s.not_in_z for s in sections.values() if s.not_in_z))
    moved = sum(len(own.depths) for own in sections.values())
    words = [str(len(odd)), *[f"{moved} moved in z"] * bool(moved)]
    words += [f"z not compared ({why})"] if why else []
    return judged(name, limit, "; ".join(words), [title for title, *_ in odd], " ".join(texts))


def _covered(sections: Mapping[str, StitchFigures]) -> Check:
    gaps = {t: own.uncovered_pixels for t, own in sections.items() if own.uncovered_pixels}
    text = f"{titled([*gaps])}: pixels between tiles are zero; check --overlap or --positions."
    return judged("Pixels without a tile", "0", str(sum(gaps.values())), gaps, text)


def _imaged(sections: Mapping[str, StitchFigures]) -> Check:
    """Check tiles that are declared as not imaged: corners are often left out, tissue is not."""
    every = sum(own.tiles for own in sections.values())
    gone = sum(len(own.not_imaged) for own in sections.values())
    odd = {title: own.holes for title, own in sections.items() if own.holes}
    lost = [
        f"row {tiles[0][0]}, column {tiles[0][1]} of {title}"
        + (f" and {counted(len(tiles) - 1, 'more tile')}" if tiles[1:] else "")
        for title, tiles in odd.items()
    ]
    text = f"Not imaged, although neighbours show tissue there or surround it: {titled(lost)}; "
    text += "the volume is zero there unless you image it again."
    return judged("Tiles not imaged", "none in tissue", f"{gone} of {every}", odd, text)


def _alike(name: str, figures: Mapping[str, float | None], least: int = 3) -> Check:
    limit = "none stands out"
    known = sum(figure is not None for figure in figures.values())
    if known < least:
        return unchecked(name, limit, f"Fewer than {least} sections can be compared.")
    far = zip(figures, outliers([*figures.values()])[1], strict=True)
    out = [title for title, is_far in far if is_far]
    text = f"{titled(out)}: far above the other sections; look at the pictures."
    return judged(name, limit, f"{len(out)} of {known}", out, text)


def _because(reasons: Mapping[str, str]) -> str:
    """List titles by their reasons: Sections 2, 3 (no light), Section 4 (two interfaces)."""
    groups: dict[str, list[str]] = {}
    for title, reason in reasons.items():
        groups.setdefault(reason, []).append(title)
    return listed([titled(own) + f" ({why})" * bool(why) for why, own in groups.items()])


def _between(values: Collection[float]) -> str:
    """Format the range of values in micrometres."""
    low, high = (f"{round(end, 1):g}" for end in (min(values), max(values)))
    return f"{low} µm" if low == high else f"{low} to {high} µm"


def _elsewhere(quality: Sequence[SectionQuality], plane: float) -> list[str]:
    """Titles of sections whose surface lies elsewhere than at the given depth."""
    return [
        s.title
        for s in quality
        if s.surface is not None and s.surface.depth is not None
        and s.slab is not None and s.slab.surface is not None
        and s.slab.surface_from == AS_GIVEN
        and abs(s.surface.depth - s.slab.surface) > plane + SURE * (s.surface.depth_std or 0)
    ]  # fmt: skip


def _surface(quality: Sequence[SectionQuality], plane: float, settings: Settings) -> Check | None:
    """Check the surfaces at which STACK cropped the sections; None if none was looked for."""
    slabs = {s.title: s.slab for s in quality if s.slab and not s.slab.missing}
    used = {title: own.surface for title, own in slabs.items() if own.surface is not None}
    seen = {s.title: s.surface for s in quality if s.surface and s.title in used}
    depths = {title: own.depth for title, own in seen.items() if own.depth is not None}
    reasons = {title: own.reason for title, own in seen.items() if own.depth is None}
    auto = any(slabs[title].surface_from != AS_GIVEN for title in used)
    if not (auto or seen):
        return None
    name, limit = (
        "Section surface",
        f"{'measured, flat' if auto else 'as given'} within {plane:.4g} µm",
    )
    if not seen:
        return unchecked(name, limit, "Other runs stitched these sections: see STACK's log.")
    if not depths:
        return unchecked(name, limit, f"{_because(reasons)}: no surface was measured.")
    off = _elsewhere(quality, plane)
    texts = []
    if off:
        there, here = (_between([of[title] for title in off]) for of in (depths, used))
        texts.append(f"{titled(off)}: the surface lies {there} deep, but {here} is cropped.")
    rises = {s.title: s.rise for s in quality if s.rise and s.title in depths}
    steep = {t: high for t, (high, std) in rises.items() if high > plane + SURE * std}
    if steep:
        most = _between([max(steep.values())])
        texts.append(f"{titled([*steep])}: the surface rises by up to {most} across the section.")
    options = ["--section_surface auto"] * (not auto) + ["--section_level true"] * bool(
        steep and not settings.stack.get("section_level")
    )
    if texts and options:
        texts.append(f"Give {' and '.join(options)}.")
    lost = [title for title in used if auto and slabs[title].surface_from != MEASURED]
    if lost:
        named = _because({title: reasons.get(title, "") for title in lost})
        here = _between([used[title] for title in lost])
        texts.append(f"{named}: no surface was measured, {here} is cropped; look at the pictures.")
    rough = {t: own.rough for t, own in seen.items() if auto and own.rough and own.rough > plane}
    if rough:
        by = _between(rough.values())
        texts.append(f"{titled([*rough])}: the surface is {by} off a plane; look for torn tissue.")
    value = f"{_between(depths.values())} deep"
    value += f", {len(depths)} of {len(used)} measured" if 0 < len(depths) < len(used) else ""
    return judged(name, limit, value, [*off, *steep, *lost, *rough], " ".join(texts))


def _thickness(stack: StackFigures) -> Check | None:
    """Check that the thickness of each section was measured, or that taken; None if unknown."""
    every = {title_of("", s.number): s for s in stack.sections}
    lost = {title: s.thickness_reason for title, s in every.items() if s.thickness_reason}
    known = [s.measured_thickness for s in every.values() if s.measured_thickness is not None]
    if not (lost or known) and stack.distance is not None:
        own, plane = stack.distance, stack.voxel_size[0]
        limit = f"{own.taken:.4g} µm, as taken, within {plane:.4g} µm"
        value, differs = f"{own.measured:.4g} µm", _is_contradicted(stack)
        return judged("Section thickness", limit, value, differs, own.sentence)
    if not (lost or known):
        return None
    texts = []
    for taken in (MEDIAN, BY_DEPTH, "as stated"):
        own = {
            title: why
            for title, why in lost.items()
            if every[title].thickness_from == taken
            or (taken == "as stated" and every[title].thickness_from not in (MEDIAN, BY_DEPTH))
        }
        texts += [f"{_because(own)}: not measured, so it is {taken}"] * bool(own)
    are_stated = all(every[title].thickness_from != BY_DEPTH for title in lost)
    remedy = "look at the pictures" if are_stated else "give --section_thickness"
    text = f"{'; '.join(texts)}; {remedy}."
    value = _between(known) if known else "none measured"
    return judged("Section thickness", "measured", value, lost, text)


def _is_contradicted(stack: StackFigures) -> bool:
    """Tell whether neighbours show the same tissue at another distance than was taken."""
    return stack.distance is not None and stack.distance.differs(stack.voxel_size[0])


def _depth(stack: StackFigures) -> Check:
    beyond = stack.planes_not_imaged
    text = "Planes below the imaged depth are zero; check --section_thickness."
    return judged("Planes not imaged", "0", str(beyond), beyond > 0, text)


def _flipped(stack: StackFigures) -> Check:
    name, limit = "Section orientation", "all alike"
    every = {title_of("", s.number): s.flipped for s in stack.sections}
    known = {title: flipped for title, flipped in every.items() if flipped is not None}
    if not known:
        if stack.order is not None and (stack.order.exchanged or stack.order.repeated):
            return unchecked(name, limit, "A section in another place fits only by chance.")
        return unchecked(name, limit, unlike(stack, "structure"))
    odd = {title: f"{title} fits if flipped along {axes}" for title, axes in known.items() if axes}
    # A section that is flipped twice is as imaged.
    flips = {s.number: _combined(s.flip, s.flipped or "") for s in stack.sections}
    value = as_flips({number: axes for number, axes in flips.items() if axes})
    remedy = f"give --flip_sections '{value}'" if value else "omit --flip_sections"
    text = f"{titled([*odd.values()])}; {remedy}, and run again."
    return judged(name, limit, f"{len(odd)} of {len(known)} flipped", odd, text)


def _combined(flip: str, other: str) -> str:
    """Axes of two flips, one after the other."""
    return "".join(axis for axis in "yx" if (axis in flip) != (axis in other))


def _ordered(order: OrderFigures, covered: Collection[str], copied: Collection[str]) -> Check:
    """Check the order of sections but those of ``covered`` or ``copied`` ones, named elsewhere."""

    def both(pairs: Sequence[tuple[int, int]]) -> list[list[str]]:
        titles = [[title_of("", number) for number in pair] for pair in pairs]
        return [pair for pair in titles if not {*pair} & {*covered, *copied}]

    exchanged, repeated, unmatched = map(both, (order.exchanged, order.repeated, order.unmatched))
    texts = [f"{titled(pair)} fit in each other's place; exchange them" for pair in exchanged]
    texts += [f"{b} shows the tissue of {a} again; leave one of them out" for a, b in repeated]
    named = {title for pair in (*exchanged, *repeated) for title in pair}
    apart = [pair for pair in unmatched if not {*pair} & named]
    if apart:
        pairs = ", ".join(titled(pair).replace(", ", " and ") for pair in apart)
        texts.append(
            f"{pairs} do not match, in this order or another, flipped or not, although others do; "
            "look at the pictures"
        )
    odd = [title for pair in (*exchanged, *repeated, *apart) for title in pair]
    value = f"{len(exchanged) + len(repeated) + len(apart)} of {order.compared} pairs"
    return judged("Section order", "all match", value, odd, f"{'; '.join(texts)}.")


def _placed(stack: StackFigures, covered: Collection[str]) -> Check:
    """Check displacements but those of ``covered`` sections, whose first planes show no tissue."""
    name, limit = "Section alignment", f"{DISPLACED:g} voxel, {ROTATED:g}°"
    if any(s.flipped for s in stack.sections):
        return unchecked(name, limit, "A mirrored section fits its neighbours only by chance.")
    if stack.order is not None and (stack.order.exchanged or stack.order.repeated):
        return unchecked(name, limit, "A section in another place fits only by chance.")
    if _is_contradicted(stack):
        return unchecked(name, limit, "Sections meet where they show different tissue.")
    if not np.isclose(*stack.voxel_size[1:]):
        return unchecked(name, limit, "Sections are only compared if voxels are square in y and x.")
    imaged = {title_of("", s.number): s for s in stack.sections if not s.missing}
    given = [title for title, s in imaged.items() if s.given]
    if given and len(given) == len(imaged):
        return unchecked(name, limit, "All displacements are those that the user gave.")
    # Given ones are as the user wants them.
    own = {title: s for title, s in imaged.items() if not s.given and title not in covered}
    known = {t: (np.hypot(*s.shift), abs(s.rotation or 0)) for t, s in own.items() if s.shift}
    pairs = f"Sections {titled([f'{a} and {b}' for a, b in stack.unlike])}" if stack.unlike else ""
    if not known and (stack.align in (None, "none") or len(own) < 2):
        if len(own) < 2 <= len(own) + len(covered):
            return unchecked(
                name, limit, "The surfaces of these sections lie elsewhere than given."
            )
        reason = f"{pairs}: no structure in common." if pairs else unlike(stack, "structure")
        return unchecked(name, limit, reason)
    shift, turn = (max((float(v[k]) for v in known.values()), default=0.0) for k in (0, 1))
    if stack.align == "none":
        most = DISPLACED * stack.voxel_size[1]
        odd = [title for title, (by, angle) in known.items() if by > most or angle > ROTATED]
        way = "rigid" if turn > ROTATED / 5 else "translation"
        text = (
            f"{titled(odd)}: displaced relative to the others; check --section_thickness, or try "
        )
        text += f"--stack_align {way}."
        value = f"up to {shift:.1f} µm and {turn:.2f}°"
        value += f"; {pairs} not compared" if pairs else ""
        value += f"; {titled(given)} as given" if given else ""
        value += f"; {titled([*covered])} not compared" if covered else ""
        return judged(name, limit, value, odd, text)
    apart = [title_of("", number) for pair in stack.unlike for number in pair]
    lost = [title for title in own if title not in known and title not in apart]
    words = [f"{titled(lost)}: without a matching neighbour, not moved"] if lost else []
    words += [f"{pairs}: no structure in common, not aligned"] if pairs else []
    text = f"{'; '.join(words)}; check --section_surface and the pictures."
    value = f"up to {shift:.1f} µm and {turn:.2f}°, moved back"
    value += f"; {titled(given)} as given" if given else ""
    value += f"; {titled([*covered])} not compared" if covered else ""
    return judged(name, "all match", value, [*lost, *apart], text)


def state_of(found: Sequence[Check]) -> State:
    """Return the state of a subject: ``look`` also if nothing could be checked."""
    states = {check.state for check in found}
    if "incomplete" in states:
        return "incomplete"
    return "good" if "good" in states and "warning" not in states else "look"


def verdict(found: Sequence[Check], notes: int) -> str:
    """Say in one sentence what to look at; ``notes`` counts the tasks' remarks."""
    if state_of(found) == "incomplete":
        return f"Incomplete: {found[0].sentence}"
    warned = [check.name for check in found if check.state == "warning"]
    made = counted(sum(check.state != "not checked" for check in found), "check")
    noted = f" {counted(notes, 'note')} from tasks." if notes else ""
    if warned:
        return f"Look at {len(warned)} of {made}: {', '.join(warned)}.{noted}"
    if state_of(found) == "look":
        return f"Nothing could be checked.{noted}"
    return f"Good: {made} passed.{noted}"
