"""Depth that neighbouring sections share, and the sections' thickness measured in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from octane.compare.columns import columns
from octane.config.parameters import ExecutionParameters
from octane.core.geometry import Grid, blocks, place_in, vector
from octane.core.metrics import Metrics
from octane.layout.mosaic import Position
from octane.pipeline.lanes import Lane, run_pipeline
from octane.pipeline.workers import cores
from octane.processes.stack.facing import comparable_pixels
from octane.processes.stack.layout.stack import BY_TABLE, SectionSlab
from octane.processes.stack.layout.surfaces import recorded_surface
from octane.processes.stack.record import BY_DEPTH, DistanceFigures
from octane.processes.stack.slab import block_workers, interpolate_section
from octane.processes.stack.thickness import (
    FEWEST_PLANES,
    MAX_STD,
    MIN_CHANGE,
    Distance,
    Planes,
    measure_distance,
    solve_thicknesses,
)
from octane.processes.stitch.record import SurfaceFigures
from octane.store.writer import Level

PLANE_EDGE = 256
"""Longest edge of the compared planes, pixels."""
UNSHARED = f"the next section shows fewer than {FEWEST_PLANES} of its deep planes"
BLANK = "it was not imaged"
BEFORE_BLANK = "the next section was not imaged"
FEW = "most others show none"
IMPOSSIBLE = "the distances contradict each other"
TILTED = "its surface is tilted against the next one; give --section_level true"
RANGE = (0.5, 1.5)
"""Distances tried, relative to the stated one."""

ENOUGH_PAIRS, MOST_PAIRS = 2, 3
"""Pairs of neighbours that must contradict a thickness that nobody asked to measure, and most that
are looked at: each reads an area of two sections again."""
WINDOW_EDGE, MIN_EDGE = 512, 128
"""Edge in voxels of the area in which it is checked, and the least edge in pixels to which this is
reduced: half of it often shows too little structure."""
TOP_PLANES = 16
"""Planes of the lower section that are looked for in the upper one then; more hardly help."""

Pair = tuple[int, int]


class View(NamedTuple):
    """Area in which sections are compared, voxels per pixel, and the planes of the lower one."""

    grid: Grid
    step: int
    planes: int | None = None


class Thickness(NamedTuple):
    """Measured thickness of a section and its standard deviation, micrometres.

    ``reason`` says why it was not measured; it is empty if it was.
    """

    size: float = 0.0
    std: float = math.inf
    reason: str = ""

    def replaces(self, stated: float, voxel: float) -> bool:
        """True if it differs from the stated one by more than its uncertainty."""
        return not self.reason and abs(self.size - stated) >= max(self.std, MIN_CHANGE * voxel)


def measure_thicknesses(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    dtype: np.dtype,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> dict[int, Thickness]:
    """Thickness of all sections but the last, by number, unless the user's table states it.

    The slabs lie where their tissue continues from section to section, at least nearly, and their
    thickness is the stated one.
    """
    view = View(grid, -(-max(grid.shape[1:]) // PLANE_EDGE))
    distances = _measure_distances(
        slabs, _distances_to_try(slabs, grid), view, dtype, execution, metrics
    )
    return _fit_thicknesses(slabs, grid.spacing[0], distances)


def check_distance(
    slabs: Sequence[SectionSlab],
    grid: Grid,
    centre: Position,
    dtype: np.dtype,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> DistanceFigures | None:
    """Distance at which neighbours in the middle show the same tissue, around ``centre`` (y, x).

    None if they share no depth, or too little to tell: one pair may contradict the thickness by
    chance, if speckle is strong. Sections whose surface was measured elsewhere than they are
    cropped are not compared: that is their fault, which has a check.
    """
    spacing = grid.spacing
    edge, extent = [grid.edge[0]], [grid.extent[0]]
    for axis, middle in zip((1, 2), centre, strict=True):
        count, voxel = grid.shape[axis], spacing[axis]
        size = min(WINDOW_EDGE, count)
        start = round((middle - grid.edge[axis]) / voxel) - size // 2
        edge.append(grid.edge[axis] + min(max(start, 0), count - size) * voxel)
        extent.append(size * voxel)
    window = Grid.covering(vector(*edge), vector(*extent), spacing)
    pairs: dict[Pair, range] = {}
    for first, (upper, lower) in enumerate(pairwise(slabs)):
        deepest = math.floor(upper.extent[0] / spacing[0] + 1e-6) - FEWEST_PLANES
        if deepest >= 1 and all(_begins_at_surface(slab, spacing[0]) for slab in (upper, lower)):
            pairs[first, first + 1] = range(1, deepest + 1)
    view = View(window, max(1, max(window.shape[1:]) // MIN_EDGE), TOP_PLANES)
    middle = len(slabs) / 2 - 1
    others: list[DistanceFigures] = []
    for pair in sorted(pairs, key=lambda pair: abs(pair[0] - middle))[:MOST_PAIRS]:
        distance = _measure_distances(slabs, {pair: pairs[pair]}, view, dtype, execution, metrics)[
            pair
        ]
        if distance.problem:
            continue
        size, std = (round(number * spacing[0], 3) for number in (distance.planes, distance.std))
        slab = slabs[pair[0]]
        by_table = slab.thickness_from == BY_TABLE
        figures = DistanceFigures(measured=size, std=std, taken=slab.thickness, by_table=by_table)
        if not figures.differs(spacing[0]):
            return figures
        others.append(figures)
        if len(others) == min(ENOUGH_PAIRS, len(pairs)):
            return others[0]
    return None


def _begins_at_surface(slab: SectionSlab, plane: float) -> bool:
    """Tell whether a section can be compared and begins at its surface, as far as that is known."""
    if slab.image is None or slab.is_nearest:
        return False
    surface = recorded_surface(slab.image)
    depth = None if surface is None else surface.depth
    return depth is None or abs(depth - slab.cut.depth) <= plane


def _measure_distances(
    slabs: Sequence[SectionSlab],
    pairs: Mapping[Pair, range],
    view: View,
    dtype: np.dtype,
    execution: ExecutionParameters,
    metrics: Metrics,
) -> dict[Pair, Distance]:
    """Distance of each pair of sections, among those to try."""
    grid = view.grid
    distances = {pair: Distance(problem=UNSHARED) for pair, tried in pairs.items() if not tried}
    for first, second in pairs:
        if _tilt_difference(slabs[first], slabs[second]) > grid.spacing[0]:
            distances[first, second] = Distance(problem=TILTED)

    def work(pair: Pair, lane: Lane) -> int:
        upper, first = _compared_planes(slabs[pair[0]], view._replace(planes=None), lane)
        lower, second = _compared_planes(slabs[pair[1]], view, lane)
        # Of planes that both show; the first ones may differ in depth.
        aside, tried = second - first, pairs[pair]
        with lane.timed("compute"):
            planes = range(max(tried.start + aside, 0), tried.stop + aside)
            distance = measure_distance(upper, lower, planes)
        distances[pair] = distance._replace(planes=distance.planes - aside)
        return upper.nbytes + lower.nbytes

    tried = [pair for pair in pairs if pair not in distances]
    if tried:
        deepest = max(slab.extent[0] for slab in slabs) / grid.spacing[0]
        kept = math.ceil(16 * deepest * PLANE_EDGE**2) * (execution.workers or cores())
        workers = block_workers(slabs, grid, dtype, len(tried), execution, kept=kept)
        run_pipeline(tried, work, label="STACK: thickness", workers=workers, metrics=metrics)
    # In order, so that sums do not depend on the number of threads.
    return dict(sorted(distances.items()))


def _tilt_difference(first: SectionSlab, second: SectionSlab) -> float:
    """Micrometres by which the measured tilts of two sections differ across the second one."""
    tilts = []
    for slab in (first, second):
        surface = None if slab.image is None else recorded_surface(slab.image)
        if surface is None or surface.tilt is None:
            return 0.0
        y, x = np.subtract(surface.tilt, slab.cut.tilt).tolist()
        tilts.append((y, x))
    upper, lower = tilts
    return SurfaceFigures(tilt=lower).rise(second.extent[1:], upper)[0]


def _distances_to_try(slabs: Sequence[SectionSlab], grid: Grid) -> dict[Pair, range]:
    """Distances in planes to try for each pair of sections, by their places among ``slabs``.

    A pair of neighbours without any shares no depth; others are left out then.
    """
    voxel, pairs = grid.spacing[0], {}
    for first, slab in enumerate(slabs):
        for second in (first + 1, first + 2):
            between = slabs[first : second + 1]
            if len(between) <= second - first or any(section.image is None for section in between):
                break
            stated = sum(section.thickness for section in between[:-1]) / voxel
            deepest = math.floor(slab.extent[0] / voxel + 1e-6) - FEWEST_PLANES
            is_stated = all(section.thickness_from != BY_DEPTH for section in between[:-1])
            low, high = (math.floor(part * stated + 0.5) for part in RANGE)
            if not is_stated:
                low, high = second - first, deepest
            tried = range(max(low, 1), min(high, deepest) + 1)
            if is_stated and stated > deepest:
                tried = range(0)
            if tried or second == first + 1:
                pairs[first, second] = tried
    return pairs


def _compared_planes(slab: SectionSlab, view: View, lane: Lane) -> tuple[Planes, int]:
    """Planes of a section where it lies in the volume, in squares of voxels, and the first's depth.

    NaN where it cannot be compared.
    """
    lifted, (grid, step, most) = replace(slab, surface=0.0), view
    _, ny, nx = grid.shape
    planes = lifted.whole_planes(range(math.ceil(lifted.extent[0] / grid.spacing[0]) + 1), grid)[
        :most
    ]
    result = np.full((len(planes), ny // step, nx // step), np.nan, np.float32)
    depth, edge, _ = Level.volume(grid).object_shape
    wide = max(edge // step, 1) * step
    for part, rows, across in blocks((len(planes), ny, nx), (depth, wide, wide)):
        region = (slice(0, 1), rows, across)
        section = interpolate_section(lifted, planes[part], region, grid, lane)
        if section is None:
            continue
        with lane.timed("compute"):
            values, (y, x) = section
            whole = np.zeros(
                (len(values), rows.stop - rows.start, across.stop - across.start), values.dtype
            )
            whole[place_in((slice(0, len(values)), *region[1:]), (slice(0, len(values)), y, x))] = (
                values
            )
            small = columns(whole, step)
            top, left = rows.start // step, across.start // step
            result[part, top : top + small.shape[1], left : left + small.shape[2]] = small
    result[:, ~_comparable_in_place(slab, grid, step)] = np.nan
    return result, int(planes[0]) if len(planes) else 0


def _comparable_in_place(slab: SectionSlab, grid: Grid, step: int) -> np.ndarray:
    """Pixels of ``step`` voxels at which a section can be compared where it lies in the volume."""
    inside = comparable_pixels(slab, grid, step)
    if not any(slab.displacement):
        return inside
    # All corners of a pixel lie in pixels that were imaged.
    y, x = (
        grid.edge[axis] + step * grid.spacing[axis] * np.arange(n + 1)
        for axis, n in zip((1, 2), inside.shape, strict=True)
    )
    places = slab.displacement.apply(y[:, None], x[None, :], slab.middle)
    rows, across = (
        np.floor((at - grid.edge[axis]) / (step * grid.spacing[axis])).astype(int)
        for axis, at in zip((1, 2), places, strict=True)
    )
    inner = (rows >= 0) & (rows < inside.shape[0]) & (across >= 0) & (across < inside.shape[1])
    corners = np.zeros(inner.shape, bool)
    corners[inner] = inside[rows[inner], across[inner]]
    return corners[1:, 1:] & corners[1:, :-1] & corners[:-1, 1:] & corners[:-1, :-1]


def _fit_thicknesses(
    slabs: Sequence[SectionSlab], voxel: float, distances: Mapping[Pair, Distance]
) -> dict[int, Thickness]:
    """Thickness of each section that fits all distances, by number."""
    stated = [slab.thickness / voxel for slab in slabs]
    measured = {pair: distance for pair, distance in distances.items() if not distance.problem}
    thicknesses: dict[int, Thickness] = {}
    for first, (planes, std) in enumerate(solve_thicknesses(stated, measured)):
        slab, distance = slabs[first], distances.get((first, first + 1))
        if first + 1 == len(slabs) or slab.thickness_from == BY_TABLE:
            continue
        if distance is None:
            thicknesses[slab.number] = Thickness(
                reason=BLANK if slab.image is None else BEFORE_BLANK
            )
            continue
        reason = "" if std <= MAX_STD else distance.problem
        thicknesses[slab.number] = Thickness(
            round(planes * voxel, 3), round(std * voxel, 3), reason
        )
    return _reject_minority(thicknesses, voxel)


def _reject_minority(thicknesses: Mapping[int, Thickness], voxel: float) -> dict[int, Thickness]:
    """Thicknesses, if most of those that neighbours could show are measured and possible.

    Strong speckle makes single neighbours seem to share depth.
    """
    expected = [
        thickness
        for thickness in thicknesses.values()
        if thickness.reason not in (BLANK, BEFORE_BLANK)
    ]
    sound = [
        thickness for thickness in expected if not thickness.reason and thickness.size >= voxel
    ]
    if 2 * len(sound) > len(expected):
        return {
            number: thickness
            if thickness.reason or thickness.size >= voxel
            else thickness._replace(reason=IMPOSSIBLE)
            for number, thickness in thicknesses.items()
        }
    return {
        n: thickness if thickness.reason else thickness._replace(reason=FEW)
        for n, thickness in thicknesses.items()
    }
