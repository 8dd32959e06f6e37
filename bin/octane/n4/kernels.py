"""The loops of N4 over voxels, compiled; :mod:`octane.n4.cpu` and :mod:`octane.n4.apply` call them.

Values are worked on a :data:`CHUNK` or some rows at a time, in loops of one kind of work each:
those without table look-ups become vector instructions. A row is laid out in full in ``line``, so
that the products with a B-spline basis are the same vector loops for every row.

Arguments of several kernels, for a slab (rows of the grid with n included voxels, row after row) or
a block of (nz, ny, nx) voxels:

where : int32, (n,) or (0,)
    Position of each included voxel in the slab; none where rows are included whole.
begins : int64, (rows + 1,)
    First voxel of each row, and the end.
row : int
    Number of the slab's first row in the grid.
low, slope : float32
    Value of bin 0, and the distance of bins.
first_y, basis_y : int64, (ny,); float64, (ny, 4)
    First of the four control points of each row, and their basis.
basis_x, spans : float32, (4, nx); int64, (spans, 3)
    The four basis values of each column; per span of x its first column, the column after its last,
    and its first control point.
planes : float64, (planes, cy, cx)
    Control points of each plane.
"""

import math
from functools import cache

import numpy as np

from octane.core.compiled import Kernel, compiled, inlined

F32 = np.float32
I32 = np.int32
# For indices out of an array: numba checks whether signed ones count from the end.
U64 = np.uint64
LOG2_E = F32(1.4426950408889634)
# ln 2 as a sum, the first of few bits so that its multiples are exact.
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
# Beyond it the result leaves float32's normal numbers.
LARGEST_EXPONENT = F32(87.0)

# Voxels whose intermediate results stay in the first-level cache.
CHUNK = 4096
# The same for rows: as many as have this many columns are worked on together, because starting and
# ending a vector loop costs as much as a short row.
TILE = 1024
# Bits for a sum of shares of up to CHUNK voxels, each up to 2**24.
SHARE_BITS = 40


@inlined()
def exp32(x: np.float32) -> np.float32:
    """The exponential, within a unit in float32's last place up to abs(x) = 87, clamped beyond.

    Vector code, unlike that of the C library: 2**n exp(r) with abs(r) <= ln(2) / 2, and the
    polynomial of Cephes' expf.
    """
    x = min(max(x, -LARGEST_EXPONENT), LARGEST_EXPONENT)
    n = F32(np.rint(x * LOG2_E))
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = F32(1.9875691500e-4)
    p = p * r + F32(1.3981999507e-3)
    p = p * r + F32(8.3334519073e-3)
    p = p * r + F32(4.1665795894e-2)
    p = p * r + F32(1.6666665459e-1)
    p = p * r + F32(5.0000001201e-1)
    p = p * (r * r) + r + F32(1)
    return p * I32((I32(n) + I32(127)) << I32(23)).view(np.float32)


@inlined()
def ordered(x: np.float32) -> np.int32:
    """The bits of a float as an integer of the same order: maxima of integers are vector code."""
    bits = F32(x).view(np.int32)
    return I32(bits ^ ((bits >> I32(31)) & I32(0x7FFFFFFF)))


@inlined()
def from_ordered(bits: np.int32) -> np.float32:
    """Undo :func:`ordered`."""
    return I32(bits ^ ((bits >> I32(31)) & I32(0x7FFFFFFF))).view(np.float32)


@inlined()
def lay_out(values: np.ndarray, where: np.ndarray, first: int, line: np.ndarray) -> None:
    """Lay the values of a row out in its columns, 0 where nothing is included.

    `first` is the position of the row's first column in the slab.
    """
    line[:] = F32(0)
    for i in range(len(values)):
        line[U64(where[i] - first)] = values[i]


@inlined(reorder=True)
def project(
    line: np.ndarray,
    basis_x: np.ndarray,
    support: np.ndarray,
    along_x: np.ndarray,
    first_y: int,
    basis_y: np.ndarray,
    plane: np.ndarray,
) -> None:
    """Contract a row with the bases of x and y, and add it to its plane of control points."""
    for c in range(len(along_x)):
        total = F32(0)
        for i in range(U64(support[c, 0]), U64(support[c, 1])):
            total += line[i] * basis_x[c, i]
        along_x[c] = total
    row0, row1 = plane[first_y], plane[first_y + 1]
    row2, row3 = plane[first_y + 2], plane[first_y + 3]
    w0, w1, w2, w3 = basis_y[0], basis_y[1], basis_y[2], basis_y[3]
    for c in range(len(along_x)):
        value = np.float64(along_x[c])
        row0[c] += w0 * value
        row1[c] += w1 * value
        row2[c] += w2 * value
        row3[c] += w3 * value


