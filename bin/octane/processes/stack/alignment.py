"""Alignment of sections: displacements measured on facing planes, and those that fit them best.

Faces are compared as logarithms, in which speckle is as strong in bright tissue as in dark, and
band-passed: without shading, brightness and the finest speckle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import coarse, fisher
from octane.core.filters import gaussian
from octane.pipeline.workers import run_tiles
from octane.processes.stack.layout.displacement import IN_PLACE, Displacement
from octane.processes.stack.sampling import sample_linear

BAND = (1.5, 8.0)
"""Standard deviations of the difference of Gaussians, pixels."""
FACE_FLOOR = 0.05
"""Fraction of the mean added before the logarithm, to keep noise in dark areas small."""
MIN_COVER = 0.7
"""Minimum imaged fraction of a pixel's neighbourhood: a section's border is not structure."""
COARSE_EDGE = 96
"""Longest edge of the coarse faces searched for a first displacement, pixels."""
MAX_SHIFT = 0.15
"""Largest displacement searched, fraction of a face."""
ANGLES = (-4, -2, 0, 2, 4)
"""Rotations tried, degrees: one between is within a pixel of the nearest on a coarse face."""
MIN_LIKENESS = 0.4
"""Minimum correlation of coarse faces that fit; smooth or repeated structure reaches it as well."""
MIN_PEAK_RATIO = 3.2
"""Minimum ratio of that correlation to those at other shifts; only a true fit reaches it."""
MIN_POWER = 0.04
"""Minimum product of the faces' power at a shift, relative to the largest."""
MIN_EDGE = 16
"""Minimum edge of a compared face, pixels."""
TISSUE_SMOOTHING = 4.0
"""Standard deviation in pixels of the smoothing before tissue is told from its surroundings."""
LEVEL_ROUNDS = 20
"""Iterations that find the grey level between them."""
MIN_TISSUE_PIXELS = 200
"""Minimum pixels of structure within tissue that can contradict an outline."""
MIN_TEXTURE = 0.03
"""Minimum power of that structure, relative to the entire face's."""
MAX_STRAY = 3.0
"""Pixels and degrees by which a refinement may leave the search result, which is off by at most
about one: further away, it fits by chance."""
MAX_STEPS = 12
"""Maximum steps of a refinement at one resolution."""
LAST_STEP = 0.02
"""Step in pixels that ends a refinement."""
OUTLIER = 2.5
"""Standard deviations above which pixels count less, by Cauchy's weights."""
SQUARE = 13
"""Edge of the squares in which faces are compared, pixels."""
HALF_WEIGHT_EXCESS = 1.0
"""Relative excess of a square's mean squared difference over the median one at which its weight is
halved: tissue is folded or lost."""
PULL = 0.003
"""Weight of a section's imaged position, a pixel away from it, relative to that of a pair."""
PULL_RADIUS = 0.1
"""Distance in pixels below which that weight stops rising."""
MAX_TURN_STD = np.deg2rad(0.4)
"""Standard deviation above which a rotation is undetermined: tissue is small or round."""
STEP_CURVATURE = 0.1
"""Minimum relative curvature along a direction, in a step."""
STD_CURVATURE = 0.003
"""The same in the estimate of the rotation's standard deviation."""
CERTAIN_MOVE = 3.0
"""Standard deviations above which a rotation counts, or a shift of less than a pixel: noise exceeds
them in one pair of a thousand."""
TORN = (2.0, 3.0)
"""Minimum contradiction of a torn section to its neighbours' fit: pixels, and multiple of the
usual."""
TORN_MARGIN = 0.2
"""Minimum difference in Fisher's z by which it fits them worse than they fit those beyond."""
PULL_ROUNDS = 50
"""Iterations of the fit to all pairs, which weaken the pull on sections far from their place."""

Face = npt.NDArray[np.float32]
Move = tuple[float, float, float]
"""Displacement in pixels (y, x) and radians about the middle."""


