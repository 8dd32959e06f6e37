"""Pieces of N4's compiled loops: one row of voxels laid out, projected, evaluated.

A row is laid out in full in ``line``, so that the products with a B-spline basis are the same
vector loops for every row. `where` are the places of its voxels in the rows that are worked on, for
rows that are included in part.
"""

import numpy as np

from octane.core.compiled import inlined

__all__ = [
    "F32",
    "I32",
    "U64",
    "exp32",
    "expand",
    "extrema",
    "from_ordered",
    "lay_out",
    "moments",
    "ordered",
    "pick",
    "project",
    "residuals",
]

F32 = np.float32
I32 = np.int32
# Of indices that come out of an array: numba takes signed ones for possibly counted from the end.
U64 = np.uint64
LOG2_E = F32(1.4426950408889634)
# ln 2 as a sum, the first of few bits so that its multiples are exact.
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
# Beyond it the result leaves float32's normal numbers.
LARGEST_EXPONENT = F32(87.0)


@inlined()
def exp32(x: np.float32) -> np.float32:
    """The exponential, within a unit in float32's last place up to abs(x) = 87, clamped beyond.

    Vector code, which the C library's is not: 2**n exp(r) with abs(r) <= ln(2) / 2, and the
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
    """Lay the compact values of a row out in its columns, 0 where nothing is included.

    `where` holds their positions in the slab, `first` is that of the row's first column.
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

    `spans` holds, per span of x, its first column, the column after its last, and its first
    control point. `control`, float32, (cx,), is scratch.
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
