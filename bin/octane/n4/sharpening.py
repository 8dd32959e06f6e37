"""Sharpening of N4's histogram: its deconvolution with a Gaussian, and the values expected then.

The transforms are FFTPACK's for real values (Swarztrauber 1982), compiled: NumPy takes longer to
find its own than they take, and all threads wait meanwhile. Passes, sums and roots of unity are
those of `numpy.fft`, and so are the bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from octane.core.compiled import compiled, inlined
from octane.n4.kernels import U64

SHARE = 2**24
"""Parts of a voxel that bins share."""
HALF_ROOT, ROOT = math.sqrt(0.5), math.sqrt(2)


class Sharpening(NamedTuple):
    """Options of the histogram's deconvolution: see :func:`octane.n4.fit.fit_bias_field`."""

    bins: int
    fwhm: float
    noise: float


class Sharpener:
    """Expected true value for every bin of a log histogram (Sled 1998).

    It takes one histogram after the other, in memory of its own.
    """

    def __init__(self, options: Sharpening) -> None:
        self._fwhm = options.fwhm
        self._squares, roots = _padded(options.bins)
        self._gaussian, self._scale = np.empty_like(self._squares), np.empty(2)
        self._table = np.empty((options.bins, 2), np.float32)
        self._counted, self._shares = np.empty((2, options.bins), np.int64)
        work = np.empty((4, 2 * len(self._squares) - 2))
        histogram = self._counted, self._shares, self._gaussian, self._scale, options.noise
        self._fill = _expect.bound(*histogram, roots, work, self._table)

    def __call__(
        self, counted: np.ndarray, shares: np.ndarray, low: float, slope: float
    ) -> np.ndarray:
        """Sharpen a histogram.

        Parameters
        ----------
        counted, shares : ndarray, int64, (bins,)
            Voxels per bin, and what of them belongs to the next bin, times 2**24.
        low, slope : float
            Value of the first bin, and the distance of bins.

        Returns
        -------
        ndarray, float32, (bins, 2)
            The value, and the difference to the next one; on the host. The next call fills it
            again.
        """
        self._counted[:], self._shares[:] = counted, shares
        width = self._fwhm / slope
        np.exp((-4 * math.log(2) / width**2) * self._squares, out=self._gaussian)
        self._gaussian *= 2 * math.sqrt(math.log(2) / math.pi) / width
        self._scale[:] = low, slope
        self._fill()
        return self._table


def padded_size(bins: int) -> int:
    """Points of the padded histogram: twice the next power of two, as in ITK."""
    # Size and offset are visible in the field (256 points: 4e-4; offset 0: diverges).
    return 2 ** (math.ceil(math.log2(bins)) + 1)


