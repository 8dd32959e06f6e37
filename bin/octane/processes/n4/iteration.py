"""One N4 iteration over the included voxels: histogram, sharpening, fit, update.

:mod:`fit` describes the algorithm and its reasons, :mod:`grid` how voxels are
stored. Sums over slabs are either exact or taken in a fixed order, so that threads do not change
the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np

from octane.core.arrays import to_host
from octane.core.timing import span
from octane.processes.n4 import bspline
from octane.processes.n4.grid import FitVoxels, VoxelSlab
from octane.processes.n4.sharpening import SHARE, Sharpening, sharpen


class Head(NamedTuple):
    """The first `length` values, over which ITK's running mean still moves.

    `scatter` is the sum of ``(p - mean before p)**2 * (N - 1) / N``, `last` the final mean, and
    `around_last` the sum of ``(p - last)**2``.
    """

    length: int
    scatter: float
    around_last: float
    last: float


class Moments(NamedTuple):
    """Of p = exp(old field - new field): sums of p - 1 and (p - 1)**2, largest distance from 1.

    A level ends when the coefficient of variation of p over the n included voxels reaches a
    threshold. ITK computes it in raster order with ``N += 1; S += (p - mu)**2 * (N - 1) / N; mu =
    mu * (1 - 1 / N) + p / N``, with N, S and mu in float32. Once ``|p - mu| / N`` is below half a
    unit in mu's last place, the mean no longer changes. It is therefore followed only over the
    voxels where it can still move (:class:`Head`); for the others, the sum of squares around the
    frozen mean is sufficient.
    """

    total: float
    squares: float
    largest: float

    def variation(self, n: int) -> float:
        """Return the true coefficient of variation; n is at least 2, as two values differ."""
        mean = self.total / n
        return math.sqrt(max(self.squares - n * mean**2, 0.0) / (n - 1)) / (1 + mean)

    def head(self, n: int) -> int:
        """Return the number of values over which the running mean can still move."""
        return min(n, int(1.25 * (self.largest + abs(self.total / n)) * 2**25) + 4096)

    def itk_variation(self, n: int, head: Head) -> float:
        """Return ITK's value, without the rounding of S.

        Relative rounding is at most 1e-4 up to about 1e7 voxels; from 2**24 on, N and S stop
        growing in ITK itself.
        """
        scatter = head.scatter
        if head.length < n:
            shift = head.last - 1
            scatter += self.squares - 2 * shift * self.total + n * shift**2 - head.around_last
        return math.sqrt(scatter / (n - 1)) / head.last


class Steps:
    """Iterations as array operations, on NumPy or CuPy.

    Holds the arrays over the included voxels: log image, corrected log image (u), current and
    previous log field, fractional histogram bins of u. Work on one slab has its own methods.
    """

    # Voxels of a slab on a CPU.
    SLAB = bspline.CACHED

    def __init__(self, grid: FitVoxels, sharpening: Sharpening) -> None:
        xp = grid.xp
        self.grid, self.sharpening = grid, sharpening
        self.log = log_image(grid)
        self.u = self.log.copy()
        self.field = xp.zeros_like(self.log)
        self.previous, self.bins = xp.empty_like(self.log), xp.empty_like(self.log)

    def begin_level(self, lattice_shape: tuple[int, ...]) -> None:
        """Prepare everything that depends only on the mask and the lattice's shape."""
        grid, xp = self.grid, self.grid.xp
        dense = [
            bspline.basis(n, c, part.start, part.stop)
            for n, c, part in zip(grid.shape, lattice_shape, grid.box, strict=True)
        ]
        fits = [bspline.fit_basis(b) for b in dense]
        self.zy = grid.box_shape[:2]
        self.cubed = [xp.asarray(f.cubed) for f in fits[:2]]
        self.bases = [xp.asarray(b) for b in dense[:2]]
        # The long axis, which takes most of the time, is multiplied in float32.
        self.cubed_x = xp.asarray(fits[2].cubed.astype(np.float32))
        self.basis_x = xp.asarray(np.ascontiguousarray(dense[2].T.astype(np.float32)))
        self.rows = xp.empty((self.zy[0] * self.zy[1], lattice_shape[2]), xp.float32)
        squared = [xp.asarray(f.squared.astype(t)) for f, t in zip(fits, "ddf", strict=True)]

        w = xp.ones_like(self.u) if grid.weights is None else grid.weights

        def weigh(slab: VoxelSlab) -> None:
            self.rows[slab.rows] = bspline.product(grid.spread(slab, w[slab.voxels]), squared[2])

        grid.each(weigh)
        self.reciprocal = bspline.reciprocal(bspline.fit(self.rows, self.zy, squared[:2]))

    def iterate(self, lattice: np.ndarray) -> tuple[np.ndarray, Moments] | None:
        """Return the new lattice and the change of the field, or None if u is constant.

        `lattice` is float32, (cz, cy, cx), at the current level.
        """
        with span("histogram", counted=False):
            table = self._sharpened()
        if table is None:
            return None
        with span("fit lattice", counted=False):
            lattice = lattice + self._fit(table)
        with span("update field", counted=False):
            return lattice, self._update(lattice)

    def running_variation(self, moments: Moments) -> float:
        """ITK's stopping measure of the last iteration."""
        return itk_variation(moments, self.grid.size, self._change)

    def _change(self, k: int) -> np.ndarray:
        """The first k values of exp(old field - new field), on the host."""
        return to_host(self.grid.xp.exp(self.previous[:k] - self.field[:k]))

    def _sharpened(self) -> np.ndarray | None:
        """Bin u (kept in `bins` as fractional bins) and sharpen; None if u is constant."""
        bins = self.sharpening.bins
        rest, high = self._extrema()
        first = np.float32(float(self.u[0]))
        low = itk_minimum(self.u, rest)
        slope = np.float32((high - low) / np.float32(bins - 1))
        if not slope > 0:
            return None
        # Values that ITK does not count: below the minimum it found, or rounded past the last bin.
        stray = bool(min(rest, first) < low or (high - low) / slope > np.float32(bins - 1))
        counted, shares = self._histogram(low, slope, stray)
        return sharpen(counted[:bins], shares[:bins], float(low), float(slope), self.sharpening)

    def _extrema(self) -> tuple[np.float32, np.float32]:
        """Smallest u except the first (infinite if that is the only one), and the largest."""
        u = self.u
        rest = u[1:].min() if u.size > 1 else np.inf
        return np.float32(float(rest)), np.float32(float(u.max()))

    def _histogram(
        self, low: np.float32, slope: np.float32, stray: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bin u over all slabs, as :meth:`_count`."""
        parts = self.grid.each(lambda slab: self._count(slab, low, slope, stray))
        counted, shares = zip(*parts, strict=True)
        return np.sum(counted, axis=0), np.sum(shares, axis=0).astype(np.int64)

    def _count(
        self, slab: VoxelSlab, low: np.float32, slope: np.float32, stray: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bin a slab: number of voxels per bin, and sum of their shares of the next bin."""
        xp, bins = self.grid.xp, self.sharpening.bins
        last = np.float32(bins - 1)
        # Divided in float32 as in ITK: multiplying by 1 / slope is visible in the field.
        c = xp.subtract(self.u[slab.voxels], low, out=self.bins[slab.voxels])
        xp.divide(c, slope, out=c)
        k = c.astype(np.intp)
        if stray:
            outside = (c < 0) | (c > last)
            k[outside] = bins
            c[outside] = last  # ITK maps them to the last bin's value
        # Rounded to multiples of 2**-24 (outside bin 0, shares are already): up to 2**29 voxels the
        # float64 sums are exact, and so the same in any order, with threads and atomics.
        share = c - k.astype(np.float32)
        share = xp.rint(share * np.float32(SHARE)).astype(np.float64)
        if stray:
            share[outside] = 0
        counted = xp.bincount(k, minlength=bins + 1)
        return to_host(counted), to_host(xp.bincount(k, weights=share, minlength=bins + 1))

    def _fit(self, table: np.ndarray) -> np.ndarray:
        """Fit the difference that sharpening makes to u: the lattice's increment, float32."""
        values, steps = self.grid.xp.asarray(table.T)
        self.grid.each(lambda slab: self._contract(slab, values, steps))
        return (bspline.fit(self.rows, self.zy, self.cubed) * self.reciprocal).astype(np.float32)

    def _contract(self, slab: VoxelSlab, values: np.ndarray, steps: np.ndarray) -> None:
        """Contract a slab's residuals, u less its expected value, along x into `rows`."""
        grid = self.grid
        bins = self.bins[slab.voxels]
        k = bins.astype(np.intp)
        expected = steps.take(k)
        expected *= bins - k.astype(np.float32)
        expected += values.take(k)
        residual = self.u[slab.voxels] - expected
        if grid.weights is not None:
            residual *= grid.weights[slab.voxels]
        self.rows[slab.rows] = bspline.product(grid.spread(slab, residual), self.cubed_x)

    def _update(self, lattice: np.ndarray) -> Moments:
        """Subtract the new field from the log image, into u."""
        xp = self.grid.xp
        rows = bspline.expand_rows(lattice.astype(xp.float64), self.bases).astype(xp.float32)
        # In the order of slabs: the sums do not depend on the number of threads.
        parts = self.grid.each(lambda slab: self._subtract(slab, rows))
        self.field, self.previous = self.previous, self.field
        totals, squares, largest = zip(*parts, strict=True)
        return Moments(math.fsum(totals), math.fsum(squares), max(largest))

    def _subtract(self, slab: VoxelSlab, rows: np.ndarray) -> Moments:
        """Evaluate the new field of a slab into `previous`, and subtract it from the log image."""
        xp = self.grid.xp
        part = bspline.product(rows[slab.rows], self.basis_x).reshape(-1)
        if slab.where is not None:
            part = part.take(slab.where)
        self.previous[slab.voxels] = part
        xp.subtract(self.log[slab.voxels], part, out=self.u[slab.voxels])
        change = xp.exp(self.field[slab.voxels] - part) - xp.float32(1)
        if change.size == 0:
            return Moments(0.0, 0.0, 0.0)
        largest = xp.maximum(change.max(), -change.min())
        change = change.astype(xp.float64)
        # Not xp.dot, which would wake the threads of BLAS (see bspline.BLAS_SERIAL).
        return Moments(float(change.sum()), float(xp.square(change).sum()), float(largest))


def itk_variation(moments: Moments, n: int, change: Callable[[int], np.ndarray]) -> float:
    """Return ITK's measure of n values; ``change(k)`` returns the first k, float32, on the host."""
    # Not at module level: importing numba takes a third of a second.
    from octane.processes.n4 import kernels

    p = change(moments.head(n))
    scatter, last = kernels.follow(p)
    around_last = float(np.square(p.astype(np.float64) - last).sum())
    return moments.itk_variation(n, Head(len(p), scatter, around_last, last))


def log_image(grid: FitVoxels) -> np.ndarray:
    """Return the logarithm of the included voxels, as :func:`log_values` does."""
    return log_values(grid.values, grid.xp)


def log_values(values: np.ndarray, xp: ModuleType = np) -> np.ndarray:
    """Return the logarithm of values; those <= 0, which lack one, stay the same."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return xp.where(values > 0, xp.log(values), values)


def itk_minimum(u: np.ndarray, rest: np.float32) -> np.float32:
    """Return the minimum that ITK's scan finds, which skips every voxel that is a new maximum.

    It differs from the minimum only if the first voxel (always a new maximum) is the minimum;
    ignoring this changed a field by 0.24. `rest` is the minimum of all voxels but the first.
    """
    first = np.float32(float(u[0]))
    if u.size == 1:
        return first
    if rest <= first or float(u[1]) > rest:
        return rest
    # The second voxel is a new maximum too, and none of the later ones is smaller: scan all.
    values = to_host(u)
    seen = values[1:] <= np.maximum.accumulate(values)[:-1]
    return values[1:][seen].min() if seen.any() else first