@inlined()
def residuals(
    u: np.ndarray,
    low: np.float32,
    slope: np.float32,
    table: np.ndarray,
    looked_up: np.ndarray,
    fraction: np.ndarray,
    out: np.ndarray,
) -> None:
    """Put u less its expected value into `out`; for `table` see :func:`contract`."""
    last = F32(len(table) - 1)
    bin_ = out.view(np.int32)
    for i in range(len(u)):
        c = (u[i] - low) / slope
        # ITK maps what lies outside to the last bin's value.
        c = c if (c >= F32(0)) & (c <= last) else last
        k = I32(c)
        bin_[i] = k
        fraction[i] = c - F32(k)
    for i in range(len(u)):
        looked_up[i] = table[np.uint32(bin_[i])]
    pairs = looked_up.view(np.float32)
    for i in range(len(u)):
        out[i] = u[i] - (pairs[2 * i + 1] * fraction[i] + pairs[2 * i])


@inlined()
def expand(
    plane: np.ndarray,
    first_y: int,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
    control: np.ndarray,
    line: np.ndarray,
) -> None:
    """Evaluate a row of a plane of control points: along y in float64, along x in float32.

    `control`, float32, (cx,), is scratch.
    """
    row0, row1 = plane[first_y], plane[first_y + 1]
    row2, row3 = plane[first_y + 2], plane[first_y + 3]
    y0, y1, y2, y3 = basis_y[0], basis_y[1], basis_y[2], basis_y[3]
    for c in range(len(control)):
        control[c] = F32(y0 * row0[c] + y1 * row1[c] + y2 * row2[c] + y3 * row3[c])
    for s in range(len(spans)):
        first = spans[s, 2]
        p0, p1, p2, p3 = control[first], control[first + 1], control[first + 2], control[first + 3]
        for i in range(U64(spans[s, 0]), U64(spans[s, 1])):
            line[i] = (
                p0 * basis_x[0, i] + p1 * basis_x[1, i] + p2 * basis_x[2, i] + p3 * basis_x[3, i]
            )


@inlined()
def pick(line: np.ndarray, where: np.ndarray, first: int, out: np.ndarray) -> None:
    """Undo :func:`lay_out` for the places `where` of a row."""
    for i in range(len(out)):
        out[i] = line[U64(where[i] - first)]


@inlined()
def extrema(u: np.ndarray) -> tuple[np.int32, np.int32]:
    """Smallest and largest value, :func:`ordered`."""
    lowest, highest = ordered(F32(np.inf)), ordered(F32(-np.inf))
    for i in range(len(u)):
        bits = ordered(u[i])
        lowest = min(lowest, bits)
        highest = max(highest, bits)
    return lowest, highest


@inlined(reorder=True)
def moments(change: np.ndarray) -> tuple[float, float, np.int32]:
    """Sums of p - 1 and (p - 1)**2 with p = exp(-change), and the largest, :func:`ordered`."""
    total, squares, largest = 0.0, 0.0, I32(0)
    for i in range(len(change)):
        p = exp32(-change[i]) - F32(1)
        largest = max(largest, ordered(abs(p)))
        total += np.float64(p)
        squares += np.float64(p) * np.float64(p)
    return total, squares, largest


