"""N4 on an NVIDIA GPU: the iteration of :mod:`iteration` as hand-written kernels.

An iteration is eight launches and one copy of 32 bytes to the host, for the stopping measure.
Per included voxel it moves 16 bytes (u for the histogram, u for the fit, log image and u for the
update), 4 more with a mask (its position along x, twice) and 4 more with weights. The bin, the
expected value and the old field are recomputed where needed, which saves their bytes.

The kernels are in ``cuda.cu``, next to this file. They are deterministic and equal to the array
form except for the rounding of sums, of the exponential function and of the transform.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octane.core.arrays import namespace, to_host
from octane.gpu.kernels import OPTIONS, blocks_at_once, source_with
from octane.processes.n4 import bspline
from octane.processes.n4.grid import FitVoxels
from octane.processes.n4.iteration import Head, Moments, log_image
from octane.processes.n4.sharpening import Sharpening, padded_size

SOURCE = Path(__file__).with_suffix(".cu")

# Threads per block; the transform and the running mean use a single block of up to 1024.
THREADS = 256
WARP = 32

# Limited by the transform's 32 KiB of shared memory.
MAX_BINS = 1024

# Positions along x are stored in 16 bits.
MAX_ROW = 1 << 16

# Voxels that a block counts before it adds up its counts: see cuda.cu.
TILE = 4096

# Most blocks of `update`, each of which writes partial sums. Their number determines the order of
# additions and thereby the last bits, so it is the same on every GPU.
PARTS = 1024

# Least and most values along y per thread: more need fewer evaluations along z, but leave fewer
# threads. The result does not depend on their number.
STRETCH = 4, 16

KERNELS = (
    "count_bins",
    "sharpen",
    "contract_x",
    "contract_y",
    "contract_z",
    "expand",
    "update",
    "finish",
    "change",
    "running_mean",
    "scatter",
)

# Voxel types that apply_rows reads and writes, and their names in CUDA.
APPLIED = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int16): "short",
}


class _Taps(NamedTuple):
    """One axis on the device: per voxel the first of four control points, and four weights."""

    first: np.ndarray
    evaluate: np.ndarray
    squared: np.ndarray
    cubed: np.ndarray
    # Per control point, the first voxel that uses it and the end of those that do.
    bounds: np.ndarray


def fit_code() -> str:
    """Return the source of the kernels of the fit."""
    return source_with(SOURCE, THREADS=THREADS, MAX_BINS=MAX_BINS, TILE=TILE)


def apply_code(source: np.dtype, target: np.dtype) -> str:
    """Return the source of ``apply``, for voxels of two types in `APPLIED`."""
    types: dict[str, str | int] = {
        "INPUT": APPLIED[source],
        "OUTPUT": APPLIED[target],
        "WORK": "double" if source == np.float64 else "float",
    }
    if target.kind in "iu":
        limits = np.iinfo(str(target))
        types |= {"CLIPPED": "", "LOWEST": limits.min, "HIGHEST": limits.max}
    return source_with(SOURCE, **types)


class CudaSteps:
    """Iterations as CUDA kernels; the methods and their results are those of :class:`Steps`.

    Supports rows of at most `MAX_ROW` voxels and histograms of at most `MAX_BINS` bins.
    """

    SLAB = bspline.CACHED

    def __init__(self, grid: FitVoxels, sharpening: Sharpening) -> None:
        xp = self.xp = grid.xp
        self.grid, self.sharpening = grid, sharpening
        module = xp.RawModule(code=fit_code(), options=OPTIONS)
        self.kernels = {name: module.get_function(name) for name in KERNELS}
        self.n_rows = grid.box_shape[0] * grid.box_shape[1]
        warps = THREADS // WARP
        # Rows per block of `update`: a multiple of its warps.
        self.share = warps * math.ceil(self.n_rows / (warps * PARTS))
        self.row_blocks = math.ceil(self.n_rows / self.share)
        device = xp.cuda.Device().attributes
        self.at_once = {
            name: blocks_at_once(device, self.kernels[name].attributes, THREADS)
            for name in ("count_bins", "expand")
        }

        self.log = log_image(grid)
        self.u = xp.empty_like(self.log)
        self.starts, self.columns = self._places()
        bins = sharpening.bins
        points = padded_size(bins)
        angles = 2 * np.pi * np.arange(points // 2) / points
        self.roots = xp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
        self.histogram = xp.zeros(2 * bins, xp.uint64)
        self.table = xp.empty((bins, 2), xp.float32)
        self.state = xp.zeros(2, xp.float32)
        self.sums = xp.empty((self.row_blocks, 2), xp.float64)
        self.extremes = xp.empty((self.row_blocks, 3), xp.float32)
        self.result = xp.zeros(4, xp.float64)
        self.begun = False

    def begin_level(self, lattice_shape: tuple[int, ...]) -> None:
        """Prepare everything that depends only on the mask and the lattice's shape."""
        grid, xp = self.grid, self.xp
        self.z, self.y, self.x = (
            self._taps(n, c, part, dtype)
            for n, c, part, dtype in zip(
                grid.shape, lattice_shape, grid.box, ("f8", "f8", "f4"), strict=True
            )
        )
        self.shape = tuple(lattice_shape)
        cz, cy, cx = self.shape
        self.lattice = xp.zeros(self.shape, xp.float32)
        self.fresh = True
        self.data = xp.empty((self.n_rows, cx), xp.float32)
        self.planes = xp.empty((grid.box_shape[0], cy, cx), xp.float64)
        self.reciprocal = xp.empty((cz, cy, cx), xp.float64)
        # Of the new field and the old one.
        self.rows = xp.zeros((self.n_rows, cx, 2), xp.float32)
        self._contract(self.z.squared, self.y.squared, self.x.squared, table=0, lattice=0)

    def iterate(self, lattice: np.ndarray) -> tuple[np.ndarray, Moments] | None:
        """Do one iteration, as :meth:`Steps.iterate`; the lattice is changed in place."""
        if self.fresh:
            self.lattice = lattice
            self._expand()
            self.fresh = False
            if not self.begun:
                self._update()  # u and its extremes, from a field of zero
                self.begun = True
        bins, fwhm, noise = self.sharpening
        self._run(
            "count_bins",
            min(self.at_once["count_bins"], math.ceil(self.grid.size / TILE)),
            *(self.u, self.grid.size, self.state, bins, self.histogram),
        )
        self._run(
            "sharpen",
            1,
            *(self.state, bins, self.grid.size, float(fwhm), float(noise)),
            *(self.roots, self.histogram, self.table),
            threads=len(self.roots),
        )
        self._contract(self.z.cubed, self.y.cubed, self.x.cubed, self.table, self.lattice)
        self._expand()
        self._update()
        total, squares, largest, constant = to_host(self.result).tolist()
        return None if constant else (self.lattice, Moments(total, squares, largest))

    def running_variation(self, moments: Moments) -> float:
        """ITK's stopping measure of the last iteration."""
        n = self.grid.size
        head = moments.head(n)
        p = self.xp.empty(head, self.xp.float32)
        mean = self.xp.empty_like(p)
        self._run(
            "change",
            math.ceil(self.n_rows * WARP / THREADS),
            *(self.columns, self.starts, self.n_rows, self.shape[2]),
            *(self.x.first, self.x.evaluate, self.rows, head, p),
        )
        self._run("running_mean", 1, p, head, mean, threads=1024)
        partials = self.xp.empty((min(WARP, math.ceil(head / THREADS)), 3), self.xp.float64)
        self._run("scatter", len(partials), p, mean, head, partials)
        scatter, around_last, last = to_host(partials).T
        found = Head(head, math.fsum(scatter), math.fsum(around_last), float(last[0]))
        return moments.itk_variation(n, found)

    def _places(self) -> tuple[np.ndarray, np.ndarray | int]:
        """First compact voxel of each row, and each voxel's position along x (0 without a mask)."""
        begins, where = self.grid.begins, self.grid.where
        starts = self.xp.asarray(begins)
        if where is None:
            return starts, 0
        rows = np.arange(self.n_rows, dtype=where.dtype) * self.grid.box_shape[2]
        columns = where - np.repeat(rows, np.diff(begins))
        return starts, self.xp.asarray(columns.astype(np.uint16))

    def _taps(self, n: int, c: int, part: slice, dtype: str) -> _Taps:
        axis = bspline.axis_weights(n, c, part.start, part.stop)
        squared = axis.weights**2
        cubed = axis.weights**3 / squared.sum(axis=1, keepdims=True)
        points = np.arange(c)
        bounds = np.searchsorted(axis.first, np.stack([points - 3, points + 1], axis=1))
        asarray = self.xp.asarray
        return _Taps(
            asarray(axis.first.astype(np.int32)),
            *(asarray(w.astype(dtype)) for w in (axis.weights, squared, cubed)),
            asarray(bounds.astype(np.int32)),
        )

    def _run(
        self, name: str, blocks: int, *arguments: np.ndarray | float, threads: int = THREADS
    ) -> None:
        self.kernels[name]((blocks,), (threads,), arguments)

    def _contract(
        self,
        taps_z: np.ndarray,
        taps_y: np.ndarray,
        taps_x: np.ndarray,
        table: np.ndarray | int,
        lattice: np.ndarray | int,
    ) -> None:
        """Contract residuals into the lattice, or the weights (no table, no lattice) into omega."""
        nz, ny, _ = self.grid.box_shape
        cz, cy, cx = self.shape
        warps = THREADS // WARP
        weights = 0 if self.grid.weights is None else self.grid.weights
        self._run(
            "contract_x",
            math.ceil(self.n_rows / warps),
            *(self.u, weights, self.columns, self.starts, self.n_rows, cx),
            *(self.x.first, taps_x, self.state, self.sharpening.bins, table, self.data),
        )
        self._run(
            "contract_y",
            math.ceil(nz * cy * cx / warps),
            *(self.data, nz, ny, cy, cx, self.y.first, taps_y, self.y.bounds, self.planes),
        )
        self._run(
            "contract_z",
            math.ceil(cz * cy * cx / warps),
            *(self.planes, cy * cx, cz, self.z.first, taps_z, self.z.bounds),
            *(bspline.OMEGA_FLOOR, self.reciprocal, lattice),
        )

    def _expand(self) -> None:
        """Evaluate the lattice into `rows`, and keep the old field next to the new one."""
        nz, ny, _ = self.grid.box_shape
        _, cy, cx = self.shape
        least, most = STRETCH
        stretch = self.rows.size // 2 // (self.at_once["expand"] * THREADS)
        stretch = min(most, max(least, stretch))
        self._run(
            "expand",
            math.ceil(nz * math.ceil(ny / stretch) * cx / THREADS),
            *(self.lattice, nz, ny, cy, cx, self.z.first, self.z.evaluate),
            *(self.y.first, self.y.evaluate, stretch, self.rows),
        )

    def _update(self) -> None:
        """Subtract the field of `rows` from the log image, and sum up its change."""
        self._run(
            "update",
            self.row_blocks,
            *(self.log, self.columns, self.starts, self.n_rows, self.share, self.shape[2]),
            *(self.x.first, self.x.evaluate, self.rows, self.u, self.sums, self.extremes),
        )
        self._run(
            "finish",
            1,
            *(self.u, self.grid.size, self.starts, self.n_rows, self.share, self.row_blocks),
            *(self.sums, self.extremes, self.sharpening.bins, self.state, self.result),
        )


