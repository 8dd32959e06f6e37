"""Attenuation of light with depth, by the depth-resolved model of Vermeer and others.

If tissue scatters back a fixed part of the light that it takes from the beam, the light that comes
back from below a depth is proportional to the light that reaches it. What would come from below the
last plane is extrapolated, because the deepest third of a column decays about exponentially. Light
is averaged over a few columns, since one alone shows speckle.

Source: Vermeer et al. 2014, "Depth-resolved model-based reconstruction of attenuation coefficients
in optical coherence tomography", Biomedical Optics Express 5(1).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.filters import gaussian
from octane.core.geometry import Grid, Region
from octane.pipeline.lanes import Lane

TAIL_SIGMA, LIGHT_SIGMA = 3.0, 1.0
"""Smoothing over y and x, pixels: of the deepest planes, and of the light at each depth."""
REACH = 16
"""Pixels to the farthest column on which a column depends: both filters, cut at four sigmas."""
LEAST_PLANES = 6
"""Planes of a section: its deepest third, in two halves, shows the decay."""
LEAST_DECAY = 1.0
"""Least decay of the deepest planes, 1/mm; without decay, the light from below has no bound."""
LEAST_LIGHT = 1e-3
"""Least part of the light that is compensated; noise prevails below it."""
LEAST_TAIL = 1e-6
"""Least brightness of the deepest planes, relative to the mean of the column."""
MOST_STEADY = 0.4
"""Part of the light, in columns that do not decay, above which the model does not fit."""

Map = npt.NDArray[np.float64]


class CompensatedSection(NamedTuple):
    """Section without attenuation, (z, y, x), and maps of its columns, (y, x).

    ``brightness`` is the mean over depth, and ``light`` all that comes back from a column, also
    from below its last plane, in its intensity times micrometres.
    ``decaying`` is false where the deepest planes hardly decay, so that a decay was assumed.
    """

    section: npt.NDArray
    brightness: Map
    light: Map
    decaying: npt.NDArray[np.bool_]

    @property
    def coefficient(self) -> npt.NDArray:
        """Attenuation coefficient, 1/mm, (z, y, x); 0 in columns without light."""
        scale = np.divide(500, self.light, out=np.zeros_like(self.light), where=self.light > 0)
        return self.section * scale.astype(self.section.dtype)


def compensate_light(section: npt.NDArray, spacing: float) -> CompensatedSection:
    """Divide intensities by the part of the light that reaches them.

    Parameters
    ----------
    section : ndarray, float, (z, y, x)
        Intensities above the noise, at least ``LEAST_PLANES`` planes. NaN and Inf stay as they are
        and count as 0. Within ``REACH`` of where a larger section was cut, results differ from the
        whole section's.
    spacing : float
        Distance of the planes, micrometres.
    """
    mean = _mean(section)
    lit = mean > 0
    below, decaying = _tail(section, mean, spacing)
    smooth = _smoothing(lit, LIGHT_SIGMA)
    total = smooth(mean * len(section) * spacing + below)
    result = np.empty_like(section)
    for k in range(len(section) - 1, -1, -1):
        above = below + _valid_intensities(section[k]) * spacing
        # The light that reaches the middle of the plane.
        log_part = smooth(np.sqrt(above * below)) - total
        result[k] = section[k] * np.exp(-np.maximum(log_part, np.log(LEAST_LIGHT)))
        below = above
    return CompensatedSection(result, mean, np.where(lit, np.exp(total), 0), decaying)


def _valid_intensities(plane: npt.NDArray) -> npt.NDArray:
    """Intensities of a plane, 0 where they are unknown or below the noise."""
    return np.where(np.isfinite(plane), np.maximum(plane, 0), 0)


def _mean(planes: npt.NDArray) -> Map:
    total = np.zeros(planes.shape[1:])
    for plane in planes:
        total += _valid_intensities(plane)
    return total / len(planes)


def _smoothing(lit: npt.NDArray[np.bool_], sigma: float) -> Callable[[Map], Map]:
    """Smoothing of the logarithm of maps, over columns that are lit; 0 in others."""
    weights = gaussian(lit.astype(np.float64), sigma)

    def smooth(values: Map) -> Map:
        logarithms = gaussian(np.log(values, out=np.zeros_like(values), where=lit), sigma)
        return np.divide(logarithms, weights, out=np.zeros_like(values), where=lit)

    return smooth


def _tail(section: npt.NDArray, mean: Map, spacing: float) -> tuple[Map, npt.NDArray[np.bool_]]:
    """Light from below the last plane, (y, x), and where the deepest planes decay."""
    half = len(section) // 6
    smooth = _smoothing(mean > 0, TAIL_SIGMA)
    upper, lower = (
        smooth(np.maximum(_mean(planes), LEAST_TAIL * mean))
        for planes in (section[-2 * half : -half], section[-half:])
    )
    decay, least = (upper - lower) / (half * spacing), LEAST_DECAY / 1000
    # The integral of the exponential whose mean over the lower half is known.
    depth = half * spacing
    below = np.exp(lower) * depth / np.expm1(np.maximum(decay, least) * depth)
    return np.where(mean > 0, below, 0), decay > least


def _roll_deeper(section: npt.NDArray, planes: npt.NDArray[np.int64]) -> npt.NDArray:
    """Columns rolled deeper, each by its own number of planes (y, x)."""
    depth = len(section)
    start = (np.arange(depth)[:, None, None] - planes) % depth
    return np.take_along_axis(section, start, axis=0)


class Compensation:
    """A section's blocks without attenuation, and what was found of its light.

    ``blend`` makes a block of the section; ``coefficient`` asks for coefficients instead of
    compensated intensities. ``lacking`` is the number of each column's last planes (y, x) that no
    tile shows; None if there are none.
    """

    def __init__(
        self,
        blend: Callable[[Region, Lane], npt.NDArray],
        grid: Grid,
        lacking: npt.NDArray[np.int64] | None = None,
        *,
        coefficient: bool,
    ) -> None:
        self._blend, self._grid, self._coefficient = blend, grid, coefficient
        self._lacking = lacking
        self._light: dict[tuple[int, int], tuple[float, float]] = {}
        self._planes: dict[tuple[int, ...], Map] = {}

    def block(self, region: Region, lane: Lane) -> npt.NDArray:
        """Make a block; safe to call from several threads."""
        depth, *across = self._grid.shape
        grown = [
            slice(max(r.start - REACH, 0), min(r.stop + REACH, n))
            for r, n in zip(region[1:], across, strict=True)
        ]
        whole = seen = self._blend((slice(0, depth), *grown), lane)
        with lane.timed("compute"):
            deeper = None if self._lacking is None else self._lacking[tuple(grown)]
            if deeper is not None:
                # The decay of the deepest planes counts, so that they come last.
                whole = _roll_deeper(seen, deeper)
            compensated = compensate_light(whole, self._grid.spacing[0])
            inner = tuple(
                slice(r.start - g.start, r.stop - g.start)
                for r, g in zip(region[1:], grown, strict=True)
            )
            light = compensated.brightness[inner]
            steady = light[~compensated.decaying[inner]].sum()
            self._light[region[1].start, region[2].start] = (float(light.sum()), float(steady))
            values = compensated.coefficient if self._coefficient else compensated.section
            if deeper is not None:
                values = _roll_deeper(values, -deeper)
            both = [part[(region[0], *inner)] for part in (seen, values)]
            self._planes[tuple(r.start for r in region)] = np.array(
                [[_valid_intensities(plane).sum() for plane in part] for part in both], np.float64
            )
            return both[1]

    @property
    def factors(self) -> list[float]:
        """Mean factor by which each plane's light was changed; 1 in planes without light."""
        sums = np.zeros((2, self._grid.shape[0]))
        # In the same order on any number of threads.
        for key in sorted(self._planes):
            planes = self._planes[key]
            sums[:, key[0] : key[0] + planes.shape[1]] += planes
        before, after = sums
        return np.divide(after, before, out=np.ones_like(before), where=before > 0).tolist()

    @property
    def steady(self) -> float:
        """Part of the light, 0 to 1, that comes from columns that do not decay."""
        # In the same order on any number of threads.
        light, steady = np.sum([self._light[key] for key in sorted(self._light)], axis=0)
        return float(steady / light) if light else 0.0
