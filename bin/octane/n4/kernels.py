"""The loops of N4's fit over voxels, compiled; :mod:`octane.n4.cpu` calls them.

Some rows are worked on together, in loops of one kind of work each: those without table look-ups
become vector instructions.

Arguments of several kernels, for the rows of a grid of (nz, ny, nx) voxels:

unit : int64, (4,)
    Rows of a slab that one thread works on: the first, the one after the last, the slab's first
    row, and where its results begin.
where : int32, (voxels,) or (0,)
    Position of each included voxel in its slab; none where rows are included whole.
begins : int64, (rows + 1,)
    First voxel of each row, and the end.
low, slope : float32
    Value of bin 0, and the distance of bins.
first_y, basis_y : int64, (ny,); float64, (ny, 4)
    First of the four control points of each row, and their basis.
basis_x, parts : float32, (parts, 4 * LANES); int64, (parts, 2)
    See :func:`octane.n4.bspline.vectors`.
planes : float64, (planes, cy, cx)
    Control points of each plane; for evaluation :func:`octane.n4.bspline.padded`.
floats, integers : float32, (5, TILE + LANES); int64, (TILE,); or longer
    Scratch of a thread.
"""

import numpy as np

from octane.core.compiled import LANES, blend, compiled, exchange, fetch_add, give_way, inlined

F32 = np.float32
I32 = np.int32
# For indices out of an array: numba checks whether signed ones count from the end.
U64 = np.uint64
LOG2_E = F32(1.4426950408889634)
# ln 2 as a sum, the first of few bits so that its multiples are exact.
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
# Beyond it the result leaves float32's normal numbers.
LARGEST_EXPONENT = F32(87.0)

# As many rows as have this many columns are worked on together: starting and ending a vector loop
# costs as much as a short row, and intermediate results stay in the first-level cache.
TILE = 1024
# Bits for a sum of shares of up to PACKED voxels, each up to 2**24.
SHARE_BITS = 44
PACKED = 1 << 18

