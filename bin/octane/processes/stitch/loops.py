"""Compiled loops of blending: a tile into a block's sum, and the sum into the section's voxels.

Values are interpolated along y, then x, weighted and added in one pass, in which a row stays in the
cache; likewise divided and rounded. Each is the same sum of products in the same order as by
:mod:`octane.resample`, so a voxel's bits do not depend on the block that it is in.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from octane.core.compiled import compiled


def add(
    total: np.ndarray,
    voxels: np.ndarray,
    at: np.ndarray,
    along_y: tuple[np.ndarray, np.ndarray],
    along_x: tuple[np.ndarray, np.ndarray],
    part: np.ndarray,
    dark: float,
) -> None:
    """Add planes of a tile, interpolated and weighted, to a block; :func:`adder` compiles it.

    Complex values are pairs of real ones along x.

    Parameters
    ----------
    total : float32 or float64, (planes, y, x)
        In and out: the block's weighted sum.
    voxels : (z, y, x)
        Of any real type, with the tile within.
    at : int64, (6,)
        Row and column of the first sum; plane, row and column of the first voxel used; 2 if values
        are complex, else 1.
    along_y, along_x : int64, (n,); type of the sums, (taps, n)
        First voxel of each sum, from that at ``at``, and the weights of it and of the next one, if
        there are two taps.
    part : float32, (rows, columns)
        Weights of the tile.
    dark : float32
        Grey level subtracted from real values and real parts.
    """
    real = total.dtype.type
    top, left, plane, row, column, components = at
    (y, y_weight), (x, x_weight) = along_y, along_x
    columns = part.shape[1]
    line = np.empty(x[-1] + (len(x_weight) - 1) * components + 1, total.dtype)
    # Where the columns end whose voxels lie side by side, and become vectors.
    ends = np.full(columns, columns, np.int64)
    for j in range(columns - 2, -1, -1):
        ends[j] = ends[j + 1] if x[j + 1] == x[j] + 1 else j + 1
    for k in range(len(total)):
        for i in range(len(part)):
            a = voxels[plane + k, row + y[i], column : column + len(line)]
            w0 = y_weight[0, i]
            if len(y_weight) == 1:
                for j in range(len(line)):
                    line[j] = w0 * real(a[j])
            else:
                b = voxels[plane + k, row + y[i] + 1, column : column + len(line)]
                w1 = y_weight[1, i]
                for j in range(len(line)):
                    line[j] = w0 * real(a[j]) + w1 * real(b[j])
            first = 0
            while first < columns:
                stop = ends[first]
                sums = total[k, top + i, left + first : left + stop]
                weights, u0 = part[i, first:stop], x_weight[0, first:stop]
                c = line[x[first] : x[first] + stop - first]
                if len(x_weight) == 1:
                    for j in range(stop - first):
                        sums[j] += (u0[j] * c[j]) * real(weights[j])
                else:
                    u1 = x_weight[1, first:stop]
                    d = line[x[first] + components : x[first] + components + stop - first]
                    for j in range(stop - first):
                        sums[j] += (u0[j] * c[j] + u1[j] * d[j]) * real(weights[j])
                first = stop
            if dark != 0:
                for j in range(0, columns, components):
                    total[k, top + i, left + j] -= real(dark * part[i, j])


@cache
def adder(voxels: np.dtype, working: np.dtype) -> Callable[..., None]:
    """Compile :func:`add` for voxels of a real type and sums of another."""
    w = working.name
    axis = f"Tuple((int64[::1], {w}[:, ::1]))"
    return compiled(
        f"void({w}[:, :, ::1], {voxels.name}[:, :, ::1], int64[::1], {axis}, {axis},"
        " float32[:, ::1], float32)"
    )(add)


def divide(total: np.ndarray, weights: np.ndarray, limits: np.ndarray, out: np.ndarray) -> None:
    """Divide a block's sum by its weights (y, x) into integers; :func:`divider` compiles it.

    They are rounded half to even, and clipped to the ``limits`` of ``out``, (2,); NaN becomes 0.
    """
    real = total.dtype.type
    low, high = limits
    for k in range(len(total)):
        for i in range(len(weights)):
            sums, factors, target = total[k, i], weights[i], out[k, i]
            for j in range(len(factors)):
                value = real(np.rint(sums[j] / real(factors[j])))
                value = value if value == value else real(0)
                value = value if value > low else low
                target[j] = value if value < high else high


@cache
def divider(working: np.dtype, out: np.dtype) -> Callable[..., None]:
    """Compile :func:`divide` for sums and integers of these types."""
    w, o = working.name, out.name
    return compiled(f"void({w}[:, :, ::1], float32[:, ::1], {w}[::1], {o}[:, :, ::1])")(divide)