@dataclass(frozen=True)
class SectionPair:
    """Displacement of section ``second`` relative to ``first``, by their places in the stack.

    ``likeness`` is the correlation of their coarse faces there, and ``std`` the standard deviation
    of the shift, micrometres.
    """

    first: int
    second: int
    displacement: Displacement
    likeness: float
    std: float = 0.0

    @property
    def fits(self) -> bool:
        """True if both show the same tissue."""
        return self.likeness >= MIN_LIKENESS

    @property
    def is_certain(self) -> bool:
        """True if the displacement is more than noise."""
        y, x, rotation = self.displacement
        return bool(rotation) or math.hypot(y, x) >= CERTAIN_MOVE * self.std


def structure(face: Face) -> Face:
    """Logarithm of a face, band-passed; NaN at and near pixels that were not imaged (NaN)."""
    imaged = np.isfinite(face)
    values = np.where(imaged, face, 0).astype(np.float32)
    values -= min(0.0, float(values.min()))
    mean = float(values.mean(where=imaged)) if imaged.any() else 0.0
    if mean <= 0:
        return np.zeros_like(values)
    values = np.where(imaged, np.log(values / mean + FACE_FLOOR), 0).astype(np.float32)
    fine, coarse = (gaussian(values, s, truncate=3) for s in BAND)
    if not imaged.all():
        covers = [gaussian(imaged.astype(np.float32), s, truncate=3) for s in BAND]
        fine, coarse = (v / np.maximum(c, 0.1) for v, c in zip((fine, coarse), covers, strict=True))
        fine[~imaged | (covers[1] < MIN_COVER)] = np.nan
    return fine - coarse


def face_pyramid(face: Face) -> list[Face]:
    """A face at the full and at halved resolutions, the coarsest first."""
    faces = [face]
    while max(face.shape) > COARSE_EDGE and min(face.shape) >= 2 * MIN_EDGE:
        face = coarse(face, 2)
        faces.append(face)
    return faces[::-1]


def structure_pyramid(face: Face) -> list[Face]:
    """The structure of a face at the full and at halved resolutions, the coarsest first."""
    return [structure(coarser) for coarser in face_pyramid(face)]


def tissue_texture(face: Face) -> Face:
    """Structure of the bright tissue in a face, without its outline; NaN elsewhere."""
    imaged = np.isfinite(face)
    values = np.where(imaged, face, 0).astype(np.float32)
    values -= min(0.0, float(values.min()))
    smooth = gaussian(values, TISSUE_SMOOTHING, truncate=3)
    smooth /= np.maximum(gaussian(imaged.astype(np.float32), TISSUE_SMOOTHING, truncate=3), 0.1)
    level = float(smooth.mean(where=imaged)) if imaged.any() else 0.0
    for _ in range(LEVEL_ROUNDS):
        sides = [smooth[imaged & side] for side in (smooth > level, smooth <= level)]
        if not all(map(len, sides)):
            break
        level = float(np.mean([side.mean() for side in sides]))
    return structure(np.where(imaged & (smooth > level), face, np.nan).astype(np.float32))


def texture_likeness(first: Face, second: Face, move: Move) -> float:
    """Correlation of coarse faces within their tissue, with the second displaced by ``move``.

    It is 1 if tissue has too little structure to contradict its outline.
    """
    one, other = (tissue_texture(face) for face in (first, second))
    other = _move_images(other[None], move)[0]
    good = np.isfinite(one + other)
    if good.sum() < MIN_TISSUE_PIXELS:
        return 1.0
    a, b = one[good], other[good]
    powers = [float(np.mean(values**2, dtype=np.float64)) for values in (a, b)]
    whole = [float(np.nanmean(structure(face) ** 2, dtype=np.float64)) for face in (first, second)]
    if any(part <= MIN_TEXTURE * power for part, power in zip(powers, whole, strict=True)):
        return 1.0
    return float(np.mean(a * b, dtype=np.float64)) / (powers[0] * powers[1]) ** 0.5


