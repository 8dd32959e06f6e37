"""STACK: the sections of a subject on top of each other, with their boundaries recorded."""

import csv
import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.compare.faces import Faces, boundaries, ends_of, mean_jumps
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.config.types import AUTO
from octane.config.validation import as_flips
from octane.core.arrays import as_dtype, require_cpu
from octane.core.errors import InputError
from octane.core.files import writing
from octane.core.geometry import Grid, Region, blocks, bounds, place_in, shape_of
from octane.core.metrics import Metrics
from octane.core.records import JumpFigures, read_reference
from octane.layout.sections import (
    blended_planes,
    imaged_plane,
    list_numbers,
    read_sections,
    require_alike,
    require_one_orientation,
)
from octane.pipeline.cuts import CUT, Cuts
from octane.pipeline.lanes import Lane, run_pipeline
from octane.processes.stack.borders import blend_border
from octane.processes.stack.faces import (
    brightness,
    brightness_steps,
    find_order_errors,
    proposed_flips,
)
from octane.processes.stack.facing import Fit, fit_sections, needed_alignment
from octane.processes.stack.layout.arrangement import Arrangement, arrange_like, realign_slabs
from octane.processes.stack.layout.borders import blend_warnings, borders
from octane.processes.stack.layout.displacement import COLUMNS, Displacement
from octane.processes.stack.layout.flips import flip_axes, flip_images
from octane.processes.stack.layout.stack import (
    BY_TABLE,
    SectionSlab,
    arrange_slabs,
    describe_thickness,
    distance_warnings,
    imaged_box,
    lay_out,
    overlap_warnings,
    surface_warnings,
    table_displacements,
    table_thicknesses,
    with_thicknesses,
)
from octane.processes.stack.layout.surfaces import require_surfaces
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import (
    BY_DEPTH,
    MEASURED,
    MEDIAN,
    DistanceFigures,
    OrderFigures,
    StackFigures,
)
from octane.processes.stack.shared_depth import Thickness, check_distance, measure_thicknesses
from octane.processes.stack.slab import block_workers, interpolate_section
from octane.processes.stack.thickness import MIN_CHANGE
from octane.store.channels import name_of
from octane.store.image import Image, open_image
from octane.store.stated import Attributes, stated_orientation
from octane.store.volumes import override_warnings
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)


class Measurements(NamedTuple):
    """Measurements of sections, and the ``given`` displacements, by number.

    ``align`` is how sections are moved. ``unlike`` lists the numbers of neighbours that nothing
    connects, and ``distance`` is that of few neighbours. ``shared_faces`` show the same tissue.
    """

    align: str
    displacements: dict[int, Displacement]
    given: dict[int, Displacement]
    thick: dict[int, Thickness]
    unlike: list[tuple[int, int]]
    distance: DistanceFigures | None
    order: OrderFigures | None
    shared_faces: dict[int, list[npt.NDArray[np.float64]]]


def _paste(result: npt.NDArray, region: Region, slab: SectionSlab, grid: Grid, lane: Lane) -> None:
    """Interpolate a section into a block that it may meet."""
    planes = slab.planes
    first, stop = max(planes.start, region[0].start), min(planes.stop, region[0].stop)
    if slab.image is None or first >= stop:
        return
    inside = slab.reached_planes(range(first, stop), grid)
    section = interpolate_section(slab, inside, region, grid, lane) if len(inside) else None
    if section is None:
        return
    values, (rows, columns) = section
    with lane.timed("compute"):
        place = place_in(region, (slice(first, first + len(inside)), rows, columns))
        result[place] = as_dtype(values, result.dtype)


