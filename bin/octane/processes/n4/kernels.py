"""Compiled loops of N4's fit over voxels; :mod:`octane.processes.n4.cpu` calls them.

Several rows are processed together, in separate loops for each kind of work: those without table
look-ups become vector instructions.

Arguments of several loops, for the rows of a grid of (nz, ny, nx) voxels:

units : int64, (units, 4)
    Rows of a slab: the first, the one after the last, the slab's first row, and where the results
    begin. Threads share the units; each unit has its own results, whichever thread computes it.
where : int32, (voxels,) or (0,)
    Position of each included voxel in its slab; empty if all voxels are included.
begins : int64, (rows + 1,)
    First voxel of each row, and the end.
low, slope : float32
    Value of bin 0, and the bin width.
rows : tuple
    Bases to evaluate a row of a plane of control points: the first of the four of each row, int64
    (ny,), and their basis, float64 (ny, 4); then basis and parts of
    :func:`octane.processes.n4.bspline.vectors` for the columns.
planes : float64, (planes, cy, cx)
    Control points of each plane; for evaluation :func:`octane.processes.n4.bspline.padded`.
"""

from collections.abc import Callable

import numpy as np
from numba.core import types, typing
from numba.core.base import BaseContext
from numba.core.cgutils import ir
from numba.extending import intrinsic

from octane.core.compiled import compiled, helper, reordered
from octane.processes.n4.bspline import LANES

F32 = np.float32
I32 = np.int32
# For indices read from arrays: for signed ones, numba checks whether they count from the end.
U64 = np.uint64
LOG2_E = F32(1.4426950408889634)
# ln 2 as a sum; the first term has so few bits that its multiples are exact.
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
# Beyond it the result leaves float32's normal numbers.
LARGEST_EXPONENT = F32(87.0)

# Columns of the rows that are processed together: starting and ending a vector loop costs as much
# as a short row, and intermediate results must stay in the first-level cache.
TILE = 1024
# Bits for a sum of shares of up to PACKED voxels, each up to 2**24.
SHARE_BITS = 44
PACKED = 1 << 18

# Types of arguments that are described above.
VOXELS = "Tuple((int32[::1], int64[::1], float32[::1], float32[::1]))"
ROWS = "Tuple((int64[::1], float64[:, ::1], float32[:, ::1], int64[:, ::1]))"


@helper
def exp32(x: np.float32) -> np.float32:
    """The exponential, within a unit in float32's last place up to abs(x) = 87, clamped beyond.

    Compiles to vector code, unlike the C library's: 2**n exp(r) with abs(r) <= ln(2) / 2, and
    the polynomial of Cephes' expf.
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


@helper
def ordered(x: np.float32) -> np.int32:
    """A float's bits as an integer of the same order; maxima of integers compile to vector code."""
    bits = F32(x).view(np.int32)
    return I32(bits ^ ((bits >> I32(31)) & I32(0x7FFFFFFF)))


@helper
def from_ordered(bits: np.int32) -> np.float32:
    """Undo :func:`ordered`."""
    return I32(bits ^ ((bits >> I32(31)) & I32(0x7FFFFFFF))).view(np.float32)


@helper
def lay_out(values: np.ndarray, where: np.ndarray, first: int, line: np.ndarray) -> None:
    """Spread the values of a row over its columns, 0 where voxels are excluded.

    `first` is the position of the row's first column in the slab.
    """
    line[:] = F32(0)
    for i in range(len(values)):
        line[U64(where[i] - first)] = values[i]


@reordered
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


@helper
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
        # ITK maps values outside the bins to the last bin's value.
        c = c if (c >= F32(0)) & (c <= last) else last
        k = I32(c)
        bin_[i] = k
        fraction[i] = c - F32(k)
    for i in range(len(u)):
        looked_up[i] = table[np.uint32(bin_[i])]
    pairs = looked_up.view(np.float32)
    for i in range(len(u)):
        out[i] = u[i] - (pairs[2 * i + 1] * fraction[i] + pairs[2 * i])


