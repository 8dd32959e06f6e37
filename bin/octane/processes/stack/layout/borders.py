"""Borders between sections, and the depth over which both sections show the same tissue."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Grid
from octane.layout.sections import list_numbers
from octane.processes.stack.layout.stack import SectionSlab


@dataclass(frozen=True)
class Border:
    """A section, the one above it, and the depth over which STACK blends them.

    ``depth`` is in micrometres below the surface of the lower section.
    """

    above: SectionSlab
    below: SectionSlab
    depth: float

    def planes(self, grid: Grid) -> npt.NDArray[np.int64]:
        """Planes of the volume in which the sections are blended, in order."""
        planes = np.array(self.below.planes)
        return planes[self.weights(planes, grid) < 1]

    def weights(self, planes: npt.NDArray[np.int64], grid: Grid) -> npt.NDArray[np.float64]:
        """Weight of the lower section in each plane.

        It rises linearly from 0 at its surface to 1, at the planes' centres.
        """
        depth = (planes + 0.5) * grid.spacing[0] - self.below.surface
        return np.clip(depth / self.depth, 0, 1)


def shared_depth(above: SectionSlab, below: SectionSlab, grid: Grid) -> float:
    """Depth below a section's surface that the one above shows everywhere, micrometres.

    It ends with a whole plane, and at the latest where the next section begins.
    """
    planes = above.whole_planes(below.planes, grid)
    return float((planes[-1] + 1) * grid.spacing[0] - below.surface) if len(planes) else 0.0


def _neighbours(slabs: Sequence[SectionSlab]) -> list[tuple[SectionSlab, SectionSlab]]:
    """Sections and the ones below them, without gaps between."""
    return [(a, b) for a, b in pairwise(slabs) if a.image is not None and b.image is not None]


def borders(slabs: Sequence[SectionSlab], blend: float, grid: Grid) -> list[Border]:
    """Borders that are blended over ``blend`` micrometres, or over what the sections share.

    A section below a gap, or that shares no plane with the one above, is not among them.
    """
    shared = [(*pair, min(blend, shared_depth(*pair, grid))) for pair in _neighbours(slabs)]
    return [Border(*border) for border in shared if border[2] > 0]


def blend_warnings(slabs: Sequence[SectionSlab], blend: float, grid: Grid) -> list[str]:
    """Warnings about sections that share less than ``blend`` micrometres with the one above."""
    if not blend:
        return []
    depths = {below.number: shared_depth(above, below, grid) for above, below in _neighbours(slabs)}
    # Whole planes may lack up to half of one.
    least = blend - grid.spacing[0] / 2 * (1 + 1e-6)
    short = [number for number, depth in depths.items() if 0 < depth < least]
    none = [number for number, depth in depths.items() if depth == 0]
    texts = []
    if short:
        sizes = sorted({f"{depths[number]:.4g}" for number in short}, key=float)
        size = " to ".join(dict.fromkeys((sizes[0], sizes[-1])))
        texts.append(
            f"--stack_blend {blend:g} exceeds the {size} micrometre below the surface that the "
            f"section above shows as well, in {_section_list(short)}: only those are blended."
        )
    if none:
        texts.append(
            f"--stack_blend {blend:g} does not blend {_section_list(none)}: the section above "
            "shows nothing below the surface."
        )
    return texts


def _section_list(numbers: Sequence[int]) -> str:
    return f"section{'s' * bool(numbers[1:])} {list_numbers(numbers)}"
