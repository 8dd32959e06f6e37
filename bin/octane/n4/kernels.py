"""The loops of N4 over voxels, compiled: see :mod:`octane.n4.cpu` for what they are part of.

Included voxels are compact, row after row; the columns of rows that are included in part are given
by ``where`` (positions in the slab, of length 0 for whole rows) and ``begins`` (per row, the first
of its voxels). A row is laid out in full in ``line``, so that the products with a B-spline basis
are the same vector loops for every row.

Values are worked on a :data:`CHUNK` or some rows at a time, in loops of one kind of work each:
those without table look-ups become vector instructions.
"""

import numpy as np

from octane.core.compiled import compiled
from octane.n4.rows import (
    F32,
    I32,
    exp32,
    expand,
    extrema,
    from_ordered,
    lay_out,
    moments,
    ordered,
    pick,
    project,
    residuals,
)

__all__ = ["change", "contract", "count", "follow", "subtract", "weigh"]

# Voxels whose intermediate results stay in the first-level cache.
CHUNK = 4096
# The same for rows: as many as have this many columns are worked on together, because starting and
# ending a vector loop costs as much as a short row.
TILE = 1024
# Bits for a sum of shares of up to CHUNK voxels, each up to 2**24.
SHARE_BITS = 40


@compiled("void(float32[::1], float32, float32, int64[::1], int64[::1])")
def count(
    u: np.ndarray, low: np.float32, slope: np.float32, counted: np.ndarray, shares: np.ndarray
) -> None:
    """Bin a slab of u linearly.

    Parameters
    ----------
    u : float32, (n,)
    low, slope : float32
        Value of bin 0, and the distance of bins.
    counted, shares : int64, (bins + 1,)
        Out: per bin, its values, and the sum of their shares of the next bin in units of 2**-24
        (they are multiples of it but in bin 0). The last holds what lies outside.
    """
    bins = len(counted) - 1
    last = F32(bins - 1)
    bin_ = np.empty(CHUNK, np.int32)
    share = np.empty(CHUNK, np.int32)
    # Both sums in one number, and neighbouring voxels, which are often of one bin, in four
    # histograms in turn, so that an addition does not wait for the one before it.
    packed = np.zeros(4 * (bins + 1), np.int64)
    counted[:] = 0
    shares[:] = 0
    for start in range(0, len(u), CHUNK):
        part = u[start : start + CHUNK]
        n = len(part)
        for i in range(n):
            # Divided in float32 as in ITK: multiplying by 1 / slope is visible in the field.
            c = (part[i] - low) / slope
            k = I32(c)
            inside = (c >= F32(0)) & (c <= last)
            bin_[i] = k if inside else I32(bins)
            share[i] = I32(np.rint((c - F32(k)) * F32(1 << 24))) if inside else I32(0)
        for i in range(n):
            packed[(np.uint32(bin_[i]) << 2) + (i & 3)] += (1 << SHARE_BITS) + np.int64(share[i])
        for b in range(bins + 1):
            total = np.int64(0)
            for lane in range(4):
                total += packed[4 * b + lane]
                packed[4 * b + lane] = 0
            counted[b] += total >> SHARE_BITS
            shares[b] += total & ((1 << SHARE_BITS) - 1)


