"""Alignment of sections: displacements measured on facing planes, and those that fit them best.

A displacement moves a position ``q`` to ``middle + shift + R (q - middle)``, where ``middle`` is
that of the face; a positive rotation turns x towards y. Faces are compared as logarithms, in which
speckle is as strong in bright tissue as in dark, and band-passed: without shading, brightness and
the finest speckle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.filters import gaussian, mean_around
from octane.pipeline.workers import run_tiles
from octane.stitch.registration import correlation
from octane.store.mosaic_grid import Position

BAND = (1.5, 8.0)
"""Standard deviations of the difference of Gaussians, pixels."""
DARK = 0.1
"""Part of the mean that is added before the logarithm, so that noise in the dark stays small."""
COVERED = 0.9
"""Least part of a pixel's neighbourhood that was imaged: the border of a section is no tissue."""
COARSE = 96
"""Longest edge of the faces that are searched for a first displacement, pixels."""
ASIDE = 0.15
"""Largest displacement that is looked for, fraction of a face."""
ANGLES = tuple(range(-5, 6))
"""Rotations that are tried, degrees: at the border of a coarse face one is less than a pixel."""
SAMPLES = 1 << 16
"""About how many pixels a refinement compares."""
LIKELY, CLEAR = 0.4, 3.0
"""Least correlation of coarse faces that fit, and its least multiple of what other shifts give:
chance gives up to 0.3 and 2.7, smooth or repeated structure more than 0.4, but not 3."""
NARROW = 8
"""Shortest edge of a face that is compared, pixels."""
STRAY = 3.0
"""Pixels and degrees by which a refinement may leave what the search found, a pixel or degree off:
what goes on from there fits by chance."""
STEPS, STILL = 12, 0.005
"""Most steps of a refinement at one resolution, and the step in pixels that ends it."""
OUTLIER = 2.5
"""Standard deviations from which pixels count less, by Cauchy's weights."""
AROUND, UNLIKE = 15, 1.0
"""Edge in pixels of the squares in which faces are compared, and the excess of a square's mean
squared difference over the median one at which it counts half: tissue that is folded or lost."""
PULL, NEAR = 0.003, 0.1
"""Weight of the place where a section was imaged, against that of a pair, a pixel beside it; and
the pixels up to which it rises."""
ROUNDS = 50
"""Rounds of the fit to all pairs, in which the pull of what is far from its place falls."""

Face = npt.NDArray[np.float32]


class Displacement(NamedTuple):
    """Displacement of a section: micrometres (y, x), then degrees about the middle."""

    y: float = 0.0
    x: float = 0.0
    rotation: float = 0.0

    def then(self, other: "Displacement") -> "Displacement":
        """Return this displacement followed by another."""
        shift = complex(other.y, other.x) + _turn(other.rotation) * complex(self.y, self.x)
        return Displacement(shift.real, shift.imag, self.rotation + other.rotation)

    @property
    def rounded(self) -> "Displacement":
        """Without what differs between machines, and without a sign of zero."""
        digits = zip(self, (3, 3, 6), strict=True)
        return Displacement(*(round(value, places) + 0.0 for value, places in digits))

    def of(
        self, y: npt.NDArray, x: npt.NDArray, middle: Position
    ) -> tuple[npt.NDArray, npt.NDArray]:
        """Where positions lie that were displaced, micrometres."""
        c, s = np.cos(np.deg2rad(self.rotation)), np.sin(np.deg2rad(self.rotation))
        v, u = y - middle[0], x - middle[1]
        return middle[0] + self.y + c * v + s * u, middle[1] + self.x - s * v + c * u

    def before(self, y: npt.NDArray, x: npt.NDArray, middle: Position) -> list[npt.NDArray]:
        """Where positions lay before they were displaced, micrometres."""
        back = Displacement(rotation=-self.rotation)
        return list(back.of(y - self.y, x - self.x, middle))

    def reach(self, radius: float) -> float:
        """Largest displacement up to a distance from the middle, micrometres."""
        return float(np.hypot(self.y, self.x) + radius * np.deg2rad(abs(self.rotation)))


IN_PLACE = Displacement()


def _turn(rotation: float) -> complex:
    """Factor that turns y + ix by an angle in degrees."""
    return complex(np.exp(-1j * np.deg2rad(rotation)))


@dataclass(frozen=True)
class Pair:
    """Displacement of section ``second`` against ``first``, by their places in the stack.

    ``likeness`` is the correlation of their coarse faces there.
    """

    first: int
    second: int
    displacement: Displacement
    likeness: float

    @property
    def fits(self) -> bool:
        """True where both show the same tissue."""
        return self.likeness >= LIKELY


