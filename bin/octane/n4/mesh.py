"""Mesh of a fit: control points, levels and shrink factors, from the size and spacing of a volume.

A mesh finer than the bias follows the tissue itself and removes it; one as fine as the voxels has
too little data. Parameters that are not given are derived from these two limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octane.config.params import N4Parameters
from octane.core.errors import OctaneError
from octane.core.geometry import Vector, spelled

FINEST_UM = 500.0
"""Smallest distance of knots that is derived, micrometres: structures of tissue are smaller."""
FINEST_VOXELS = 25
"""The same in voxels; what ITK's defaults come to on a head of 200 voxels of 1 mm."""
LEVELS = 4
ITERATIONS = 50
SPLINE_ORDER = 3
SAMPLES_PER_SPAN = 12
"""Voxels that shrinking leaves between two knots of the finest mesh, where it is derived."""
LARGEST_FACTOR = 4
"""Shrink factor that is derived while memory allows it: what N4 is usually run with."""
ENOUGH_VOXELS = 250_000
"""Voxels below which shrinking saves less than a second, and costs accuracy."""

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Mesh:
    """The B-spline mesh of one fit; all axes z, y, x.

    Attributes
    ----------
    control_points
        Of the first level.
    iterations
        Most of them, per level.
    fitting_levels
        Levels over which each axis is refined.
    """

    control_points: Three
    iterations: tuple[int, ...]
    fitting_levels: Three

    @property
    def finest_spans(self) -> Three:
        """Spans of each axis at the last level."""
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
            f"{' '.join(map(str, self.iterations))} iterations, knots at last "
            f"{' '.join(f'{k:.0f}' for k in knots)} um apart"
        )


def plan_mesh(
    shape: Three, spacing: Vector, p: N4Parameters, path: Path, *, section: bool = False
) -> Mesh:
    """Return the mesh that the parameters ask for, or one that the volume carries.

    ``shape`` and ``spacing`` are voxels and micrometres of what is fitted, (z, y, x); errors name
    ``path``. A distance of knots larger than the volume is an OctaneError, except along z of a
    section.
    """
    extent = [(n - 1) * s for n, s in zip(shape, spacing, strict=True)]
    points = list(p.control_points[::-1])
    if p.spline_distance_mm is not None:
        distances = [d * 1000 for d in p.spline_distance_mm[::-1]]
        for name, length, distance in zip("zyx", extent, distances, strict=True):
            if distance > length > 0 and not (section and name == "z"):
                raise OctaneError(
                    f"{path}: --spline-distance-mm asks for {distance / 1000:g} mm along {name}, "
                    f"where the volume has {length / 1000:g} mm; give at most that (order x y z)."
                )
        # A tolerance, so that a tenth of the extent is ten spans and not eleven.
        points = [
            max(1, math.ceil(length / distance - 1e-6)) + SPLINE_ORDER
            for length, distance in zip(extent, distances, strict=True)
        ]
    if p.iterations is not None:
        levels = [max(1, len(p.iterations))] * 3
        iterations = p.iterations
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

    Derived, every factor is as large as the finest mesh allows, 4 at most, and smaller where
    that leaves fewer than 250,000 voxels; then larger again while there are more than
    `most_voxels`.

    ``shape`` is in voxels, ``meshes`` are those of all fits, ``depth`` the planes of the thinnest
    part that is fitted by itself, and ``most_voxels`` the limit by the memory.
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
        # The axis that keeps the most voxels gives the next.
        axis = max(range(3), key=lambda a: shape[a] // factors[a] * (a > 0 or depth == shape[0]))
        factors[axis] += 1
    return _three(factors)


def _three(values: Sequence[int]) -> Three:
    z, y, x = values
    return z, y, x
