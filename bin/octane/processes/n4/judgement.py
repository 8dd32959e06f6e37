"""Judge how many levels of a fit correct bias, and from which on they remove tissue.

A bias blurs the peaks of the histogram of log intensities; a field that follows tissue merges them.
Both make the histogram more like a Gaussian, while a field that corrects the bias makes it less
so, at any contrast. The measure is therefore the histogram's entropy less that of a Gaussian of the
same variance (minus the negentropy). Entropy alone always prefers the finest field, in voxels that
were held out of the fit too, because tissue that is removed narrows the histogram.

Speckle would hide the peaks, so the intensities are averaged over neighbouring voxels. The standard
error of a difference is the jackknife's over blocks of the volume.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octane.processes.n4.fit import BiasFit, log_field

PARTS = 6
"""Blocks along each axis: longer than the knot distance of four levels, which is an eighth."""
NEIGHBOURS = (3 / 8, 1 / 4, 1 / 16)
"""Weights of a voxel and of those one and two steps away: nearly a Gaussian of one voxel."""
BINS = 512
BLUR = 4.0
"""Standard deviation of the Gaussian that smooths a histogram, bins."""
TAIL = 1e-3
"""Fraction of the voxels at either end that does not count for the range of the histogram."""
MARGIN = 0.3
"""Log intensity by which a field may exceed that range."""
TINY = 1e-12
EVEN = 0.005
"""Standard deviation of a log field below which it corrects nothing that matters."""

Voxels = npt.NDArray[np.float32]
Inside = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.float64]


def judged(fit: BiasFit, image: Voxels, mask: Inside) -> BiasFit:
    """Shorten a fit to the levels that correct bias; none if N4 does not help.

    Parameters
    ----------
    fit : BiasFit
        The field of all levels.
    image, mask : ndarray, (z, y, x)
        The intensities and voxels that were fitted, on the host.

    Returns
    -------
    BiasFit
        What a fit of so many levels finds, bit for bit, and its `relative_entropy`.
    """
    logs, usable = averages(image, mask)
    bins = Bins(logs[usable])
    lattices = [np.zeros_like(fit.lattice), *(level.lattice for level in fit.levels)]
    counts, sizes = [], []
    for lattice in lattices:
        field = log_field(BiasFit(lattice, ()), logs.shape)
        counts.append(histograms(logs - field, usable, bins))
        sizes.append(float(field[usable].std(dtype=np.float64)))
    entropies, without = leave_one_out(np.stack(counts), bins)
    levels = fewest(entropies, without)
    if sizes[levels] < EVEN:
        levels = 0
    return BiasFit(lattices[levels], fit.levels[:levels], tuple(entropies.tolist()))


def averages(image: Voxels, mask: Inside) -> tuple[Voxels, Inside]:
    """Average intensities over neighbours inside the mask: their logarithm, and where it exists."""
    values = _neighbourhood(np.where(mask, image, np.float32(0)))
    weights = _neighbourhood(mask.astype(np.float32))
    usable = mask & (values > 0)
    logs = np.zeros_like(values)
    np.divide(values, weights, out=logs, where=usable)
    return np.log(logs, out=logs, where=usable), usable


def _neighbourhood(values: Voxels) -> Voxels:
    """Weighted sum over the neighbours along each axis; there are none beyond the volume."""
    for axis in range(values.ndim):
        source = np.moveaxis(values, axis, 0)
        total = source * np.float32(NEIGHBOURS[0])
        for step, weight in enumerate(NEIGHBOURS[1:], 1):
            total[step:] += np.float32(weight) * source[:-step]
            total[:-step] += np.float32(weight) * source[step:]
        values = np.moveaxis(total, 0, axis)
    return values


class Bins:
    """Bins that hold log intensities before and after a correction.

    Attributes
    ----------
    low, width : float
        Lower edge of the first bin, and the width of each.
    """

    def __init__(self, logs: Voxels) -> None:
        low, high = np.quantile(logs, (TAIL, 1 - TAIL))
        self.low = float(low) - MARGIN
        self.width = (float(high) + MARGIN - self.low) / BINS
        self.centres = self.low + self.width * (np.arange(BINS) + 0.5)


Measure = Callable[[Counts, Bins], Counts]
"""Measures histograms (..., bins)."""


def histograms(logs: Voxels, inside: Inside, bins: Bins) -> Counts:
    """Count the voxels inside of each block: (blocks, bins). Those beyond the bins are left out."""
    z, y, x = (np.arange(n) * PARTS // n for n in logs.shape)
    across = y[:, None] * PARTS + x
    found = np.zeros((PARTS, PARTS**2 * BINS))
    for plane, own, part in zip(logs, inside, z, strict=True):
        at = np.floor((plane[own] - bins.low) / bins.width).astype(np.intp)
        within = (at >= 0) & (at < BINS)
        at = across[own][within] * BINS + at[within]
        found[part] += np.bincount(at, minlength=found.shape[1])
    return found.reshape(-1, BINS)


def density(counts: Counts, bins: Bins) -> Counts:
    """Densities of histograms (..., bins), smoothed."""
    at = np.arange(BINS)
    smooth = counts @ np.exp(-0.5 * ((at - at[:, None]) / BLUR) ** 2)
    return smooth / (smooth.sum(-1, keepdims=True) * bins.width)


def entropy(counts: Counts, bins: Bins) -> Counts:
    """Differential entropy of histograms (..., bins), nats."""
    found = density(counts, bins)
    return -(found * np.log(np.maximum(found, TINY))).sum(-1) * bins.width


def relative_entropy(counts: Counts, bins: Bins) -> Counts:
    """Entropy of histograms (..., bins) less that of Gaussians of the same variance, nats.

    A constant, the same for all, is left out.
    """
    shares = counts / counts.sum(-1, keepdims=True)
    mean = shares @ bins.centres
    variance = shares @ bins.centres**2 - mean**2
    # No histogram is narrower than a bin.
    return entropy(counts, bins) - 0.5 * np.log(np.maximum(variance, bins.width**2 / 12))


def leave_one_out(
    counts: Counts, bins: Bins, measure: Measure = relative_entropy
) -> tuple[Counts, Counts]:
    """Measure histograms (levels, blocks, bins): of all blocks, and without each.

    The results are (levels,) and (levels, blocks); empty blocks are left out.
    """
    counts = counts[:, counts.any(axis=(0, 2))]
    total = counts.sum(1)
    # Level by level, to need less memory.
    without = [measure(t - own, bins) for t, own in zip(total, counts, strict=True)]
    return measure(total, bins), np.stack(without)


def fewest(losses: Counts, without: Counts) -> int:
    """Return the fewest levels whose loss is within one standard error of the least.

    Parameters
    ----------
    losses, without : ndarray, (levels,) and (levels, blocks)
        The loss of 0, 1, ... levels, and the same without each block. The error is that of the
        difference to the least.
    """
    best = int(np.argmin(losses))
    differences = without - without[best]
    errors = np.sqrt(differences.var(axis=1) * (differences.shape[1] - 1))
    return int(np.flatnonzero(losses - losses[best] <= errors)[0])
