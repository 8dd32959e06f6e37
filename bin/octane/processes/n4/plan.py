"""Plan of an N4 run before any voxel is read: mesh, shrink factors, workers, memory.

A mesh finer than the bias follows the tissue and removes it; one as fine as the voxels lacks data.
Parameters that are not given are derived from these two limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octane.config.parameters import ExecutionParameters
from octane.core.errors import InputError
from octane.core.geometry import Region, Vector, blocks, spelled
from octane.core.units import bytes_of
from octane.layout.sections import Section
from octane.pipeline.workers import plan_workers
from octane.processes.n4.fit import FIT_BYTES, shrink_slices
from octane.processes.n4.parameters import N4Parameters
from octane.store.channels import name_of
from octane.store.volumes import Volume

READ_BLOCK = 256
"""Edge of the blocks that are read: that of a shard of octane's volumes."""
PROCESS_BYTES = 290_000_000
"""Memory of Python with NumPy, SciPy, SimpleITK, zarr and the compiled loops, before any data."""
BLOCK_BYTES = 14
"""Memory per voxel of a block for computing and encoding, besides its values before and after."""
FILLED = 0.9
"""Fraction of the memory that derived shrink factors may fill."""
FINEST_UM = 500.0
"""Smallest derived knot distance, micrometres: tissue structures are smaller."""
FINEST_VOXELS = 25
"""The same in voxels; that of ITK's defaults for a head of 200 voxels of 1 mm."""
LEVELS = 4
ITERATIONS = 50
SPLINE_ORDER = 3
ROUNDING = 1e-5
"""Relative rounding error of an extent given with six digits or in float32, which must not add a
span."""
SAMPLES_PER_SPAN = 12
"""Voxels that derived shrink factors leave between two knots of the finest mesh."""
LARGEST_FACTOR = 4
"""Largest derived shrink factor if memory suffices: the usual one for N4."""
ENOUGH_VOXELS = 250_000
"""Below this number of voxels, shrinking saves less than a second and costs accuracy."""


Three = tuple[int, int, int]


@dataclass(frozen=True)
class Mesh:
    """The B-spline mesh of one fit; all axes z, y, x.

    Attributes
    ----------
    control_points
        Control points of the first level.
    iterations
        Maximum number of iterations, per level.
    fitting_levels
        Number of levels over which each axis is refined.
    """

    control_points: Three
    iterations: tuple[int, ...]
    fitting_levels: Three

    @property
    def finest_spans(self) -> Three:
        """Spans along each axis at the last level."""
        z, y, x = (
            (points - SPLINE_ORDER) * 2 ** (levels - 1)
            for points, levels in zip(self.control_points, self.fitting_levels, strict=True)
        )
        return z, y, x

    def describe(self, shape: Sequence[int], spacing: Vector) -> str:
        """The mesh in words, with the distance of its last level's knots in micrometres."""
        knots = [
            (n - 1) * s / spans
            for n, s, spans in zip(shape, spacing, self.finest_spans, strict=True)
        ]
        return (
            f"{spelled(self.control_points)} control points (z y x), up to "
            f"{' '.join(map(str, self.iterations)) or 0} iterations, final knot distance "
            f"{' '.join(f'{k:.0f}' for k in knots)} um"
        )


