"""Facing planes of neighbouring sections, and the sections' displacements measured on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import coarse
from octane.compare.faces import FACE_EDGE, MEAN_PLANES, part_of_face
from octane.config.parameters import ExecutionParameters
from octane.core.filters import gaussian
from octane.core.geometry import Grid, blocks
from octane.core.metrics import Metrics
from octane.layout.mosaic import Position
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import cores
from octane.processes.stack.alignment import (
    CERTAIN_MOVE,
    SectionPair,
    measure_pairs,
    solve_displacements,
)
from octane.processes.stack.layout.displacement import Displacement
from octane.processes.stack.layout.stack import SectionSlab, section_metadata
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.slab import block_workers, interpolate_section
from octane.store.writer import Level

FACE_EDGES = {"auto": 256, "none": 256, "translation": 512, "rigid": 512}
"""Longest edge of a compared face by --stack_align, pixels."""
FACES_BYTES = 1 << 27
"""Maximum memory of all tops and bottoms."""
BRIGHT_SMOOTHING = 0.1
"""Standard deviation of the smoothing in which the brightest area is sought, fraction of a face."""
FACE_PLANES = 2
"""Planes compared per section if neighbours share no depth."""

Face = npt.NDArray[np.float32]


class FacingPlanes(NamedTuple):
    """Planes at which a section is compared, by their numbers in the volume.

    ``top`` faces the ``bottom`` of the section before. If both show the same tissue, imaged twice,
    ``within`` is empty; else it is compared with ``top`` to measure changes from plane to plane.
    """

    top: npt.NDArray[np.int64]
    bottom: npt.NDArray[np.int64]
    within: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Survey:
    """Faces of the sections in numerical order: means over their :class:`FacingPlanes`.

    Each is (y, x), NaN where the section cannot be compared; a pixel is ``step`` voxels wide and
    high. ``within`` is empty if all facing planes show the same tissue.
    """

    numbers: list[int]
    tops: list[Face]
    bottoms: list[Face]
    within: list[Face]
    step: int


class Fit(NamedTuple):
    """Displacements, by number, of sections that fit a neighbour.

    ``unmatched`` lists the numbers of those that fit none, ``unlike`` the numbers of neighbours
    that nothing connects, and ``unfit`` those of all that do not fit each other. ``certain`` ones
    are displaced by a pixel or by more than noise, and those ``aside`` by more than noise and by
    more than a voxel. ``centre`` is that of the brightest area (y, x),
    micrometres. ``shared_faces`` are the small tops and bottoms, by number, of sections that share
    depth; empty if they do not.
    """

    displacements: dict[int, Displacement]
    unmatched: list[int]
    unlike: list[tuple[int, int]]
    certain: set[int]
    aside: set[int]
    centre: Position
    shared_faces: dict[int, list[npt.NDArray[np.float64]]]
    unfit: set[tuple[int, int]]


def facing_planes(slabs: Sequence[SectionSlab], grid: Grid) -> dict[int, FacingPlanes]:
    """Choose the planes at which sections are compared, by number: the same tissue, if possible."""
    facing: dict[int, FacingPlanes] = {}
    count = FACE_PLANES
    for slab in (slab for slab in slabs if slab.image is not None):
        imaged, stop = slab.whole_planes(slab.planes, grid), slab.planes.stop
        deeper = slab.whole_planes(range(stop, stop + MEAN_PLANES), grid)
        bottom = deeper if len(deeper) else imaged[-FACE_PLANES:]
        within = imaged[:0] if len(deeper) else imaged[FACE_PLANES : 2 * FACE_PLANES]
        planes = FacingPlanes(imaged[:count], bottom, within)
        if len(planes.top):
            facing[slab.number] = planes
        count = len(bottom)
    return facing


def survey_faces(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    longest: int,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> Survey:
    """Read the faces of all sections, at most ``longest`` pixels high and wide."""
    planes = facing_planes(slabs, grid)
    sections = [slab for slab in slabs if slab.number in planes]
    ny, nx = grid.shape[1:]
    least = math.ceil((8 * len(sections) * ny * nx / FACES_BYTES) ** 0.5)
    step = max(1, -(-max(ny, nx) // longest), least)
    size = (-(-ny // step), -(-nx // step))
    depth, edge, _ = Level.volume(grid).object_shape
    faces: dict[int, list[Face]] = {}

    def work(slab: SectionSlab, lane: Lane) -> int:
        facing = planes[slab.number]
        union = np.unique(np.concatenate(facing))
        deep = int(union[-1] - union[0]) + 1
        sums = [np.zeros(size, np.float32) for _ in facing]
        # As many voxels as in a block of the volume: larger tiles read fewer chunks twice, but the
        # wider one of a tilted section is, the deeper it is read.
        wide = edge * (1 if any(slab.cut.tilt) else max(1, math.isqrt(depth // deep)))
        # In order within one task, so that sums do not depend on the number of threads.
        for tile in blocks((1, ny, nx), (1, wide, wide)):
            section = interpolate_section(slab, union, tile, grid, lane)
            if section is None:
                continue
            with lane.timed("compute"):
                for face, total in zip(facing, sums, strict=True):
                    if part := part_of_face(face, section[0], union, section[1], step):
                        total[part.place] += part.mean
        inside = comparable_pixels(slab, grid, step)
        rows, columns = inside.shape
        faces[slab.number] = [
            np.where(inside, total[:rows, :columns], np.nan).astype(np.float32) for total in sums
        ]
        return deep * ny * nx * dtype.itemsize

    # Three float32 faces per section, which are compared at several resolutions.
    kept = 3 * 12 * len(sections) * math.prod(size)
    run_pipeline(
        sections,
        work,
        label="STACK: faces",
        workers=block_workers(sections, grid, dtype, len(sections), execution, kept=kept),
        metrics=metrics,
        describe=lambda slab: slab.name,
    )
    numbers = [slab.number for slab in sections]
    tops, bottoms, within = ([faces[number][k] for number in numbers] for k in range(3))
    is_shared = not any(len(facing.within) for facing in planes.values())
    return Survey(numbers, tops, bottoms, [] if is_shared else within, step)


def comparable_pixels(slab: SectionSlab, grid: Grid, step: int) -> npt.NDArray[np.bool_]:
    """Pixels of ``step`` voxels that are entirely imaged, outside tiles that are not compared."""
    assert slab.image is not None
    metadata = cast("Mapping[str, list[list[float]]]", section_metadata(slab.image))
    edges = [
        grid.edge[axis] + step * grid.spacing[axis] * np.arange(grid.shape[axis] // step + 1)
        for axis in (1, 2)
    ]
    tiny = 1e-6 * step * grid.spacing[1]

    def within(box: Sequence[float]) -> npt.NDArray[np.bool_]:
        """Corners of pixels inside a box of first y and x, last y and x."""
        y, x = (
            (edge >= first - tiny) & (edge <= last + tiny)
            for edge, first, last in zip(edges, box[:2], box[2:], strict=True)
        )
        return np.logical_and.outer(y, x)

    # The border of what tiles cover is ragged.
    outline = within([*slab.edge[1:], *np.add(slab.edge, slab.extent)[1:]])
    tiles = [within(box) for box in metadata.get("imaged", [])]
    corners = outline & np.any(tiles, axis=0) if tiles else outline
    inside = corners[1:, 1:] & corners[1:, :-1] & corners[:-1, 1:] & corners[:-1, :-1]
    for box in metadata.get("not_compared", []):
        touched = [
            (edge[1:] > first) & (edge[:-1] < last)
            for edge, first, last in zip(edges, box[:2], box[2:], strict=True)
        ]
        inside[np.ix_(*touched)] = False
    return inside


def fit_sections(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    parameters: StackParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> Fit:
    """Register neighbours' faces."""
    survey = survey_faces(slabs, grid, dtype, FACE_EDGES[parameters.align], execution, metrics)
    numbers, pixel = survey.numbers, survey.step * grid.spacing[1]
    centre = _brightest_centre(survey, grid)
    if len(numbers) < 2 or not np.isclose(*grid.spacing[1:]):
        return Fit({}, [], [], set(), set(), centre, {}, set())
    rotate, workers = parameters.align != "translation", execution.workers or cores()
    faces, radius = (survey.tops, survey.bottoms, survey.within), max(grid.extent[1:]) / 2
    with metrics.timed("align"):
        pairs = measure_pairs(*faces, pixel, rotate=rotate, workers=workers)
        moves = solve_displacements(len(numbers), pairs, pixel, radius)
    matched = {numbers[k] for pair in pairs if pair.fits for k in (pair.first, pair.second)}
    # Faces end with their last full pixel; a volume that extends beyond has another centre.
    rest = complex(*(n % survey.step * grid.spacing[1] / 2 for n in grid.shape[1:]))
    shifts = [complex(move.y, move.x) + (move.turn - 1) * rest for move in moves]
    displacements = {
        number: Displacement(shift.real, shift.imag, move.rotation).round_off()
        for number, shift, move in zip(numbers, shifts, moves, strict=True)
        if number in matched
    }
    unmatched = [number for number in numbers if number not in matched]
    fitting = {
        n: [p for p in pairs if p.fits and k in (p.first, p.second)] for k, n in enumerate(numbers)
    }
    noise = {number: CERTAIN_MOVE * min(p.std for p in fitting[number]) for number in displacements}
    certain = {
        number
        for number, move in displacements.items()
        if any(pair.is_certain for pair in fitting[number])
        or move.reach(radius) >= max(pixel, noise[number])
    }
    aside = {
        number
        for number, move in displacements.items()
        if move.reach(radius) > max(grid.spacing[1], noise[number])
    }
    shared = {} if survey.within else _small_faces(survey)
    unlike = _unlike_neighbours(numbers, pairs)
    unfit = {(numbers[p.first], numbers[p.second]) for p in pairs if not p.fits}
    return Fit(displacements, unmatched, unlike, certain, aside, centre, shared, unfit)


