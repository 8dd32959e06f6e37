"""N4's iterations with compiled loops, for NumPy arrays.

The same steps as :class:`Steps`, which defines the result and is the reference
of the tests, but faster and with less memory:

- It holds two arrays over the included voxels: the log image and u. Bins are recomputed where they
  are used, and the change of the field is evaluated from the change of the lattice.
- An iteration is three passes, each cut into units that threads share: bins and their histogram;
  look-up, residual and contraction; evaluation, update and the sums for stopping and the next bins.
  Small volumes use one thread: waking others takes as long as a small pass.
- A row is contracted along x and y at once, so that only a few planes of control points remain per
  slab. They are added in the order of slabs, so that threads do not change the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import numpy as np

from octane.processes.n4 import bspline, kernels
from octane.processes.n4.grid import FitVoxels
from octane.processes.n4.iteration import Moments, Steps
from octane.processes.n4.sharpening import Sharpening

T = TypeVar("T")

NONE = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


class CompiledSteps(Steps):
    """Iterations as compiled loops. The grid's values become the log image, in place."""

    # Grid voxels of a slab. Sums are taken slab by slab, so the last bits of results depend on it.
    SLAB = 1 << 15
    # Grid voxels of a unit of work.
    UNIT = 1 << 14
    # Fewest voxels for which threads share the work: below, waking them takes longer than it saves.
    SHARED = 400_000
    # Calls per thread: enough for threads to finish together, but few, because between calls they
    # wait for the interpreter.
    CALLS = 2

    def __init__(self, grid: FitVoxels, sharpening: Sharpening) -> None:
        self.grid, self.sharpening = grid, sharpening
        self.log = grid.values
        np.log(self.log, out=self.log, where=self.log > 0)
        self.u = self.log.copy()
        self._range = super()._extrema()
        self._cut()

    def _cut(self) -> None:
        """Cut slabs into units of work, and allocate their results."""
        ny, nx = self.grid.box_shape[1:]
        group = max(1, kernels.TILE // nx)
        slabs = [(slab.rows.start, slab.rows.stop) for slab in self.grid.slabs]
        groups = -(-slabs[0][1] // group)
        bands, runs = [], []
        # The planes of all slabs; a plane that two slabs share occurs twice.
        planes: list[int] = []
        for number, (first, last) in enumerate(slabs):
            step = ny * max(1, self.UNIT // (ny * nx))
            for a, b in pairwise([first, *range((first // step + 1) * step, last, step), last]):
                bands.append((a, b, first, len(planes)))
                planes += range(a // ny, (b - 1) // ny + 1)
            step = group * max(1, self.UNIT // (group * nx))
            for a, b in pairwise([*range(first, last, step), last]):
                runs.append((a, b, first, number * groups + (a - first) // group))
        self._plane_of = np.array(planes)
        self._bands, self._runs = self._calls(bands), self._calls(runs)
        self._parts = [
            self.u[self.grid.begins[own[0, 0]] : self.grid.begins[own[-1, 1]]] for own in self._runs
        ]
        # Groups that the last slab lacks add nothing.
        self._sums = np.zeros((5, len(slabs) * groups))
        self._sums[3:] = -np.inf

    def _calls(self, units: list[tuple[int, ...]]) -> list[np.ndarray]:
        """Distribute units over the calls of a loop: int64, (units, 4) for each."""
        shared = self.grid.workers > 1 and self.grid.size >= self.SHARED
        calls = min(len(units), self.CALLS * self.grid.workers) if shared else 1
        return np.array_split(np.array(units), calls)

    def _each(self, loop: Callable[[np.ndarray], T], parts: list[np.ndarray]) -> list[T]:
        """Call a loop with each part, in threads if there are several."""
        if len(parts) == 1:
            return [loop(parts[0])]
        return list(self.grid.pool.map(loop, parts))

    def begin_level(self, lattice_shape: tuple[int, ...]) -> None:
        """Prepare everything that depends only on the mask and the lattice's shape."""
        grid = self.grid
        z, y, x = axes = [
            bspline.axis_weights(n, c, part.start, part.stop)
            for n, c, part in zip(grid.shape, lattice_shape, grid.box, strict=True)
        ]
        fit_z, fit_y, fit_x = (
            bspline.fit_basis(bspline.dense(axis, c))
            for axis, c in zip(axes, lattice_shape, strict=True)
        )
        self._cubed_z = fit_z.cubed[self._plane_of].T
        self._basis_z = bspline.dense(z, lattice_shape[0])
        taps, c = y.first[:, None] + np.arange(4), np.arange(lattice_shape[2])
        support = np.stack(
            [np.searchsorted(x.first, c - 3), np.searchsorted(x.first, c, "right")], axis=1
        )
        first_y = y.first.astype(np.int64)
        squared, self._bases = (
            (
                np.ascontiguousarray(along_x.T, np.float32),
                support,
                first_y,
                np.take_along_axis(along_y, taps, axis=1),
            )
            for along_x, along_y in zip(fit_x, fit_y, strict=True)
        )
        self._fields = bspline.padded(len(self._basis_z), 2, *lattice_shape[1:])
        # Arguments of the loops that evaluate rows of these.
        self._evaluated = (
            grid.box_shape[2],
            (self._where, grid.begins, self.u, self.log),
            (first_y, y.weights, *bspline.vectors(x)),
            self._fields,
        )
        self._planes = np.empty((len(self._plane_of), *lattice_shape[1:]))
        self._project(squared, np.empty(0, np.int64), np.float32(0), np.float32(1))
        self.reciprocal = bspline.reciprocal(self._sum(fit_z.squared[self._plane_of].T))

    @property
    def _where(self) -> np.ndarray:
        return NONE if self.grid.where is None else self.grid.where

    def _project(
        self, bases: tuple[np.ndarray, ...], table: np.ndarray, low: np.float32, slope: np.float32
    ) -> None:
        """Contract the residuals, or without a table the weights, into planes of control points."""
        weights = NO_WEIGHTS if self.grid.weights is None else self.grid.weights
        voxels = self._where, self.grid.begins, self.u, weights
        self._each(
            lambda units: kernels.contract(units, voxels, low, slope, table, bases, self._planes),
            self._bands,
        )

    def _sum(self, basis_z: np.ndarray) -> np.ndarray:
        """Contract the planes of control points along z."""
        total = bspline.product(basis_z, self._planes.reshape(len(self._planes), -1))
        return total.reshape(-1, *self._planes.shape[1:])

    def _change(self, k: int) -> np.ndarray:
        p = np.empty(k, np.float32)
        self._each(lambda units: kernels.change(units, *self._evaluated, p), self._runs)
        return p

    def _extrema(self) -> tuple[np.float32, np.float32]:
        return self._range

    def _histogram(
        self, low: np.float32, slope: np.float32, stray: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        # Strays are always looked for: in a vector loop that costs nothing.
        self._scale, bins = (low, slope), self.sharpening.bins
        found = self._each(lambda u: kernels.count(u, low, slope, bins), self._parts)
        counted, shares = np.sum(found, axis=0)
        return counted, shares

    def _fit(self, table: np.ndarray) -> np.ndarray:
        # Value and step of a bin are adjacent, to be looked up as one number.
        self._project(self._bases, table.view(np.int64).reshape(-1), *self._scale)
        self._increment = (self._sum(self._cubed_z) * self.reciprocal).astype(np.float32)
        return self._increment

    def _update(self, lattice: np.ndarray) -> Moments:
        both = np.stack([lattice, self._increment], axis=1).astype(np.float64)
        fields = bspline.product(self._basis_z, both.reshape(len(lattice), -1))
        self._fields[...] = fields.reshape(self._fields.shape)
        self._each(lambda units: kernels.update(units, *self._evaluated, self._sums), self._runs)
        # Not np.sum: groups within a slab must be added in their order.
        by_slab = self._sums[:2].reshape(2, len(self.grid.slabs), -1)
        totals, squares = np.add.accumulate(by_slab, axis=2)[:, :, -1].tolist()
        largest, low, high = np.maximum.reduce(self._sums[2:], axis=1).tolist()
        self._range = np.float32(-low), np.float32(max(high, float(self.u[0])))
        return Moments(math.fsum(totals), math.fsum(squares), largest)