@dataclass(frozen=True)
class Part:
    """A part that is fitted separately: a section, or the entire volume.

    Attributes
    ----------
    start, stop
        First plane, and the one after the last, at full resolution.
    kept
        Its planes that enter the fit, as a slice of the shrunk volume.
    """

    name: str
    start: int
    stop: int
    kept: slice
    mesh: Mesh


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes
    ----------
    keep
        Voxels that enter the fit, as slices of the volume.
    sections, whole
        Sections that are fitted separately; the fit over the entire volume, if the mode has one.
    workers
        Threads.
    kept
        True if the volume is decoded once and kept in memory. Uncompressed files are read twice
        instead: the system caches them, and a copy would displace that cache.
    predicted_bytes
        Peak of the host memory.
    fit_bytes, block_bytes
        Memory of the fit, and of correcting one block.
    """

    volume: Volume
    mode: str
    keep: Region
    sections: tuple[Part, ...]
    whole: Part | None
    workers: int
    kept: bool
    predicted_bytes: int
    fit_bytes: int
    block_bytes: int

    def device_bytes(self, blocks: int) -> int:
        """GPU memory: the fit's, or later that of this number of blocks at once."""
        return max(self.fit_bytes, blocks * self.block_bytes)

    @property
    def copies(self) -> bool:
        """True if the volume is copied without a field: its values must not be averaged."""
        return not self.sections and self.whole is None

    @property
    def voxel_iterations(self) -> int:
        """Voxels of each fit times its most iterations, summed over the fits.

        All voxels count, because the plan does not know the mask.
        """
        parts = [*self.sections, *([] if self.whole is None else [self.whole])]
        planes = sum((p.kept.stop - p.kept.start) * sum(p.mesh.iterations) for p in parts)
        return planes * math.prod(self.shrunk_shape[1:])

    @property
    def planes(self) -> range:
        """Planes of the volume that enter the fit."""
        return range(self.volume.grid.shape[0])[self.keep[0]]

    @property
    def shrunk_shape(self) -> tuple[int, ...]:
        """Voxels of the shrunk volume, (z, y, x)."""
        shape = self.volume.grid.shape
        return tuple(len(range(n)[k]) for n, k in zip(shape, self.keep, strict=True))

    def lines(self) -> list[str]:
        """The plan as lines for the log."""
        grid, dtype = self.volume.grid, self.volume.dtype
        size = math.prod(grid.shape) * dtype.itemsize
        factors = [k.step for k in self.keep]
        lines = [
            f"{self.volume.path}: {spelled(grid.shape)} voxels (z y x) of "
            f"{spelled(grid.spacing)} um, {dtype}, {size / 1e9:.2f} GB"
        ]
        if self.copies:
            name = name_of(self.volume.attributes)
            of = f"the values of channel {name}" if name else "its values"
            lines.append(f"copied without a bias field, because {of} must not be averaged")
        else:
            lines.append(
                f"mode {self.mode}, shrunk by {spelled(factors)} to {spelled(self.shrunk_shape)}"
            )
        if self.sections:
            depths = [part.stop - part.start for part in self.sections]
            part = max(self.sections, key=lambda s: s.stop - s.start)
            lines.append(
                f"{len(self.sections)} section(s) of {min(depths)} to {max(depths)} planes, each "
                + part.mesh.describe((part.stop - part.start, *grid.shape[1:]), grid.spacing)
            )
        if self.whole is not None:
            lines.append("whole volume: " + self.whole.mesh.describe(grid.shape, grid.spacing))
        lines.append(
            f"{self.workers} thread(s), the volume "
            + ("read once and kept in memory" if self.kept else "read and written block by block")
            + f", about {self.predicted_bytes / 1e6:.0f} MB of memory"
        )
        return lines

    def warnings(self) -> list[str]:
        """What is unusual about the fit."""
        parts = [*self.sections, *([] if self.whole is None else [self.whole])]
        found = []
        if not any(sum(part.mesh.iterations) for part in parts):
            found.append("No iterations were requested: the field is 1 everywhere.")
        found += [
            f"{self.volume.path} has one voxel along {name} after --n4_shrink_factor: the field is "
            "constant along it, and the other axes are fitted."
            for name, n in zip("zyx", self.shrunk_shape, strict=True)
            if n == 1
        ]
        return found


