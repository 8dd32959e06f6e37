"""N4's iterations with compiled loops, for NumPy arrays.

The same steps as :class:`octane.n4.iteration.Steps`, which defines the result and is the reference
of the tests; here for speed and little memory:

- Two arrays over the included voxels: the log image and u. Bins are computed again where they are
  used, and the change of the field is evaluated from the change of the lattice.
- Three passes an iteration, each over slabs that threads share: bins and their histogram; look-up,
  residual and contraction; evaluation, update and the sums for stopping and for the next bins.
- A row is contracted along x and y at once, so that what remains per slab is a few planes of
  control points. These are added in the order of slabs: threads do not change the result.
"""

from __future__ import annotations

import math

import numpy as np

from octane.n4 import bspline, kernels
from octane.n4.grid import FitVoxels, Slab
from octane.n4.iteration import Map, Moments, Sharpening, Steps

NONE = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


class CompiledSteps(Steps):
    """Iterations as compiled loops. The grid's values become the log image, in place."""

    # Long enough for the call to cost little, short enough for threads to finish together.
    SLAB = 1 << 15

    def __init__(self, grid: FitVoxels, sharpening: Sharpening) -> None:
        self.grid, self.sharpening = grid, sharpening
        self.log = grid.values
        np.log(self.log, out=self.log, where=self.log > 0)
        self.u = self.log.copy()
        self._range = super()._extrema()
        bins = sharpening.bins + 1
        self._histograms = np.empty((len(grid.slabs), 2, bins), np.int64)

    def begin_level(self, lattice_shape: tuple[int, ...]) -> None:
        """Make what depends on the mask and the lattice's shape alone."""
        grid = self.grid
        ny = grid.box_shape[1]
        z, y, x = axes = [
            bspline.axis_weights(n, c, part.start, part.stop)
            for n, c, part in zip(grid.shape, lattice_shape, grid.box, strict=True)
        ]
        fit_z, fit_y, fit_x = (
            bspline.fit_basis(bspline.dense(axis, c))
            for axis, c in zip(axes, lattice_shape, strict=True)
        )
        # The planes of all slabs; one that is cut between slabs comes twice.
        planes = [
            range(slab.rows.start // ny, (slab.rows.stop - 1) // ny + 1) for slab in grid.slabs
        ]
        ends = np.cumsum([len(part) for part in planes])
        self._planes = [slice(e - len(p), e) for e, p in zip(ends.tolist(), planes, strict=True)]
        plane_of = np.concatenate(planes)
        taps = y.first[:, None] + np.arange(4)

        def bases(of_z: np.ndarray, of_y: np.ndarray, of_x: np.ndarray) -> tuple[np.ndarray, ...]:
            """Factors of one kind, as the contraction takes them."""
            return (
                of_z[plane_of].T,
                np.take_along_axis(of_y, taps, axis=1),
                np.ascontiguousarray(of_x.T.astype(np.float32)),
            )

        self._cubed = bases(fit_z.cubed, fit_y.cubed, fit_x.cubed)
        c = np.arange(lattice_shape[2])
        self._support = np.stack(
            [np.searchsorted(x.first, c - 3), np.searchsorted(x.first, c, "right")], axis=1
        )
        self._basis_z = bspline.dense(z, lattice_shape[0])
        # What evaluates a row of a plane: the bases of y and x.
        self._first_y = y.first.astype(np.int64)
        basis_x = np.ascontiguousarray(x.weights.T.astype(np.float32))
        self._rows = self._first_y, y.weights, basis_x, bspline.spans(x)
        self._sums = np.empty((len(plane_of), *lattice_shape[1:]))
        squared_z, squared_y, squared_x = bases(fit_z.squared, fit_y.squared, fit_x.squared)

        def weigh(slab: Slab) -> None:
            kernels.weigh(
                *(*self._voxels(slab), self._weights(slab), slab.rows.start),
                *(squared_x, self._support, self._first_y, squared_y),
                self._sums[self._planes[slab.number]],
            )

        grid.each(weigh)
        self.reciprocal = bspline.reciprocal(self._sum(squared_z))

    def _voxels(self, slab: Slab) -> tuple[np.ndarray, np.ndarray]:
        """Positions of a slab's voxels in its rows, and the first voxel of every row."""
        begins = self.grid.begins[slab.rows.start : slab.rows.stop + 1]
        return NONE if slab.where is None else slab.where, begins

    def _weights(self, slab: Slab) -> np.ndarray:
        weights = self.grid.weights
        return NO_WEIGHTS if weights is None else weights[slab.voxels]

    def _sum(self, basis_z: np.ndarray) -> np.ndarray:
        """Contract the planes of control points along z."""
        total = bspline.product(basis_z, self._sums.reshape(len(self._sums), -1))
        return total.reshape(-1, *self._sums.shape[1:])

    def _change(self, k: int) -> np.ndarray:
        p = np.empty(k, np.float32)
        for slab in self.grid.slabs:
            kernels.change(
                *self._voxels(slab), slab.rows.start, self._fields, *self._rows, p[slab.voxels]
            )
            if slab.voxels.stop >= k:
                break
        return p

    def _extrema(self) -> tuple[np.float32, np.float32]:
        return self._range

    def _histogram(
        self, low: np.float32, slope: np.float32, stray: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        def count(slab: Slab) -> None:
            kernels.count(self.u[slab.voxels], low, slope, *self._histograms[slab.number])

        # Strays are always looked for: in a vector loop that costs nothing.
        self.grid.each(count)
        counted, shares = self._histograms.sum(axis=0)
        return counted, shares

    def _fit(self, mapping: Map) -> np.ndarray:
        # Value and step of a bin side by side, to be looked up as one number.
        table = np.stack([mapping.value, mapping.step], axis=1).view(np.int64).reshape(-1)
        cubed_z, cubed_y, cubed_x = self._cubed

        def contract(slab: Slab) -> None:
            kernels.contract(
                *(self.u[slab.voxels], *self._voxels(slab), self._weights(slab)),
                *(mapping.low, mapping.slope, table, slab.rows.start),
                *(cubed_x, self._support, self._first_y, cubed_y),
                self._sums[self._planes[slab.number]],
            )

        self.grid.each(contract)
        self._increment = (self._sum(cubed_z) * self.reciprocal).astype(np.float32)
        return self._increment

    def _update(self, lattice: np.ndarray) -> Moments:
        both = np.stack([lattice, self._increment], axis=1).astype(np.float64)
        fields = bspline.product(self._basis_z, both.reshape(len(both), -1))
        self._fields = fields.reshape(-1, *both.shape[1:])

        def subtract(slab: Slab) -> tuple[float, float, float, float, float]:
            # ITK's minimum leaves the first voxel out.
            skip = int(slab.number == 0)
            return kernels.subtract(
                *(self.log[slab.voxels], self.u[slab.voxels], *self._voxels(slab)),
                *(slab.rows.start, skip, self._fields, *self._rows),
            )

        totals, squares, largest, low, high = zip(*self.grid.each(subtract), strict=True)
        first = float(self.u[0])
        self._range = np.float32(min(low)), np.float32(max(*high, first))
        return Moments(math.fsum(totals), math.fsum(squares), max(largest))
