"""Resampling as one banded operator per axis.

Along an axis with spacing s and target t = f s, the signal is smoothed with a Gaussian of
sigma = (f - 1) / 2 source samples (f > 1; reflect boundary, cut at 4 sigma) and interpolated
linearly at the target's sample positions. Both are linear, so they compose into one banded matrix
(10 taps for f = 2.9), which is built in float64 and equals the two steps up to rounding. Samples
are pixel-centred: the target grid has exactly spacing t and the centre of the source, so that 100
voxels become 25 that are exactly 4 apart.

Values that must not be averaged are taken from the nearest sample instead, by one tap.

Samples reflected at the boundary are folded into the weights of those inside: every output is a
weighted sum of consecutive samples, on which :mod:`octane.resample.resampler` relies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Grid, Vector, samples

TRUNCATE = 4.0
"""Standard deviations at which the Gaussian is cut, as in scipy.ndimage."""

SAME = 1e-6
"""Relative difference below which spacings are equal: NIfTI stores 10 um as float32, 9.9999998."""

ROUNDING = 1e-9
"""Error of positions by rounding, relative to the number of samples."""


@dataclass(frozen=True)
class AxisOperator:
    """A banded linear map along one axis.

    Attributes
    ----------
    start
        First input sample of each output, (outputs,), ascending; all taps are within 0..n-1.
    weight
        Weights of the consecutive samples from `start` on, float64, (outputs, taps).
    """

    start: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64]

    @property
    def size(self) -> int:
        """Number of output samples."""
        return len(self.start)

    @property
    def taps(self) -> int:
        """Number of input samples per output."""
        return self.weight.shape[1]

    def part(self, outputs: slice) -> tuple["AxisOperator", slice]:
        """The operator of some outputs, and the range of inputs that it needs."""
        start = self.start[outputs]
        first, last = int(start.min()), int(start.max()) + self.taps
        return AxisOperator(start - first, self.weight[outputs]), slice(first, last)

    def identity(self, n: int) -> bool:
        """Tell whether the operator leaves an input of ``n`` samples as it is."""
        return (
            self.size == n
            and self.taps == 1
            and bool((self.weight == 1).all())
            and bool((self.start == np.arange(self.size)).all())
        )


def reach(operators: Sequence[AxisOperator], plane_shape: tuple[int, int]) -> tuple[int, int, int]:
    """Planes, rows and columns that operators of z, y and x need.

    Raises
    ------
    ValueError
        If planes of this shape have fewer rows or columns.
    """
    nz, ny, nx = (int(operator.start[-1]) + operator.taps for operator in operators)
    if ny > plane_shape[0] or nx > plane_shape[1]:
        raise ValueError(f"the operators need {ny} x {nx} voxels of planes of {plane_shape}")
    return nz, ny, nx


def _reflect(index: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Fold indices as ``d c b a | a b c d | d c b a`` (scipy's reflect)."""
    folded = index % (2 * n)
    return np.where(folded < n, folded, 2 * n - 1 - folded)


def interpolator(positions: npt.NDArray[np.floating], n: int, sigma: float = 0.0) -> AxisOperator:
    """Gaussian smoothing followed by linear interpolation, composed.

    Parameters
    ----------
    positions
        Positions to sample, in source samples (0 is the centre of the first), (m,).
    n
        Number of source samples.
    sigma
        Standard deviation of the Gaussian in source samples; 0 for none.

    Returns
    -------
    AxisOperator
        With at most int(4 sigma + 0.5) * 2 + 2 taps; one less if all positions are integers.
    """
    base = np.floor(positions)
    fraction = positions - base
    radius = int(TRUNCATE * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    gaussian = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma > 0 else np.ones(1)
    gaussian /= gaussian.sum()
    left = np.append(gaussian, 0.0)
    right = np.insert(gaussian, 0, 0.0)
    weight = (1 - fraction)[:, None] * left + fraction[:, None] * right
    offsets = np.arange(-radius, radius + 2)
    if not fraction.any():
        offsets, weight = offsets[:-1], weight[:, :-1]
    index = _reflect(base.astype(np.int64)[:, None] + offsets, n)
    # A window that is folded back at a border covers at most as many samples as before.
    taps = min(index.shape[1], n)
    start = np.minimum(index.min(axis=1), n - taps)
    band = np.zeros((len(positions), taps))
    np.add.at(band, (np.arange(len(positions))[:, None], index - start[:, None]), weight)
    return AxisOperator(start, band)


def unchanged(n: int) -> AxisOperator:
    """The operator that leaves ``n`` samples unchanged."""
    return AxisOperator(np.arange(n), np.ones((n, 1)))


def nearest(positions: npt.NDArray[np.floating], n: int) -> AxisOperator:
    """Take the nearest of ``n`` samples to each position, the first of two that are as near.

    ``positions`` are as in :func:`interpolator`.
    """
    # A position halfway between two samples may be off by rounding.
    start = np.ceil(positions - 0.5 - ROUNDING * n).astype(np.int64)
    return AxisOperator(np.clip(start, 0, n - 1), np.ones((len(positions), 1)))


def resampler(
    n: int, spacing: float, target: float, count: int | None = None, *, averaged: bool = True
) -> AxisOperator:
    """Operator from ``n`` samples of ``spacing`` to ``target`` (same unit), centred on them.

    The output has round(n * spacing / target) samples, at least one. With ``count`` it has that
    many, and begins at the edge of the input instead of being centred on it. Without ``averaged``
    each is the :func:`nearest` one.
    """
    factor = target / spacing
    if abs(factor - 1) < SAME:
        factor = 1.0
    m = samples(n * spacing, target) if count is None else count
    positions = (n - 1) / 2 + (np.arange(m) - (m - 1) / 2) * factor
    if count is not None:
        positions += (m * factor - n) / 2
    if not averaged:
        return nearest(positions, n)
    # Otherwise, positions that are integers up to rounding would need a second tap.
    whole = np.round(positions)
    positions = np.where(np.abs(positions - whole) < ROUNDING * n, whole, positions)
    return interpolator(positions, n, max(0.0, (factor - 1) / 2))


def resampled(
    grid: Grid, target: Vector, *, averaged: bool = True
) -> tuple[Grid, list[AxisOperator]]:
    """The grid of voxel size ``target`` (micrometres) centred on ``grid``, and its operators."""
    axes = zip(grid.shape, grid.spacing, target, strict=True)
    return grid.resampled(target), [resampler(*axis, averaged=averaged) for axis in axes]
