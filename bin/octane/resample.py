"""Resampling as one banded operator per axis.

Along an axis with spacing s and target t = f s the signal is smoothed with a Gaussian of
sigma = (f - 1) / 2 source samples (f > 1; reflect boundary, cut at 4 sigma) and interpolated
linearly at the target's sample positions. Both are linear, so they compose into one banded matrix
(about 10 taps for f = 2.9) that is built in float64 and equals the two steps to rounding. Samples
are pixel-centred: the target grid has exactly spacing t and the same centre as the source, so that
100 voxels to 25 step by exactly 4.

Taps are summed one after the other in a fixed order, on any array module. A voxel's value is
therefore the same whatever block it was computed in, which makes block-wise results equal to
whole ones bit for bit (a GEMM's order depends on its shape).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.backend import namespace
from octane.dtypes import working_type
from octane.geometry import Grid, Vector, samples, vector

__all__ = [
    "AxisOperator",
    "apply",
    "interpolator",
    "resample",
    "resampled",
    "resampler",
]

TRUNCATE = 4.0
"""Standard deviations after which the Gaussian is cut, as in scipy.ndimage."""

SAME = 1e-6
"""Relative difference of spacings that are one: NIfTI's are float32, 10 um is 9.9999998 there."""


@dataclass(frozen=True)
class AxisOperator:
    """A banded linear map along one axis.

    Attributes
    ----------
    index
        Input sample of each tap, (outputs, taps), within 0..n-1; reflected taps are folded back.
    weight
        Weight of each tap, float64, (outputs, taps).
    ratio
        Outputs per input of the whole operator, also in a part of it: it decides the order of the
        axes, which must be the same for every block if their bits are to be.
    """

    index: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64]
    ratio: float = 1.0

    @property
    def size(self) -> int:
        """Number of output samples."""
        return len(self.index)

    def part(self, outputs: slice) -> tuple["AxisOperator", slice]:
        """The operator of some outputs, and the range of inputs that it needs."""
        index = self.index[outputs]
        first, last = int(index.min()), int(index.max())
        part = AxisOperator(index - first, self.weight[outputs], self.ratio)
        return part, slice(first, last + 1)

    def identity(self, n: int) -> bool:
        """Whether the operator leaves an input of ``n`` samples as it is."""
        return (
            self.size == n
            and self.weight.shape[1] == 1
            and bool((self.weight == 1).all())
            and bool((self.index[:, 0] == np.arange(self.size)).all())
        )


def _reflect(index: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Fold indices as ``d c b a | a b c d | d c b a`` (scipy's reflect)."""
    folded = index % (2 * n)
    return np.where(folded < n, folded, 2 * n - 1 - folded)


def interpolator(positions: npt.NDArray[np.floating], n: int, sigma: float = 0.0) -> AxisOperator:
    """Gaussian smoothing followed by linear interpolation, composed.

    Parameters
    ----------
    positions
        Where to sample, in units of the source's samples (0 is the centre of the first), (m,).
    n
        Number of source samples.
    sigma
        Standard deviation of the Gaussian in source samples; 0 for none.

    Returns
    -------
    AxisOperator
        With int(4 sigma + 0.5) * 2 + 2 taps; one tap where all positions are whole and sigma is too
        small for any smoothing.
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
    index = base.astype(np.int64)[:, None] + np.arange(-radius, radius + 2)
    if radius == 0 and not fraction.any():
        index, weight = index[:, :1], weight[:, :1]
    return AxisOperator(_reflect(index, n), weight, len(positions) / n)


def resampler(n: int, spacing: float, target: float) -> AxisOperator:
    """Operator from ``n`` samples of ``spacing`` to ``target`` (same unit), centred on them.

    The output has round(n * spacing / target) samples, at least one.
    """
    factor = target / spacing
    if abs(factor - 1) < SAME:
        factor = 1.0
    m = samples(n * spacing, target)
    positions = (n - 1) / 2 + (np.arange(m) - (m - 1) / 2) * factor
    # Positions that are whole but for rounding would otherwise cost a second tap and its error.
    whole = np.round(positions)
    positions = np.where(np.abs(positions - whole) < 1e-9 * n, whole, positions)
    return interpolator(positions, n, max(0.0, (factor - 1) / 2))


def resampled(grid: Grid, target: Vector) -> tuple[Grid, list[AxisOperator]]:
    """The grid of voxel size ``target`` (micrometres) centred on ``grid``, and how to get there."""
    operators = [
        resampler(n, s, t) for n, s, t in zip(grid.shape, grid.spacing, target, strict=True)
    ]
    nz, ny, nx = (operator.size for operator in operators)
    origin = (
        o + ((n - 1) * s - (m - 1) * t) / 2
        for o, n, s, m, t in zip(
            grid.origin, grid.shape, grid.spacing, (nz, ny, nx), target, strict=True
        )
    )
    return Grid((nz, ny, nx), vector(*target), vector(*origin)), operators


def apply(operator: AxisOperator, array: npt.NDArray, axis: int) -> npt.NDArray:
    """Apply ``operator`` along ``axis`` of ``array`` (z, y, x), in the array's floating type."""
    if operator.identity(array.shape[axis]):
        return array
    xp = namespace(array)
    index = xp.asarray(operator.index)
    shape = [1] * array.ndim
    shape[axis] = operator.size
    real = array.real.dtype
    weight = xp.asarray(operator.weight.astype(real))
    total = xp.take(array, index[:, 0], axis=axis)
    total *= weight[:, 0].reshape(shape)
    for tap in range(1, index.shape[1]):
        term = xp.take(array, index[:, tap], axis=axis)
        term *= weight[:, tap].reshape(shape)
        total += term
    return total


def resample(array: npt.NDArray, operators: Sequence[AxisOperator]) -> npt.NDArray:
    """Apply one operator per axis, the one that shrinks most first.

    Parameters
    ----------
    array
        (z, y, x), any real or complex type. Integers are computed in float32 up to 16 bits and in
        float64 above.
    operators
        One per axis.

    Returns
    -------
    array
        Floating or complex values; :func:`octane.dtypes.as_dtype` brings them back to integers.
    """
    values = array.astype(working_type(array.dtype), copy=False)
    for axis in sorted(range(values.ndim), key=lambda axis: (operators[axis].ratio, axis)):
        values = apply(operators[axis], values, axis)
    return values