def _blend(
    context: typing.Context,
    weights: types.Array,
    first: types.Integer,
    rows: types.Array,
    start: types.Integer,
    step: types.Integer,
    out: types.Array,
    at: types.Integer,
) -> tuple[typing.Signature, Callable[..., ir.Value]]:
    """Types and code of :data:`blend`."""
    # Half as many float64 make a vector.
    lanes = LANES if rows.dtype == types.float32 else LANES // 2

    def generate(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: typing.Signature,
        arguments: list[ir.Value],
    ) -> ir.Value:
        def place(argument: int, index: ir.Value) -> ir.Value:
            array = context.make_array(signature.args[argument])
            return builder.gep(array(context, builder, arguments[argument]).data, [index])

        _, first, _, start, step, _, at = arguments
        vector = ir.VectorType(context.get_data_type(rows.dtype), lanes)
        single = ir.VectorType(ir.FloatType(), lanes)
        nothing = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        total = None
        for tap in range(4):
            weight = builder.load(place(0, builder.add(first, ir.Constant(ir.IntType(64), tap))))
            weight = builder.insert_element(nothing, weight, ir.Constant(ir.IntType(32), 0))
            weight = builder.shuffle_vector(weight, nothing, everywhere)
            row = builder.load(builder.bitcast(place(2, start), vector.as_pointer()), align=4)
            term = builder.fmul(weight, row)
            total = term if total is None else builder.fadd(total, term)
            start = builder.add(start, step)
        if vector != single:
            total = builder.fptrunc(total, single)
        builder.store(total, builder.bitcast(place(5, at), single.as_pointer()), align=4)
        return context.get_dummy_value()

    index = types.int64
    return types.void(weights, index, rows, index, index, out, index), generate


blend: Callable[..., None] = intrinsic(_blend)
"""Write a vector of the weighted sum of four rows, bit for bit as if summed one after the other.

``blend(weights, first, rows, start, step, out, at)``: the weights begin at element `first`; the
rows begin at element `start` and are `step` apart. Both are float32, or float64 (half as many per
vector). The sum is written to `out`, float32, from element `at` on. LLVM does not vectorize so
short a loop.
"""


