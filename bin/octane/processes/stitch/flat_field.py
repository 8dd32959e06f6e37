"""Flat field of a section's tiles: the relative brightness across a microscope's field of view.

Where two tiles overlap, both saw the same tissue at different places in the tile, so the ratio of
their values is a ratio of the flat field, without the tissue. A smooth flat field is fitted to
these ratios. Averaging tiles instead would need many more of them to cancel the tissue.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numpy.polynomial.legendre import leggrid2d

from octane.compare.correlation import neighbours
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.ratios import TERMS, ComparedBlocks, Values, compare_blocks, fit_light

MOST_PAIRS = 100
"""Maximum number of compared pairs: more would change the fit by less than its error."""
Image = npt.NDArray[np.float32]


def shading_of(profile: npt.NDArray) -> float:
    """Range of the light over a tile, without the 1 % of pixels at either end."""
    low, high = np.percentile(profile, (1, 99))
    return float(high - low)


@dataclass(frozen=True)
class FlatField:
    """Image of uniform tissue: ``profile`` times brightness, plus ``dark``.

    ``profile`` is (y, x) over a full tile, with mean 1; ``error`` is the shading that it may leave.
    """

    profile: Image
    dark: float = 0.0
    error: float | None = None

    @cached_property
    def gain(self) -> Image:
        """Factors that even out a full tile."""
        return np.reciprocal(self.profile)

    def correct(self, tile: Image) -> Image:
        """Even out the projection of a tile, which may be smaller than a full one."""
        return (tile - np.float32(self.dark)) * self.gain[: tile.shape[0], : tile.shape[1]]


def estimate_flat_field(
    projections: Projections, placement: TilePlacement, *, dark: float = 0.0
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    ``projections`` are the tiles' means over depth, and ``dark`` is the grey level without light.
    Returns None if fewer than two pairs of tiles share anything above it.
    """
    pairs = compare_sample(projections, placement, dark)
    if len(pairs) < 2:
        return None
    # Both halves show the real shading, and each its own chance errors, which must not be applied.
    one, other = (fit_light(pairs[k::2]).coefficients for k in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other))) or 1.0
    agreed = max(0.0, float(one @ other) / norm)
    shape = full_shape(projections)
    profile = _on_tile(agreed * (one + other) / 2, *shape)
    # The halves differ by twice the error of their mean.
    error = shading_of(_on_tile((one - other) / 2, *shape))
    return FlatField((profile / profile.mean()).astype(np.float32), dark, error)


def compare_sample(
    projections: Projections, placement: TilePlacement, dark: float
) -> list[ComparedBlocks]:
    """Compare pairs of tiles, which are spread over the section, and always the same."""
    pairs = neighbours([*placement.places])
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    chosen = (pairs[k] for k in np.sort(order))
    return compare_blocks(projections, placement, chosen, full_shape(projections), dark)


def full_shape(projections: Projections) -> tuple[int, int]:
    """Pixels of a full tile in y and x."""
    height, width = (int(n) for n in np.max([i.shape for i in projections.values()], axis=0))
    return height, width


def _on_tile(coefficients: Values, *shape: int) -> Values:
    """Light at a tile's pixels, without storing their terms, which are many times larger."""
    matrix = np.zeros(TERMS.shape)
    matrix[TERMS] = coefficients
    return np.exp(leggrid2d(*((2 * np.arange(n) + 1) / n - 1 for n in shape), matrix))
