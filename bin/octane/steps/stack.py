"""STACK: the sections of a subject on top of each other, with their boundaries recorded."""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.config.params import ExecutionParameters, InputParameters, StackParameters, bytes_of
from octane.core.arrays import as_dtype, require_cpu
from octane.core.files import writing
from octane.core.geometry import Grid, Region, blocks, bounds, place_in, shape_of, vector
from octane.core.metrics import Metrics
from octane.core.records import StackFigures
from octane.layout.displacement import IN_PLACE, Displacement
from octane.layout.sections import (
    imaged_plane,
    read_sections,
    require_alike,
)
from octane.layout.stack import (
    SectionSlab,
    imaged_box,
    lay_out,
    other_distance,
    section_metadata,
    sections_without_overlap,
    thickness_taken,
)
from octane.pipeline.cuts import CUT, Cuts
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import PROCESS_BYTES, cores, plan_workers
from octane.stitch.alignment import measure, solve_displacements
from octane.stitch.faces import DEPTH, Ends, Faces, boundaries, brightness, ends_of, flips, steps
from octane.stitch.slab import interpolated
from octane.store.image import open_image
from octane.store.ngff import Attributes
from octane.store.volumes import overruled_units
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

FACE = {"none": 256, "translation": 512, "rigid": 512}
"""Longest edge of a face that is compared, pixels."""
FACES_BYTES = 1 << 27
"""Most that all faces take."""
FACING = 2
"""Planes of each section that are compared where it was not imaged below the next one's surface."""
LEAST = 0.25
"""Displacement at a section's border, voxels, below which it stays: it would be blurred for what is
noise."""


def _paste(
    result: npt.NDArray,
    region: Region,
    slab: SectionSlab,
    grid: Grid,
    facing: Faces | None,
    lane: Lane,
) -> None:
    """Interpolate a section into a block that it may meet, and keep its faces as they lie."""
    planes = slab.planes
    if slab.image is None or planes.start >= region[0].stop or planes.stop <= region[0].start:
        return
    if facing is not None and slab.number not in facing.ends:
        facing = None
    here = range(max(planes.start, region[0].start), min(planes.stop, region[0].stop))
    inside = slab.imaged(here, grid)
    # What was imaged below the last plane is the tissue of the next section's first ones.
    below = facing.ends[slab.number][1] if facing and here.stop == planes.stop else inside[:0]
    read = np.union1d(inside, below[below >= planes.stop])
    found = interpolated(slab, read, region, grid, lane) if len(read) else None
    if found is None:
        return
    values, (rows, columns) = found
    if facing is not None:
        facing.add(values, read, (rows, columns), slab.number)
    with lane.timed("compute"):
        first = int(read[0])
        place = place_in(region, (slice(first, first + len(inside)), rows, columns))
        result[place] = as_dtype(values[: len(inside)], result.dtype)


