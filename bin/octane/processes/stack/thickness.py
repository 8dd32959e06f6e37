"""Thickness of sections: distances along z at which neighbours show the same tissue.

Tissue changes slowly along z, so it is approximated at each pixel by a parabola over the planes
that both sections show, and the distance follows by least squares from how these differ. Light
that tissue absorbs, displacements and brightness differ as well, and are fitted at the same time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import coarse
from octane.core.filters import gaussian

LOG_SMOOTHING = 1.0
"""Standard deviation of the smoothing before the logarithm, pixels."""
PLANE_FLOOR = 0.005
"""Fraction of a plane's mean added before the logarithm, to keep noise in dark areas small."""
MIN_COVER = 0.7
"""Minimum imaged fraction of a pixel's neighbourhood."""
DEGREE = 2
"""Degree of the polynomials along z."""
SQUARE = 8
"""Edge of the squares in which sections are compared, each with its own brightness: pairs of
pixels."""
FEWEST_SQUARES = 12
"""Minimum squares that both show."""
FEWEST_PLANES = 3
"""Minimum planes that both show."""
REFINE_WITHIN = 2.0
"""Planes to the best distance, above which those next to one that was tried are not."""
MIN_CURVATURE = 1e-3
"""Minimum relative curvature in any direction: less is noise."""
NEAREST_WITHIN = 0.75
"""Planes to the best distance, above which another whole number of planes is nearer."""
MAX_STD = 0.5
"""Standard deviation in planes above which a distance is not measured."""
RIVAL_RATIO = 2.0
"""A distance is ambiguous if another fits with a standard deviation less than this multiple."""
STATED_STD = 8.0
"""Standard deviation of a stated thickness in planes, next to which a measured one prevails."""
MIN_STD = 0.02
"""Least standard deviation of a distance, planes."""
MIN_CHANGE = 0.25
"""Planes by which a measured thickness must differ from the stated one to replace it."""

Planes = npt.NDArray[np.float32]


class Distance(NamedTuple):
    """Distance between the surfaces of two sections and its standard deviation, planes.

    ``problem`` says why it could not be measured; it is empty if it was.
    """

    planes: float = 0.0
    std: float = np.inf
    problem: str = ""


class _Offset(NamedTuple):
    """Distance by which a whole number of planes is too short, and its standard deviation."""

    planes: float
    std: float


def logarithms(planes: Planes) -> tuple[Planes, npt.NDArray[np.bool_]]:
    """Logarithms of smoothed planes (z, y, x) at half the resolution, and the pixels to compare.

    Each plane is divided by its mean. Pixels that were not imaged are NaN on every plane.
    """
    imaged = np.asarray(np.isfinite(planes).all(axis=0))
    cover = gaussian(imaged.astype(np.float32), LOG_SMOOTHING, truncate=3)
    halves = []
    for values in np.where(imaged, planes, np.float32(0)):
        mean = float(values.sum(dtype=np.float64)) / max(int(imaged.sum()), 1)
        smooth = gaussian(values, LOG_SMOOTHING, truncate=3) / np.maximum(cover, 0.1)
        halves.append(coarse(np.log(np.maximum(smooth / (mean or 1.0), 0) + PLANE_FLOOR), 2))
    compared = coarse((imaged & (cover >= MIN_COVER)).astype(np.float32), 2) == 1
    return np.stack(halves).astype(np.float32), compared


def measure_distance(first: Planes, second: Planes, distances: range) -> Distance:
    """Distance between the surfaces of two sections of the same tissue, in planes.

    Parameters
    ----------
    first, second
        Planes (z, y, x) of the upper and of the lower section from their surfaces down, at the
        same places (y, x); NaN where a section cannot be compared.
    distances
        Whole numbers of planes to try.
    """
    (upper, ours), (lower, theirs) = logarithms(first), logarithms(second)
    inside = ours & theirs
    # Of alternate planes, whose noise is independent.
    above = [np.cumsum(np.exp(upper[k::2]), axis=0) for k in range(2)]
    offsets: dict[int, _Offset | None] = {}

    def compare(planes: int) -> None:
        count = min(len(upper) - planes, len(lower))
        if planes in offsets or planes not in distances or count < FEWEST_PLANES:
            return
        passed = [total[planes // 2 - 1] / (planes // 2) for total in above if planes >= 2]
        offsets[planes] = _offset(upper[planes:][:count], lower[:count], passed, inside)

    for planes in distances[::2]:
        compare(planes)
    for planes, offset in [*offsets.items()]:
        if offset is not None and abs(offset.planes) <= REFINE_WITHIN:
            compare(planes - 1)
            compare(planes + 1)
    return _choose_distance(
        {planes: offset for planes, offset in offsets.items() if offset is not None}, distances
    )


def _offset(
    upper: Planes, lower: Planes, passed: Sequence[Planes], inside: npt.NDArray[np.bool_]
) -> _Offset | None:
    """Planes by which the lower section's planes lie deeper in the tissue than the upper's.

    ``passed`` are two estimates of the tissue's reflectivity above these planes in the upper
    section, through which its light has passed. None if too little can be compared.
    """
    ours, theirs = (_polynomials(planes) for planes in (upper, lower))
    count = ours.shape[0]
    # Noise of a coefficient grows with its degree.
    weights = 1 / np.sqrt(2 * np.arange(count - 1) + 1)
    absorbed = [np.zeros_like(ours[: count - 1]) for _ in passed]
    for image, reflectivity in zip(absorbed, passed, strict=True):
        image[0] = reflectivity
    # The product of one section's maps with the other's is free of noise.
    one, other = (
        np.stack([_derivative(maps, len(upper)), *np.gradient(maps[:-1], axis=(1, 2)), *absorption])
        for maps, absorption in ((ours, absorbed[:1]), (theirs, absorbed[1:]))
    )
    maps = np.concatenate([one, other, ours[None, :-1], theirs[None, :-1]])
    maps = _split_squares(maps * weights[:, None, None], inside)
    if maps.shape[2] < FEWEST_SQUARES:
        return None
    one, other, ours, theirs = maps[: len(one)], maps[len(one) : -2], maps[-2:-1], maps[-1:]
    shared = _products(one, other)
    shared = (shared + shared.transpose(1, 0, 2)) / 2
    right = _products((one + other) / 2, theirs - ours)[:, 0]
    # Low where tissue is folded or lost, or shows nothing but noise.
    pairs = ((ours, theirs), (ours, ours), (theirs, theirs))
    both, upper_power, lower_power = (_products(a[:, :1], b[:, :1])[0, 0] for a, b in pairs)
    alike = np.clip(both / np.sqrt(np.maximum(upper_power * lower_power, 1e-30)), 0, 1) ** 2
    normal = np.sum(shared * alike, axis=-1)
    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-30))
    normal = normal * np.outer(scale, scale)
    if np.linalg.eigvalsh(normal)[0] < MIN_CURVATURE:
        return None
    inverse = np.linalg.inv(normal) * np.outer(scale, scale)
    solution = np.einsum("ij,jk->i", inverse, right * alike)
    rest = right - np.einsum("ijk,j->ik", shared, solution)
    spread = np.einsum("i,ik->k", inverse[0], rest * alike)
    used = float(np.sum(alike) ** 2 / np.sum(alike**2))
    std = float(np.sqrt(np.sum(spread**2) * used / max(used - len(one), 1)))
    return _Offset(float(solution[0]), std)


