"""N4's iterations with compiled loops, for NumPy arrays.

The same steps as :class:`octane.n4.iteration.Steps`, which defines the result and is the reference
of the tests; here for speed and little memory:

- Two arrays over the included voxels: the log image and u. Bins are computed again where they are
  used, and the change of the field is evaluated from the change of the lattice.
- Three passes an iteration, each over slabs that threads share: bins and their histogram; look-up,
  residual and contraction; evaluation, update and the sums for stopping and for the next bins.
  Threads stay in compiled code for a level: waking them would take as long as a small pass.
- A row is contracted along x and y at once, so that what remains per slab is a few planes of
  control points. These are added in the order of slabs: threads do not change the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from octane.core.compiled import LANES
from octane.n4 import bspline, kernels
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Moments, Steps
from octane.n4.sharpening import Sharpening

NONE = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


class CompiledSteps(Steps):
    """Iterations as compiled loops. The grid's values become the log image, in place."""

    # Bits depend on it: the sums of a slab are added to those of others.
    SLAB = 1 << 15
    # Columns that a thread works on at a time: long enough for a ticket to cost little, short
    # enough for threads to finish together.
    UNIT = 1 << 14

    def __init__(self, grid: FitVoxels, sharpening: Sharpening) -> None:
        self.grid, self.sharpening = grid, sharpening
        self.log = grid.values
        np.log(self.log, out=self.log, where=self.log > 0)
        self.u = self.log.copy()
        self._range = super()._extrema()
        self._cut()
        self._histogram_cells = np.empty(2 * (sharpening.bins + 1), np.int64)
        self._scale = np.empty(2, np.float32)
        self._table = np.empty((sharpening.bins, 2), np.float32)
        self._team = np.zeros(24, np.int64)
        self._generation = 0
        grid.closing.callback(self._dismiss)

    def _cut(self) -> None:
        """Cut slabs into units of work, and make room for their results."""
        ny, nx = self.grid.box_shape[1:]
        group = max(1, kernels.TILE // nx)
        slabs = [(slab.rows.start, slab.rows.stop) for slab in self.grid.slabs]
        groups = -(-slabs[0][1] // group)
        bands, runs = [], []
        # The planes of all slabs; one that is cut between slabs comes twice.
        planes: list[int] = []
        for number, (first, last) in enumerate(slabs):
            step = ny * max(1, self.UNIT // (ny * nx))
            for a, b in pairwise([first, *range((first // step + 1) * step, last, step), last]):
                bands.append((a, b, first, len(planes)))
                planes += range(a // ny, (b - 1) // ny + 1)
            step = group * max(1, self.UNIT // (group * nx))
            for a, b in pairwise([*range(first, last, step), last]):
                runs.append((a, b, first, number * groups + (a - first) // group))
        self._plane_of, self._bands, self._runs = map(np.array, (planes, bands, runs))
        # Groups that the last slab lacks add nothing.
        self._sums = np.zeros((5, len(slabs) * groups))
        self._sums[3:] = -np.inf

    def begin_level(self, lattice_shape: tuple[int, ...]) -> None:
        """Make what depends on the mask and the lattice's shape alone."""
        grid = self.grid
        self._dismiss()
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
        support = [np.searchsorted(x.first, c - 3), np.searchsorted(x.first, c, "right")]
        # What evaluates a row of a plane: the bases of y and x.
        self._rows = y.weights, *bspline.vectors(x)
        self._first_y = y.first.astype(np.int64)
        self._planes = np.empty((len(self._plane_of), *lattice_shape[1:]))
        self._both = np.empty((lattice_shape[0], 2, *lattice_shape[1:]))
        self._fields = bspline.padded(len(self._basis_z), 2, *lattice_shape[1:])
        arguments = (
            *(self._where, grid.begins, self.log, self.u),
            NO_WEIGHTS if grid.weights is None else grid.weights,
            *(self._scale, self._table.view(np.int64).reshape(-1)),
            *(np.stack(support, axis=1), self._first_y),
            np.stack([np.ascontiguousarray(f.T.astype(np.float32)) for f in fit_x]),
            np.stack([np.take_along_axis(f, taps, axis=1) for f in fit_y]),
            *(*self._rows, self._planes, self._fields, self._histogram_cells, self._sums),
        )
        size = max(kernels.TILE, grid.box_shape[2], 2 * (lattice_shape[2] + LANES)) + LANES
        integers = max(size, 4 * (self.sharpening.bins + 1))

        def thread(leads: int) -> Callable[[], None]:
            scratch = np.empty((5, size), np.float32), np.zeros((2, integers), np.int64)
            return kernels.work.bound(
                leads, self._team, self._bands, self._runs, *scratch, *arguments
            )

        # The last level's helpers, which end by themselves, have one of their own.
        self._team = np.zeros(24, np.int64)
        # No unit has this number: helpers wait.
        self._team[kernels.TICKET] = 1 << 31
        self._lead = thread(1)
        for _ in range(min(grid.workers, len(self._runs)) - 1):
            grid.pool.submit(thread(0))
        self._work(kernels.WEIGH)
        self.reciprocal = bspline.reciprocal(self._sum(fit_z.squared[self._plane_of].T))

    @property
    def _where(self) -> np.ndarray:
        return NONE if self.grid.where is None else self.grid.where

    def _ticket(self, kind: int) -> int:
        self._generation += kernels.KINDS
        return (self._generation + kind) << 32

    def _work(self, kind: int) -> None:
        """Do one kind of work on all units, with the helpers."""
        self._team[kernels.OPENED] = self._ticket(kind)
        self._lead()

    def _dismiss(self) -> None:
        """Have the helpers of a level end, which hold its arrays."""
        self._team[kernels.TICKET] = self._ticket(kernels.STOP)

    def _sum(self, basis_z: np.ndarray) -> np.ndarray:
        """Contract the planes of control points along z."""
        total = bspline.product(basis_z, self._planes.reshape(len(self._planes), -1))
        return total.reshape(-1, *self._planes.shape[1:])

    def _change(self, k: int) -> np.ndarray:
        p = np.empty(k, np.float32)
        size = max(self.grid.box_shape[2], self._planes.shape[2]) + LANES
        kernels.change(
            *(self._runs, self.grid.box_shape[2], self._where, self.grid.begins, self._fields),
            *(self._first_y, *self._rows, np.empty((3, size), np.float32), p),
        )
        return p

    def _extrema(self) -> tuple[np.float32, np.float32]:
        return self._range

    def _histogram(
        self, low: np.float32, slope: np.float32, stray: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        # Strays are always looked for: in a vector loop that costs nothing.
        self._scale[:] = low, slope
        self._work(kernels.COUNT)
        counted, shares = self._histogram_cells.reshape(2, -1)
        return counted, shares

    def _fit(self, table: np.ndarray) -> np.ndarray:
        # Value and step of a bin side by side, to be looked up as one number.
        self._table[...] = table
        self._work(kernels.CONTRACT)
        self._increment = (self._sum(self._cubed_z) * self.reciprocal).astype(np.float32)
        return self._increment

    def _update(self, lattice: np.ndarray) -> Moments:
        self._both[:, 0], self._both[:, 1] = lattice, self._increment
        fields = bspline.product(self._basis_z, self._both.reshape(len(lattice), -1))
        self._fields[...] = fields.reshape(self._fields.shape)
        self._work(kernels.SUBTRACT)
        # In the order of groups within a slab, whatever a sum's usual order.
        by_slab = self._sums[:2].reshape(2, len(self.grid.slabs), -1)
        totals, squares = np.add.accumulate(by_slab, axis=2)[:, :, -1].tolist()
        largest, low, high = np.maximum.reduce(self._sums[2:], axis=1).tolist()
        self._range = np.float32(-low), np.float32(max(high, float(self.u[0])))
        return Moments(math.fsum(totals), math.fsum(squares), largest)
