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
from numpy.polynomial.legendre import legvander

from octane.core.errors import OctaneError
from octane.resample.operator import interpolator
from octane.resample.resampler import apply
from octane.stitch.blending import overlap, overlapping
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

    ``profile`` is (y, x) of a full tile with mean 1. ``shading`` is its range, without the 1 % of
    pixels at either end and without what chance makes of it.
    """

    profile: Image
    dark: float = 0.0
    shading: float = 0.0

    @cached_property
    def gain(self) -> Image:
        """Factors that even out a full tile."""
        return np.reciprocal(self.profile)

    def correct(self, tile: Image) -> Image:
        """Even out the projection of a tile, which may be cut."""
        return (tile - np.float32(self.dark)) * self.gain[: tile.shape[0], : tile.shape[1]]


@dataclass(frozen=True)
class _Ratios:
    """Blocks of pixels that two tiles saw: their means, and the polynomials where each saw them."""

    seen: tuple[Values, Values]
    terms: tuple[Values, Values]

    def part(self, start: int) -> "_Ratios":
        """Every other block."""
        (a, b), (p, q) = self.seen, self.terms
        every = slice(start, None, 2)
        return _Ratios((a[every], b[every]), (p[every], q[every]))


def estimate(
    projections: Mapping[Tile, Image],
    placement: TilePlacement,
    *,
    dark: float | None = 0.0,
    largest: float = np.inf,
) -> FlatField | None:
    """Fit the flat field of a section to the overlaps of its tiles.

    Parameters
    ----------
    projections
        Mean over depth of each tile, (y, x); the last ones may be cut.
    placement
        Places of the tiles in the section.
    dark
        Grey level without light; None: to be estimated as well.
    largest
        Largest value of the image's type.

    Returns
    -------
    FlatField | None
        None where no two tiles have anything but background in common.
    """
    shape = np.max([image.shape for image in projections.values()], axis=0)
    found = _compared(projections, placement, (int(shape[0]), int(shape[1])), FULL * largest)
    if found is None:
        return None
    coefficients, offset = _fitted(found, dark)
    places = [(np.arange(n) + 0.5) / n for n in shape]
    profile = np.exp(_terms(*np.meshgrid(*places, indexing="ij")) @ coefficients)
    profile /= profile.mean()
    low, high = np.percentile(profile, (1, 99))
    # Both halves show what is there, and each its own chance.
    one, other = (_fitted(found.part(start), offset)[0] for start in (0, 1))
    norm = float(np.sqrt((one @ one) * (other @ other)))
    agree = max(0.0, float(one @ other) / norm) if norm > 0 else 0.0
    return FlatField(profile.astype(np.float32), offset, float(high - low) * agree)


def _terms(y: npt.NDArray, x: npt.NDArray) -> Values:
    """Legendre polynomials at places in a tile, 0 to 1 along each axis; in a new last axis."""
    along_y, along_x = (legvander(2 * place - 1, 6) for place in (y, x))
    return np.stack([along_y[..., i] * along_x[..., j] for i, j in ORDERS], axis=-1)


def _compared(
    projections: Mapping[Tile, Image],
    placement: TilePlacement,
    shape: tuple[int, int],
    saturated: float,
) -> _Ratios | None:
    """Compare neighbouring tiles block by block; None where there is nothing to compare."""
    places = placement.places
    pairs = neighbours([*places])
    # Spread over the section, and the same ones each time.
    order = np.random.default_rng(0).permutation(len(pairs))[:MOST_PAIRS]
    size = max(LEAST, max(shape) // CELLS)
    seen: tuple[list[npt.NDArray], list[npt.NDArray]] = ([], [])
    terms: tuple[list[npt.NDArray], list[npt.NDArray]] = ([], [])
    for pair in (pairs[k] for k in np.sort(order)):
        spans = overlapping(places[pair[0]], places[pair[1]])
        images = overlap(placement, projections, *pair)
        if spans is None or images is None:
            continue
        # How the ratio changes across an overlap says how a flat field is curved.
        edge = max(1, min(size, min(images[0].shape) // ACROSS))
        means = [coarse(image, edge) for image in images]
        lit = np.all([np.isfinite(m) & (m > 0) & (m < saturated) for m in means], axis=0)
        centres = np.nonzero(lit)
        for tile, mean, own, polynomials in zip(pair, means, seen, terms, strict=True):
            at = (
                (span.start + (k + 0.5) * edge - place.shift) / n
                for span, k, place, n in zip(spans, centres, places[tile], shape, strict=True)
            )
            own.append(mean[lit].astype(np.float64))
            polynomials.append(_terms(*at))
    if not any(map(len, seen[0])):
        return None
    first, second = (
        (np.concatenate(a), np.concatenate(b)) for a, b in zip(seen, terms, strict=True)
    )
    return _Ratios((first[0], second[0]), (first[1], second[1]))


def _fitted(found: _Ratios, dark: float | None) -> tuple[Values, float]:
    """Coefficients of the polynomials and the dark offset, by robust least squares.

    The noise of the ratios, which the fit shows itself, weighs them against what is expected.
    """
    (a, b), (p, q) = found.seen, found.terms
    difference = p - q
    bright = float(np.percentile(np.concatenate(found.seen), 95))
    darkest = 0.9 * float(np.percentile(np.concatenate(found.seen), 1))
    offset = dark or 0.0
    coefficients = np.zeros(len(ORDERS))
    for _ in range(ROUNDS):
        one, other = a - offset, b - offset
        lit = (one > 0) & (other > 0)
        one, other = np.where(lit, one, 1), np.where(lit, other, 1)
        trust = lit / (1 + (DIM * bright / one) ** 2 + (DIM * bright / other) ** 2)
        ratio = np.log(one / other)
        left = np.abs(ratio - difference @ coefficients) * np.sqrt(trust)
        noise = 1.4826 * float(np.median(left[lit])) + SUBTLE if lit.any() else 1.0
        fits = np.clip(1 - (left / (OUTLIER * noise)) ** 2, 0, None) ** 2
        weighted = difference * (trust * fits)[:, None]
        normal = weighted.T @ difference + np.diag(np.square(ALIKE * noise / np.array(EXPECTED)))
        before, coefficients = coefficients, np.linalg.solve(normal, weighted.T @ ratio)
        moved = offset
        if dark is None:
            # first / f1 == second / f2 after the offset is taken away, which is linear in it.
            f1, f2 = np.exp(p @ coefficients), np.exp(q @ coefficients)
            weight = fits / np.square(a * f2 + b * f1)
            step, mismatch = f2 - f1, a * f2 - b * f1
            ridge = np.square(noise / (2 * OFFSET * bright))
            offset = float((weight * step) @ mismatch / ((weight * step) @ step + ridge))
            offset = min(max(offset, 0.0), darkest)
        changed = np.abs(coefficients - before).max() + abs(offset - moved) / bright
        if changed < STEADY:
            break
    return coefficients, offset


def fitted_to(profile: npt.NDArray, shape: tuple[int, int]) -> Image:
    """Flat field of a tile of another number of voxels, or of another sum, for tiles of a shape.

    Raises
    ------
    OctaneError
        For what is no flat field of such a tile; the sentence goes on after the name of the file.
    """
    if profile.ndim != 2:
        raise OctaneError(f"has {profile.ndim} axes; give a flat field with the axes y and x.")
    # Of the two axes, one need not be a whole multiple of the other.
    scale = np.divide(profile.shape, shape)
    if not scale.all() or abs(scale[0] - scale[1]) * min(shape) > max(1.0, *scale):
        raise OctaneError(
            f"has {profile.shape[0]} x {profile.shape[1]} pixels and a tile {shape[0]} x "
            f"{shape[1]}; give a flat field of the whole tile."
        )
    if profile.dtype.kind not in "fiu" or not (np.isfinite(profile) & (profile > 0)).all():
        raise OctaneError("has pixels that are not above 0; give a flat field without such.")
    values = profile.astype(np.float32)[None]
    for axis, n in enumerate(shape, start=1):
        step = values.shape[axis] / n
        positions = (np.arange(n) + 0.5) * step - 0.5
        values = apply(
            interpolator(positions, values.shape[axis], max(0.0, (step - 1) / 2)), values, axis
        )
    return values[0] / values.mean(dtype=np.float64).astype(np.float32)
