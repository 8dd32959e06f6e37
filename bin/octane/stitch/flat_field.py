"""Flat field of a section's tiles: the brightness that a microscope gives to each place of a tile.

Where two tiles overlap, both saw the same tissue at different places of the tile, so that the ratio
of what they saw is a ratio of the flat field, without any tissue in it. A smooth flat field is
fitted to these ratios. Means over tiles need many more tiles before the tissue averages out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numpy.polynomial.legendre import leggrid2d, legvander

from octane.core.errors import OctaneError
from octane.stitch.blending import overlap
from octane.stitch.checks import coarse
from octane.stitch.placement import TilePlacement
from octane.stitch.registration import neighbours
from octane.store.mosaic_grid import Tile

ORDERS = tuple((i, j) for i in range(7) for j in range(7) if 0 < i + j <= 6)
"""Orders along y and x of the polynomials whose sum is the logarithm of a flat field."""
EXPECTED = tuple(0.3 if i + j <= 2 else 0.03 * 0.5 ** (i + j - 3) for i, j in ORDERS)
"""Expected size of their coefficients: light that falls off from somewhere is mostly quadratic."""
CELLS = 32
"""Blocks of pixels along a tile that are compared, at most."""
LEAST, ACROSS = 4, 4
"""Edge of a block in pixels where tiles are small, and blocks across an overlap: a mean has less
speckle."""
MOST_PAIRS = 100
"""Pairs of tiles that are compared: more would change the fit by less than its error."""
DIM = 0.1
"""Brightness over that of bright tissue below which a block counts less: it may be no tissue."""
OFFSET = 0.05
"""Expected dark offset over the brightness of bright tissue, where the overlaps do not show it."""
FULL = 0.98
"""Part of the largest value of a type from which on a block is taken for saturated."""
OUTLIER = 4.685
"""Standard deviations at which Tukey's biweight leaves a ratio out."""
SUBTLE = 0.01
"""Error of a ratio that is always there, such as that of interpolation."""
ALIKE = 2.0
"""Errors of the fit over those of as many blocks whose errors are independent; neighbours share
some, where tiles lie a little beside their places."""
ROUNDS, STEADY = 30, 1e-4
"""Most repeats of the fit, and the change of coefficients below which it ends."""

Image = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FlatField:
    """What a microscope makes of even tissue: ``profile`` times brightness, plus ``dark``.

    ``profile`` is (y, x) of a full tile with mean 1.
    """

    profile: Image
    dark: float = 0.0

    @property
    def shading(self) -> float:
        """Range of the profile, without the 1 % of pixels at either end."""
        low, high = np.percentile(self.profile, (1, 99))
        return float(high - low)

    @cached_property
    def gain(self) -> Image:
        """Factors that even out a full tile."""
        return np.reciprocal(self.profile)

    def correct(self, tile: Image) -> Image:
        """Even out the projection of a tile, which may be cut."""
        return (tile - np.float32(self.dark)) * self.gain[: tile.shape[0], : tile.shape[1]]