def _unaligned_cut(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> npt.NDArray:
    """Cut (z, x) through the middle of y, before sections are moved, for the report."""
    _, ny, nx = grid.shape
    row = (slice(ny // 2, ny // 2 + 1), slice(0, nx))
    cut = np.zeros((grid.shape[0], 1, nx), dtype)
    sections = [slab for slab in slabs if slab.image is not None]

    def work(slab: SectionSlab, lane: Lane) -> int:
        planes = slice(slab.planes.start, slab.planes.stop)
        part = cut[planes]
        _paste(part, (planes, *row), slab, grid, lane)
        return part.nbytes

    workers = block_workers(sections, grid, dtype, len(sections), execution)
    run_pipeline(sections, work, label="STACK: unaligned cut", workers=workers, metrics=metrics)
    return cut[:, 0]


def _warn_no_match(
    fits: Fit, given: Collection[int], unlike: Sequence[tuple[int, int]], metrics: Metrics
) -> None:
    """Warn about sections that should be moved but match no neighbour."""
    numbers = [str(number) for number in fits.unmatched if number not in given]
    if numbers:
        listing = ", ".join(numbers)
        subject = f"Section {listing} does" if len(numbers) == 1 else f"Sections {listing} do"
        metrics.warn(
            f"{subject} not match any neighbour and will not be moved; look at the pictures."
        )
    apart = [f"{a} and {b}" for a, b in unlike if fits.displacements.keys() >= {a, b}]
    if apart:
        metrics.warn_in_report(
            f"Sections {', '.join(apart)} do not match: the stack is split there, and each part "
            "keeps its imaged position; look at the pictures."
        )


def stack_sections(
    sources: list[Path],
    destination: Path,
    parameters: StackParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    displacements: Path | None = None,
    save_displacements: Path | None = None,
    reference: Path | None = None,
) -> Metrics:
    """Stack sections into one volume.

    They are ordered by the number in their metadata or name. Each contributes the planes from its
    surface down to the next section's; deeper ones, which were imaged twice, are dropped. The
    boundaries are recorded in the volume's metadata. ``displacements`` is a CSV file of
    displacements to undo instead of measured ones; ``save_displacements`` is one to write, with
    those that were undone and those that were measured.

    ``reference`` is the record of STACK of another channel of the same sections. They are arranged
    like that channel's, whatever the ``parameters`` say; only their brightness is measured.

    Raises an OctaneError that names sections that do not fit together, gaps, wrong rows of the
    table, another record, or unusable output.
    """
    require_cpu(execution.backend, "STACK")
    if reference is not None and (displacements, save_displacements) != (None, None):
        raise InputError(
            f"The displacements are those in {reference}; omit --displacements and "
            "--save_displacements, or give them to STACK of the reference channel."
        )
    images = [open_image(path, reading) for path in sources]
    require_alike([(image.path, image.grid.spacing, image.dtype) for image in images])
    require_one_orientation(images)
    dtype, common = images[0].dtype, images[0].attributes
    metrics = Metrics("stack", channel=name_of(common), orientation=stated_orientation(common))
    for note in override_warnings(images):
        metrics.warn_in_report(note)
    if reference is None:
        given = "unset" if displacements is None else "from a table"
        images = flip_images(images, parameters.flips)
        placed, measured = _arrange_sections(images, parameters, execution, displacements, metrics)
    else:
        given = "those of the reference channel"
        record = read_reference(reference, "stack", StackFigures)
        images = flip_images(images, record.flips)
        placed, measured = arrange_like(images, record, reference), None
        done = {"align": record.align, "blend": record.blend}
        done["flip_sections"] = as_flips(record.flips) or None
        parameters = parameters.model_copy(update=done)
    metrics.settings = {"displacements": given} | parameters.recorded(reading)
    if placed.excluded:
        logger.info("STACK: excluded sections: %s", list_numbers(placed.excluded))
    if placed.missing:
        listing = ", ".join(map(str, placed.missing))
        subject = f"Section {listing} is" if len(placed.missing) == 1 else f"Sections {listing} are"
        metrics.warn(f"{subject} missing and left blank.")
    named = {
        key: common[key] for key in ("channel", "channel_kind", "orientation") if key in common
    }
    sections = _section_records(placed)
    stated = [a | b for a, b in zip(sections, _undone_displacements(placed), strict=True)]
    attributes: Attributes = {**named, "kind": "volume", "step": "stack", "sections": stated}
    grid, faces = placed.grid, _faces(placed)
    with create_image(
        destination,
        [Level.volume(grid)],
        dtype,
        codec=parameters.codec,
        attributes=attributes,
        overwrite=execution.overwrite,
    ) as (writer,):
        plane = imaged_plane(read_sections(attributes, grid.shape[0]), grid.shape[0])
        cuts = Cuts(writer, grid, dtype, plane)
        _write(destination, cuts, placed, dtype, faces, execution, metrics)
    beyond = _warn_blank(placed.slabs, grid, metrics)
    before, after = faces
    fits = _fit_figures(before, measured, placed.slabs, metrics)
    figures = StackFigures.model_validate(
        {
            "sections": [
                section | _place_figures(slab) | fits.get(slab.number, {})
                for section, slab in zip(sections, placed.slabs, strict=True)
            ],
            "boundaries": boundaries(after),
            "compensated": _jump_figures(before, placed.slabs, grid),
            "blend": parameters.blend,
            "align": parameters.align if measured is None else measured.align,
            "aligned": placed.aligned,
            "missing_sections": placed.missing,
            "excluded_sections": placed.excluded,
            "unlike": [] if measured is None else measured.unlike,
            "distance": None if measured is None else measured.distance,
            "order": None if measured is None else measured.order,
            "planes_not_imaged": beyond,
            "shape": grid.shape,
            "voxel_size": grid.spacing,
        }
    )
    metrics.add_figures(figures)
    if save_displacements is not None and measured is not None:
        _write_table(save_displacements, placed.slabs, measured, overwrite=execution.overwrite)
    return metrics


def _arrange_sections(
    images: list[Image],
    parameters: StackParameters,
    execution: ExecutionParameters,
    displacements: Path | None,
    metrics: Metrics,
) -> tuple[Arrangement, Measurements]:
    """Arrange sections as they state, as the table says and as measured on their neighbours."""
    require_surfaces(images, parameters)
    spacing, dtype = images[0].grid.spacing, images[0].dtype
    grid, slabs = lay_out(images, [*map(imaged_box, images)], parameters, spacing)
    given: dict[int, Displacement] = {}
    if displacements is not None:
        given = table_displacements(displacements, slabs, grid, parameters)
        slabs = with_thicknesses(slabs, table_thicknesses(displacements, slabs), BY_TABLE)
        grid, slabs = arrange_slabs(slabs, spacing)
    logger.info("STACK: %s", describe_thickness(slabs))
    contradicted = [] if parameters.section_thickness is not None else distance_warnings(slabs)
    for text in surface_warnings(slabs):
        metrics.warn(text)
    fits = fit_sections(slabs, grid, dtype, parameters, execution, metrics)
    thick: dict[int, Thickness] = {}
    distance: DistanceFigures | None = None
    _, placed = realign_slabs(slabs, grid, fits.displacements, given)
    if parameters.section_thickness != AUTO:
        distance = check_distance(placed, grid, fits.centre, dtype, execution, metrics)
        if distance is not None and distance.differs(spacing[0]):
            metrics.warn(distance.sentence)
    else:
        thick = measure_thicknesses(placed, grid, dtype, execution, metrics)
        grid, slabs, is_changed = _apply_thicknesses(slabs, grid, thick, metrics)
        if is_changed:
            # Other planes face each other, on which slanted tissue lies elsewhere.
            fits = fit_sections(slabs, grid, dtype, parameters, execution, metrics)
    order, align = _judge_order(fits, metrics), parameters.align
    if align == AUTO:
        is_elsewhere = distance is not None and distance.differs(spacing[0])
        fit_by_chance = is_elsewhere or _has_disorder(fits, order) or slabs[0].is_nearest
        align = "none" if fit_by_chance else needed_alignment(fits)
        if align != "none":
            finer = parameters.model_copy(update={"align": align})
            fits = fit_sections(slabs, grid, dtype, finer, execution, metrics)
    unshared = blend_warnings(slabs, parameters.blend, grid)
    for note in (*overlap_warnings(slabs), *contradicted, *unshared):
        metrics.warn_in_report(note)
    # Nothing connects these either, but the user has placed both.
    unlike = [pair for pair in fits.unlike if not given.keys() >= {*pair}]
    measured: dict[int, Displacement] = {}
    if align != "none":
        _warn_no_match(fits, given, unlike, metrics)
        measured = {n: move for n, move in fits.displacements.items() if n in fits.certain}
    aligned = align != "none" or any(map(any, given.values()))
    if aligned:
        cut = _unaligned_cut(slabs, grid, dtype, execution, metrics)
        grid, slabs = realign_slabs(slabs, grid, measured, given)
        # Pixels as large as those of the cuts through the volume.
        step = max(1, -(-max(grid.shape) // CUT))
        metrics.previews["unaligned_y"] = np.abs(cut[::step, ::step])
    met = borders(slabs, parameters.blend, grid)
    placed = Arrangement(grid, slabs, met, parameters.excluded, aligned)
    measurements = Measurements(
        align, fits.displacements, given, thick, unlike, distance, order, fits.shared_faces
    )
    return placed, measurements


def _has_disorder(fits: Fit, order: OrderFigures | None) -> bool:
    """Tell whether sections are mirrored, in another's place, or show the same tissue twice."""
    is_odd = order is not None and bool(order.exchanged or order.repeated)
    return is_odd or bool(fits.shared_faces and any(proposed_flips([*fits.shared_faces.values()])))


def _judge_order(fits: Fit, metrics: Metrics) -> OrderFigures | None:
    """Judge the order of sections by the tissue that neighbours share; None if they share none."""
    # A blank section shows nothing, which is said elsewhere.
    lit = {n: faces for n, faces in fits.shared_faces.items() if all(face.any() for face in faces)}
    numbers = [*lit]
    follows = [b == a + 1 for a, b in pairwise(numbers)]
    if not any(follows):
        return None
    with metrics.timed("check"):
        errors = find_order_errors([*lit.values()], follows)
    exchanged, repeated = ([(numbers[a], numbers[b]) for a, b in places] for places in errors)
    pairs = [pair for pair, is_next in zip(pairwise(numbers), follows, strict=True) if is_next]
    unfit = [pair for pair in pairs if pair in fits.unfit]
    unmatched = unfit if 2 * len(unfit) < len(pairs) else []
    return OrderFigures(
        compared=len(pairs), exchanged=exchanged, repeated=repeated, unmatched=unmatched
    )


def _apply_thicknesses(
    slabs: list[SectionSlab], grid: Grid, thicknesses: Mapping[int, Thickness], metrics: Metrics
) -> tuple[Grid, list[SectionSlab], bool]:
    """Lay out sections again with the measured thickness, and those not measured with the median.

    Returns the grid, the slabs, and True if they differ. Warns of sections that were not measured,
    but for the last, which cannot be.
    """
    voxel = grid.spacing[0]
    measured = {n: size for n, size in thicknesses.items() if not size.reason}
    sizes = {
        slab.number: measured[slab.number].size
        for slab in slabs
        if slab.number in measured and measured[slab.number].replaces(slab.thickness, voxel)
    }
    sized = with_thicknesses(slabs, sizes, MEASURED)
    usual = (
        median(slab.thickness for slab in sized if slab.number in measured) if measured else None
    )
    lacking = [
        f"{number} ({thickness.reason})"
        for number, thickness in thicknesses.items()
        if thickness.reason
    ]
    if lacking:
        one, several = ("it keeps", "they keep") if usual is None else ("it takes", "they take")
        whose, take = ("section", one) if len(lacking) == 1 else ("sections", several)
        what = (
            "the one that STACK takes without --section_thickness auto"
            if usual is None
            else f"the median of the others, {usual:g} micrometre, or all that was imaged if less"
        )
        metrics.warn(
            f"The thickness of {whose} {', '.join(lacking)} was not measured: {take} {what}."
        )
    if usual is not None:
        # The last one keeps what is stated, but not the imaged depth, which the others contradict.
        filled = {
            slab.number: min(usual, slab.extent[0])
            for slab in sized
            if slab.number not in measured
            and (slab.number in thicknesses or slab.thickness_from == BY_DEPTH)
            and abs(usual - slab.thickness) >= MIN_CHANGE * voxel
        }
        sized = with_thicknesses(sized, filled, MEDIAN)
    if [slab.thickness for slab in sized] == [slab.thickness for slab in slabs]:
        return grid, slabs, False
    grid, slabs = arrange_slabs(sized, grid.spacing)
    logger.info("STACK: %s", describe_thickness(slabs))
    return grid, slabs, True


def _thickness_figures(thickness: Thickness) -> dict[str, object]:
    """Figures of a section's measured thickness."""
    size, std, reason = thickness
    if reason:
        return {"thickness_reason": reason}
    return {"measured_thickness": size, "thickness_std": std}


def _section_records(placed: Arrangement) -> list[dict[str, object]]:
    """Sections as the volume's metadata and the record state them."""
    blended = {border.below.number: border.depth for border in placed.borders}
    return [
        {"name": s.name, "number": s.number, "start": s.planes.start, "stop": s.planes.stop}
        | {"missing": s.image is None}
        | {"top": placed.grid.edge[0] + s.surface - s.cut.depth}
        | ({"blended": blended[s.number]} if s.number in blended else {})
        | ({"flip": flip} if (flip := flip_axes(s.image)) else {})
        for s in placed.slabs
    ]


def _undone_displacements(placed: Arrangement) -> list[dict[str, object]]:
    """Displacement that was undone for each section; nothing if none was to be moved."""
    if not placed.aligned:
        return [{}] * len(placed.slabs)
    moves = [slab.displacement for slab in placed.slabs]
    return [{"shift": move[:2], "rotation": move.rotation} for move in moves]


def _faces(placed: Arrangement) -> tuple[Faces, Faces]:
    """Faces to gather before and after blending; none of values that do not measure brightness."""
    grid, slabs = placed.grid, [slab for slab in placed.slabs if slab.image is not None]
    imaged = {s.number: s.whole_planes(s.planes, grid) for s in slabs if not s.is_nearest}
    faces = Faces({number: ends_of(planes) for number, planes in imaged.items()}, grid.shape[1:])
    if not placed.borders:
        return faces, faces
    # The faces that are compared for brightness are those before blending, which hides it.
    depths = {border.below.number: border.depth for border in placed.borders}
    counts = {n: blended_planes(depth, grid.spacing[0]) for n, depth in depths.items()}
    ends = {number: ends_of(planes, counts.get(number, 0)) for number, planes in imaged.items()}
    return faces, Faces(ends, grid.shape[1:])


def _jump_figures(faces: Faces, slabs: Sequence[SectionSlab], grid: Grid) -> JumpFigures | None:
    """Jumps at section boundaries before and after STITCH compensated attenuation, if it did."""
    if not any(slab.has_compensation for slab in slabs):
        return None
    factors = {
        slab.number: [slab.compensation(face, grid) for face in faces.ends[slab.number]]
        for slab in slabs
        if slab.number in faces.ends
    }
    return mean_jumps(faces.divide(factors), faces)


def _place_figures(slab: SectionSlab) -> dict[str, object]:
    """Figures of a section's place, from which another channel's section is placed."""
    figures: dict[str, object] = {
        "thickness": slab.thickness,
        "thickness_from": slab.thickness_from,
    }
    if slab.image is None:
        return figures
    edge, extent = imaged_box(slab.image)
    depth, tilt, source = slab.cut
    cut = {"surface": depth, "surface_from": source, "levelled": tilt if any(tilt) else None}
    return figures | {"edge": edge, "extent": extent} | cut


def _warn_blank(slabs: Sequence[SectionSlab], grid: Grid, metrics: Metrics) -> int:
    """Warn of planes that were imaged nowhere, and return their number, or only in part."""
    sections = [slab for slab in slabs if slab.image is not None]
    beyond = sum(
        len(slab.planes) - len(slab.reached_planes(slab.planes, grid)) for slab in sections
    )
    if beyond:
        metrics.warn(
            "The section thickness exceeds the imaged depth: planes below it are zero; "
            "check --section_thickness."
        )
    parts = {
        slab.number: len(slab.reached_planes(slab.planes, grid))
        - len(slab.whole_planes(slab.planes, grid))
        for slab in sections
    }
    if numbers := [number for number, lacking in parts.items() if lacking]:
        tilted = "Section {} is" if len(numbers) == 1 else "Sections {} are"
        metrics.warn(
            f"{tilted.format(list_numbers(numbers))} tilted: up to {max(parts.values())} levelled "
            "planes of a section were imaged only in part and are zero elsewhere; check "
            "--section_thickness."
        )
    return beyond


def _fit_figures(
    faces: Faces, measured: Measurements | None, slabs: Sequence[SectionSlab], metrics: Metrics
) -> dict[int, dict[str, object]]:
    """Figures of how each section fits its neighbours, by number.

    Without ``measured``, as another channel decides on places, these are only brightness and
    displacement.
    """
    figures: dict[int, dict[str, object]] = {slab.number: {} for slab in slabs}
    pairs = [sums[:2] for sums in faces.sums.values()]
    if pairs:
        with metrics.timed("check"):
            flipped = (
                _propose_flips(faces, measured) if measured is not None else [None] * len(pairs)
            )
            judged = zip(
                faces.sums, brightness(pairs), brightness_steps(pairs), flipped, strict=True
            )
            for number, bright, step, flip in judged:
                figures[number] = {"brightness": bright, "step": step, "flipped": flip}
    displaced = {slab.number: slab.displacement for slab in slabs if any(slab.displacement)}
    given: Collection[int] = ()
    if measured is not None:
        displaced, given = measured.displacements | measured.given, measured.given
    for slab in (slab for slab in slabs if slab.number in displaced):
        move, moved = displaced[slab.number], any(slab.displacement)
        figures[slab.number].update(shift=move[:2], rotation=move.rotation, moved=moved)
        figures[slab.number]["given"] = slab.number in given
    if measured is not None:
        for number, thickness in measured.thick.items():
            figures[number].update(_thickness_figures(thickness))
    return figures


def _propose_flips(faces: Faces, measured: Measurements) -> list[str | None]:
    """Axes along which sections must be flipped, on planes of the same tissue if there are any."""
    order = measured.order
    if order is not None and (order.exchanged or order.repeated):
        # Such a section fits its neighbours flipped or not by chance.
        return [None] * len(faces.sums)
    same = measured.shared_faces.keys() >= faces.sums.keys()
    return proposed_flips(
        [measured.shared_faces[n] if same else sums[:2] for n, sums in faces.sums.items()]
    )


def _write_table(
    path: Path,
    slabs: Sequence[SectionSlab],
    measured: Measurements,
    *,
    overwrite: bool,
) -> None:
    """Write the displacement of each section that was undone, and the measured one.

    Its thickness follows, empty if it is the stated one, and the measured one.
    """
    header = (*COLUMNS, *(f"measured_{name}" for name in COLUMNS[1:]))
    header = (*header, "thickness", "measured_thickness")
    rows = [
        (
            *(slab.number, *slab.displacement),
            *measured.displacements.get(slab.number, ("", "", "")),
            slab.thickness if slab.thickness_from in (BY_TABLE, MEASURED, MEDIAN) else "",
            _thickness_figures(measured.thick[slab.number]).get("measured_thickness", "")
            if slab.number in measured.thick
            else "",
        )
        for slab in slabs
        if slab.image is not None
    ]
    with (
        writing(path, overwrite=overwrite) as partial,
        partial.open("w", newline="", encoding="utf-8") as stream,
    ):
        csv.writer(stream).writerows([header, *rows])


def _write(
    destination: Path,
    cuts: Cuts,
    placed: Arrangement,
    dtype: np.dtype,
    faces: tuple[Faces, Faces],
    execution: ExecutionParameters,
    metrics: Metrics,
) -> None:
    """Interpolate, blend and write the volume block by block.

    Keep the ``faces`` of its sections before and after blending; without it, both may be the same.
    """
    grid, slabs, borders = placed.grid, placed.slabs, placed.borders
    regions = blocks(grid.shape, Level.volume(grid).object_shape)
    workers = block_workers(slabs, grid, dtype, len(regions), execution)

    def work(region: Region, lane: Lane) -> int:
        result = lane.buffer("result", shape_of(region), dtype)
        result[...] = 0
        for slab in slabs:
            _paste(result, region, slab, grid, lane)
        planes, (before, after) = np.arange(region[0].start, region[0].stop), faces
        before.add(result, planes, region[1:])
        for border in borders:
            blend_border(result, region, border, grid, lane)
        if borders:
            after.add(result, planes, region[1:])
        with lane.timed("write"):
            cuts[region] = result
        metrics.count("written", result.nbytes)
        return result.nbytes

    run_pipeline(
        regions,
        work,
        label="STACK",
        workers=workers,
        metrics=metrics,
        describe=lambda region: f"block {bounds(region)} of {destination}",
    )
    cuts.note(metrics)