def plan_n4(
    volume: Volume,
    sections: Sequence[Section],
    p: N4Parameters,
    execution: ExecutionParameters,
    *,
    whole_files: int,
    referenced: bool = False,
) -> Plan:
    """Plan a run on a volume and its sections, without those that are missing.

    `whole_files` are the bytes of inputs and outputs whose formats must be kept in memory whole;
    `referenced` means that the tissue mask of a reference is kept too.
    Raises an OctaneError if memory is insufficient or a mesh does not fit the volume.
    """
    grid = volume.grid
    by_section = sections if p.mode != "global" else []
    depths = [s.stop - s.start for s in by_section] or [grid.shape[0]]
    mesh = None
    if p.mode != "per_section":
        mesh = plan_mesh(grid.shape, grid.spacing, p, volume.path)
    own = [
        plan_mesh((s.stop - s.start, *grid.shape[1:]), grid.spacing, p, volume.path, section=True)
        for s in by_section
    ]
    memory = bytes_of(execution.memory)
    block = int(np.prod(np.minimum(READ_BLOCK, grid.shape)))
    # The block as read and as corrected, the field and float32 intermediates.
    levelled = p.histogram_matching != "none" or p.z_profile_gain
    need = block * (2 * volume.dtype.itemsize + BLOCK_BYTES + 8 * levelled)
    fixed = PROCESS_BYTES + whole_files
    per_voxel = FIT_BYTES + 4 * (p.weights is not None) + referenced
    given = None if p.shrink_factor is None else _three(p.shrink_factor[::-1])
    factors = shrink_factors(
        grid.shape,
        own if mesh is None else [mesh, *own],
        # Each plane has its own intensity map, so the fit must see every plane.
        1 if p.z_profile_gain or p.histogram_matching == "plane" else min(depths),
        max(1, int(FILLED * (memory - fixed)) // per_voxel),
        given,
    )
    keep = shrink_slices(grid.shape, factors)
    lengths = [len(range(n)[k]) for n, k in zip(grid.shape, keep, strict=True)]
    fitted = math.prod(lengths) * per_voxel
    # The fit frees its memory before blocks are corrected.
    least = fixed + max(fitted, need)
    if least > memory:
        raise InputError(
            f"{volume.path}: N4 needs {least / 1e9:.1f} GB for a fit of {math.prod(lengths)} "
            f"voxels or for one block, but --memory allows {memory / 1e9:.1f} GB; raise --memory "
            "or --n4_shrink_factor (auto chooses one that fits), or convert files that must be "
            "read whole to OME-Zarr."
        )
    count = len(blocks(grid.shape, (READ_BLOCK,) * 3))
    workers = plan_workers(need, memory, execution.workers, max(count, 2), fixed=fixed)
    predicted = fixed + max(fitted, min(workers, count) * need)
    size = math.prod(grid.shape) * volume.dtype.itemsize
    kept = not volume.is_plain and predicted + size <= memory
    planes = range(grid.shape[0])[keep[0]]
    parts = tuple(
        Part(s.name, s.start, s.stop, within(planes, s), its)
        for s, its in zip(by_section, own, strict=True)
    )
    whole = None
    if mesh is not None:
        whole = Part("the volume", 0, grid.shape[0], slice(0, len(planes)), mesh)
    return Plan(
        volume, p.mode, keep, parts, whole, workers, kept, predicted + kept * size, fitted, need
    )


def plan_copy(volume: Volume, execution: ExecutionParameters, *, whole_files: int) -> Plan:
    """Plan the copy of a volume whose values must not be averaged.

    `whole_files` are as for :func:`plan_n4`. Raises an OctaneError if memory is insufficient.
    """
    shape = volume.grid.shape
    # The block as read and as converted, in float64 before that, and what encoding needs.
    block = int(np.prod(np.minimum(READ_BLOCK, shape)))
    need = block * (2 * volume.dtype.itemsize + 8 + BLOCK_BYTES)
    fixed = PROCESS_BYTES + whole_files
    count = len(blocks(shape, (READ_BLOCK,) * 3))
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, count, fixed=fixed)
    keep = (slice(None),) * 3
    return Plan(volume, "global", keep, (), None, workers, False, fixed + workers * need, 0, need)


