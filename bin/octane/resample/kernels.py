"""Compiled loops of resampling: see :mod:`octane.resample.cpu` for how they are used.

All three axes use one operation, a weighted sum of rows: along y of the rows of a plane, along z of
the same row of several planes, and along x of the rows of a transposed group of lines. Its loop
over a row's elements is vector code for any operator. Eight taps are summed per pass, so that a
sum is written to memory once for eight products, not once for each.

Taps are summed in order, without fused multiply-adds: vectors, the remainder at a row's end, and
therefore any cut of the work, yield the same bits on every processor.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from octane.core.compiled import compiled, helper

U64 = np.uint64


@helper
def weighted_sum(source: np.ndarray, rows: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """Put the sum over k of weight[k] * source[rows[k]] into `out`.

    Parameters
    ----------
    source : (rows, columns)
        Of any real type, at least as wide as `out`; further columns are ignored.
    rows : uint64, (taps,)
    weight, out : float32 or float64, (taps,), (n,)
    """
    taps = len(rows)
    n = len(out)
    a, w0 = source[rows[0]], weight[0]
    if taps & 1:
        for i in range(n):
            out[i] = w0 * a[i]
    else:
        b, w1 = source[rows[1]], weight[1]
        for i in range(n):
            out[i] = w0 * a[i] + w1 * b[i]
    k = 2 - (taps & 1)
    while k + 8 <= taps:
        a, b, c, d = source[rows[k]], source[rows[k + 1]], source[rows[k + 2]], source[rows[k + 3]]
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        e, f, g, h = (
            source[rows[k + 4]],
            source[rows[k + 5]],
            source[rows[k + 6]],
            source[rows[k + 7]],
        )
        w4, w5, w6, w7 = weight[k + 4], weight[k + 5], weight[k + 6], weight[k + 7]
        for i in range(n):
            total = out[i] + w0 * a[i]
            total += w1 * b[i]
            total += w2 * c[i]
            total += w3 * d[i]
            total += w4 * e[i]
            total += w5 * f[i]
            total += w6 * g[i]
            out[i] = total + w7 * h[i]
        k += 8
    if k + 4 <= taps:
        a, b, c, d = source[rows[k]], source[rows[k + 1]], source[rows[k + 2]], source[rows[k + 3]]
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for i in range(n):
            total = out[i] + w0 * a[i]
            total += w1 * b[i]
            total += w2 * c[i]
            out[i] = total + w3 * d[i]
        k += 4
    if k < taps:
        a, b = source[rows[k]], source[rows[k + 1]]
        w0, w1 = weight[k], weight[k + 1]
        for i in range(n):
            out[i] = (out[i] + w0 * a[i]) + w1 * b[i]


@helper
def along_y(
    plane: np.ndarray, start: np.ndarray, weight: np.ndarray, rows: np.ndarray, out: np.ndarray
) -> None:
    """Apply the operator of y to a plane.

    Its rows are first copied in order, in the computing type, to `rows`, where they stay in the
    first-level cache for all outputs that use them. Memory is thus read as one stream: this takes
    three quarters of the time of reading rows in place if planes are not in a cache, and the same
    time if they are. Copying more than an output's new rows at once is slower. Integers are
    converted once, not for every tap.

    Parameters
    ----------
    plane : (cy, cx)
    start, weight : int64, (my,); (my, taps)
    rows : (2**k >= taps, width)
        Scratch. Row y is stored at y modulo its length.
    out : (my, width)
    """
    real = weight.dtype.type
    mask = len(rows) - 1
    taken = np.empty(weight.shape[1], U64)
    below = 0
    for j in range(len(start)):
        for y in range(max(below, start[j]), start[j] + len(taken)):
            source, target = plane[y], rows[y & mask]
            for i in range(len(target)):
                target[i] = real(source[i])
        below = start[j] + len(taken)
        for k in range(len(taken)):
            taken[k] = U64((start[j] + k) & mask)
        weighted_sum(rows, taken, weight[j], out[j])


@helper
def along_x(
    lines: np.ndarray,
    components: int,
    start: np.ndarray,
    weight: np.ndarray,
    transposed: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Apply the operator of x to several lines at once.

    Parameters
    ----------
    lines : (lines, nx * components)
    components : int
        1, or 2 for complex values.
    start, weight : int64, (mx,); (mx, taps)
    transposed : (nx, lines * components)
        Scratch: the lines transposed.
    sums : (mx, lines * components)
        Out: the result transposed.
    """
    for r in range(len(lines)):
        line = lines[r]
        for c in range(components):
            lane = r * components + c
            for x in range(len(transposed)):
                transposed[x, lane] = line[x * components + c]
    taken = np.empty(weight.shape[1], U64)
    for i in range(len(start)):
        for k in range(len(taken)):
            taken[k] = U64(start[i] + k)
        weighted_sum(transposed, taken, weight[i], sums[i])


