"""Correlation of overlapping images.

Overlaps are compared by normalised cross-correlation after a band-pass. Phase correlation, the
usual choice, fails on speckle.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.filters import gaussian
from octane.layout.mosaic import Tile

BAND_PASS = (1.0, 6.0)
"""Standard deviations of the difference of Gaussians, pixels: finer is speckle, coarser shading."""


@dataclass(frozen=True)
class TilePair:
    """A measured displacement of tile ``second`` relative to ``first``, in pixels (y, x)."""

    first: Tile
    second: Tile
    shift: tuple[float, float]
    weight: float


def neighbours(tiles: list[Tile]) -> list[tuple[Tile, Tile]]:
    """Pairs of each tile with the one to its right and the one below."""
    known = set(tiles)
    return [
        (tile, other)
        for tile in tiles
        for other in ((tile[0], tile[1] + 1), (tile[0] + 1, tile[1]))
        if other in known
    ]


def band_pass(image: npt.NDArray) -> npt.NDArray[np.float64]:
    """Difference of Gaussians, which removes the finest speckle and shading."""
    fine, coarse = (gaussian(image.astype(np.float64), s) for s in BAND_PASS)
    return fine - coarse


def coarse(image: npt.NDArray, factor: int) -> npt.NDArray:
    """Means of ``factor`` x ``factor`` pixels; those beyond the last full block are dropped."""
    rows, columns = (n // factor for n in image.shape)
    whole = image[: rows * factor, : columns * factor]
    return whole.reshape(rows, factor, columns, factor).mean(axis=(1, 3))


def fisher(correlations: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Fisher's z of correlations."""
    return np.arctanh(np.clip(correlations, -0.999, 0.999))


def correlation(first: npt.NDArray, second: npt.NDArray) -> npt.NDArray:
    """Normalised cross-correlation at every shift, over the pixels that overlap there."""
    return _correlations(_sums(first, np.ones(first.shape), _Transforms.of(second)))


class _Transforms(NamedTuple):
    """Transforms of an image: of ones in its place, of itself and of its square."""

    ones: npt.NDArray
    image: npt.NDArray
    square: npt.NDArray
    shape: list[int]

    @classmethod
    def of(cls, image: npt.NDArray) -> "_Transforms":
        shape = [2 * n for n in image.shape]
        # NumPy's transforms are slower in float32.
        values = image.astype(np.float64)
        parts = (
            np.fft.rfft2(image_sum, shape)
            for image_sum in (np.ones(image.shape), values, values**2)
        )
        return cls(*parts, shape)


def _sums(first: npt.NDArray, seen: npt.NDArray, second: _Transforms) -> npt.NDArray:
    """Sums over the pixels that are ``seen`` in the first image (1, else 0), at every shift.

    These are their number, those of either image and of its square, and that of the product.
    """
    values = first.astype(np.float64)
    parts = (
        np.fft.rfft2(image * seen, second.shape)
        for image in (np.ones_like(seen), values, values**2)
    )
    part, a, a2 = (spectrum.conj() for spectrum in parts)
    ones, b, b2, shape = second
    products = (part * ones, a * ones, a2 * ones, part * b, part * b2, a * b)
    # One factor for both axes: one for each would be rounded twice.
    return np.stack([np.fft.irfft2(spectrum, shape, norm="forward") for spectrum in products]) * (
        1 / np.prod(shape)
    )


def _correlations(sums: npt.NDArray) -> npt.NDArray:
    """Correlation from :func:`_sums`."""
    count = np.maximum(sums[0], 1)
    mean_a, square_a, mean_b, square_b, product = sums[1:] / count
    var_a, var_b = square_a - mean_a**2, square_b - mean_b**2
    return (product - mean_a * mean_b) / np.sqrt(np.maximum(var_a * var_b, 1e-30))


def _window(shape: tuple[int, ...], max_shift: tuple[float, float]) -> tuple[npt.NDArray, ...]:
    """Shifts of at most ``max_shift``; no shift is in the middle."""
    # Half of the overlap must remain in common: a correlation over less means little.
    reach = [int(min(np.ceil(m), n // 2)) for m, n in zip(max_shift, shape, strict=True)]
    return np.ix_(*(np.arange(-r, r + 1) for r in reach))


def correlations(
    first: npt.NDArray, second: npt.NDArray, max_shift: tuple[float, float]
) -> npt.NDArray:
    """Correlations of two band-passed views at shifts of ``second``; no shift is in the middle.

    Both are (y, x) views of the same nominal area, shifted by whole pixels, at most ``max_shift``
    in y and x.
    """
    return correlation(first, second)[_window(first.shape, max_shift)]


def split_correlations(
    first: npt.NDArray,
    second: npt.NDArray,
    max_shift: tuple[float, float],
    where: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """:func:`correlations` over all pixels of ``first``, over those ``where``, and the others."""
    transforms, near = _Transforms.of(second), _window(first.shape, max_shift)
    whole, part = (
        _sums(first, seen, transforms)[(slice(None), *near)]
        for seen in (np.ones(first.shape), where.astype(np.float64))
    )
    return _correlations(whole), _correlations(part), _correlations(whole - part)


def shift_at(scores: npt.NDArray, peak: tuple[np.intp, ...]) -> tuple[float, float]:
    """Shift (y, x) in fractional pixels of a peak of :func:`correlations`."""
    y, x = (
        float(p) - n // 2 + _vertex(scores, peak, axis)
        for axis, (p, n) in enumerate(zip(peak, scores.shape, strict=True))
    )
    return y, x


def overlap_shift(
    first: npt.NDArray, second: npt.NDArray, max_shift: tuple[float, float]
) -> tuple[tuple[float, float], float]:
    """Displacement of the content of ``second`` relative to ``first``, and the correlation there.

    Both are (y, x) views of the same nominal area. The displacement, at most ``max_shift`` in y and
    x, is in fractional pixels; the correlation is 0 to 1.
    """
    scores = correlations(band_pass(first), band_pass(second), max_shift)
    peak = np.unravel_index(int(scores.argmax()), scores.shape)
    return shift_at(scores, peak), float(max(scores[peak], 0.0))


def _vertex(scores: npt.NDArray, peak: tuple[np.intp, ...], axis: int) -> float:
    """Offset of a parabola's vertex through the peak and its two neighbours along ``axis``."""
    at = int(peak[axis])
    if at in (0, scores.shape[axis] - 1):
        return 0.0
    line = scores[tuple(slice(None) if a == axis else p for a, p in enumerate(peak))]
    low, top, high = line[at - 1 : at + 2]
    curvature = low - 2 * top + high
    return float(0.5 * (low - high) / curvature) if curvature < 0 else 0.0


def finite(image: npt.NDArray) -> npt.NDArray:
    """Replace NaN and Inf by 0, so that they do not spread."""
    return np.nan_to_num(image, posinf=0, neginf=0)