@compiled(
    "void(float32[::1], int32[::1], int64[::1], float32[::1], float32, float32, int64[::1], int64,"
    " float32[:, ::1], int64[:, ::1], int64[::1], float64[:, ::1], float64[:, :, ::1])",
)
def contract(
    u: np.ndarray,
    where: np.ndarray,
    begins: np.ndarray,
    weights: np.ndarray,
    low: np.float32,
    slope: np.float32,
    table: np.ndarray,
    row: int,
    basis_x: np.ndarray,
    support: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    planes: np.ndarray,
) -> None:
    """Contract a slab's residuals, u less its expected value, along x and y.

    Parameters
    ----------
    u : float32, (n,)
    where : int32, (n,) or (0,)
    begins : int64, (rows + 1,)
    weights : float32, (n,) or (0,)
        Of the voxels; none for ones.
    low, slope : float32
        As for :func:`count`.
    table : int64, (bins,)
        Expected value of each bin and difference to the next: two float32 in one number, to be
        looked up at once.
    row : int
        First row of the slab in the grid.
    basis_x : float32, (cx, nx)
    support : int64, (cx, 2)
        Columns in which a control point's basis is not 0.
    first_y, basis_y : int64, (ny,); float64, (ny, 4)
        First of the four control points of a row, and their basis.
    planes : float64, (planes of the slab, cy, cx)
        Out.
    """
    ny, nx = len(first_y), basis_x.shape[1]
    group = max(1, TILE // nx)
    line = np.empty(nx, np.float32)
    residual = np.empty(group * nx, np.float32)
    fraction = np.empty(group * nx, np.float32)
    looked_up = np.empty(group * nx, np.int64)
    along_x = np.empty(len(basis_x), np.float32)
    planes[:] = 0
    for top in range(0, len(begins) - 1, group):
        bottom = min(top + group, len(begins) - 1)
        start, stop = begins[top] - begins[0], begins[bottom] - begins[0]
        values = residual[: stop - start]
        residuals(u[start:stop], low, slope, table, looked_up, fraction, values)
        if len(weights):
            some = weights[start:stop]
            for i in range(len(values)):
                values[i] *= some[i]
        for r in range(top, bottom):
            begin, end = begins[r] - begins[0], begins[r + 1] - begins[0]
            if begin == end:
                continue
            row_values = values[begin - start : end - start]
            if len(where):
                lay_out(row_values, where[begin:end], r * nx, line)
                row_values = line
            z, y = (row + r) // ny - row // ny, (row + r) % ny
            project(row_values, basis_x, support, along_x, first_y[y], basis_y[y], planes[z])


@compiled(
    "void(int32[::1], int64[::1], float32[::1], int64,"
    " float32[:, ::1], int64[:, ::1], int64[::1], float64[:, ::1], float64[:, :, ::1])",
)
def weigh(
    where: np.ndarray,
    begins: np.ndarray,
    weights: np.ndarray,
    row: int,
    basis_x: np.ndarray,
    support: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    planes: np.ndarray,
) -> None:
    """Contract a slab's weights as :func:`contract` does its residuals."""
    ny, nx = len(first_y), basis_x.shape[1]
    line = np.empty(nx, np.float32)
    ones = np.ones(nx, np.float32)
    along_x = np.empty(len(basis_x), np.float32)
    planes[:] = 0
    for r in range(len(begins) - 1):
        begin, end = begins[r] - begins[0], begins[r + 1] - begins[0]
        if begin == end:
            continue
        values = weights[begin:end] if len(weights) else ones[: end - begin]
        if len(where):
            lay_out(values, where[begin:end], r * nx, line)
            values = line
        z, y = (row + r) // ny - row // ny, (row + r) % ny
        project(values, basis_x, support, along_x, first_y[y], basis_y[y], planes[z])


@compiled(
    "UniTuple(float64, 5)(float32[::1], float32[::1], int32[::1], int64[::1], int64, int64,"
    " float64[:, :, :, ::1], int64[::1], float64[:, ::1], float32[:, ::1], int64[:, ::1])"
)
def subtract(
    log: np.ndarray,
    u: np.ndarray,
    where: np.ndarray,
    begins: np.ndarray,
    row: int,
    skip: int,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
) -> tuple[float, float, float, float, float]:
    """Take the new field from a slab of the log image.

    Parameters
    ----------
    log, u : float32, (n,)
        The log image; and out: less the new field.
    where, begins, row
        As for :func:`contract`.
    skip : int
        Voxels at the start to leave out of the extrema of u.
    planes : float64, (nz, 2, cy, cx)
        Control points of every plane: of the new field and of its change.
    first_y, basis_y : int64, (ny,); float64, (ny, 4)
    basis_x : float32, (4, nx)
        The four basis values of every column.
    spans : int64, (spans, 3)
        Per span of x: its first column, the column after its last, its first control point.

    Returns
    -------
    tuple of float
        Sums of p - 1 and (p - 1)**2 with p = exp(old field - new field), the largest
        abs(p - 1), and the smallest and largest u (infinite if there is none).
    """
    ny, nx = len(first_y), basis_x.shape[1]
    control = np.empty(planes.shape[3], np.float32)
    group = max(1, TILE // nx)
    line = np.empty(nx, np.float32)
    fields, changes = np.empty(group * nx, np.float32), np.empty(group * nx, np.float32)
    total, squares, largest = 0.0, 0.0, I32(0)
    lowest, highest = ordered(F32(np.inf)), ordered(F32(-np.inf))
    for top in range(0, len(begins) - 1, group):
        bottom = min(top + group, len(begins) - 1)
        start, stop = begins[top] - begins[0], begins[bottom] - begins[0]
        field, change = fields[: stop - start], changes[: stop - start]
        for r in range(top, bottom):
            begin, end = begins[r] - begins[0], begins[r + 1] - begins[0]
            if begin == end:
                continue
            z, y = (row + r) // ny, (row + r) % ny
            field_row = field[begin - start : end - start]
            change_row = change[begin - start : end - start]
            if len(where):
                places = where[begin:end]
                expand(planes[z, 0], first_y[y], basis_y[y], basis_x, spans, control, line)
                pick(line, places, r * nx, field_row)
                expand(planes[z, 1], first_y[y], basis_y[y], basis_x, spans, control, line)
                pick(line, places, r * nx, change_row)
            else:
                expand(planes[z, 0], first_y[y], basis_y[y], basis_x, spans, control, field_row)
                expand(planes[z, 1], first_y[y], basis_y[y], basis_x, spans, control, change_row)
        image, out = log[start:stop], u[start:stop]
        for i in range(len(out)):
            out[i] = image[i] - field[i]
        # There may be fewer than are to be left out.
        low, high = extrema(out[min(skip, len(out)) :])
        skip -= min(skip, len(out))
        lowest, highest = min(lowest, low), max(highest, high)
        some, some_squares, some_largest = moments(change)
        total += some
        squares += some_squares
        largest = max(largest, some_largest)
    return (
        total,
        squares,
        np.float64(from_ordered(largest)),
        np.float64(from_ordered(lowest)),
        np.float64(from_ordered(highest)),
    )


@compiled(
    "void(int32[::1], int64[::1], int64, float64[:, :, :, ::1], int64[::1], float64[:, ::1],"
    " float32[:, ::1], int64[:, ::1], float32[::1])"
)
def change(
    where: np.ndarray,
    begins: np.ndarray,
    row: int,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
    out: np.ndarray,
) -> None:
    """exp(old field - new field) of a slab's first voxels, as many as `out` holds.

    Parameters are as for :func:`subtract`.
    """
    ny, nx = len(first_y), basis_x.shape[1]
    control = np.empty(planes.shape[3], np.float32)
    line, picked = np.empty(nx, np.float32), np.empty(nx, np.float32)
    for r in range(len(begins) - 1):
        begin = begins[r] - begins[0]
        n = min(begins[r + 1] - begins[0], len(out)) - begin
        if n <= 0:
            continue
        z, y = (row + r) // ny, (row + r) % ny
        expand(planes[z, 1], first_y[y], basis_y[y], basis_x, spans, control, line)
        values = line[:n]
        if len(where):
            values = picked[:n]
            pick(line, where[begin : begin + n], r * nx, values)
        part = out[begin : begin + n]
        for i in range(n):
            part[i] = exp32(-values[i])


@compiled("UniTuple(float64, 2)(float32[::1])")
def follow(p: np.ndarray) -> tuple[float, float]:
    """ITK's sum of squares around the float32 running mean of p, and the last mean.

    The loop that :func:`octane.n4.convergence.running_mean` does with arrays.
    """
    mean, scatter = p[0], 0.0
    for i in range(1, len(p)):
        count = np.float64(i + 1)
        distance = np.float64(p[i] - mean)
        scatter += distance * distance * ((count - 1) / count)
        mean = F32(mean * (1 - 1 / count) + np.float64(p[i] / F32(count)))
    return scatter, np.float64(mean)