# Cells of a team, on cache lines of their own: the next ticket, units done, the ticket to open.
TICKET, DONE, OPENED = 0, 8, 16
# Kinds of work, in a ticket's bits from 32 on; its lower bits number the units.
WEIGH, COUNT, CONTRACT, SUBTRACT, STOP = range(5)
KINDS = 8
# A thread looks so often for work or for others' end before it lets other processes have its core:
# longer than what one thread does alone in an iteration.
SPINS = 20_000


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
    basis_y: np.ndarray,
    first_y: int,
    basis_x: np.ndarray,
    parts: np.ndarray,
    control: np.ndarray,
    begin: int,
    end: int,
    line: np.ndarray,
    at: int,
) -> None:
    """Evaluate a row of a plane of control points: along y in float64, along x in float32.

    Columns from `begin` to `end`, and others of their vectors, are written into `line`, whose
    element `at` is column 0 and which has room for a vector behind the last; `control`, float32
    (cx + LANES,), is scratch.
    """
    cx = plane.shape[1]
    for c in range(0, cx, LANES // 2):
        blend(basis_y, 0, plane, first_y * cx + c, cx, control, c)
    for i in range(len(parts)):
        if parts[i, 0] < end and parts[i, 0] + LANES > begin:
            blend(control, parts[i, 1], basis_x, 4 * LANES * i, LANES, line, at + parts[i, 0])


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


@inlined()
def count(
    u: np.ndarray,
    low: np.float32,
    slope: np.float32,
    floats: np.ndarray,
    packed: np.ndarray,
    held: int,
    histogram: np.ndarray,
) -> int:
    """Bin voxels linearly, into the thread's sums; return how many these hold, `held` before.

    Parameters
    ----------
    packed : int64, (4 * (bins + 1),) or longer
        Per bin the number of values and, in the lower bits, the sum of their shares of the next bin
        in units of 2**-24 (they are multiples of it except in bin 0). The last bin holds what lies
        outside. Neighbouring voxels, which are often of one bin, go into four histograms in turn,
        so that an addition does not wait for the one before it.
    histogram : int64, (2 * (bins + 1),)
        All threads' numbers, then sums of shares: see :func:`unpack`.
    """
    bins = len(histogram) // 2 - 1
    last = F32(bins - 1)
    places, share = floats[0].view(np.int32), floats[1].view(np.int32)
    for start in range(0, len(u), TILE):
        part = u[start : start + TILE]
        n = len(part)
        if held + n > PACKED:
            held = unpack(packed, histogram)
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
    return held


@inlined()
def unpack(packed: np.ndarray, histogram: np.ndarray) -> int:
    """Move a thread's sums to those of all threads; return 0."""
    bins = len(histogram) // 2
    for b in range(bins):
        total = np.int64(0)
        for lane in range(4):
            total += packed[4 * b + lane]
            packed[4 * b + lane] = 0
        if total:
            fetch_add(histogram, b, total >> SHARE_BITS)
            fetch_add(histogram, bins + b, total & ((1 << SHARE_BITS) - 1))
    return 0


@inlined()
def contract(
    unit: np.ndarray,
    where: np.ndarray,
    begins: np.ndarray,
    u: np.ndarray,
    weights: np.ndarray,
    low: np.float32,
    slope: np.float32,
    table: np.ndarray,
    floats: np.ndarray,
    integers: np.ndarray,
    basis_x: np.ndarray,
    support: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    planes: np.ndarray,
) -> None:
    """Contract a unit's residuals, u less its expected value, along x and y into `planes`.

    Parameters
    ----------
    u, weights : float32, (voxels,); (voxels,) or (0,)
        The weights are factors of the residuals; none for ones.
    table : int64, (bins,) or (0,)
        Expected value of each bin and difference to the next: two float32 in one number, to be
        looked up at once. With none, the weights are contracted alone.
    basis_x, support : float32, (cx, nx); int64, (cx, 2)
        Basis of each control point, and the columns in which it is not 0.
    """
    ny, nx = len(first_y), basis_x.shape[1]
    group = max(1, TILE // nx)
    line = floats[0][:nx]
    residual, fraction = floats[1], floats[2]
    along_x = floats[3][: len(basis_x)]
    z, y = 0, unit[0] % ny
    planes[: (unit[1] - 1) // ny - unit[0] // ny + 1] = 0
    for top in range(unit[0], unit[1], group):
        bottom = min(top + group, unit[1])
        start, stop = begins[top], begins[bottom]
        values = residual[: stop - start]
        if len(table):
            residuals(u[start:stop], low, slope, table, integers, fraction, values)
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
                row_values = values[begin - start : end - start]
                if len(where):
                    lay_out(row_values, where[begin:end], (r - unit[2]) * nx, line)
                    row_values = line
                project(row_values, basis_x, support, along_x, first_y[y], basis_y[y], planes[z])
            y += 1
            if y == ny:
                z, y = z + 1, 0


@inlined()
def subtract(
    unit: np.ndarray,
    nx: int,
    where: np.ndarray,
    begins: np.ndarray,
    log: np.ndarray,
    u: np.ndarray,
    floats: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    parts: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Take the new field from a unit of the log image into `u`.

    `planes` (nz, 2, cy, cx) holds the control points of the new field and of its change. Writes
    into `sums`, float64 (5, groups), of each group of rows the sums of p - 1 and (p - 1)**2 with
    p = exp(old field - new field), the largest abs(p - 1), and the largest -u and u (infinite if
    there is none); the extrema leave the grid's first voxel out.
    """
    ny = len(first_y)
    group = max(1, TILE // nx)
    cy, cx = planes.shape[2:]
    control, width = floats[0], cx + LANES
    z, y, place = unit[0] // ny, unit[0] % ny, unit[3]
    for top in range(unit[0], unit[1], group):
        bottom = min(top + group, unit[1])
        start, stop = begins[top], begins[bottom]
        field, change = floats[3][: stop - start], floats[4][: stop - start]
        for r in range(top, bottom):
            begin, end = begins[r], begins[r + 1]
            if begin < end:
                whole = end - begin == nx
                # Into lines of their own where columns are to be left out.
                first, at, begin_x, end_x = 3, begin - start, 0, nx
                if not whole:
                    places, row_x = where[begin:end], (r - unit[2]) * nx
                    first, at, begin_x, end_x = 1, 0, places[0] - row_x, places[-1] - row_x + 1
                # As in `expand`, of both at once: that takes less time than one after the other.
                for p in range(2):
                    for c in range(0, cx, LANES // 2):
                        corner = (p * cy + first_y[y]) * cx + c
                        blend(basis_y[y], 0, planes[z], corner, cx, control, p * width + c)
                for i in range(len(parts)):
                    x = parts[i, 0]
                    if x < end_x and x + LANES > begin_x:
                        for p in range(2):
                            taps = parts[i, 1], basis_x, 4 * LANES * i, LANES
                            blend(control[p * width :], *taps, floats[first + p], at + x)
                for p in range(0 if whole else 2):
                    line, some = floats[1 + p], floats[3 + p][begin - start : stop - start]
                    if end_x - begin_x == end - begin:
                        for i in range(end - begin):
                            some[i] = line[U64(begin_x + i)]
                    else:
                        pick(line, places, row_x, some[: end - begin])
            y += 1
            if y == ny:
                z, y = z + 1, 0
        image, out = log[start:stop], u[start:stop]
        for i in range(len(out)):
            out[i] = image[i] - field[i]
        low, high = extrema(out[1 if start == 0 else 0 :])
        total, squares, largest = moments(change)
        sums[0, place], sums[1, place] = total, squares
        sums[2, place] = np.float64(from_ordered(largest))
        sums[3, place] = -np.float64(from_ordered(low))
        sums[4, place] = np.float64(from_ordered(high))
        place += 1


@compiled(
    "void(int64, int64[::1], int64[:, ::1], int64[:, ::1], float32[:, ::1], int64[:, ::1],"
    " int32[::1], int64[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " int64[::1], int64[:, ::1], int64[::1], float32[:, :, ::1], float64[:, :, ::1],"
    " float64[:, ::1], float32[:, ::1], int64[:, ::1], float64[:, :, ::1],"
    " float64[:, :, :, ::1], int64[::1], float64[:, ::1])",
    allocates=False,
)
def work(
    leads: int,
    team: np.ndarray,
    bands: np.ndarray,
    runs: np.ndarray,
    floats: np.ndarray,
    integers: np.ndarray,
    where: np.ndarray,
    begins: np.ndarray,
    log: np.ndarray,
    u: np.ndarray,
    weights: np.ndarray,
    scale: np.ndarray,
    table: np.ndarray,
    support: np.ndarray,
    first_y: np.ndarray,
    fit_x: np.ndarray,
    fit_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    parts: np.ndarray,
    planes: np.ndarray,
    fields: np.ndarray,
    histogram: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Share the work on units with the other threads of a team.

    Which thread works on a unit changes nothing: each has its own results, except integers that
    are added. Threads that do not run are not waited for.

    Parameters
    ----------
    leads
        With 1, open the team's new ticket and wait for the end of its work. With 0, help with what
        others open until they stop it.
    team : int64, (24,)
        See `TICKET`.
    bands, runs : int64, (units, 4)
        Units to contract, of whole planes of a slab, and others, of whole groups of rows; results
        are planes and groups.
    scale : float32, (2,)
        `low` and `slope`.
    fit_x, fit_y : float32, (2, cx, nx); float64, (2, ny, 4)
        What weights, and what residuals are contracted with.
    fields, histogram, sums
        See :func:`subtract` (`planes` and `sums`) and :func:`count`.
    """
    done, held, packed = 0, 0, integers[1]
    if leads:
        team[DONE] = 0
        histogram[:] = 0
        exchange(team, TICKET, team[OPENED])
    while True:
        ticket = fetch_add(team, TICKET, 1)
        kind, s = (ticket >> 32) % KINDS, ticket & 0xFFFFFFFF
        if kind == STOP:
            return
        units = runs if (kind == COUNT) | (kind == SUBTRACT) else bands
        if s < len(units):
            unit = units[s]
            if kind == COUNT:
                voxels = u[begins[unit[0]] : begins[unit[1]]]
                held = count(voxels, scale[0], scale[1], floats, packed, held, histogram)
            elif kind == SUBTRACT:
                subtract(
                    *(unit, fit_x.shape[2], where, begins, log, u, floats),
                    *(fields, first_y, basis_y, basis_x, parts, sums),
                )
            else:
                known, power = (table[:0], 0) if kind == WEIGH else (table, 1)
                contract(
                    *(unit, where, begins, u, weights, scale[0], scale[1], known, floats),
                    *(integers[0], fit_x[power], support, first_y, fit_y[power], planes[unit[3] :]),
                )
            done += 1
            continue
        # Nothing is left.
        if held:
            held = unpack(packed, histogram)
        fetch_add(team, DONE, done)
        done, spins = 0, 0
        # The generation of tickets changes with the next work.
        while (leads and fetch_add(team, DONE, 0) < len(units)) or (
            not leads and fetch_add(team, TICKET, 0) >> 32 == ticket >> 32
        ):
            spins += 1
            if spins > SPINS:
                give_way()
        if leads:
            return


@compiled(
    "void(int64[:, ::1], int64, int32[::1], int64[::1], float64[:, :, :, ::1], int64[::1],"
    " float64[:, ::1], float32[:, ::1], int64[:, ::1], float32[:, ::1], float32[::1])"
)
def change(
    runs: np.ndarray,
    nx: int,
    where: np.ndarray,
    begins: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    parts: np.ndarray,
    floats: np.ndarray,
    out: np.ndarray,
) -> None:
    """exp(old field - new field) of the first voxels, as many as `out` holds.

    `planes` are those of :func:`subtract`, `runs` those of :func:`work`.
    """
    ny = len(first_y)
    control, line, picked = floats[0], floats[1], floats[2]
    for unit in runs:
        for r in range(unit[0], unit[1]):
            begin = begins[r]
            n = min(begins[r + 1], len(out)) - begin
            if n <= 0:
                continue
            z, y = r // ny, r % ny
            expand(planes[z, 1], basis_y[y], first_y[y], basis_x, parts, control, 0, nx, line, 0)
            values = line[:n]
            if len(where):
                values = picked[:n]
                pick(line, where[begin : begin + n], (r - unit[2]) * nx, values)
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