def apply_rows(
    values: np.ndarray,
    rows: np.ndarray,
    axis: bspline.AxisTaps,
    strength: float = 1.0,
    dtype: np.dtype | None = None,
    log_field: np.ndarray | None = None,
) -> np.ndarray:
    """Evaluate the field along x and divide a block by it, in one pass.

    The arithmetic of each voxel is that of :func:`evaluate_region` and of
    :func:`divide`: the result is the same bit for bit, however a volume is cut.

    Parameters
    ----------
    values : CuPy array, (z, y, x)
        Intensities, of a type in `APPLIED`.
    rows : CuPy array, float32, (z * y, cx)
        The log field's control points along x, for each row of the block.
    axis : AxisTaps
        The block's part of x.
    strength : float
        Fraction of the correction to apply, 0 to 1.
    dtype : dtype, optional
        Of the result, in `APPLIED`; by default that of `values`. Integers are rounded and clipped.
    log_field : CuPy array, float32, (z, y, x), optional
        Out: the log field.
    """
    xp = namespace(values)
    target = values.dtype if dtype is None else np.dtype(dtype)
    n_rows, nx = math.prod(values.shape[:-1]), values.shape[-1]
    module = xp.RawModule(code=apply_code(values.dtype, target), options=OPTIONS)
    corrected = xp.empty(values.shape, target)
    module.get_function("apply")(
        (min(1 << 16, math.ceil(n_rows * WARP / THREADS)),),
        (THREADS,),
        (
            *(xp.ascontiguousarray(values), n_rows, nx, xp.ascontiguousarray(rows), rows.shape[1]),
            *(xp.asarray(axis.first.astype(np.int32)), xp.asarray(axis.weights.astype(np.float32))),
            *(float(strength), corrected, 0 if log_field is None else log_field),
        ),
    )
    return corrected