def structure(face: Face) -> Face:
    """Logarithm of a face, band-passed; NaN in and near what was not imaged, which is NaN."""
    seen = np.isfinite(face)
    values = np.where(seen, face, 0).astype(np.float32)
    values -= min(0.0, float(values.min()))
    mean = float(values.mean(where=seen)) if seen.any() else 0.0
    if mean <= 0:
        return np.zeros_like(values)
    values = np.where(seen, np.log(values / mean + DARK), 0).astype(np.float32)
    fine, coarse = (gaussian(values, s, truncate=3) for s in BAND)
    if not seen.all():
        covers = [gaussian(seen.astype(np.float32), s, truncate=3) for s in BAND]
        fine, coarse = (v / np.maximum(c, 0.1) for v, c in zip((fine, coarse), covers, strict=True))
        fine[~seen | (covers[1] < COVERED)] = np.nan
    return fine - coarse


def resolutions(face: Face) -> list[Face]:
    """The structure of a face at the full and at halved resolutions, the coarsest first."""
    found = [structure(face)]
    while max(face.shape) > COARSE and min(face.shape) >= 2 * NARROW:
        rows, columns = (n // 2 for n in face.shape)
        face = face[: 2 * rows, : 2 * columns].reshape(rows, 2, columns, 2).mean(axis=(1, 3))
        found.append(structure(face))
    return found[::-1]


def _sampled(images: Face, rows: npt.NDArray, columns: npt.NDArray) -> Face:
    """Linear interpolation of images (n, y, x) at positions in pixels; NaN outside."""
    height, width = images.shape[1:]
    top, left = np.floor(rows), np.floor(columns)
    outside = (top < 0) | (left < 0) | (top > height - 2) | (left > width - 2)
    at = np.where(outside, 0, top * width + left).astype(np.intp)
    down, right = (rows - top).astype(np.float32), (columns - left).astype(np.float32)
    right[outside] = np.nan
    weights = ((1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right)
    found = np.zeros((len(images), *at.shape), np.float32)
    for image, total in zip(images.reshape(len(images), -1), found, strict=True):
        for place, weight in zip((0, 1, width, width + 1), weights, strict=True):
            total += weight * np.take(image, at + place, mode="clip")
    return found


def _turned(face: Face, angle: float) -> Face:
    """A face, sampled where its pixels lie after a rotation about the middle."""
    middle = [(n - 1) / 2 for n in face.shape]
    v, u = (p - m for p, m in zip(np.indices(face.shape), middle, strict=True))
    c, s = np.cos(angle), np.sin(angle)
    return _sampled(face[None], middle[0] + c * v + s * u, middle[1] - s * v + c * u)[0]


def searched(
    first: Face, second: Face, angles: Sequence[float]
) -> tuple[tuple[float, float, float], float]:
    """Displacement (y, x) in pixels and radians at which coarse faces correlate best.

    Also the root mean square of the correlations at all shifts that leave half of their edges.
    """
    half = [np.arange(-(n // 2), n // 2 + 1) for n in first.shape]
    reach = [max(1, int(n * ASIDE)) for n in first.shape]
    one, best, found, common = np.nan_to_num(first), -1.0, (0.0, 0.0, 0.0), 1.0
    for angle in np.deg2rad(angles):
        other = np.nan_to_num(_turned(second, angle) if angle else second)
        surface = correlation(one, other)
        window = surface[np.ix_(*(np.arange(-r, r + 1) for r in reach))]
        y, x = np.unravel_index(int(window.argmax()), window.shape)
        if window[y, x] > best:
            dy, dx, c, s = y - reach[0], x - reach[1], np.cos(angle), np.sin(angle)
            best = float(window[y, x])
            common = float(np.sqrt(np.mean(np.square(surface[np.ix_(*half)]))))
            found = (float(c * dy + s * dx), float(c * dx - s * dy), float(angle))
    return found, common


def refined(
    first: Face,
    second: Face,
    start: tuple[float, float, float],
    *,
    rotate: bool,
    weigh: Callable[[Face], Face],
) -> tuple[tuple[float, float, float], float]:
    """Displacement near ``start`` by robust Gauss-Newton steps, and the correlation there.

    ``weigh`` gives the weights of pixels from their differences, which are NaN where nothing can be
    compared. The curvature is the product of the gradients of both faces, whose noises differ, so
    that noise does not shorten the steps. The correlation is 0 where too little can be compared.
    """
    stride = max(1, int(np.sqrt(first.size / SAMPLES)))
    middle = [(n - 1) / 2 for n in first.shape]
    ours = np.stack([first, *np.gradient(first)])[:, ::stride, ::stride]
    theirs = np.stack([second, *np.gradient(second)])
    v, u = (stride * p - m for p, m in zip(np.indices(ours.shape[1:]), middle, strict=True))
    (y, x, angle), likeness, free = start, 0.0, 3 if rotate else 2
    for _ in range(STEPS):
        c, s = np.cos(angle), np.sin(angle)
        at = (middle[0] + y + c * v + s * u, middle[1] + x - s * v + c * u)
        seen = _sampled(theirs, *at)
        good = np.isfinite(ours.sum(axis=0) + seen.sum(axis=0))
        (a, ay, ax), (b, by, bx) = ours[:, good], seen[:, good]
        # Not a matrix product, whose order depends on the machine.
        powers = [float(np.sum(image**2, dtype=np.float64)) for image in (a, b)]
        if len(a) < COARSE or min(powers) <= 0:
            return start, 0.0
        likeness = float(np.sum(a * b, dtype=np.float64)) / (powers[0] * powers[1]) ** 0.5
        gain = (powers[1] / powers[0]) ** 0.5
        difference = np.full(good.shape, np.nan, np.float32)
        difference[good] = b - gain * a
        # Both gradients along y, x and the angle, in the frame of the second face.
        turn = (c * u - s * v)[good], (c * v + s * u)[good]
        one, other = (
            np.stack([down, right, down * turn[0] - right * turn[1]][:free])
            for down, right in (
                (gain * (c * ay + s * ax), gain * (c * ax - s * ay)),
                (by, bx),
            )
        )
        mean = (one + other) / 2
        weight = weigh(difference)[good]
        weighted = weight * mean
        both = np.einsum("ip,jp->ij", weight * one, other)
        scale = 1 / np.sqrt(np.maximum(np.sum(weighted * mean, axis=1), 1e-30))
        values, axes = np.linalg.eigh((both + both.T) / 2 * np.outer(scale, scale))
        slope = axes.T @ (scale * np.sum(weighted * difference[good], axis=1))
        # Along a direction in which the faces have little in common the step stays short.
        step = np.zeros(3)
        step[:free] = -scale * (axes @ (slope / np.maximum(values, 0.1)))
        y, x, angle = y + step[0], x + step[1], angle + step[2]
        if max(abs(step[0]), abs(step[1]), abs(step[2]) * max(middle)) < STILL:
            break
    return (float(y), float(x), float(angle)), likeness


def by_pixel(difference: Face) -> Face:
    """Weight of each pixel by its own difference."""
    spread = 1.4826 * float(np.nanmedian(np.abs(difference))) + 1e-12
    return 1 / (1 + (difference / (OUTLIER * spread)) ** 2)


def by_square(difference: Face) -> Face:
    """Weight of each pixel by the differences around it: low where tissue is folded or lost."""
    known = np.isfinite(difference)
    total, share = (
        mean_around(values, AROUND)
        for values in (np.where(known, difference, 0) ** 2, known.astype(np.float32))
    )
    power = total / np.maximum(share, 1e-3)
    excess = np.maximum(power / (np.median(power[known]) + 1e-12) - 1, 0)
    return 1 / (1 + (excess / UNLIKE) ** 2)


def register(
    first: Sequence[Face],
    second: Sequence[Face],
    pixel: float,
    *,
    rotate: bool,
) -> tuple[Displacement, float]:
    """Displacement of one face against another, and the correlation of the coarsest ones there.

    It is 0 where other displacements fit nearly as well.

    Parameters
    ----------
    first, second
        Their :func:`resolutions`, or the coarser ones of these.
    pixel
        Size of the pixels of the coarsest ones, micrometres.
    rotate
        Look for a rotation as well.
    """
    if min(first[0].shape) < NARROW:
        return IN_PLACE, 0.0
    start, common = searched(first[0], second[0], ANGLES if rotate else (0,))
    # Single pixels first: where half of the tissue is folded, the squares would choose either half.
    found, likeness = refined(first[0], second[0], start, rotate=rotate, weigh=by_pixel)
    strayed = np.abs(np.subtract(found, start)) > (STRAY, STRAY, np.deg2rad(STRAY))
    if strayed.any() or likeness < CLEAR * common:
        likeness = 0.0
    if likeness >= LIKELY:
        for one, other in zip(first[1:], second[1:], strict=True):
            pixel /= 2
            found = (2 * found[0], 2 * found[1], found[2])
            found, _ = refined(one, other, found, rotate=rotate, weigh=by_square)
    y, x, angle = found
    return Displacement(y * pixel, x * pixel, float(np.rad2deg(angle))), likeness


def measure(
    tops: Sequence[Face], bottoms: Sequence[Face], pixel: float, *, rotate: bool, workers: int
) -> list[Pair]:
    """Displacements of sections against the one before and the one before that.

    Parameters
    ----------
    tops, bottoms
        Faces of the sections in order, all of one shape; a bottom faces the next section's top.
    pixel
        Size of their pixels, micrometres.
    """
    levels = run_tiles([*tops, *bottoms], resolutions, workers=workers)
    above, below = levels[: len(tops)], levels[len(tops) :]
    coarse = pixel * 2 ** (len(levels[0]) - 1) if levels else pixel

    def compared(places: tuple[int, int]) -> Pair:
        first, second = places
        return Pair(*places, *register(below[first], above[second], coarse, rotate=rotate))

    pairs = run_tiles([*pairwise(range(len(tops)))], compared, workers=workers)
    lost = {k for k, pair in enumerate(pairs) if not pair.fits}
    bridges = [(k, k + 2) for k in range(len(tops) - 2) if {k, k + 1} & lost]
    return pairs + run_tiles(bridges, compared, workers=workers)


def solve(count: int, pairs: Sequence[Pair], pixel: float, radius: float) -> list[Displacement]:
    """Displacement of each of ``count`` sections that fits all pairs best, by least squares.

    Each section is pulled weakly to where it was imaged, in the sum of absolute values: what is
    common to most sections is no displacement, errors of pairs do not add up to a drift, and
    sections that no pair reaches stay.

    Parameters
    ----------
    pixel
        Size of the faces' pixels, micrometres.
    radius
        Distance from the middle at which a rotation counts as a shift, micrometres.
    """
    used = [pair for pair in pairs if pair.fits]
    arc = np.deg2rad(1) * radius / pixel
    moves = [pair.displacement for pair in used]
    turned = _fitted(count, used, np.array([m.rotation * arc for m in moves]), np.ones(len(used)))
    turns = np.array([_turn(move.rotation) for move in moves])
    measured = np.array([complex(move.y, move.x) / pixel for move in moves])
    return [
        Displacement(float(shift.real) * pixel, float(shift.imag) * pixel, float(turn.real / arc))
        for shift, turn in zip(_fitted(count, used, measured, turns), turned, strict=True)
    ]


def _fitted(
    count: int, pairs: Sequence[Pair], measured: npt.NDArray, turns: npt.NDArray
) -> npt.NDArray[np.complex128]:
    """Values of which each pair's second is ``turns`` times the first plus what was measured."""
    first = np.array([pair.first for pair in pairs], int)
    apart = np.array([pair.second - pair.first for pair in pairs], int)
    values = np.zeros(count, complex)
    fixed, right = np.zeros((3, count), complex), np.zeros(count, complex)
    np.add.at(fixed[0], np.concatenate([first, first + apart]), 1)
    np.add.at(fixed, (apart, first), -turns)
    np.add.at(right, first + apart, measured)
    np.add.at(right, first, -np.conj(turns) * measured)
    for _ in range(ROUNDS):
        bands = fixed.copy()
        bands[0] += PULL / np.maximum(np.abs(values), NEAR)
        values = np.array(_solved(bands, right))
    return values


def _solved(bands: npt.NDArray, right: npt.NDArray) -> list[complex]:
    """Solve a positive Hermitian system of five diagonals, given from the main one down."""
    count, values = len(right), [*right.tolist(), 0j, 0j]
    main, near, far = ([*band.tolist(), 0j, 0j] for band in bands)
    for k in range(count):
        one, two = near[k] / main[k], far[k] / main[k]
        main[k + 1] -= one * near[k].conjugate()
        near[k + 1] -= two * near[k].conjugate()
        main[k + 2] -= two * far[k].conjugate()
        values[k + 1] -= one * values[k]
        values[k + 2] -= two * values[k]
    for k in reversed(range(count)):
        above = near[k].conjugate() * values[k + 1] + far[k].conjugate() * values[k + 2]
        values[k] = (values[k] - above) / main[k]
    return values[:count]
