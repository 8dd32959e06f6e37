"""Volumes whose bias field is known: four tissues, biases of four widths, speckle."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

TISSUES = ("smooth", "fine", "nuclei", "layered")
WIDTHS = (0.5, 0.32, 0.2, 0.125)
"""Full widths at half maximum of the biases, as a fraction of the volume's edge.

From half of the edge down to the knot distance of the fourth level.
"""
LOOKS = (None, 16, 4, 1)
"""Looks of the multiplicative speckle; None has none."""
AMPLITUDE = 0.3
"""Largest relative deviation of a bias from 1."""
RADIUS = 0.48
"""Radius of the tissue, a ball, as a fraction of the edge."""
FWHM = 2 * np.sqrt(2 * np.log(2))

Volume = npt.NDArray[np.float32]


class Case(NamedTuple):
    """What a phantom is made of; a width of None has no bias."""

    tissue: str
    width: float | None
    looks: int | None
    seed: int


class Phantom(NamedTuple):
    """Intensities, the tissue's voxels, and the logarithm of the bias, all (z, y, x)."""

    image: Volume
    mask: npt.NDArray[np.bool_]
    log_bias: Volume


def smooth_noise(edge: int, sigma: float, rng: np.random.Generator) -> Volume:
    """Gaussian noise smoothed by a Gaussian of `sigma` voxels: (edge, edge, edge)."""
    margin = min(edge, int(3 * sigma) + 1)
    noise = rng.standard_normal((edge + 2 * margin,) * 3, dtype=np.float32)
    inside = (slice(margin, margin + edge),) * 3
    return ndimage.gaussian_filter(noise, sigma, truncate=3, mode="wrap")[inside]


def classes(edge: int, sigma: float, rng: np.random.Generator) -> Volume:
    """Three tissues of equal volume, whose borders follow smooth noise."""
    noise = smooth_noise(edge, sigma, rng)
    return np.array([60, 100, 140], np.float32)[
        np.digitize(noise, np.quantile(noise, (1 / 3, 2 / 3)))
    ]


def nuclei(edge: int, rng: np.random.Generator) -> Volume:
    """Bright balls of radius 2.7 voxels on a dark ground: 5 % of the volume."""
    centres = np.ones((edge,) * 3, bool)
    centres[tuple(rng.integers(0, edge, (3, edge**3 // 1600)))] = False
    return np.where(ndimage.distance_transform_edt(centres) < 2.7, 200, 30).astype(np.float32)


def layers(edge: int, rng: np.random.Generator) -> Volume:
    """Six wavy layers along y."""
    waves = smooth_noise(edge, edge / 8, rng)[edge // 2]
    depth = np.arange(edge)[None, :, None] / edge + 0.04 * (waves / waves.std())[:, None, :]
    levels = np.array([80, 120, 100, 140, 90, 60], np.float32)
    return levels[np.clip((depth * len(levels)).astype(int), 0, len(levels) - 1)]


def tissue(name: str, edge: int, rng: np.random.Generator) -> Volume:
    """Intensities of a tissue without noise."""
    made = {
        "smooth": lambda: classes(edge, edge / 12, rng),
        "fine": lambda: classes(edge, 2, rng),
        "nuclei": lambda: nuclei(edge, rng),
        "layered": lambda: layers(edge, rng),
    }
    return ndimage.gaussian_filter(made[name](), 0.7)


def phantom(case: Case, edge: int) -> Phantom:
    """Make the phantom of a case, with `edge` voxels along each axis."""
    made = tissue(case.tissue, edge, np.random.default_rng([case.seed, TISSUES.index(case.tissue)]))
    along = (np.arange(edge) - (edge - 1) / 2) / (RADIUS * edge)
    z, y, x = np.ix_(*[along**2] * 3)
    return imaged(made, z + y + x < 1, case)


@cache
def unscaled_bias(shape: tuple[int, ...], width: float, seed: int) -> Volume:
    """Smooth noise of this width relative to the longest axis; the same for all looks."""
    edge = max(shape)
    noise = smooth_noise(
        edge, width * edge / FWHM, np.random.default_rng([seed, round(1000 * width), 7])
    )
    return noise[tuple(slice(n) for n in shape)].copy()


def imaged(made: Volume, mask: npt.NDArray[np.bool_], case: Case) -> Phantom:
    """Give a volume the bias and the speckle of a case; its longest axis is the bias's edge."""
    bias = np.zeros(mask.shape, np.float32)
    if case.width is not None:
        bias = unscaled_bias(mask.shape, case.width, case.seed)
        bias = bias - bias[mask].mean()
        bias *= AMPLITUDE / np.abs(bias[mask]).max()
    image = made * (1 + bias)
    if case.looks is not None:
        rng = np.random.default_rng([case.seed, case.looks, 9])
        image *= rng.gamma(case.looks, 1 / case.looks, image.shape)
    return Phantom(image.astype(np.float32), mask, np.log1p(bias))