@helper
def expand(
    plane: np.ndarray,
    y: int,
    rows: tuple[np.ndarray, ...],
    control: np.ndarray,
    line: np.ndarray,
) -> None:
    """Evaluate row y of a plane of control points: along y in float64, along x in float32.

    `line` must have room for a vector behind the last column, and `control`, float32 scratch,
    behind the last control point.
    """
    first_y, basis_y, basis_x, parts = rows
    cx = plane.shape[1]
    for c in range(0, cx, LANES // 2):
        blend(basis_y[y], 0, plane, first_y[y] * cx + c, cx, control, c)
    for i in range(len(parts)):
        blend(control, parts[i, 1], basis_x, 4 * LANES * i, LANES, line, parts[i, 0])


@helper
def pick(line: np.ndarray, where: np.ndarray, first: int, out: np.ndarray) -> None:
    """Undo :func:`lay_out` for the positions `where` of a row."""
    for i in range(len(out)):
        out[i] = line[U64(where[i] - first)]


@helper
def extrema(u: np.ndarray) -> tuple[np.int32, np.int32]:
    """Smallest and largest value, :func:`ordered`."""
    lowest, highest = ordered(F32(np.inf)), ordered(F32(-np.inf))
    for i in range(len(u)):
        bits = ordered(u[i])
        lowest = min(lowest, bits)
        highest = max(highest, bits)
    return lowest, highest


@reordered
def moments(change: np.ndarray) -> tuple[float, float, np.int32]:
    """Sums of p - 1 and (p - 1)**2 with p = exp(-change), and the largest, :func:`ordered`."""
    total, squares, largest = 0.0, 0.0, I32(0)
    for i in range(len(change)):
        p = exp32(-change[i]) - F32(1)
        largest = max(largest, ordered(abs(p)))
        total += np.float64(p)
        squares += np.float64(p) * np.float64(p)
    return total, squares, largest


@helper
def unpack(packed: np.ndarray, histogram: np.ndarray) -> None:
    """Add the packed sums of :func:`count` to its result, and reset them."""
    for b in range(histogram.shape[1]):
        total = np.int64(0)
        for lane in range(4):
            total += packed[4 * b + lane]
            packed[4 * b + lane] = 0
        histogram[0, b] += total >> SHARE_BITS
        histogram[1, b] += total & ((1 << SHARE_BITS) - 1)


@compiled("int64[:, ::1](float32[::1], float32, float32, int64)")
def count(u: np.ndarray, low: np.float32, slope: np.float32, bins: int) -> np.ndarray:
    """Bin voxels linearly.

    Returns
    -------
    int64, (2, bins + 1)
        Per bin the number of values, and the sum of their shares of the next bin in units of 2**-24
        (outside bin 0, shares are multiples of that). The last bin counts values outside.
    """
    last = F32(bins - 1)
    histogram = np.zeros((2, bins + 1), np.int64)
    # Number and, in the lower bits, sum of shares. Neighbouring voxels often share a bin: they
    # alternate between four histograms, so that an addition need not wait for the previous one.
    packed = np.zeros(4 * (bins + 1), np.int64)
    places, share = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    held = 0
    for start in range(0, len(u), TILE):
        part = u[start : start + TILE]
        n = len(part)
        if held + n > PACKED:
            unpack(packed, histogram)
            held = 0
        held += n
        for i in range(n):
            # Divided in float32 as in ITK: multiplying by 1 / slope is visible in the field.
            c = (part[i] - low) / slope
            k = I32(c)
            inside = (c >= F32(0)) & (c <= last)
            places[i] = ((k if inside else I32(bins)) << I32(2)) + I32(i & 3)
            share[i] = I32(np.rint((c - F32(k)) * F32(1 << 24))) if inside else I32(0)
        for i in range(n):
            packed[np.uint32(places[i])] += (1 << SHARE_BITS) + np.int64(share[i])
    unpack(packed, histogram)
    return histogram


@compiled(
    f"void(int64[:, ::1], {VOXELS}, float32, float32, int64[::1],"
    " Tuple((float32[:, ::1], int64[:, ::1], int64[::1], float64[:, ::1])), float64[:, :, ::1])"
)
def contract(
    units: np.ndarray,
    voxels: tuple[np.ndarray, ...],
    low: np.float32,
    slope: np.float32,
    table: np.ndarray,
    bases: tuple[np.ndarray, ...],
    planes: np.ndarray,
) -> None:
    """Contract residuals, u less its expected value, along x and y into `planes`.

    Parameters
    ----------
    units
        Planes of a slab, cut at its ends; their results are planes.
    voxels : where, begins, u and weights; float32, (voxels,), the last (voxels,) or (0,)
        The weights are factors of the residuals; empty for ones.
    table : int64, (bins,) or (0,)
        Expected value of each bin and difference to the next: two float32 in one number, to be
        looked up at once. If empty, the weights are contracted instead of the residuals.
    bases : float32, (cx, nx); int64, (cx, 2); int64, (ny,); float64, (ny, 4)
        Along x the basis of each control point, and the columns where it is not 0; along y the
        first control point of each row, and their basis.
    """
    where, begins, u, weights = voxels
    basis_x, support, first_y, basis_y = bases
    ny, nx = len(first_y), basis_x.shape[1]
    group = max(1, TILE // nx)
    size = max(TILE, nx)
    line, residual = np.empty(nx, np.float32), np.empty(size, np.float32)
    looked_up, fraction = np.empty(size, np.int64), np.empty(size, np.float32)
    along = np.empty(len(basis_x), np.float32)
    for unit in units:
        z, y = unit[3], unit[0] % ny
        planes[z : z + (unit[1] - 1) // ny - unit[0] // ny + 1] = 0
        for top in range(unit[0], unit[1], group):
            bottom = min(top + group, unit[1])
            start, stop = begins[top], begins[bottom]
            values = residual[: stop - start]
            if len(table):
                residuals(u[start:stop], low, slope, table, looked_up, fraction, values)
                if len(weights):
                    some = weights[start:stop]
                    for i in range(len(values)):
                        values[i] *= some[i]
            elif len(weights):
                some = weights[start:stop]
                for i in range(len(values)):
                    values[i] = some[i]
            else:
                values[:] = F32(1)
            for r in range(top, bottom):
                begin, end = begins[r], begins[r + 1]
                if begin < end:
                    row = values[begin - start : end - start]
                    if len(where):
                        lay_out(row, where[begin:end], (r - unit[2]) * nx, line)
                        project(line, basis_x, support, along, first_y[y], basis_y[y], planes[z])
                    else:
                        project(row, basis_x, support, along, first_y[y], basis_y[y], planes[z])
                y += 1
                if y == ny:
                    z, y = z + 1, 0


@compiled(f"void(int64[:, ::1], int64, {VOXELS}, {ROWS}, float64[:, :, :, ::1], float64[:, ::1])")
def update(
    units: np.ndarray,
    nx: int,
    voxels: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, ...],
    planes: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Subtract the new field from the log image.

    Parameters
    ----------
    units
        Groups of rows; their results are groups.
    voxels : where, begins, u and the log image; float32, (voxels,)
        Out: u.
    planes : (nz, 2, cy, cx)
        Control points of the new field and of its change.
    sums : float64, (5, groups)
        Out: for each group the sums of p - 1 and (p - 1)**2 with p = exp(old field - new field),
        the largest abs(p - 1), and the largest -u and u (-infinite without voxels), except for the
        grid's first voxel.
    """
    where, begins, u, log = voxels
    first_y, basis_y, basis_x, parts = rows
    ny, cy, cx = len(first_y), planes.shape[2], planes.shape[3]
    group = max(1, TILE // nx)
    control = np.empty((2, cx + LANES), np.float32)
    # A group of rows and a single line, each for the new field and for its change.
    scratch = np.empty((2, 2, max(TILE, nx) + LANES), np.float32)
    fields, lines = scratch[0], scratch[1]
    for unit in units:
        z, y, place = unit[0] // ny, unit[0] % ny, unit[3]
        for top in range(unit[0], unit[1], group):
            bottom = min(top + group, unit[1])
            start, stop = begins[top], begins[bottom]
            for r in range(top, bottom):
                begin, end = begins[r], begins[r + 1]
                if begin < end:
                    whole = end - begin == nx
                    # Into `lines` first if columns are excluded.
                    row_x, at, begin_x, end_x = (r - unit[2]) * nx, begin - start, 0, nx
                    kind = 0
                    if not whole:
                        kind, at = 1, 0
                        begin_x, end_x = where[begin] - row_x, where[end - 1] - row_x + 1
                    # As in `expand`, but faster, for both at once.
                    for p in range(2):
                        for c in range(0, cx, LANES // 2):
                            corner = (p * cy + first_y[y]) * cx + c
                            blend(basis_y[y], 0, planes[z], corner, cx, control[p], c)
                    for i in range(len(parts)):
                        x = parts[i, 0]
                        if x < end_x and x + LANES > begin_x:
                            for p in range(2):
                                blend(
                                    *(control[p], parts[i, 1], basis_x, 4 * LANES * i, LANES),
                                    *(scratch[kind, p], at + x),
                                )
                    for p in range(0 if whole else 2):
                        line, some = lines[p], fields[p, begin - start : stop - start]
                        if end_x - begin_x == end - begin:
                            for i in range(end - begin):
                                some[i] = line[U64(begin_x + i)]
                        else:
                            pick(line, where[begin:end], row_x, some[: end - begin])
                y += 1
                if y == ny:
                    z, y = z + 1, 0
            image, left = log[start:stop], u[start:stop]
            for i in range(len(left)):
                left[i] = image[i] - fields[0, i]
            low, high = extrema(left[1 if start == 0 else 0 :])
            total, squares, largest = moments(fields[1, : stop - start])
            sums[0, place], sums[1, place] = total, squares
            sums[2, place] = np.float64(from_ordered(largest))
            sums[3, place] = -np.float64(from_ordered(low))
            sums[4, place] = np.float64(from_ordered(high))
            place += 1


@compiled(f"void(int64[:, ::1], int64, {VOXELS}, {ROWS}, float64[:, :, :, ::1], float32[::1])")
def change(
    units: np.ndarray,
    nx: int,
    voxels: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, ...],
    planes: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write exp(old field - new field) of the first voxels until `out` is full; see `update`."""
    where, begins = voxels[0], voxels[1]
    ny = len(rows[0])
    control = np.empty(planes.shape[3] + LANES, np.float32)
    line, picked = np.empty(nx + LANES, np.float32), np.empty(nx, np.float32)
    for unit in units:
        for r in range(unit[0], unit[1]):
            begin = begins[r]
            n = min(begins[r + 1], len(out)) - begin
            if n <= 0:
                continue
            expand(planes[r // ny, 1], r % ny, rows, control, line)
            values = line[:n]
            if len(where):
                values = picked[:n]
                pick(line, where[begin : begin + n], (r - unit[2]) * nx, values)
            part = out[begin : begin + n]
            for i in range(n):
                part[i] = exp32(-values[i])


@compiled("UniTuple(float64, 2)(float32[::1])")
def follow(p: np.ndarray) -> tuple[float, float]:
    """Return ITK's sum of squares around the float32 running mean of p, and the last mean."""
    mean, scatter = p[0], 0.0
    for i in range(1, len(p)):
        count = np.float64(i + 1)
        distance = np.float64(p[i] - mean)
        scatter += distance * distance * ((count - 1) / count)
        mean = F32(mean * (1 - 1 / count) + np.float64(p[i] / F32(count)))
    return scatter, np.float64(mean)
