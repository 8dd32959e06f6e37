"""One block of tissue, cut into sections that lie and look as cuts do, with beads inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from octane.core.geometry import Vector, slopes
from octane.processes.phantom.step import WATER, Subject, tissue
from octane.processes.stack.layout.displacement import IN_PLACE, Displacement

Voxels = npt.NDArray[np.float64]
Place = tuple[float, ...]
"""Place of a bead in the block, voxels (z, y, x)."""

LIGHT = 1.0
"""Loss of light with depth, 1/mm."""
GRAIN, ROUGH = 3.0, 0.2
"""Width of the tissue's texture in voxels, and the standard deviation of its logarithm."""
BEADS, APART, MARGIN = 30, 14, 4
"""Number of beads in a block, their least distance, and that from a section that was not imaged and
from the end, voxels."""
NEAR = 7
"""Voxels around a bead that it lights."""


@dataclass(frozen=True)
class Cut:
    """How a block of tissue is cut, and how its sections lie; a value for each section.

    Attributes
    ----------
    thick
        Thickness, whole micrometres.
    moves, water, tilts
        Displacement, depth of the surface in micrometres and its tilt in degrees (y, x); none if
        empty.
    gains
        Brightness; 1 if empty.
    gone
        Numbers of sections that were not imaged.
    named
        Check of the report that must name what octane leaves as it was imaged.
    """

    thick: tuple[int, ...] = (160, 160, 160)
    moves: tuple[Displacement, ...] = ()
    water: tuple[float, ...] = ()
    tilts: tuple[tuple[float, float], ...] = ()
    gains: tuple[float, ...] = ()
    gone: frozenset[int] = frozenset()
    named: str = ""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the sections that were imaged."""
        return [k for k in range(1, len(self.thick) + 1) if k not in self.gone]

    def start(self, number: int) -> int:
        """Depth of a section's surface in the block, micrometres."""
        return sum(self.thick[: number - 1])

    def move(self, number: int) -> Displacement:
        """Displacement of a section."""
        return self.moves[number - 1] if self.moves else IN_PLACE

    def table(self) -> str:
        """Displacements and thickness as --displacements reads them."""
        rows = [(k, *self.move(k), self.thick[k - 1]) for k in self.numbers]
        lines = [("section", "y", "x", "rotation", "thickness"), *rows]
        return "".join(f"{','.join(map(str, line))}\n" for line in lines)

    def surface(self, number: int, offset: Sequence[npt.ArrayLike]) -> npt.NDArray[np.float64]:
        """Depth of a section's surface at an ``offset`` (y, x) from its middle, micrometres."""
        water = self.water[number - 1] if self.water else 0.0
        v, u = slopes(self.tilts[number - 1]) if self.tilts else (0.0, 0.0)
        return water + v * np.asarray(offset[0]) + u * np.asarray(offset[1])


def seen_tissue(cut: Cut, number: int, shape: tuple[int, int, int], spacing: Vector) -> Voxels:
    """Light of the tissue of a section as imaged (z, y, x); usual tissue is about 1."""
    extent = [n * s for n, s in zip(shape, spacing, strict=True)]
    below = _below(cut, number, shape, spacing)
    y, x = ((np.arange(n) + 0.5) * s for n, s in zip(shape[1:], spacing[1:], strict=True))
    middle = (extent[1] / 2, extent[2] / 2)
    at_y, at_x = cut.move(number).undo(y[:, None], x[None, :], middle)
    block = Subject((float(sum(cut.thick)), extent[1], extent[2]), (0, 0), (0, 0, 0), (0, 0))
    deep = cut.start(number) + below
    seen = tissue(block, deep, at_y, at_x)
    planes = shape[0] + int(sum(cut.thick) / spacing[0])
    at = [place / size - 0.5 for place, size in zip((deep, at_y, at_x), spacing, strict=True)]
    texture = _texture((planes, *shape[1:]), len(cut.thick))
    places = np.stack(np.broadcast_arrays(*at))
    seen = seen * ndimage.map_coordinates(texture, places, order=1, mode="grid-wrap")
    inside = np.clip(below / spacing[0] + 0.5, 0, 1)
    gain = cut.gains[number - 1] if cut.gains else 1.0
    return gain * (inside * seen * _light(below) + (1 - inside) * WATER)


def beads_of(cut: Cut, size: tuple[int, int], spacing: Vector, edge: int, seed: int) -> list[Place]:
    """Places of beads in the block, at least ``edge`` voxels from its sides."""
    rng, found = np.random.default_rng(seed), list[Place]()
    # A last section, which no other tells, becomes as thick as others.
    deep = (cut.start(len(cut.thick)) + min(cut.thick)) / spacing[0]
    first = np.array([MARGIN, edge, edge])
    last = np.array([deep, *size]) - first
    holes = [[cut.start(k + step) / spacing[0] for step in (0, 1)] for k in cut.gone]
    while len(found) < BEADS:
        place = rng.uniform(first, last)
        is_lost = any(a - MARGIN < place[0] < b + MARGIN for a, b in holes)
        if not is_lost and all(np.linalg.norm(place - other) >= APART for other in found):
            found.append(tuple(place.tolist()))
    return found


def lit(
    cut: Cut,
    number: int,
    shape: tuple[int, int, int],
    spacing: Vector,
    places: Sequence[Place],
    width: float,
) -> Voxels:
    """Light of the beads in a section as imaged; ``width`` is their standard deviation, voxels."""
    image, middle = np.zeros(shape), (shape[1] * spacing[1] / 2, shape[2] * spacing[2] / 2)
    below = _below(cut, number, shape, spacing)
    for place in places:
        z, y, x = (p * s for p, s in zip(place, spacing, strict=True))
        v, u = cut.move(number).apply(np.array(y), np.array(x), middle)
        deep = z - cut.start(number) + cut.surface(number, (v - middle[0], u - middle[1]))
        at = np.array([deep, v, u], float) / spacing - 0.5
        window = tuple(
            slice(max(0, round(p) - NEAR), max(0, min(n, round(p) + NEAR + 1)))
            for p, n in zip(at.tolist(), shape, strict=True)
        )
        apart = np.ogrid[window]
        square = sum((axis - p) ** 2 for axis, p in zip(apart, at, strict=True))
        image[window] += np.exp(-square / (2 * width**2))
    return image * _light(below) * (below > 0)


def _below(cut: Cut, number: int, shape: tuple[int, int, int], spacing: Vector) -> Voxels:
    """Depth of each voxel below the surface, micrometres."""
    z, y, x = ((np.arange(n) + 0.5) * s for n, s in zip(shape, spacing, strict=True))
    offset = (y[:, None] - shape[1] * spacing[1] / 2, x[None, :] - shape[2] * spacing[2] / 2)
    surface = np.broadcast_to(cut.surface(number, offset), shape[1:])
    return np.asarray(z[:, None, None] - surface, np.float64)


def _light(below: Voxels) -> Voxels:
    return np.exp(-LIGHT * np.maximum(below, 0) / 1000)


@lru_cache(maxsize=1)
def _texture(shape: tuple[int, int, int], seed: int) -> Voxels:
    """Structure that repeats itself beyond its borders."""
    noise = np.random.default_rng(seed).normal(size=shape)
    made = ndimage.gaussian_filter(noise, GRAIN, mode="wrap")
    return np.exp(ROUGH * made / made.std())