def _facing(slabs: Sequence[SectionSlab], grid: Grid, longest: int) -> Faces:
    """The planes on which sections are compared: those that show the same tissue, if there are."""
    ends: dict[int, Ends] = {}
    count = FACING
    for slab in (slab for slab in slabs if slab.image is not None):
        own, stop = slab.imaged(slab.planes, grid), slab.planes.stop
        deeper = slab.imaged(range(stop, stop + DEPTH), grid)
        bottom = deeper if len(deeper) else own[-FACING:]
        # Where no depth is shared, what tissue changes from plane to plane is measured as well.
        ends[slab.number] = (own[:count], bottom, own[FACING : 0 if len(deeper) else 2 * FACING])
        count = len(bottom)
    _, ny, nx = grid.shape
    least = (8 * len(ends) * ny * nx / FACES_BYTES) ** 0.5
    return Faces(ends, (ny, nx), max(1, -(-max(ny, nx) // longest), math.ceil(least)))


def _survey(
    facing: Faces,
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> npt.NDArray:
    """Gather the faces of sections before any is written; return the cut across y in the middle."""
    ny, nx = grid.shape[1:]
    depth, edge, _ = Level.volume(grid).owned
    imaged = [slab for slab in slabs if slab.number in facing.ends]
    cut = np.zeros((grid.shape[0], nx), dtype)

    def work(slab: SectionSlab, lane: Lane) -> int:
        planes = np.unique(np.concatenate(facing.ends[slab.number]))
        deep = int(planes[-1] - planes[0]) + 1
        # As many voxels as in a block of the volume: the larger, the fewer chunks are read twice.
        size = edge * max(1, math.isqrt(depth // deep))
        # In their order within one task: sums are the same on any number of threads.
        for tile in blocks((1, ny, nx), (1, size, size)):
            found = interpolated(slab, planes, tile, grid, lane)
            if found is not None:
                with lane.timed("compute"):
                    facing.add(found[0], planes, found[1], slab.number)
        own = slab.imaged(slab.planes, grid)
        row = (slice(0, 1), slice(ny // 2, ny // 2 + 1), slice(0, nx))
        if (found := interpolated(slab, own, row, grid, lane)) is not None:
            cut[int(own[0]) : int(own[-1]) + 1, found[1][1]] = as_dtype(found[0][:, 0], cut.dtype)
        return deep * ny * nx * cut.itemsize

    workers = _workers(grid, cut.dtype, facing, len(imaged), execution)
    run_pipeline(imaged, work, label="faces", workers=workers, metrics=metrics)
    return cut


def _workers(
    grid: Grid, dtype: np.dtype, facing: Faces | None, count: int, execution: ExecutionParameters
) -> int:
    """How many of ``count`` blocks are worked on at once."""
    need = 5 * int(np.prod(np.minimum(Level.volume(grid).owned, grid.shape)))
    need *= max(4, dtype.itemsize)
    # Faces are compared at several resolutions.
    faces = 3 * sum(face.nbytes for own in facing.sums.values() for face in own) if facing else 0
    memory, fixed = bytes_of(execution.memory), PROCESS_BYTES + faces
    return plan_workers(need, memory, execution.workers, count, fixed=fixed)


def _comparable(slab: SectionSlab, grid: Grid, step: int) -> npt.NDArray[np.bool_]:
    """Whole pixels of ``step`` voxels on what was imaged, without tiles that are unlike others."""
    cells = [
        grid.edge[axis] + step * grid.spacing[axis] * np.arange(grid.shape[axis] // step + 1)
        for axis in (1, 2)
    ]
    tiny = 1e-6 * step * grid.spacing[1]
    far = np.add(slab.edge, slab.extent)
    inside = np.logical_and.outer(
        *(
            (cell[:-1] >= first - tiny) & (cell[1:] <= last + tiny)
            for cell, first, last in zip(cells, slab.edge[1:], far[1:], strict=True)
        )
    )
    assert slab.image is not None
    noted = cast("Mapping[str, list[list[float]]]", section_metadata(slab.image))
    if imaged := noted.get("imaged"):
        corners = np.zeros([len(cell) for cell in cells], np.bool_)
        for box in imaged:
            met = [
                (cell >= first - tiny) & (cell <= last + tiny)
                for cell, first, last in zip(cells, box[:2], box[2:], strict=True)
            ]
            corners[np.ix_(*met)] = True
        inside &= corners[1:, 1:] & corners[1:, :-1] & corners[:-1, 1:] & corners[:-1, :-1]
    for box in noted.get("not_compared", []):
        met = [
            (cell[1:] > first) & (cell[:-1] < last)
            for cell, first, last in zip(cells, box[:2], box[2:], strict=True)
        ]
        inside[np.ix_(*met)] = False
    return inside


def _measured(
    facing: Faces,
    slabs: Sequence[SectionSlab],
    grid: Grid,
    parameters: StackParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> tuple[dict[int, Displacement], list[tuple[int, int]]]:
    """Displacements by number, of sections that fit a neighbour; a warning names the others.

    Also the neighbours between which nothing fits, by number.
    """
    tops, bottoms, within = faces = [], [], []
    for slab in (slab for slab in slabs if slab.number in facing.sums):
        inside = _comparable(slab, grid, facing.step)
        for sums, gathered in zip(facing.sums[slab.number], faces, strict=True):
            whole = sums[: len(inside), : inside.shape[1]]
            gathered.append(np.where(inside, whole, np.nan).astype(np.float32))
    numbers, pixel = [*facing.sums], facing.step * grid.spacing[1]
    if len(numbers) < 2 or not np.isclose(*grid.spacing[1:]):
        return {}, []
    if not any(len(own[2]) for own in facing.ends.values()):
        within.clear()
    rotate, workers = parameters.align != "translation", execution.workers or cores()
    with metrics.timed("align"):
        pairs = measure(tops, bottoms, within, pixel, rotate=rotate, workers=workers)
        found = solve_displacements(len(numbers), pairs, pixel, max(grid.extent[1:]) / 2)
    known = {numbers[k] for pair in pairs if pair.fits for k in (pair.first, pair.second)}
    odd = [str(number) for number in numbers if number not in known]
    if odd and parameters.align != "none":
        metrics.warn(
            f"Sections {', '.join(odd)} do not match their neighbours and stay where they were "
            "imaged; look at the pictures."
        )
    bridged = [range(pair.first, pair.second) for pair in pairs if pair.fits]
    unlike = [
        pair
        for k, pair in enumerate(pairwise(numbers))
        if not any(k in bridge for bridge in bridged)
    ]
    apart = [f"{a} and {b}" for a, b in unlike if {a, b} <= known]
    if apart and parameters.align != "none":
        metrics.warn_in_report(
            f"Sections {', '.join(apart)} do not match: those before and after lie against each "
            "other as they were imaged; look at the pictures."
        )
    # Faces end with their last whole pixel; the volume may go on, and has another middle.
    rest = complex(*(n % facing.step * grid.spacing[1] / 2 for n in grid.shape[1:]))
    shifts = [complex(own.y, own.x) + (own.turn - 1) * rest for own in found]
    return {
        number: Displacement(shift.real, shift.imag, own.rotation).rounded
        for number, shift, own in zip(numbers, shifts, found, strict=True)
        if number in known
    }, unlike


def _realigned(
    slabs: Sequence[SectionSlab], grid: Grid, found: Mapping[int, Displacement]
) -> tuple[Grid, list[SectionSlab]]:
    """Note the displacements that are more than noise, and find a grid that holds all."""
    (_, top, left), (_, height, width) = grid.edge, grid.extent
    middle = (top + height / 2, left + width / 2)
    spacing, radius = grid.spacing[1], max(height, width) / 2
    moved = {n: own for n, own in found.items() if own.reach(radius) >= LEAST * spacing}
    # Whole voxels more, so that sections that stay are copied as without alignment.
    corner = math.hypot(*grid.extent[1:]) / 2
    border = math.ceil(max((own.reach(corner) for own in moved.values()), default=0) / spacing)
    edge = vector(grid.edge[0], *(e - border * spacing for e in grid.edge[1:]))
    extent = vector(grid.extent[0], *(e + 2 * border * spacing for e in grid.extent[1:]))
    return Grid.covering(edge, extent, grid.spacing) if border else grid, [
        replace(slab, displaced=moved.get(slab.number, IN_PLACE), middle=middle) for slab in slabs
    ]


def stack_sections(
    sources: list[Path],
    destination: Path,
    parameters: StackParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    table: Path | None = None,
) -> Metrics:
    """Stack sections into one volume.

    They are ordered by the number in their metadata or name. Each gives the planes from its surface
    down to the next section's; deeper ones, which were imaged twice, are left. Its boundaries stand
    in the volume's metadata. ``table`` is a CSV file to be written: how each section lies
    displaced, and whether it was moved back.

    An OctaneError names sections that do not fit together, gaps, and output that is not usable.
    """
    require_cpu(execution.backend, "STACK")
    images = [open_image(path, reading) for path in sources]
    first = images[0]
    require_alike([(image.path, image.grid.spacing, image.dtype) for image in images])
    grid, slabs = lay_out(images, [*map(imaged_box, images)], parameters, first.grid.spacing)
    logger.info("STACK: %s", thickness_taken(slabs))
    metrics = Metrics("stack", settings=parameters.recorded(reading))
    contradicted = [] if parameters.section_thickness is not None else other_distance(slabs)
    for note in [*overruled_units(images), *sections_without_overlap(slabs), *contradicted]:
        metrics.warn_in_report(note)
    aligned, facing = parameters.align != "none", _facing(slabs, grid, FACE[parameters.align])
    if aligned:
        cut = _survey(facing, slabs, grid, first.dtype, execution, metrics)
        measured, unlike = _measured(facing, slabs, grid, parameters, execution, metrics)
        grid, slabs = _realigned(slabs, grid, measured)
        step = max(1, -(-max(grid.shape) // CUT))
        metrics.previews["unaligned_y"] = np.abs(cut[::step, ::step])
    sections = [
        {"name": s.name, "number": s.number, "start": s.planes.start, "stop": s.planes.stop}
        | {"missing": s.image is None}
        | {"top": grid.edge[0] + s.surface - parameters.section_surface}
        for s in slabs
    ]
    undone = [{"shift": s.displaced[:2], "rotation": s.displaced.rotation} for s in slabs]
    own = [a | b for a, b in zip(sections, undone, strict=True)] if aligned else sections
    missing = [s.number for s in slabs if s.image is None]
    if missing:
        metrics.warn(
            f"Sections {', '.join(map(str, missing))} are missing: blank slabs stand there."
        )
    named = {k: v for k, v in first.attributes.items() if k == "channel"}
    attributes: Attributes = {**named, "kind": "volume", "step": "stack", "sections": own}
    imaged = {s.number: s.imaged(s.planes, grid) for s in slabs if s.image is not None}
    faces = Faces({number: ends_of(own) for number, own in imaged.items()}, grid.shape[1:])
    gathered = (faces, None if aligned else facing)
    with create_image(
        destination,
        [Level.volume(grid)],
        first.dtype,
        codec=parameters.codec,
        attributes=attributes,
        overwrite=execution.overwrite,
    ) as (writer,):
        plane = imaged_plane(read_sections(attributes, grid.shape[0]), grid.shape[0])
        cuts = Cuts(writer, grid, first.dtype, plane)
        _write(destination, cuts, slabs, grid, first.dtype, gathered, execution, metrics)
    if not aligned:
        measured, unlike = _measured(facing, slabs, grid, parameters, execution, metrics)
    beyond = sum(len(s.planes) - len(imaged[s.number]) for s in slabs if s.number in imaged)
    if beyond:
        metrics.warn(
            "The section thickness exceeds the imaged depth: planes below it are zero; "
            "check --section_thickness."
        )
    found = _checked(faces, measured, slabs, metrics)
    noted = StackFigures.model_validate(
        {
            "sections": [
                {**section, "thickness": slab.thickness, "thickness_from": slab.thickness_from}
                | found.get(slab.number, {})
                for section, slab in zip(sections, slabs, strict=True)
            ],
            "boundaries": boundaries(faces),
            "align": parameters.align,
            "missing_sections": missing,
            "unlike": unlike,
            "planes_not_imaged": beyond,
            "shape": grid.shape,
            "voxel_size": grid.spacing,
        }
    )
    metrics.add_figures(noted)
    if table is not None:
        _write_table(table, noted, overwrite=execution.overwrite)
    return metrics


def _checked(
    faces: Faces,
    measured: Mapping[int, Displacement],
    slabs: Sequence[SectionSlab],
    metrics: Metrics,
) -> dict[object, dict[str, object]]:
    """Figures of each section that say how it fits its neighbours, by number."""
    with metrics.timed("check"):
        pairs = [own[:2] for own in faces.sums.values()]
        found: dict[object, dict[str, object]] = {
            number: {"brightness": bright, "step": step, "flipped": flipped}
            for number, bright, step, flipped in zip(
                faces.sums, brightness(pairs), steps(pairs), flips(pairs), strict=True
            )
        }
    for slab in (slab for slab in slabs if slab.number in measured):
        own, moved = measured[slab.number], any(slab.displaced)
        found[slab.number].update(shift=own[:2], rotation=own.rotation, moved=moved)
    return found


def _write_table(path: Path, figures: StackFigures, *, overwrite: bool) -> None:
    rows = [
        (s.number, *(s.shift or ("", "")), "" if s.rotation is None else s.rotation, int(s.moved))
        for s in figures.sections
    ]
    with (
        writing(path, overwrite=overwrite) as partial,
        partial.open("w", newline="", encoding="utf-8") as stream,
    ):
        csv.writer(stream).writerows([("section", "y", "x", "rotation", "moved"), *rows])


def _write(
    destination: Path,
    cuts: Cuts,
    slabs: list[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    gathered: tuple[Faces, Faces | None],
    execution: ExecutionParameters,
    metrics: Metrics,
) -> None:
    """Interpolate and write the volume block by block, and keep the faces of its sections."""
    faces, facing = gathered
    regions = blocks(grid.shape, Level.volume(grid).owned)
    workers = _workers(grid, dtype, facing, len(regions), execution)

    def work(region: Region, lane: Lane) -> int:
        result = lane.buffer("result", shape_of(region), dtype)
        result[...] = 0
        for slab in slabs:
            _paste(result, region, slab, grid, facing, lane)
        faces.add(result, np.arange(region[0].start, region[0].stop), region[1:])
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