def within(planes: range, section: Section) -> slice:
    """Kept planes of a section, as a slice of the shrunk volume."""
    start, stop = np.searchsorted(planes, (section.start, section.stop))
    return slice(int(start), int(stop))


def plan_mesh(
    shape: Three, spacing: Vector, p: N4Parameters, path: Path, *, section: bool = False
) -> Mesh:
    """Return the mesh that the parameters specify, or derive one from the volume.

    ``shape`` and ``spacing`` are voxels and micrometres of the part to fit, (z, y, x); errors name
    ``path``. Raises an OctaneError if a knot distance exceeds the volume, except along z of a
    section.
    """
    extent = [(n - 1) * s for n, s in zip(shape, spacing, strict=True)]
    points = list(p.control_points[::-1])
    if p.spline_distance_mm is not None:
        distances = [d * 1000 for d in p.spline_distance_mm[::-1]]
        for name, length, distance in zip("zyx", extent, distances, strict=True):
            if distance / (1 + ROUNDING) > length > 0 and not (section and name == "z"):
                most = [min(d, n or d) / 1000 for d, n in zip(distances, extent, strict=True)]
                raise InputError(
                    f"{path}: --n4_spline_distance_mm is {distance / 1000:g} mm along {name}, but "
                    f"the volume is only {length / 1000:g} mm long; give at most "
                    f"'{' '.join(f'{n:g}' for n in reversed(most))}' (x y z)."
                )
        points = [
            max(1, math.ceil(length / distance - ROUNDING)) + SPLINE_ORDER
            for length, distance in zip(extent, distances, strict=True)
        ]
    iterations = p.iterations
    if isinstance(p.levels, int):
        given = iterations or (ITERATIONS,)
        iterations = (given + given[-1:] * p.levels)[: p.levels]
    if iterations is not None:
        levels = [max(1, len(iterations))] * 3
    else:
        levels = []
        for n, s, count in zip(shape, spacing, points, strict=True):
            span = n * s / (count - SPLINE_ORDER)
            room = span / max(FINEST_UM, FINEST_VOXELS * s)
            levels.append(1 + min(LEVELS - 1, max(0, math.floor(math.log2(max(room, 1))))))
        iterations = (ITERATIONS,) * max(levels)
    return Mesh(_three(points), tuple(iterations), _three(levels))


def shrink_factors(
    shape: Three, meshes: Sequence[Mesh], depth: int, most_voxels: int, given: Three | None
) -> Three:
    """Return the shrink factors (z, y, x): as given, or derived.

    Derived factors are as large as the finest mesh allows, at most 4, but smaller if fewer than
    250,000 voxels would remain; they grow again while more than ``most_voxels`` remain.

    ``shape`` is in voxels, ``meshes`` are those of all fits, ``depth`` is the number of planes of
    the thinnest part that is fitted separately, and ``most_voxels`` the limit set by the memory.
    """
    if given is not None:
        return given
    lengths = (min(depth, shape[0]), *shape[1:])
    spans = [max(mesh.finest_spans[axis] for mesh in meshes) for axis in range(3)]
    limits = [
        max(1, min(LARGEST_FACTOR, n // (SAMPLES_PER_SPAN * span)))
        for n, span in zip(lengths, spans, strict=True)
    ]

    def kept(factors: Sequence[int]) -> int:
        return math.prod(max(1, n // f) for n, f in zip(shape, factors, strict=True))

    factors = limits
    for least in range(1, LARGEST_FACTOR + 1):
        factors = [min(limit, least) for limit in limits]
        wider = [min(limit, least + 1) for limit in limits]
        if kept(wider) < ENOUGH_VOXELS:
            break
    while kept(factors) > most_voxels:
        # Shrink along the axis that keeps the most voxels.
        axis = max(range(3), key=lambda a: shape[a] // factors[a] * (a > 0 or depth == shape[0]))
        factors[axis] += 1
    return _three(factors)


def _three(values: Sequence[int]) -> Three:
    z, y, x = values
    return z, y, x