def search_shift(first: Face, second: Face, angles: Sequence[float]) -> tuple[Move, float]:
    """Displacement at which coarse faces correlate best, over their common pixels.

    Also returns the root mean square of the correlations at all shifts up to half an edge.
    """
    size, padded = first.shape, [2 * n for n in first.shape]
    half = [np.arange(-(n // 2), n // 2 + 1) for n in size]
    reach = [max(1, int(n * MAX_SHIFT)) for n in size]
    inside = tuple(slice(n // 2 - r, n // 2 + r + 1) for n, r in zip(size, reach, strict=True))

    def transforms(face: Face) -> list[npt.NDArray[np.complexfloating]]:
        imaged = np.isfinite(face)
        values = np.where(imaged, face, 0)
        return [np.fft.rfft2(part, padded) for part in (values, values**2, imaged)]

    def sum_products(one: npt.NDArray, other: npt.NDArray) -> npt.NDArray[np.floating]:
        """Sums of products at each shift."""
        return np.fft.irfft2(one.conj() * other, padded)[np.ix_(*half)]

    ours, our_squares, our_imaged = transforms(first)
    best, move, usual = -1.0, (0.0, 0.0, 0.0), 1.0
    for angle in np.deg2rad(angles):
        rotated = _move_images(second[None], (0.0, 0.0, angle))[0] if angle else second
        theirs, their_squares, their_imaged = transforms(rotated)
        power = sum_products(our_squares, their_imaged).clip(0) * sum_products(
            our_imaged, their_squares
        ).clip(0)
        # A correlation over few pixels means nothing.
        products = sum_products(ours, theirs)
        surface = products / np.sqrt(power.clip(MIN_POWER * power.max() or 1.0))
        window = surface[inside]
        y, x = np.unravel_index(int(window.argmax()), window.shape)
        if window[y, x] > best:
            best = float(window[y, x])
            usual = float(np.sqrt(np.sum(products**2) / (np.sum(power) or 1.0)))
            dy, dx, c, s = y - reach[0], x - reach[1], np.cos(angle), np.sin(angle)
            move = (float(c * dy + s * dx), float(c * dx - s * dy), float(angle))
    return move, usual


def _move_images(images: Face, move: Move) -> Face:
    """Sample images at the pixels of a face of their shape after a move."""
    turn = complex(np.exp(-1j * move[2]))
    middle = complex(*((n - 1) / 2 for n in images.shape[1:]))
    start = middle + complex(*move[:2]) - turn * middle
    return sample_linear(images, (start.real, start.imag), turn, images.shape[1:])


def refine_move(
    first: Face, second: Face, start: Move, *, rotate: bool, by_square: bool
) -> tuple[Move, float, Move]:
    """Refine a displacement from ``start`` by robust Gauss-Newton steps; also its correlation.

    Pixels that differ more than most count less, or with ``by_square``, squares that do. The
    curvature is the product of the gradients of both faces, whose noise is independent, so that
    noise does not shorten the steps. The correlation is 0 if too little can be compared. The third
    result is the standard deviation of the displacement, from the disagreement of squares.
    """
    ours, theirs = (np.stack([face, *np.gradient(face)]) for face in (first, second))
    v, u = np.ix_(*(np.arange(n, dtype=np.float32) - (n - 1) / 2 for n in first.shape))
    (y, x, angle), likeness, spread = start, 0.0, (np.inf, np.inf, np.pi)
    for _ in range(MAX_STEPS):
        c, s = float(np.cos(angle)), float(np.sin(angle))
        moved = _move_images(theirs, (y, x, angle))
        good = np.isfinite(ours.sum(axis=0) + moved.sum(axis=0))
        (a, ay, ax), (b, by, bx) = (np.where(good, images, 0) for images in (ours, moved))
        # Not a matrix product, whose order depends on the machine.
        powers = [float(np.sum(image**2, dtype=np.float64)) for image in (a, b)]
        if good.sum() < COARSE_EDGE or min(powers) <= 0:
            return start, 0.0, spread
        likeness = float(np.sum(a * b, dtype=np.float64)) / (powers[0] * powers[1]) ** 0.5
        gain = (powers[1] / powers[0]) ** 0.5
        difference = b - gain * a
        # Gradients along y, x and the angle, in the frame of the second face.
        turn = c * u - s * v, c * v + s * u
        one, other = (
            np.stack([down, right, down * turn[0] - right * turn[1]][: 2 + rotate])
            for down, right in ((gain * (c * ay + s * ax), gain * (c * ax - s * ay)), (by, bx))
        )
        mean = (one + other) / 2
        if by_square:
            weight = _square_weights(difference, one[:2], other[:2])
        else:
            most = OUTLIER * 1.4826 * float(np.median(np.abs(difference[good]))) + 1e-12
            weight = 1 / (1 + (difference / most) ** 2)
        both = np.einsum("iyx,jyx->ij", weight * one, other)
        scale = 1 / np.sqrt(np.maximum(np.sum(weight * mean**2, axis=(1, 2)), 1e-30))
        values, axes = np.linalg.eigh((both + both.T) / 2 * np.outer(scale, scale))
        slopes = _square_sums(weight * mean * difference).reshape(len(mean), -1)
        # Along a direction in which faces have little in common, the step is short but uncertain.
        steps, free = (
            (axes / np.maximum(values, least)) @ axes.T * np.outer(scale, scale) @ slopes
            for least in (STEP_CURVATURE, STD_CURVATURE)
        )
        deviations = [*np.sqrt(np.sum(free**2, axis=1)).tolist(), 0.0]
        spread = (deviations[0], deviations[1], deviations[2])
        step = [*-steps.sum(axis=1), 0.0][:3]
        y, x, angle = y + step[0], x + step[1], angle + step[2]
        if max(abs(step[0]), abs(step[1]), abs(step[2]) * max(first.shape) / 2) < LAST_STEP:
            break
    return (float(y), float(x), float(angle)), likeness, spread


def _square_sums(values: Face) -> Face:
    """Sums over squares of pixels, the last two axes."""
    for axis in (-2, -1):
        values = np.add.reduceat(values, np.arange(0, values.shape[axis], SQUARE), axis=axis)
    return values


def _square_weights(difference: Face, one: Face, other: Face) -> Face:
    """Weight of each pixel by its square, from the faces' difference and gradients there.

    It is low where faces differ more than in most squares, which means folded or lost tissue, and
    where their gradients have little in common, which means speckle only.
    """
    maps = (
        difference**2,
        *((f * g).sum(axis=0) for f, g in ((one, other), (one, one), (other, other))),
    )
    power, shared, ours, theirs = _square_sums(np.stack(maps))
    excess = np.maximum(power / (np.median(power[ours > 0]) + 1e-12) - 1, 0)
    like = np.clip(shared / np.sqrt(np.maximum(ours * theirs, 1e-30)), 0, 1)
    weight = 2 * like / (1 + like) / (1 + (excess / HALF_WEIGHT_EXCESS) ** 2)
    rows, columns = (np.arange(n) // SQUARE for n in difference.shape)
    return weight[np.ix_(rows, columns)].astype(np.float32)


def match_faces(first: Face, second: Face, *, rotate: bool) -> tuple[Move, float, Move]:
    """Like :func:`refine_move`, from the best coarse correlation; 0 if other shifts fit as well."""
    start, common = search_shift(first, second, ANGLES if rotate else (0,))
    # By single pixels: if half of the tissue is folded, squares would choose either half.
    move, likeness, spread = refine_move(first, second, start, rotate=rotate, by_square=False)
    # An uncertain rotation may end anywhere, so it is not limited.
    most = (MAX_STRAY, MAX_STRAY, np.deg2rad(MAX_STRAY) if spread[2] <= MAX_TURN_STD else np.inf)
    strayed = np.abs(np.subtract(move, start)) > most
    return move, 0.0 if strayed.any() or likeness < MIN_PEAK_RATIO * common else likeness, spread


def register_faces(
    first: Sequence[Face], second: Sequence[Face], pixel: float, *, rotate: bool
) -> tuple[Displacement, float, Displacement]:
    """Displacement of one face relative to another, and the correlation of the coarsest ones there.

    The correlation is 0 if other displacements fit nearly as well. The third result is the standard
    deviation of the displacement.

    Parameters
    ----------
    first, second
        Their :func:`structure_pyramid`, or the coarser ones of these.
    pixel
        Size of the pixels of the coarsest ones, micrometres.
    rotate
        Search for a rotation as well.
    """
    if min(first[0].shape) < MIN_EDGE:
        return IN_PLACE, 0.0, IN_PLACE
    best, likeness, spread = match_faces(first[0], second[0], rotate=rotate)
    vague = 0.0
    if likeness >= MIN_LIKENESS and spread[2] > MAX_TURN_STD:
        rotate, vague = False, spread[2]
        best, likeness, spread = match_faces(first[0], second[0], rotate=rotate)
    if likeness >= MIN_LIKENESS:
        for one, other in zip(first[1:], second[1:], strict=True):
            pixel /= 2
            start = (2 * best[0], 2 * best[1], best[2])
            best, _, spread = refine_move(one, other, start, rotate=rotate, by_square=True)
    move, std = (
        Displacement(y * pixel, x * pixel, float(np.rad2deg(angle)))
        for y, x, angle in (best, (*spread[:2], vague or spread[2]))
    )
    return move, likeness, std


def measure_pairs(
    tops: Sequence[Face],
    bottoms: Sequence[Face],
    within: Sequence[Face],
    pixel: float,
    *,
    rotate: bool,
    workers: int,
) -> list[SectionPair]:
    """Measure displacements relative to the previous section or, if that does not fit, two before.

    The movement of the tissue itself from plane to plane, the mean of that in both sections, is
    subtracted, and half of their difference counts as uncertain. A rotation smaller than the
    tissue's own plus its uncertainty counts as 0.

    Parameters
    ----------
    tops, bottoms
        Faces of the sections in order, all of one shape; a bottom faces the next section's top.
    within
        If facing planes show different tissue: faces as far below the tops in the same sections, on
        which the tissue's own movement is measured. Else empty.
    pixel
        Size of their pixels, micrometres.
    """

    def structures(faces: Sequence[Face]) -> list[list[Face]]:
        return run_tiles(faces, structure_pyramid, workers=workers)

    above, below, inner = structures(tops), structures(bottoms[:-1]), structures(within)
    coarse = pixel * 2 ** (len(above[0]) - 1) if above else pixel

    def tissue_change(k: int) -> tuple[Displacement, Displacement]:
        move, likeness, spread = register_faces(above[k], inner[k], coarse, rotate=rotate)
        return (move, spread) if likeness >= MIN_LIKENESS else (IN_PLACE, IN_PLACE)

    still = [(IN_PLACE, IN_PLACE)] * len(above)
    changes = run_tiles(range(len(inner)), tissue_change, workers=workers) or still

    def compare(places: tuple[int, int]) -> SectionPair:
        first, second = places
        move, likeness, spread = register_faces(below[first], above[second], coarse, rotate=rotate)
        if likeness >= MIN_LIKENESS:
            place = (move.y / coarse, move.x / coarse, float(np.deg2rad(move.rotation)))
            faces = (face_pyramid(face)[0] for face in (bottoms[first], tops[second]))
            texture = texture_likeness(*faces, place)
            likeness = texture if texture < MIN_LIKENESS else likeness
        (one, noise), (other, more) = changes[first], changes[second]
        y, x, turn = np.mean([one, other], axis=0).tolist()
        down, aside, apart = (np.subtract(one, other) / 2).tolist()
        rotation = move.rotation - turn
        # Rotations that are undetermined agree for no reason.
        unsure = math.hypot(spread.rotation, apart, noise.rotation, more.rotation)
        certain = abs(rotation) >= CERTAIN_MOVE * unsure + abs(turn)
        place = Displacement(move.y - y, move.x - x, rotation * certain)
        std = math.hypot(spread.y, spread.x, down, aside)
        return SectionPair(first, second, place, likeness, std)

    pairs = run_tiles([*pairwise(range(len(above)))], compare, workers=workers)
    bridges = [(k, k + 2) for k in range(len(below) - 1)]
    pairs += run_tiles(bridges, compare, workers=workers)
    torn = _torn_sections(
        pairs[: len(below)], pairs[len(below) :], pixel, max(tops[0].shape) * pixel / 2
    )
    pairs = [replace(p, likeness=0.0) if {p.first, p.second} & torn else p for p in pairs]
    unfit = {k for k, pair in enumerate(pairs[: len(below)]) if not pair.fits}
    return [p for k, p in enumerate(pairs) if k < len(below) or {p.first, p.first + 1} & unfit]


def _torn_sections(
    pairs: Sequence[SectionPair], bridges: Sequence[SectionPair], pixel: float, radius: float
) -> set[int]:
    """Sections that contradict their neighbours, because tiles have moved or tissue is torn.

    Such a section fits both, but clearly worse than these fit those beyond, and they fit each other
    at another place than it implies.
    """
    scores = fisher([pair.likeness for pair in pairs])
    apart: list[float] = []
    for k, bridge in enumerate(bridges):
        over, one, other = (p.displacement for p in (bridge, pairs[k], pairs[k + 1]))
        both = other.turn * complex(one.y, one.x) + complex(other.y, other.x)
        rest = complex(over.y, over.x) - both
        turn = over.rotation - one.rotation - other.rotation
        apart.append(Displacement(rest.real, rest.imag, turn).reach(radius) if bridge.fits else 0.0)
    limit = max(TORN[0] * pixel, TORN[1] * float(np.percentile(apart or [0], 25)))
    return {
        k + 1
        for k, distance in enumerate(apart)
        if distance > limit
        and max(scores[k : k + 2]) + TORN_MARGIN
        < min([*scores[:k][-1:], *scores[k + 2 :][:1]], default=0)
    }


def solve_displacements(
    count: int, pairs: Sequence[SectionPair], pixel: float, radius: float
) -> list[Displacement]:
    """Displacement of each of ``count`` sections that best fits all pairs, by least squares.

    Each section is pulled weakly to its imaged position, by the sum of absolute values: a move
    common to most sections does not count, pair errors do not add up to a drift, and sections that
    no pair reaches stay. ``pixel`` is the size of the faces' pixels, ``radius`` the
    distance from the middle at which a rotation counts as a shift, micrometres.
    """
    used = [pair for pair in pairs if pair.fits]
    arc = np.deg2rad(1) * radius / pixel
    moves = [pair.displacement for pair in used]
    arcs = _fit_values(count, used, np.array([m.rotation * arc for m in moves]), np.ones(len(used)))
    turns = np.array([move.turn for move in moves])
    measured = np.array([complex(move.y, move.x) / pixel for move in moves])
    return [
        Displacement(float(shift.real) * pixel, float(shift.imag) * pixel, float(angle.real / arc))
        for shift, angle in zip(_fit_values(count, used, measured, turns), arcs, strict=True)
    ]


def _fit_values(
    count: int, pairs: Sequence[SectionPair], measured: npt.NDArray, turns: npt.NDArray
) -> npt.NDArray[np.complex128]:
    """Values whose second in each pair is ``turns`` times the first plus ``measured``."""
    one, other = (np.array([getattr(p, n) for p in pairs], int) for n in ("first", "second"))
    difference = np.zeros((len(pairs), count), complex)
    difference[range(len(pairs)), other], difference[range(len(pairs)), one] = 1, -turns
    normal, right = difference.conj().T @ difference, difference.conj().T @ measured
    values = np.zeros(count, complex)
    for _ in range(PULL_ROUNDS):
        pull = PULL / np.maximum(np.abs(values), PULL_RADIUS)
        values = np.linalg.solve(normal + np.diag(pull), right)
    return values