@compiled("void(float32[::1], float32, float32, int64[::1], int64[::1])")
def count(
    u: np.ndarray, low: np.float32, slope: np.float32, counted: np.ndarray, shares: np.ndarray
) -> None:
    """Bin a slab of u, float32 (n,), linearly.

    Writes per bin its values and the sum of their shares of the next bin in units of 2**-24 (they
    are multiples of it except in bin 0): `counted`, `shares`, int64 (bins + 1,). The last holds
    what lies outside.
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
    weights : float32, (n,) or (0,)
        Factors of the residuals; none for ones.
    table : int64, (bins,)
        Expected value of each bin and difference to the next: two float32 in one number, to be
        looked up at once.
    basis_x, support : float32, (cx, nx); int64, (cx, 2)
        Basis of each control point, and the columns in which it is not 0.
    planes
        Out: those of the slab.
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
    """Take the new field from a slab of the log image, float32 (n,), into `u`.

    `planes` (nz, 2, cy, cx) holds the control points of the new field and of its change; the first
    `skip` voxels are left out of the extrema of u.

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

    `planes` are those of :func:`subtract`.
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
    """ITK's sum of squares around the float32 running mean of p, and the last mean."""
    mean, scatter = p[0], 0.0
    for i in range(1, len(p)):
        count = np.float64(i + 1)
        distance = np.float64(p[i] - mean)
        scatter += distance * distance * ((count - 1) / count)
        mean = F32(mean * (1 - 1 / count) + np.float64(p[i] / F32(count)))
    return scatter, np.float64(mean)


@compiled(
    "void(float32[:, :, ::1], float64[:, :, ::1], int64[::1], float64[:, ::1], float32[:, ::1],"
    " int64[:, ::1])"
)
def add_field(
    log_field: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
) -> None:
    """Add a field to a block of log fields, float32 (nz, ny, nx), in place."""
    control = np.empty(planes.shape[2], np.float32)
    line = np.empty(log_field.shape[2], np.float32)
    for z in range(len(log_field)):
        for y in range(log_field.shape[1]):
            expand(planes[z], first_y[y], basis_y[y], basis_x, spans, control, line)
            target = log_field[z, y]
            for i in range(len(line)):
                target[i] += line[i]


def divide(
    block: np.ndarray,
    source: np.ndarray,
    more: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
    strength: float,
    limits: np.ndarray,
    out: np.ndarray,
    field: np.ndarray,
) -> None:
    """Divide a block by its field, in the type of `limits`; :func:`divider` compiles it.

    No sum is reordered: every voxel has the same bits whatever block it is in.

    Parameters
    ----------
    block, source : (nz, ny, nx)
        Values to divide, and values to blend the result with.
    more : float32, (nz, ny, nx) or (0, 0, 0)
        Log fields besides that of the lattice.
    strength : float32 or float64
        1 for the full correction.
    limits : float32 or float64, (2,)
        Range of an integer `out`; equal for others.
    out, field : (nz, ny, nx); float32, (nz, ny, nx) or (0, 0, 0)
        Out: the result, and exp(log field).
    """
    real = limits.dtype.type
    low, high = limits
    control = np.empty(planes.shape[2], np.float32)
    line = np.empty(block.shape[2], limits.dtype)
    for z in range(len(block)):
        for y in range(block.shape[1]):
            # The log field is float32 in both types.
            expand(planes[z], first_y[y], basis_y[y], basis_x, spans, control, line)
            if len(more):
                others = more[z, y]
                for i in range(len(line)):
                    line[i] = others[i] + F32(line[i])
            if line.itemsize == 4:
                for i in range(len(line)):
                    line[i] = exp32(F32(line[i]))
            else:
                for i in range(len(line)):
                    line[i] = math.exp(line[i])
            if len(field):
                row = field[z, y]
                for i in range(len(line)):
                    row[i] = F32(line[i])
            values = block[z, y]
            for i in range(len(line)):
                line[i] = real(values[i]) / line[i]
            if strength < 1:
                inputs = source[z, y]
                for i in range(len(line)):
                    before = real(inputs[i])
                    line[i] = before + (line[i] - before) * strength
            if low < high:
                for i in range(len(line)):
                    rounded = real(np.rint(line[i]))
                    rounded = rounded if rounded > low else low
                    line[i] = rounded if rounded < high else high
            target = out[z, y]
            for i in range(len(line)):
                target[i] = line[i]


@cache
def divider(block: str, source: str, out: str, working: str) -> Kernel:
    """Compile :func:`divide` for arrays of these types, working in float32 or float64."""
    return compiled(
        f"void({block}[:, :, ::1], {source}[:, :, ::1], float32[:, :, ::1], float64[:, :, ::1],"
        f" int64[::1], float64[:, ::1], float32[:, ::1], int64[:, ::1], {working},"
        f" {working}[::1], {out}[:, :, ::1], float32[:, :, ::1])"
    )(divide)
