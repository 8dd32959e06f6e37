"""Flat field of a section's tiles: the relative brightness across a microscope's field of view.

Where two tiles overlap, both saw the same tissue at different places in the tile, so the ratio of
their values is a ratio of the flat field, without the tissue. A smooth flat field is fitted to
these ratios. Averaging tiles instead would need many more of them to cancel the tissue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numpy.polynomial.legendre import leggrid2d, legvander2d

from octane.compare.correlation import coarse, neighbours
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections, overlap
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters

HIGHEST = 6
"""Order of the polynomial in y and x that models the logarithm of a flat field."""
ORDER = np.add.outer(np.arange(HIGHEST + 1), np.arange(HIGHEST + 1))
TERMS = (ORDER > 0) & (ORDER <= HIGHEST)
EXPECTED = np.where(ORDER <= 2, 0.3, 0.02 * 0.5 ** (ORDER - 3.0))[TERMS]
"""Expected size of its coefficients: the fall-off of light is mostly quadratic."""
CELLS = 32
"""Maximum number of compared blocks along a tile."""
SMALL_BLOCK = 4
"""Edge of a block in small tiles, pixels: a mean has less speckle."""
ACROSS = 6
"""Minimum number of blocks across an overlap."""
MOST_PAIRS = 100
"""Maximum number of compared pairs: more would change the fit by less than its error."""
DIM = 0.1
"""Brightness relative to bright tissue below which a block counts less: it may not be tissue."""
OUTLIER = 3.0
"""Standard deviations at which Tukey's biweight rejects a ratio: if tiles are slightly misplaced,
many are wrong."""
SUBTLE = 0.01
"""Minimum error of a ratio, such as that of interpolation."""
ALIKE = 3.0
"""Errors of the fit relative to those of independent blocks: neighbouring blocks share errors if
tiles are slightly misplaced."""
ROUNDS = 30
"""Maximum iterations of the fit."""
STEADY = 1e-4
"""Change of the coefficients below which the fit ends."""

Image = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


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


def estimate(
    projections: Projections, placement: TilePlacement, *, dark: float = 0.0
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    ``projections`` are the tiles' means over depth, and ``dark`` is the grey level without light.
    Returns None if fewer than two pairs of tiles share anything above it.
    """
    height, width = (int(n) for n in np.max([i.shape for i in projections.values()], axis=0))
    found = _compared(projections, placement, (height, width), dark)
    if len(found) < 2:
        return None
    # Both halves show the real shading, and each its own chance errors, which must not be applied.
    one, other = (_fitted(found[k::2]) for k in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other))) or 1.0
    agreed = max(0.0, float(one @ other) / norm)
    profile = _on_tile(agreed * (one + other) / 2, height, width)
    # The halves differ by twice the error of their mean.
    error = shading_of(_on_tile((one - other) / 2, height, width))
    return FlatField((profile / profile.mean()).astype(np.float32), dark, error)


@dataclass(frozen=True)
class Light:
    """Flat fields of a section, ``measured`` in its overlaps and ``applied`` to its tiles.

    Either may be None; ``is_given`` tells whether the latter is from a file.
    """

    measured: FlatField | None = None
    applied: FlatField | None = None
    is_given: bool = False

    def evened(self, projections: Projections) -> Projections:
        """Projections evened out by the applied flat field, if any."""
        flat = self.applied
        return {t: flat.correct(own) for t, own in projections.items()} if flat else projections

    def left(self, evened: Projections, placement: TilePlacement) -> FlatField | None:
        """Flat field that evened projections still show; None if unknown."""
        if self.is_given:
            return estimate(evened, placement)
        return None if self.applied else self.measured

    def shading(self, left: FlatField | None) -> tuple[float | None, float | None]:
        """Shading before and after, None if unknown; ``left`` judges a given flat field."""
        if self.measured is None:
            return None, None
        after = self.measured.error if self.applied else None
        if self.is_given:
            after = shading_of(left.profile) if left else None
        return shading_of(self.measured.profile), after


def light_of(
    projections: Projections,
    placement: TilePlacement,
    given: Image | None,
    parameters: StitchParameters,
) -> Light:
    """Measure the flat field in overlaps, and choose which to apply: given, measured or none."""
    dark = parameters.dark_offset
    measured = estimate(projections, placement, dark=dark)
    if given is not None:
        return Light(measured, FlatField(given, dark), is_given=True)
    return Light(measured, measured if parameters.flat_field == ESTIMATE else None, is_given=False)


def _on_tile(coefficients: Values, *shape: int) -> Values:
    """Light at a tile's pixels, without storing their terms, which are many times larger."""
    matrix = np.zeros(TERMS.shape)
    matrix[TERMS] = coefficients
    return np.exp(leggrid2d(*((2 * np.arange(n) + 1) / n - 1 for n in shape), matrix))


def _compared(
    projections: Projections, placement: TilePlacement, shape: tuple[int, int], dark: float
) -> list[tuple[Values, Values, Values]]:
    """Compare blocks of pixels that two tiles saw: both means, and how their terms differ."""
    places = placement.places
    pairs = neighbours([*places])
    # Spread over the section, and always the same.
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    size = max(SMALL_BLOCK, max(shape) // CELLS)
    found: list[tuple[Values, Values, Values]] = []
    for pair in (pairs[k] for k in np.sort(order)):
        images = overlap(placement, projections, *pair)
        if images is None:
            continue
        # The change of the ratio across an overlap shows the curvature of the flat field.
        edge = max(1, min(size, min(images[0].shape) // ACROSS))
        means = [coarse(image, edge).astype(np.float64) for image in images]
        lit = np.all([np.isfinite(m) & (m > dark) for m in means], axis=0)
        if not lit.any():
            continue
        corner = [max(a.first, b.first) for a, b in zip(*(places[t] for t in pair), strict=True)]
        at = [start + (k + 0.5) * edge for start, k in zip(corner, np.nonzero(lit), strict=True)]
        first, second = (
            legvander2d(
                *(
                    2 * (v - own.shift) / n - 1
                    for v, own, n in zip(at, places[t], shape, strict=True)
                ),
                (HIGHEST, HIGHEST),
            )[:, TERMS.ravel()]
            for t in pair
        )
        found.append((means[0][lit] - dark, means[1][lit] - dark, first - second))
    return found


def _fitted(found: Sequence[tuple[Values, Values, Values]]) -> Values:
    """Fit the coefficients to means and terms by robust least squares.

    The noise of the ratios, estimated from the residuals, weighs them against the expected size.
    """
    a, b, difference = (np.concatenate(own) for own in zip(*found, strict=True))
    dim = DIM * np.percentile(np.concatenate([a, b]), 95)
    trust = 1 / (1 + (dim / a) ** 2 + (dim / b) ** 2)
    ratio = np.log(a / b)
    coefficients = np.zeros(len(EXPECTED))
    for _ in range(ROUNDS):
        left = np.abs(ratio - difference @ coefficients) * np.sqrt(trust)
        noise = SUBTLE + 1.4826 * float(np.median(left))
        fits = np.clip(1 - (left / (OUTLIER * noise)) ** 2, 0, None) ** 2
        weighted = difference * (trust * fits)[:, None]
        normal = weighted.T @ difference + np.diag(np.square(ALIKE * noise / EXPECTED))
        before, coefficients = coefficients, np.linalg.solve(normal, weighted.T @ ratio)
        if np.abs(coefficients - before).max() < STEADY:
            break
    return coefficients