@helper
def integers(values: np.ndarray, low: float, high: float) -> None:
    """Round values in place (half to even), and clip them."""
    for i in range(len(values)):
        row = values[i]
        for lane in range(len(row)):
            row[lane] = min(max(np.rint(row[lane]), low), high)


def resample(
    planes: np.ndarray,
    first: int,
    done: int,
    z_start: np.ndarray,
    z_weight: np.ndarray,
    y_start: np.ndarray,
    y_weight: np.ndarray,
    x_start: np.ndarray,
    x_weight: np.ndarray,
    rows: np.ndarray,
    ring: np.ndarray,
    lines: np.ndarray,
    transposed: np.ndarray,
    sums: np.ndarray,
    components: int,
    same_x: bool,
    rounded: bool,
    low: float,
    high: float,
    result: np.ndarray,
) -> int:
    """Process the next planes, and compute the planes of the result that they complete.

    Weights, scratch arrays and limits have the computing type, float32 or float64.

    Parameters
    ----------
    planes : (planes, cy, cx * components)
        Of any real type.
    first, done : int
        Index of the first of them along z, and number of completed planes of the result.
    z_start, z_weight, y_start, y_weight, x_start, x_weight : int64, (m,); (m, taps)
        The operators.
    rows : (2**k, width)
        As for :func:`along_y`; `width` is the number of columns that the operator of x uses.
    ring : (z taps * my, width)
        The last planes summed along y; plane z is stored at z modulo their number.
    lines, transposed, sums
        As for :func:`along_x`.
    components : int
        2 for complex values, else 1.
    same_x : bool
        Whether the operator of x leaves a line as it is.
    rounded : bool
        Whether the result has integers, with limits `low` and `high`.
    result : (mz, my, mx * components)

    Returns
    -------
    int
        The new `done`.
    """
    depth, my, width = z_weight.shape[1], len(y_start), ring.shape[1]
    slots = np.empty(depth, U64)
    taken = np.empty(depth, U64)
    group = len(lines)
    for p in range(len(planes)):
        z = first + p
        if done == len(z_start):
            break
        if z < z_start[done]:
            continue
        place = z % depth * my
        along_y(planes[p], y_start, y_weight, rows, ring[place : place + my])
        while done < len(z_start) and z_start[done] + depth == z + 1:
            for k in range(depth):
                slots[k] = U64((z_start[done] + k) % depth * my)
            for top in range(0, my, group):
                count = min(group, my - top)
                for r in range(count):
                    for k in range(depth):
                        taken[k] = slots[k] + U64(top + r)
                    weighted_sum(ring, taken, z_weight[done], lines[r])
                if same_x:
                    if rounded:
                        integers(lines, low, high)
                    for r in range(count):
                        line, out = lines[r], result[done, top + r]
                        for i in range(width):
                            out[i] = line[i]
                    continue
                along_x(lines[:count], components, x_start, x_weight, transposed, sums)
                if rounded:
                    integers(sums, low, high)
                for r in range(count):
                    out = result[done, top + r]
                    for c in range(components):
                        lane = r * components + c
                        for i in range(len(sums)):
                            out[i * components + c] = sums[i, lane]
            done += 1
    return done


@cache
def push(source: np.dtype, work: np.dtype, out: np.dtype) -> Callable[..., int]:
    """Compile :func:`resample` for planes of type `source` and results of `out`, using `work`."""
    s, w, o = source.name, work.name, out.name
    axis = f"int64[::1], {w}[:, ::1]"
    return compiled(
        f"int64({s}[:, :, ::1], int64, int64, {axis}, {axis}, {axis}, {w}[:, ::1],"
        f" {w}[:, ::1], {w}[:, ::1], {w}[:, ::1], {w}[:, ::1],"
        f" int64, int64, int64, {w}, {w}, {o}[:, :, ::1])"
    )(resample)
