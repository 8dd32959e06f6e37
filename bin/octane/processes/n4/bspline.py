"""The uniform cubic B-spline lattice that represents a smooth field on a regular grid.

A field over n samples and nc control points per axis has nc - 3 spans; sample i is at
``i * (nc - 3) / (n - 1)``, so the first and the last sample are the ends of the domain. This
depends only on the number of samples: spacing and origin cancel. Because the samples form a grid,
everything is separable, and fitting (Lee, Wolberg and Shin 1997, "Scattered data interpolation
with multilevel B-splines", one level) becomes three small matrix products instead of 64 updates
per sample. Conventions are those of ITK's BSplineScatteredDataPointSetToImageFilter.

All arrays are (z, y, x), and the functions are pure. Data may be NumPy or CuPy arrays. Bases, and
what is computed from a lattice alone, are computed on the host: they are a few kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple

import numpy as np

from octane.core.arrays import namespace
from octane.core.errors import InputError

# As in ITK: a control point whose summed squared weights are below a tenth of float32's epsilon
# lacks data near it and keeps its value.
OMEGA_FLOOR = 0.1 * float(np.finfo(np.float32).eps)

# float32 values per vector. Rows of small grids have few samples, for which loops cost too much.
LANES = 16

# Samples per call on a CPU. One thread is equally fast with any size from 2**15 to 2**19; several
# threads need long calls, because short ones spend their time waiting for the interpreter.
CACHED = 1 << 18

# From this many multiplications on, OpenBLAS splits a product over its threads. At these sizes that
# gains nothing, the waiting threads spin on cores that other workers need, and the last bit would
# depend on the number of threads.
BLAS_SERIAL = 1 << 18


class FitBasis(NamedTuple):
    """Factors of one axis for a fit, each of shape (rows, n_control_points), float64.

    `squared` holds B**2 and `cubed` B**3 / sum(B**2), in the terms of Lee 1997.
    """

    squared: np.ndarray
    cubed: np.ndarray


class AxisTaps(NamedTuple):
    """One axis of a grid, sparse: sample i uses control points ``first[i] .. first[i] + 3``.

    `first` is an int array (rows,), non-decreasing; `weights` float64 (rows, 4).
    """

    first: np.ndarray
    weights: np.ndarray


def axis_weights(
    n_samples: int, n_control_points: int, start: int = 0, stop: int | None = None
) -> AxisTaps:
    """Return the four weights of samples ``start .. stop - 1`` of an axis; see :func:`basis`."""
    if n_control_points < 4:
        raise InputError(
            f"A cubic B-spline needs at least 4 control points per axis, not {n_control_points}: "
            "raise the number of control points."
        )
    # float32 positions and the small step back from the far end are ITK's: the last sample
    # belongs to the last span. Neither is visible in the field beyond 1e-7.
    spans = np.float32(n_control_points - 3)
    # A single sample is at the start of the domain, where a fit reproduces its value.
    step = np.float32(spans / np.float32(max(1, n_samples - 1)))
    position = np.arange(start, n_samples if stop is None else stop).astype(np.float32) * step
    margin = np.float32(1e-3) * step
    position = np.where(np.abs(position - spans) <= margin, spans - margin, position)
    first = np.clip(np.floor(position), 0, n_control_points - 4).astype(np.intp)
    t = (position - first.astype(np.float32)).astype(np.float64)
    weights = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=-1
    )
    return AxisTaps(first, weights / 6)


def basis(
    n_samples: int, n_control_points: int, start: int = 0, stop: int | None = None
) -> np.ndarray:
    """Return the B-spline basis of samples ``start .. stop - 1`` of an axis as a matrix.

    Returns float64, (stop - start, n_control_points): at most four weights per row, whose sum is 1.
    Raises an OctaneError for fewer than 4 control points.
    """
    return dense(axis_weights(n_samples, n_control_points, start, stop), n_control_points)


def dense(axis: AxisTaps, n_control_points: int) -> np.ndarray:
    """Return the sparse basis of an axis as a matrix, float64, (rows, n_control_points)."""
    matrix = np.zeros((len(axis.first), n_control_points))
    np.put_along_axis(matrix, axis.first[:, None] + np.arange(4), axis.weights, axis=1)
    return matrix


def fit_basis(basis_: np.ndarray) -> FitBasis:
    """Return the factors with which :func:`fit` contracts weights and data along an axis."""
    squared = basis_**2
    return FitBasis(squared, basis_**3 / squared.sum(axis=1, keepdims=True))


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``left @ right``; on a CPU, in parts small enough for BLAS to use one thread."""
    step = max(1, BLAS_SERIAL // max(1, right.size))
    if step >= len(left) or namespace(left, right) is not np:
        return left @ right
    out = np.empty((len(left), right.shape[1]), np.result_type(left, right))
    for row in range(0, len(left), step):
        np.matmul(left[row : row + step], right, out=out[row : row + step])
    return out


def spans(axis: AxisTaps) -> np.ndarray:
    """Return the first sample, end and first control point of each span: int64, (spans, 3)."""
    first, begin = np.unique(axis.first, return_index=True)
    ends = np.append(begin, len(axis.first))[1:]
    return np.stack([begin, ends, first], axis=1).astype(np.int64)


def vectors(axis: AxisTaps) -> tuple[np.ndarray, np.ndarray]:
    """Return the basis of an axis in vectors of samples that use the same control points.

    Returns
    -------
    basis : ndarray, float32, (vectors, 4 * LANES)
        The four weights of each sample, ordered by weight, then by sample; 0 after the last sample
        of a span.
    parts : ndarray, int64, (vectors, 2)
        First sample, and first control point.
    """
    parts = np.array(
        [(at, c) for begin, end, c in spans(axis).tolist() for at in range(begin, end, LANES)]
    )
    basis = np.zeros((len(parts), 4, LANES), np.float32)
    for vector, (begin, end) in zip(basis, pairwise([*parts[:, 0], len(axis.first)]), strict=True):
        vector[:, : end - begin] = axis.weights[begin:end].T
    return basis.reshape(len(parts), -1), parts


def padded(*shape: int) -> np.ndarray:
    """Return float64 zeros with memory behind them, so that a vector can be read at any of them."""
    return np.zeros(math.prod(shape) + LANES)[:-LANES].reshape(shape)


def evaluate(lattice: np.ndarray, bases: Sequence[np.ndarray]) -> np.ndarray:
    """Evaluate a lattice on a grid, by matrix products with the bases of z, y and x.

    Fast, but the last bit may depend on the shape of the products; if parts of a grid must equal
    the whole bit for bit, use :func:`evaluate_region`.
    """
    rows = expand_rows(lattice, bases)
    return product(rows, bases[2].T).reshape(*(len(b) for b in bases))


def expand_rows(lattice: np.ndarray, bases: Sequence[np.ndarray]) -> np.ndarray:
    """Evaluate along z and y only: (nz * ny, cx), control points of x for each row."""
    cz, cy, cx = lattice.shape
    columns = product(bases[0], lattice.reshape(cz, cy * cx)).reshape(-1, cy, cx)
    return (bases[1] @ columns).reshape(-1, cx)


def evaluate_region(
    lattice: np.ndarray,
    shape: Sequence[int],
    region: Sequence[slice] | None = None,
    xp: ModuleType = np,
) -> np.ndarray:
    """Evaluate a lattice on a part of a grid; parts equal the whole bit for bit.

    It uses only elementwise products and sums in a fixed order: the rounding of a matrix product
    may depend on its shape (other kernels at edges, split sums on a GPU), and corrected chunks
    would then depend on how a volume was cut.

    Parameters
    ----------
    lattice : ndarray, (cz, cy, cx)
        Control points, on the host.
    shape : sequence of three int
        The whole grid.
    region : sequence of three slices, optional
        The part wanted, step 1; by default all.
    xp : module
        The namespace of the result, ``numpy`` or ``cupy``.

    Returns
    -------
    array, float32, of the region's shape
    """
    region = (slice(None),) * 3 if region is None else region
    rows, x = region_rows(lattice, shape, region, xp)
    weights = xp.asarray(x.weights.astype(np.float32).T)
    out = xp.empty((len(rows), len(x.first)), xp.float32)
    step = max(1, CACHED // max(1, out.shape[1])) if xp is np else max(1, len(rows))
    # One span at a time along x: all its samples use the same four control points, so four
    # broadcast products replace four gathers per sample.
    for begin, end, first in spans(x).tolist():
        for row in range(0, len(rows), step):
            points = rows[row : row + step, first : first + 4]
            part = points[:, :1] * weights[0, begin:end]
            for tap in (1, 2, 3):
                part += points[:, tap, None] * weights[tap, begin:end]
            out[row : row + step, begin:end] = part
    z, y, _ = (len(range(n)[r]) for n, r in zip(shape, region, strict=True))
    return out.reshape(z, y, out.shape[1])


def region_axes(
    shape: Sequence[int], control_points: Sequence[int], region: Sequence[slice]
) -> tuple[AxisTaps, AxisTaps, AxisTaps]:
    """Return the axes z, y and x of a part of a grid."""
    z, y, x = (
        axis_weights(n, c, *part.indices(n)[:2])
        for n, c, part in zip(shape, control_points, region, strict=True)
    )
    return z, y, x


def region_rows(
    lattice: np.ndarray, shape: Sequence[int], region: Sequence[slice], xp: ModuleType
) -> tuple[np.ndarray, AxisTaps]:
    """Evaluate a part along z and y: float32 (rows, cx) control points of x, and the x axis.

    Along z on the host, along y with `xp`: the rows are many more bytes to copy than the planes.
    """
    z, y, x = region_axes(shape, lattice.shape, region)
    planes = gather(lattice.astype(np.float64), z, 0)
    rows = gather(xp.asarray(planes), y, 1)
    return rows.astype(xp.float32).reshape(-1, lattice.shape[2]), x


def gather(values: np.ndarray, axis: AxisTaps, along: int) -> np.ndarray:
    """Evaluate (a, b, c) along axis 0 or 1: four weighted gathers, summed in order."""
    xp = namespace(values)
    taps = xp.asarray(axis.first + np.arange(4)[:, None])
    weights = xp.asarray(axis.weights.T.reshape(4, -1, *[1] * (2 - along)))
    total = values.take(taps[0], axis=along) * weights[0]
    for tap in (1, 2, 3):
        total += values.take(taps[tap], axis=along) * weights[tap]
    return total


def fit(rows: np.ndarray, shape_zy: tuple[int, int], cubed: Sequence[np.ndarray]) -> np.ndarray:
    """Contract data over the grid: the numerator of the fit, and its denominator.

    Parameters
    ----------
    rows : array, (nz * ny, cx)
        The data (0 outside the mask) times its weights, contracted along x with the `cubed` matrix
        of x; for the denominator only the weights, with `squared`.
    shape_zy : tuple
        (nz, ny).
    cubed : sequence of arrays
        The matrices of z and y, of the same kind.

    Returns
    -------
    array, float64, (cz, cy, cx)
    """
    xp = namespace(rows)
    nz, ny = shape_zy
    # float64 from here on: this part is nx / cx times smaller than the data.
    columns = cubed[1].T @ rows.astype(xp.float64).reshape(nz, ny, -1)
    planes = product(cubed[0].T, columns.reshape(nz, -1))
    return planes.reshape(cubed[0].shape[1], *columns.shape[1:])


def reciprocal(omega: np.ndarray) -> np.ndarray:
    """Return 1 / `omega` (the contracted weights), 0 where data are too far away."""
    xp = namespace(omega)
    near = omega > OMEGA_FLOOR
    return xp.where(near, 1 / xp.where(near, omega, 1), 0)


def held_constant(lattice: np.ndarray, axis: int) -> np.ndarray:
    """Return the lattice with the value at the start of an axis repeated along it.

    For an axis of one sample, away from which the fitted curve would fall off.
    """
    weights = axis_weights(1, lattice.shape[axis]).weights[0].astype(lattice.dtype)
    first = np.moveaxis(lattice, axis, -1)[..., :4] @ weights
    return np.repeat(np.expand_dims(first, axis), lattice.shape[axis], axis=axis)


def refine(lattice: np.ndarray, axes: Sequence[int] = (0, 1, 2)) -> np.ndarray:
    """Return the lattice with twice as many spans along `axes` that represents the same field."""
    for axis in axes:
        coarse = np.moveaxis(lattice, axis, 0)
        fine = np.empty((2 * len(coarse) - 3, *coarse.shape[1:]), lattice.dtype)
        fine[0::2] = (coarse[:-1] + coarse[1:]) / 2
        fine[1::2] = (coarse[:-2] + 6 * coarse[1:-1] + coarse[2:]) / 8
        lattice = np.moveaxis(fine, 0, axis)
    return np.ascontiguousarray(lattice)