def _polynomials(planes: Planes) -> npt.NDArray[np.float64]:
    """Coefficients (degree, y, x) of Legendre polynomials fitted to the planes of each pixel."""
    count = len(planes)
    places = (2 * np.arange(count) + 1 - count) / count
    basis = np.polynomial.legendre.legvander(places, min(DEGREE, count - 1))
    inverse = np.einsum("ij,zj->iz", np.linalg.inv(np.einsum("zi,zj->ij", basis, basis)), basis)
    return np.einsum("iz,zyx->iyx", inverse, planes, dtype=np.float64)


def _derivative(maps: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Derivative per plane of polynomials over ``count`` planes, of one degree less."""
    factors = np.arange(1, len(maps)) * 2 - 1.0
    return maps[1:] * factors[:, None, None] * 2 / count


def _split_squares(
    maps: npt.NDArray[np.float64], inside: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Maps (..., y, x) as (..., square, pixel), less each square's mean; 0 outside.

    Squares that are not inside for the most part are left out.
    """

    def fold(maps: npt.NDArray) -> npt.NDArray:
        height, width = (n // SQUARE for n in maps.shape[-2:])
        maps = maps[..., : height * SQUARE, : width * SQUARE]
        maps = maps.reshape(*maps.shape[:-2], height, SQUARE, width, SQUARE).swapaxes(-3, -2)
        return maps.reshape(*maps.shape[:-4], height * width, SQUARE**2)

    mask = fold(inside)
    count = mask.sum(axis=-1)
    full = count >= SQUARE**2 / 2
    mask, count = mask[full], count[full]
    parts = fold(maps)[..., full, :] * mask
    parts -= parts.sum(axis=-1, keepdims=True) / count[:, None]
    return parts * mask


def _products(
    one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Covariances (i, j, square) of maps (i, degree, square, pixel) within each square."""
    return np.einsum("idsp,jdsp->ijs", one, other)


def _choose_distance(offsets: dict[int, _Offset], distances: range) -> Distance:
    """The distance among those tried at which the planes agree."""
    if not offsets:
        return Distance(problem="they share too little tissue")
    near = {
        planes: offset for planes, offset in offsets.items() if abs(offset.planes) <= NEAREST_WITHIN
    }
    if not near:
        return Distance(problem="no distance fits")
    best = min(near, key=lambda planes: near[planes].std)
    planes, std = best + near[best].planes, near[best].std
    if best in (distances[0], distances[-1]):
        return Distance(planes, std, "the best distance is at the end of the range")
    rivals = [
        offset.std
        for other, offset in near.items()
        if abs(other + offset.planes - planes) > 2 * NEAREST_WITHIN
    ]
    beside = [other + offsets[other].planes for other in (best - 1, best + 1) if other in offsets]
    std = max([std, *(abs(other - planes) / 3 for other in beside)])
    if std > MAX_STD:
        return Distance(planes, std, f"the distance is uncertain by {std:.1f} planes")
    if min(rivals, default=np.inf) < RIVAL_RATIO * std:
        return Distance(planes, std, "several distances fit")
    return Distance(planes, std)


def solve_thicknesses(
    stated: Sequence[float], distances: Mapping[tuple[int, int], Distance]
) -> list[tuple[float, float]]:
    """Thickness of each section that best fits all distances, and its standard deviation, planes.

    Parameters
    ----------
    stated
        Thickness of each section as stated, planes, to which it is pulled weakly.
    distances
        Measured ones, by the places of both sections among ``stated``.
    """
    normal, right = np.eye(len(stated)) / STATED_STD**2, np.array(stated) / STATED_STD**2
    for (first, second), distance in distances.items():
        weight = 1 / max(distance.std, MIN_STD) ** 2
        normal[first:second, first:second] += weight
        right[first:second] += weight * distance.planes
    covariance = np.linalg.inv(normal)
    thicknesses = np.einsum("ij,j->i", covariance, right)
    return [*zip(thicknesses.tolist(), np.sqrt(np.diag(covariance)).tolist(), strict=True)]