def estimate(
    projections: Mapping[Tile, Image],
    placement: TilePlacement,
    *,
    dark: float | None = 0.0,
    largest: float = np.inf,
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    ``projections`` are the means over depth of the tiles, ``dark`` the grey level without light
    (None: to be estimated as well) and ``largest`` the largest value of the image's type. Gives
    None where no two tiles have anything in common.
    """
    shape = np.max([image.shape for image in projections.values()], axis=0)
    found = _compared(projections, placement, (int(shape[0]), int(shape[1])), FULL * largest)
    if found is None:
        return None
    coefficients, offset = _fitted(*found, dark)
    # Both halves show what is there, and each its own chance, by which no tile is to be changed.
    one, other = (_fitted(*(own[k::2] for own in found), offset)[0] for k in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other))) or 1.0
    coefficients *= max(0.0, float(one @ other) / norm)
    # On a grid of all pixels, without their terms, which are many times as large as a tile.
    matrix = np.zeros((7, 7))
    matrix[tuple(zip(*ORDERS, strict=True))] = coefficients
    profile = np.exp(leggrid2d(*((2 * np.arange(n) + 1) / n - 1 for n in shape), matrix))
    return FlatField((profile / profile.mean()).astype(np.float32), offset)


def _terms(y: npt.NDArray, x: npt.NDArray) -> Values:
    """Legendre polynomials at places in a tile, 0 to 1 along each axis; in a new last axis."""
    along_y, along_x = (legvander(2 * place - 1, 6) for place in (y, x))
    return np.stack([along_y[..., i] * along_x[..., j] for i, j in ORDERS], axis=-1)


def _compared(
    projections: Mapping[Tile, Image],
    placement: TilePlacement,
    shape: tuple[int, int],
    saturated: float,
) -> list[Values] | None:
    """Blocks of pixels that two tiles saw: the mean in either, and the terms where each saw it."""
    places = placement.places
    pairs = neighbours([*places])
    # Spread over the section, and the same ones each time.
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    size = max(LEAST, max(shape) // CELLS)
    found: list[list[Values]] = []
    for pair in (pairs[k] for k in np.sort(order)):
        images = overlap(placement, projections, *pair)
        if images is None:
            continue
        # How the ratio changes across an overlap says how a flat field is curved.
        edge = max(1, min(size, min(images[0].shape) // ACROSS))
        means = [coarse(image, edge).astype(np.float64) for image in images]
        lit = np.all([np.isfinite(m) & (m > 0) & (m < saturated) for m in means], axis=0)
        corner = [max(a.first, b.first) for a, b in zip(*(places[t] for t in pair), strict=True)]
        at = [start + (k + 0.5) * edge for start, k in zip(corner, np.nonzero(lit), strict=True)]
        terms = [
            _terms(*((v - own.shift) / n for v, own, n in zip(at, places[t], shape, strict=True)))
            for t in pair
        ]
        found.append([*(mean[lit] for mean in means), *terms])
    joined = [np.concatenate(own) for own in zip(*found, strict=True)]
    return joined if joined and len(joined[0]) else None


def _fitted(a: Values, b: Values, p: Values, q: Values, dark: float | None) -> tuple[Values, float]:
    """Coefficients and dark offset that fit means and terms best, by robust least squares.

    The noise of the ratios, which the fit shows itself, weighs them against what is expected.
    """
    difference = p - q
    low, bright = (float(v) for v in np.percentile(np.concatenate([a, b]), (1, 95)))
    offset, moved = dark or 0.0, 0.0
    coefficients = np.zeros(len(ORDERS))
    for _ in range(ROUNDS):
        lit = (a > offset) & (b > offset)
        one, other = (np.where(lit, seen - offset, 1) for seen in (a, b))
        trust = lit / (1 + (DIM * bright / one) ** 2 + (DIM * bright / other) ** 2)
        ratio = np.log(one / other)
        left = np.abs(ratio - difference @ coefficients) * np.sqrt(trust)
        noise = SUBTLE + (1.4826 * float(np.median(left[lit])) if lit.any() else 1.0)
        fits = np.clip(1 - (left / (OUTLIER * noise)) ** 2, 0, None) ** 2
        weighted = difference * (trust * fits)[:, None]
        normal = weighted.T @ difference + np.diag(np.square(ALIKE * noise / np.array(EXPECTED)))
        before, coefficients = coefficients, np.linalg.solve(normal, weighted.T @ ratio)
        if dark is None:
            # What both saw is equal after the offset is taken away, which is linear in it.
            f, g = np.exp(p @ coefficients), np.exp(q @ coefficients)
            step = (g - f) / np.square(a * g + b * f) * fits
            ridge = np.square(noise / (2 * OFFSET * bright))
            best = float(step @ (a * g - b * f) / (step @ (g - f) + ridge))
            offset, moved = min(max(best, 0.0), 0.9 * low), offset
            moved = abs(offset - moved) / bright
        if np.abs(coefficients - before).max() + moved < STEADY:
            break
    return coefficients, offset


def fitted_to(profile: npt.NDArray, shape: tuple[int, int]) -> Image:
    """Flat field of any resolution and sum for tiles of a shape, with mean 1.

    Raises
    ------
    OctaneError
        For what is no flat field of such a tile; the sentence goes on after the name of the file.
    """
    given = " x ".join(map(str, profile.shape))
    # Rounding may have made either axis a pixel longer.
    scale = np.divide(profile.shape, shape) if profile.ndim == 2 else np.zeros(2)
    if not scale.all() or abs(scale[0] - scale[1]) * min(shape) > max(1.0, *scale):
        raise OctaneError(
            f"has {given} pixels and a tile {shape[0]} x {shape[1]}; give a flat field of the "
            "whole tile, with the axes y and x."
        )
    if profile.dtype.kind not in "fiu" or not (np.isfinite(profile) & (profile > 0)).all():
        raise OctaneError("has pixels that are not above 0; give a flat field without such.")
    places = [
        np.clip((np.arange(n) + 0.5) * s - 0.5, 0, size - 1)
        for n, s, size in zip(shape, scale, profile.shape, strict=True)
    ]
    (top, dy), (left, dx) = ((at.astype(np.intp), at % 1) for at in places)
    made = np.zeros(shape)
    for rows, one in ((top, 1 - dy), (np.minimum(top + 1, len(profile) - 1), dy)):
        for columns, other in ((left, 1 - dx), (np.minimum(left + 1, profile.shape[1] - 1), dx)):
            made += profile[np.ix_(rows, columns)] * one[:, None] * other
    return (made / made.mean()).astype(np.float32)
