"""Maps that equalize brightness and contrast of sections and planes before a field is fitted.

A smooth field cannot follow steps from one section to the next, nor the attenuation that restarts
in each. Both depend only on the plane, so one intensity map per plane removes them: histogram
matching (section by section or plane by plane), and a gain that brings the planes of a section to
one mean.

Intensities are not clamped, and no range is assumed: beyond their outer knots, maps continue in
proportion, so that 0 stays 0 and the order of intensities is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from octane.core.arrays import namespace

# Enough to follow the peaks of several tissues, but few enough for a plane of 1e4 voxels to have
# hundreds between two of them. The outermost are well inside: extreme quantiles are single voxels.
PROBABILITIES = np.linspace(0.01, 0.99, 33)

Planes = tuple[int, int]


@dataclass(frozen=True)
class IntensityMaps:
    """One intensity map per plane: piecewise linear between knots, then times a gain.

    Attributes
    ----------
    source, target : ndarray, float64, (planes, knots) or None
        Intensities before and after mapping at the knots; None for the identity.
    gain : ndarray, float64, (planes,)
    """

    source: np.ndarray | None
    target: np.ndarray | None
    gain: np.ndarray

    @classmethod
    def identity(cls, planes: int) -> IntensityMaps:
        """The map that changes nothing."""
        return cls(None, None, np.ones(planes))

    @property
    def changes(self) -> bool:
        """True if the maps may change a block."""
        return self.source is not None or bool((self.gain != 1).any())

    def apply(self, block: np.ndarray, first: int = 0) -> np.ndarray:
        """Map a block of floats, (z, y, x), whose first plane is number `first`, to a new block.

        Returns `block` itself if the maps change nothing.
        """
        gain = self.gain[first : first + len(block)]
        if not self.changes:
            return block
        out = namespace(block).empty_like(block)
        for k, plane in enumerate(block):
            out[k] = self._mapped(plane, first + k) * block.dtype.type(gain[k])
        return out

    def _mapped(self, plane: np.ndarray, k: int) -> np.ndarray:
        if self.source is None or self.target is None:
            return plane
        xp = namespace(plane)
        knots, group = np.unique(self.source[k], return_inverse=True)
        # Equal knots (integers, flat areas) map to the mean of their targets.
        values = np.bincount(group, self.target[k]) / np.bincount(group)
        if np.array_equal(knots, values):
            return plane
        mapped = xp.interp(plane, xp.asarray(knots), xp.asarray(values)).astype(plane.dtype)
        for outside, x, y in (
            (plane < knots[0], knots[0], values[0]),
            (plane > knots[-1], knots[-1], values[-1]),
        ):
            beyond = plane * plane.dtype.type(y / x) if x > 0 and y > 0 else plane + (y - x)
            mapped = xp.where(outside, beyond, mapped)
        return mapped.astype(plane.dtype, copy=False)


def histogram_matching(
    volume: np.ndarray, mask: np.ndarray, groups: Sequence[Planes]
) -> IntensityMaps:
    """Match the histogram of each group of planes to the mean histogram of all groups.

    The mean is that of the quantile functions, weighted by voxels (and geometric if all quantiles
    are positive): for two sections that differ by a factor it lies halfway between them, whereas
    pooled voxels would have the peaks of both.

    Parameters
    ----------
    volume, mask : ndarray, (z, y, x)
        Intensities, and the voxels that count.
    groups : sequence of (start, stop)
        Planes of each section, or every plane separately. Planes outside all groups, and groups
        without voxels in the mask, keep their intensities.
    """
    found: list[tuple[Planes, np.ndarray, int]] = []
    for start, stop in groups:
        values = volume[start:stop][mask[start:stop]]
        if values.size:
            found.append(((start, stop), np.quantile(values, PROBABILITIES), values.size))
    maps = IntensityMaps.identity(len(volume))
    if not found:
        return maps
    quantiles = np.array([q for _, q, _ in found])
    weights = [size for _, _, size in found]
    if (quantiles > 0).all():
        reference = np.exp(np.average(np.log(quantiles), axis=0, weights=weights))
    else:
        reference = np.average(quantiles, axis=0, weights=weights)
    target = np.tile(reference, (len(volume), 1))
    source = target.copy()
    for (start, stop), own, _ in found:
        source[start:stop] = own
    return replace(maps, source=source, target=target)


def z_profile_gain(
    volume: np.ndarray, mask: np.ndarray, sections: Sequence[Planes], blended: int = 0
) -> np.ndarray:
    """Gain that brings the mean of each plane to its section's: 1 / attenuation with depth.

    Means are geometric. A median would jump where another tissue becomes the majority of a plane.

    Parameters
    ----------
    volume, mask : ndarray, (z, y, x)
        Intensities, and the voxels that count; values <= 0 are ignored, because they lack a
        logarithm.
    sections : sequence of (start, stop)
        Planes of each section. Differences between sections are kept.
    blended : int
        Largest number of a section's first planes that are blended with the section above. The
        light of these planes belongs to both, so that every section's mean is over its deeper
        planes. The means of planes are arithmetic then: blending weakens speckle, which raises a
        geometric mean.

    Returns
    -------
    ndarray, float64, (z,)
        1 for planes outside all sections; interpolated for planes without voxels in the mask.
    """
    gain = np.ones(len(volume))
    counted = mask & (volume > 0)

    def log_mean(plane: int) -> float:
        values = volume[plane][counted[plane]]
        if blended:
            return float(np.log(values.mean(dtype=np.float64)))
        return float(np.log(values).mean(dtype=np.float64))

    for start, stop in sections:
        planes = np.array([k for k in range(start, stop) if counted[k].any()], np.intp)
        if not planes.size:
            continue
        means = np.array([log_mean(k) for k in planes])
        deeper = means[planes >= start + blended]
        level = (deeper if deeper.size else means).mean()
        gain[start:stop] = np.exp(np.interp(np.arange(start, stop), planes, level - means))
    return gain


def along_z(
    maps: IntensityMaps, kept: Sequence[int], groups: Sequence[Planes], planes: int
) -> IntensityMaps:
    """Interpolate maps of some planes to all planes, linearly and never across groups.

    `kept` are the ascending numbers, among all `planes`, of the planes that have maps; `groups` the
    planes of each section. Planes outside all groups, and of groups without kept planes, get the
    map of the nearest kept plane.
    """
    positions = np.asarray(kept)
    where = np.interp(np.arange(planes), positions, np.arange(len(positions)))
    # The nearest by default; within a group, interpolated from the group's own planes only.
    where = np.rint(where)
    for start, stop in groups:
        own = np.flatnonzero((positions >= start) & (positions < stop))
        if own.size:
            where[start:stop] = np.interp(np.arange(start, stop), positions[own], own)
    before = np.floor(where).astype(np.intp)
    after = np.minimum(before + 1, len(positions) - 1)
    part = where - before

    def between(values: np.ndarray) -> np.ndarray:
        share = part.reshape(-1, *[1] * (values.ndim - 1))
        return values[before] * (1 - share) + values[after] * share

    return IntensityMaps(
        None if maps.source is None else between(maps.source),
        None if maps.target is None else between(maps.target),
        np.exp(between(np.log(maps.gain))),
    )
