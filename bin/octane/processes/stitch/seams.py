"""Seams of tiles: their mismatch where they overlap, and the part of it that is speckle."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import coarse, neighbours
from octane.layout.mosaic import Tile
from octane.layout.placement import Placement, TilePlacement
from octane.processes.stitch.blending import Projections, overlap, shared_area
from octane.processes.stitch.exposure import DIM
from octane.processes.stitch.flat_field import FlatField
from octane.processes.stitch.record import SeamFigures

BLOCK = 4
"""Edge in pixels of the blocks by which speckle is distinguished from a mismatch."""


def seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of two views of the same area: rms difference over their common mean."""
    mean = float(np.abs(first).mean() + np.abs(second).mean()) / 2
    return float(np.sqrt(np.mean(np.abs(first - second) ** 2)) / mean) if mean > 0 else 0.0


def seam_without_speckle(first: npt.NDArray, second: npt.NDArray, fine: float) -> float:
    """Mismatch of two views of the same area, without what differs from pixel to pixel.

    ``fine`` is their :func:`seam`. The mean of a block of n pixels keeps mismatches of structure
    and brightness, and one n-th of the variance of speckle.
    """
    blocks = seam(coarse(first, BLOCK), coarse(second, BLOCK)) ** 2
    return float(np.sqrt(max(0.0, (BLOCK**2 * blocks - fine**2) / (BLOCK**2 - 1))))


def block_seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of two views of the same area, in the means of blocks of pixels."""
    return seam(coarse(first, BLOCK), coarse(second, BLOCK))


def speckle_seam(first: npt.NDArray, second: npt.NDArray) -> float:
    """Mismatch of block means that is due to the speckle of two tiles, however well they fit.

    ``first`` and ``second`` are pixels as imaged, because interpolation reduces speckle.
    """
    images = (first, second)
    level = sum(float(np.abs(image).mean()) for image in images) / 2
    # Pixels with alternating signs keep the speckle of a block and none of its structure.
    signs = ((-1.0) ** np.add.outer(*map(np.arange, image.shape)) for image in images)
    means = (coarse(image * sign, BLOCK) for image, sign in zip(images, signs, strict=True))
    return sum(float(np.mean(mean**2)) for mean in means) ** 0.5 / level if level > 0 else 0.0


def _nearest_pixels(
    places: tuple[Placement, Placement], tile: npt.NDArray, area: tuple[slice, slice]
) -> npt.NDArray:
    """Pixels of a tile nearest to an area of the section, not interpolated."""
    starts = (
        max(0, min(round(span.start - place.shift), n - (span.stop - span.start)))
        for span, place, n in zip(area, places, tile.shape, strict=True)
    )
    rows, columns = (
        slice(start, start + span.stop - span.start)
        for start, span in zip(starts, area, strict=True)
    )
    return tile[rows, columns]


@dataclass(frozen=True)
class Seams:
    """Mismatch at ``each`` seam, and what a section's record says of those along y and along x.

    ``along`` are the median seam and speckle, ``worst`` the largest mismatch without speckle.
    """

    each: dict[tuple[Tile, Tile], float] = field(default_factory=dict)
    along: dict[str, float] = field(default_factory=dict)
    worst: dict[str, SeamFigures] = field(default_factory=dict)


def measure_seams(
    placement: TilePlacement, projections: Projections, left: FlatField | None
) -> Seams:
    """Measure the seams of a section.

    Tiles that ``projections`` lack are left out. All but the mismatch at each seam excludes
    ``left``, the shading that the projections still show. Dark seams are never the worst.
    """
    means = [float(np.abs(image).mean()) for image in projections.values()]
    least = DIM * float(np.mean(means)) if means else 0.0
    seams: dict[tuple[Tile, Tile], float] = {}
    along: dict[str, list[float]] = {}
    worst: dict[str, SeamFigures] = {}
    for pair in neighbours([*projections]):
        area, common = shared_area(placement, *pair), overlap(placement, projections, *pair)
        if area is None or common is None:
            continue
        seams[pair] = seam(*common)
        even = {tile: projections[tile] for tile in pair}
        if left is not None:
            even = {tile: left.correct(image) for tile, image in even.items()}
            common = overlap(placement, even, *pair) or common
        pixels = (
            _nearest_pixels(placement.places[tile], image, area) for tile, image in even.items()
        )
        axis = "yx"[pair[0][0] == pair[1][0]]
        blocks, speckle = block_seam(*common), speckle_seam(*pixels)
        along.setdefault(f"seam_{axis}", []).append(blocks)
        along.setdefault(f"speckle_{axis}", []).append(speckle)
        mismatch = max(0.0, blocks**2 - speckle**2) ** 0.5
        largest = worst.get(axis)
        is_lit = max(float(np.mean(view)) for view in common) > least
        if is_lit and (largest is None or mismatch > largest.mismatch):
            first, second = pair
            worst[axis] = SeamFigures(first=first, second=second, mismatch=mismatch)
    return Seams(seams, {name: float(np.median(values)) for name, values in along.items()}, worst)
