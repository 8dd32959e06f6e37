"""End of a level of N4: the coefficient of variation of the change of the field.

With p = exp(old field - new field) over the included voxels in raster order, N4 stops when the
standard deviation of p over its mean falls to a threshold. :func:`variation` is that value;
:func:`running_variation` is the value that ITK computes in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Head(NamedTuple):
    """Sums over the first values, those in which the running mean moves.

    `scatter` is the sum of ``(p - mean before p)**2 * (N - 1) / N``, `last` the mean that is
    reached, and `around_last` the sum of ``(p - last)**2``.
    """

    length: int
    scatter: float
    around_last: float
    last: float


def variation(total: float, squares: float, n: int) -> float:
    """Return the coefficient of variation of n values from the sums of (p - 1) and (p - 1)**2."""
    if n < 2:
        return 0.0
    mean = total / n
    return math.sqrt(max(squares - n * mean**2, 0.0) / (n - 1)) / (1 + mean)


def running_variation(
    change: Callable[[int], np.ndarray],
    total: float,
    squares: float,
    largest: float,
    n: int,
    follow: Callable[[np.ndarray], tuple[float, float]] | None = None,
) -> float:
    """Return ITK's convergence measure: the coefficient of variation with a float32 running mean.

    ITK does, in raster order, ``N += 1; S += (p - mu)**2 * (N - 1) / N; mu = mu * (1 - 1 / N) +
    p / N`` with N, S and mu in float32. Once ``|p - mu| / N`` is below half a unit of mu's last
    place, the mean stays where it is. So the mean is followed for the voxels in which it can still
    move, and for the others only the sum of squares around the frozen mean is needed.

    Parameters
    ----------
    change : callable
        ``change(k)`` returns the first k values p (float32, host).
    total, squares, largest : float
        Sums of p - 1 and of (p - 1)**2, and the largest distance of p from 1, over all n values.
    n : int
        Number of values.
    follow : callable, optional
        Gives ITK's sum of squares around the running mean of values, and the last mean; a compiled
        loop in place of :func:`running_mean`.

    Returns
    -------
    float
        ITK's value without the rounding of S (relative 1e-4 or less up to
        some 1e7 voxels; from 2**24 on N and S stick in ITK itself).
    """
    if n < 2:
        return 0.0
    head = head_length(total, largest, n)
    p = change(head)
    scatter, last = (follow or _follow)(p)
    around_last = float(np.square(p.astype(np.float64) - last).sum())
    return variation_from_head(Head(head, scatter, around_last, last), total, squares, n)


def head_length(total: float, largest: float, n: int) -> int:
    """Return in how many of the n values the running mean can still move.

    `total` is the sum of p - 1, and `largest` the largest distance of p from 1.
    """
    return min(n, int(1.25 * (largest + abs(total / n)) * 2**25) + 4096)


def variation_from_head(head: Head, total: float, squares: float, n: int) -> float:
    """Return ITK's measure from the head and the sums over all n values: at least 2."""
    scatter = head.scatter
    if head.length < n:
        shift = head.last - 1
        scatter += squares - 2 * shift * total + n * shift**2 - head.around_last
    return math.sqrt(scatter / (n - 1)) / head.last


def _follow(p: np.ndarray) -> tuple[float, float]:
    """ITK's sum of squares around the running mean of p, and the last mean."""
    mean = running_mean(p)
    count = np.arange(2, len(p) + 1, dtype=np.float64)
    distance = (p[1:] - mean[:-1]).astype(np.float64)
    return float(np.sum(distance**2 * ((count - 1) / count))), float(mean[-1])


def running_mean(p: np.ndarray) -> np.ndarray:
    """Return every value of ITK's float32 running mean of p, without a loop over p.

    The trajectory is guessed, all its float32 increments are computed from the guess and summed
    up, and this is repeated until nothing changes; the increments are multiples of a unit in the
    last place, so their float64 sum is exact, and what no longer changes is the sequence itself.
    Blocks that grow by half keep it to some 15 passes each; a pass settles one value at least.
    """
    mean = np.empty(len(p), np.float32)
    mean[0] = p[0]
    start = 1
    while start < len(p):
        stop = min(len(p), start + max(64, start // 2))
        count = np.arange(start + 1, stop + 1, dtype=np.float64)
        keep = 1 - 1 / count
        step = (p[start:stop] / count.astype(np.float32)).astype(np.float64)
        before = np.full(stop - start, mean[start - 1], np.float32)
        while True:
            after = (before * keep + step).astype(np.float32)
            path = np.cumsum(np.subtract(after, before, dtype=np.float64))
            path = (path + float(mean[start - 1])).astype(np.float32)
            settled = np.array_equal(path[:-1], before[1:])
            before[1:] = path[:-1]
            if settled:
                break
        mean[start:stop] = after
        start = stop
    return mean