@cache
def _padded(bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared distances in half of the padded histogram, and the :func:`_roots` of its size."""
    size = padded_size(bins)
    return np.arange(size // 2 + 1, dtype=np.float64) ** 2, _roots(size)


def _roots(size: int) -> np.ndarray:
    """Real and imaginary parts of exp(2 pi i k / size), (2, size): products of two, as in NumPy."""
    step = 2 ** max(1, math.ceil(math.log2(size // 2 + 1) / 2))

    def root(k: int) -> complex:
        octant, rest = divmod(8 * k, size)
        # Counted from the nearest axis, where sines and cosines are most exact.
        angle = (size - rest if octant % 2 else rest) * (math.pi / 4 / size)
        near = math.cos(angle), math.sin(angle)
        return complex(*(near[::-1] if octant % 2 else near)) * (1, 1j, -1)[octant // 2]

    roots = np.empty(size, complex)
    for k in range(size // 2 + 1):
        one, other = root(k % step), root(k - k % step)
        real = one.real * other.real - one.imag * other.imag
        roots[k] = complex(real, one.real * other.imag + one.imag * other.real)
    roots[size // 2 + 1 :] = roots[size // 2 - 1 : 0 : -1].conj()
    return np.array([roots.real, roots.imag])


# Unsigned: indices that cannot be negative need no test whether they count from the end.
ONE, TWO, THREE, FOUR = U64(1), U64(2), U64(3), U64(4)


@inlined()
def forward(work: np.ndarray, row: int, spare: int, roots: np.ndarray) -> int:
    """Transform a row of real values: real parts, from the second on each before its imaginary one.

    A spare row is overwritten as well; returns that of the two with the result.
    """
    cosines, sines = roots[0], roots[1]
    size, inner = U64(len(cosines)), ONE
    while inner < size:
        x, y = work[row], work[spare]
        # The last pass is of pairs where there is no power of 4.
        radix = FOUR if size // inner > TWO else TWO
        outer, last = size // (inner * radix), inner - ONE
        for k in range(U64(0), outer, ONE):
            x0, x1 = inner * k, inner * (k + outer)
            y0, y1 = inner * radix * k, inner * (radix * k + ONE)
            if radix == TWO:
                y[y0], y[y1 + last] = x[x0] + x[x1], x[x0] - x[x1]
                y[y0 + last], y[y1] = x[x0 + last], -x[x1 + last]
                for i in range(TWO, inner, TWO):
                    h, n = i - ONE, inner - i
                    c, s = cosines[outer * (i // TWO)], sines[outer * (i // TWO)]
                    r, q = c * x[x1 + h] + s * x[x1 + i], c * x[x1 + i] - s * x[x1 + h]
                    y[y0 + h], y[y1 + n - ONE] = x[x0 + h] + r, x[x0 + h] - r
                    y[y0 + i], y[y1 + n] = q + x[x0 + i], q - x[x0 + i]
                continue
            x2, x3 = inner * (k + TWO * outer), inner * (k + THREE * outer)
            y2, y3 = y1 + inner, y1 + TWO * inner
            even, odd = x[x0] + x[x2], x[x3] + x[x1]
            y[y0], y[y3 + last] = even + odd, even - odd
            y[y1 + last], y[y2] = x[x0] - x[x2], x[x3] - x[x1]
            if inner == ONE:
                continue
            r = HALF_ROOT * (x[x1 + last] - x[x3 + last])
            q = -HALF_ROOT * (x[x1 + last] + x[x3 + last])
            y[y0 + last], y[y2 + last] = x[x0 + last] + r, x[x0 + last] - r
            y[y3], y[y1] = q + x[x2 + last], q - x[x2 + last]
            for i in range(TWO, inner, TWO):
                h, n, j = i - ONE, inner - i, outer * (i // TWO)
                c, s = cosines[j], sines[j]
                r1, q1 = c * x[x1 + h] + s * x[x1 + i], c * x[x1 + i] - s * x[x1 + h]
                c, s = cosines[TWO * j], sines[TWO * j]
                r2, q2 = c * x[x2 + h] + s * x[x2 + i], c * x[x2 + i] - s * x[x2 + h]
                c, s = cosines[THREE * j], sines[THREE * j]
                r3, q3 = c * x[x3 + h] + s * x[x3 + i], c * x[x3 + i] - s * x[x3 + h]
                even, odd = x[x0 + h] + r2, r3 + r1
                y[y0 + h], y[y3 + n - ONE] = even + odd, even - odd
                even, odd = x[x0 + i] + q2, q1 + q3
                y[y0 + i], y[y3 + n] = odd + even, odd - even
                even, odd = x[x0 + h] - r2, q1 - q3
                y[y2 + h], y[y1 + n - ONE] = even + odd, even - odd
                even, odd = x[x0 + i] - q2, r3 - r1
                y[y2 + i], y[y1 + n] = odd + even, odd - even
        row, spare, inner = spare, row, inner * radix
    return row


@inlined()
def backward(work: np.ndarray, row: int, spare: int, roots: np.ndarray) -> int:
    """Undo :func:`forward`, times the number of values."""
    cosines, sines = roots[0], roots[1]
    size, outer = U64(len(cosines)), ONE
    rest = size
    while rest > TWO:
        rest //= FOUR
    while outer < size:
        x, y = work[row], work[spare]
        radix = TWO if outer == ONE and rest == TWO else FOUR
        inner = size // (outer * radix)
        last = inner - ONE
        for k in range(U64(0), outer, ONE):
            x0, x1 = inner * radix * k, inner * (radix * k + ONE)
            y0, y1 = inner * k, inner * (k + outer)
            if radix == TWO:
                y[y0], y[y1] = x[x0] + x[x1 + last], x[x0] - x[x1 + last]
                y[y0 + last], y[y1 + last] = 2 * x[x0 + last], -2 * x[x1]
                for i in range(TWO, inner, TWO):
                    h, n = i - ONE, inner - i
                    c, s = cosines[outer * (i // TWO)], sines[outer * (i // TWO)]
                    r, q = x[x0 + h] - x[x1 + n - ONE], x[x0 + i] + x[x1 + n]
                    y[y0 + h], y[y0 + i] = x[x0 + h] + x[x1 + n - ONE], x[x0 + i] - x[x1 + n]
                    y[y1 + h], y[y1 + i] = c * r - s * q, c * q + s * r
                continue
            x2, x3 = x1 + inner, x1 + TWO * inner
            y2, y3 = inner * (k + TWO * outer), inner * (k + THREE * outer)
            even, odd = x[x0] + x[x3 + last], x[x0] - x[x3 + last]
            y[y0], y[y2] = even + 2 * x[x1 + last], even - 2 * x[x1 + last]
            y[y3], y[y1] = odd + 2 * x[x2], odd - 2 * x[x2]
            if inner == ONE:
                continue
            odd = x[x0 + last] - x[x2 + last]
            y[y0 + last], y[y2 + last] = 2 * (x[x0 + last] + x[x2 + last]), 2 * (x[x3] - x[x1])
            y[y1 + last] = ROOT * (odd - (x[x3] + x[x1]))
            y[y3 + last] = -ROOT * (odd + (x[x3] + x[x1]))
            for i in range(TWO, inner, TWO):
                h, n, j = i - ONE, inner - i, outer * (i // TWO)
                even, odd = x[x0 + h] + x[x3 + n - ONE], x[x2 + h] + x[x1 + n - ONE]
                y[y0 + h], r2 = even + odd, even - odd
                even, odd = x[x0 + i] - x[x3 + n], x[x2 + i] - x[x1 + n]
                y[y0 + i], q2 = even + odd, even - odd
                even, odd = x[x0 + h] - x[x3 + n - ONE], x[x2 + i] + x[x1 + n]
                r3, r1 = even + odd, even - odd
                even, odd = x[x0 + i] + x[x3 + n], x[x2 + h] - x[x1 + n - ONE]
                q1, q3 = even + odd, even - odd
                c, s = cosines[j], sines[j]
                y[y1 + h], y[y1 + i] = c * r1 - s * q1, c * q1 + s * r1
                c, s = cosines[TWO * j], sines[TWO * j]
                y[y2 + h], y[y2 + i] = c * r2 - s * q2, c * q2 + s * r2
                c, s = cosines[THREE * j], sines[THREE * j]
                y[y3 + h], y[y3 + i] = c * r3 - s * q3, c * q3 + s * r3
        row, spare, outer = spare, row, outer * radix
    return row


@compiled(
    "void(int64[::1], int64[::1], float64[::1], float64[::1], float64, float64[:, ::1],"
    " float64[:, ::1], float32[:, ::1])",
    allocates=False,
)
def _expect(
    counted: np.ndarray,
    shares: np.ndarray,
    gaussian: np.ndarray,
    scale: np.ndarray,
    noise: float,
    roots: np.ndarray,
    work: np.ndarray,
    table: np.ndarray,
) -> None:
    """Fill the table of :class:`Sharpener`; `work` is scratch, (4, padded bins)."""
    low, slope = scale[0], scale[1]
    size, bins = work.shape[1], len(table)
    half, offset = size // 2, (size - bins) // 2
    work[0, 0], work[0, half] = gaussian[0], gaussian[half]
    for n in range(1, half):
        work[0, n] = work[0, size - n] = gaussian[n]
    even, blur = work[forward(work, 0, 1, roots)], work[3]
    # The transform of an even function is real.
    blur[0] = even[0]
    for n in range(1, half + 1):
        blur[n] = even[2 * n - 1]
    work[0, :] = 0
    for n in range(bins):
        work[0, offset + n] = counted[n] - shares[n] / SHARE
        if n > 0:
            work[0, offset + n] += shares[n - 1] / SHARE
    row = forward(work, 0, 1, roots)
    for n in range(size):
        b = blur[(n + 1) // 2]
        work[row, n] *= b / (b * b + noise)
    row = backward(work, row, 1 - row, roots)
    for n in range(size):
        work[row, n] = max(work[row, n] / size, 0.0)
        work[2, n] = work[row, n] * (low + (n - offset) * slope)
    below = forward(work, row, 1 - row, roots)
    above = forward(work, 2, 1 - below, roots)
    for n in range(size):
        b = blur[(n + 1) // 2]
        work[above, n] *= b
        work[below, n] *= b
    # The rows are 0, 1 and 2: the third one is spare.
    above = backward(work, above, 3 - above - below, roots)
    below = backward(work, below, 3 - above - below, roots)
    for n in range(bins):
        least = work[below, offset + n]
        table[n, 0] = work[above, offset + n] / least if least != 0 else 0.0
    for n in range(bins - 1):
        table[n, 1] = table[n + 1, 0] - table[n, 0]
    table[bins - 1, 1] = 0