def needed_alignment(fits: Fit) -> str:
    """What moves the sections that lie aside: none, translation or rigid.

    None is certain where neighbours face each other with different tissue.
    """
    if not (fits.aside and fits.shared_faces):
        return "none"
    turned = any(fits.displacements[number].rotation for number in fits.aside)
    return "rigid" if turned else "translation"


def _small_faces(survey: Survey) -> dict[int, list[npt.NDArray[np.float64]]]:
    """Tops and bottoms by number, as small as other faces of sections; 0 where not comparable."""
    factor = max(1, -(-max(survey.tops[0].shape) // FACE_EDGE))
    ends = zip(survey.numbers, survey.tops, survey.bottoms, strict=True)
    return {n: [coarse(np.nan_to_num(face), factor) for face in faces] for n, *faces in ends}


def _brightest_centre(survey: Survey, grid: Grid) -> Position:
    """Centre of the brightest area of the sections (y, x), micrometres: most likely tissue."""
    pixels = [survey.step * size for size in grid.spacing[1:]]
    bright = np.mean([np.nan_to_num(top) for top in survey.tops] or [np.zeros((1, 1))], axis=0)
    width = BRIGHT_SMOOTHING * max(bright.shape)
    place = np.unravel_index(int(gaussian(bright, width).argmax()), bright.shape)
    y, x = (
        edge + (k + 0.5) * size for edge, k, size in zip(grid.edge[1:], place, pixels, strict=True)
    )
    return float(y), float(x)


def _unlike_neighbours(
    numbers: Sequence[int], pairs: Sequence[SectionPair]
) -> list[tuple[int, int]]:
    """Neighbours that no fitting pair connects, neither themselves nor the sections around them."""
    bridges = [range(pair.first, pair.second) for pair in pairs if pair.fits]
    return [
        pair
        for k, pair in enumerate(pairwise(numbers))
        if not any(k in bridge for bridge in bridges)
    ]
