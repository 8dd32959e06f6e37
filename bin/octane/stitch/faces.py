"""Faces of sections: which is darker than its neighbours, which is mirrored, and bands."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.stitch.comparison import CLEAR, LIKELY, finite
from octane.stitch.registration import band_passed, correlation, fisher

EDGE = 64
"""Longest edge of a compared face, pixels."""
DEPTH = 4
"""Planes averaged into a face, which reduces speckle."""
NEIGHBOURS = 4
"""Number of nearest sections compared for brightness, so that one dark section among them does not
matter."""
LEAST_TISSUE = 16
"""Minimum pixels of tissue that two compared faces share."""
SHARED = 0.4
"""Minimum fraction of the larger tissue that they share."""
ASIDE = 0.15
"""Largest displacement of a section relative to the previous one, fraction of a face."""
FLIPS = ("", "y", "x", "yx")
"""Axes along which a face may be flipped, by number."""

CLEAR_FACE = 4
"""Index, in :func:`ends_of` a section, of the first face that is not blended."""

Face = npt.NDArray[np.floating]
Ends = tuple[npt.NDArray[np.int64], ...]
"""First and last planes of a section, optionally others."""


class Faces:
    """First and last planes of sections, gathered from blocks of the volume.

    ``ends`` are these planes by section number, and ``shape`` is the volume's (y, x).
    """

    def __init__(self, ends: Mapping[int, Ends], shape: Sequence[int]) -> None:
        self.step = max(1, -(-max(shape) // EDGE))
        self.ends = {number: own for number, own in ends.items() if len(own[0])}
        size = [-(-n // self.step) for n in shape]
        self.sums = {n: [np.zeros(size) for _ in own] for n, own in self.ends.items()}
        self._lock = Lock()

    def add(self, block: npt.NDArray, planes: npt.NDArray[np.int64], area: Sequence[slice]) -> None:
        """Add the part of the faces that a block of the volume shows.

        ``planes`` are the block's: at least every face plane between its first and last one.
        Thread-safe.
        """
        for number, faces in self.ends.items():
            for face, total in zip(faces, self.sums[number], strict=True):
                if part := part_of_face(face, block, planes, area, self.step):
                    with self._lock:
                        total[part.place] += part.mean


class FacePart(NamedTuple):
    """A block's part of a face: ``mean`` (y, x), at ``place`` among the face's pixels."""

    place: tuple[npt.NDArray[np.int64], ...]
    mean: npt.NDArray[np.float64]


def part_of_face(
    face: npt.NDArray[np.int64],
    block: npt.NDArray,
    planes: npt.NDArray[np.int64],
    area: Sequence[slice],
    step: int,
) -> FacePart | None:
    """Part of the mean over a face's planes that a block shows; None if it shows none of them.

    ``planes`` are the block's, ``area`` its rows and columns in the volume, and ``step`` the voxels
    per pixel. The parts of all blocks add up to the face.
    """
    own = face[(face >= planes[0]) & (face <= planes[-1])]
    if not len(own):
        return None
    seen = np.abs(block[np.searchsorted(planes, own)])
    mean = seen.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        mean = finite(seen).mean(axis=0, dtype=np.float64)
    pixels = [np.arange(r.start, r.stop) // step for r in area]
    (rows, first), (columns, left) = (np.unique(p, return_index=True) for p in pixels)
    part = np.add.reduceat(np.add.reduceat(mean, first, axis=0), left, axis=1)
    return FacePart(np.ix_(rows, columns), part * len(own) / len(face))


def brightness(faces: Sequence[Sequence[Face]]) -> list[float | None]:
    """Brightness of each section relative to its neighbours, where both have tissue.

    ``faces`` are the first and last planes of each section. Their sum is compared with that of the
    nearest sections, and each with the face that it meets; the smaller difference counts. Tissue
    that ends within a section disturbs the first comparison, light lost with depth the second.
    """
    found: list[float | None] = []
    has_light = any(face.any() for own in faces for face in own)
    for k, (first, last) in enumerate(faces):
        nearest = sorted((j for j in range(len(faces)) if j != k), key=lambda j: abs(j - k))
        whole = _known(_ratio(first + last, np.add(*faces[j])) for j in nearest[:NEIGHBOURS])
        met = _known(
            _ratio(own, faces[j][1 - side])
            for side, (own, j) in enumerate(((first, k - 1), (last, k + 1)))
            if j in nearest
        )
        if not (whole and met):
            is_blank = not (first.any() or last.any())
            found.append(0.0 if is_blank and has_light else None)
            continue
        both = (sorted(whole, key=abs)[(len(whole) - 1) // 2], float(np.mean(met)))
        found.append(_agreed(*both))
    return found


def steps(faces: Sequence[Sequence[Face]]) -> list[float | None]:
    """Brightness of each section relative to the previous one, as :func:`brightness` finds it."""
    both = (
        (_ratio(np.add(*own), np.add(*before)), _ratio(own[0], before[1]))
        for before, own in pairwise(faces)
    )
    return [None, *(None if a is None or b is None else _agreed(a, b) for a, b in both)]


def boundaries(faces: Faces) -> dict[int, float]:
    """Factor by which brightness jumps where a section begins, by section number.

    The jump is from the previous section's last planes to the first ones, less the trend next to
    them: anatomy changes along z as well. Where sections are blended, it is the largest jump from
    face to face through the blended planes, less the trend outside them. ``faces`` hold the
    :func:`ends_of` each section. Sections that do not follow another, or share no tissue with it,
    are left out.
    """
    found: dict[int, float] = {}
    for before, number in pairwise(faces.sums):
        if number != before + 1:
            continue
        within = _trend(faces, before, 3, 1), _trend(faces, number, _clear(faces, number), 2)
        crossed = [(before, 1), (number, 0)]
        crossed += [(number, face) for face in range(CLEAR_FACE + 1, len(faces.ends[number]))]
        jumps = []
        for (one, upper), (other, lower) in pairwise(crossed):
            jump = _ratio(faces.sums[other][lower], faces.sums[one][upper])
            if jump is not None:
                distance = faces.ends[other][lower].mean() - faces.ends[one][upper].mean()
                low, high = distance * min(within), distance * max(within)
                jumps.append(jump - np.clip(jump, low, high))
        if jumps:
            found[number] = float(np.exp(max(jumps, key=abs)))
    return found


def _clear(faces: Faces, number: int) -> int:
    """Index of a section's first face that is not blended."""
    return CLEAR_FACE if len(faces.ends[number]) > CLEAR_FACE else 0


def _trend(faces: Faces, number: int, *pair: int) -> float:
    """Change of log brightness per plane, between an upper and a lower face.

    If the section is too thin for these or they share no tissue, between its first and last planes
    that are not blended; 0 if these are the same.
    """
    ends, sums = faces.ends[number], faces.sums[number]
    for upper, lower in (pair, (_clear(faces, number), 1)):
        if len(ends[upper]) == len(ends[lower]):
            distance = ends[lower].mean() - ends[upper].mean()
            change = _ratio(sums[lower], sums[upper]) if distance else None
            if change is not None:
                return float(change / distance)
    return 0.0


def ends_of(planes: npt.NDArray[np.int64], blended: int = 0) -> Ends:
    """First and last planes of a section, which are its faces, and those next to each.

    If the first ``blended`` planes are blended with the section above, those next to the first ones
    lie below these, and more faces follow: the first that is not blended (in a section that is
    blended to its end, the last), then all between the section's first planes and that one.
    """
    clear = planes[min(blended, max(len(planes) - DEPTH, 0)) :]
    ends = planes[:DEPTH], planes[-DEPTH:], clear[DEPTH : 2 * DEPTH], clear[-2 * DEPTH : -DEPTH]
    if not blended:
        return ends
    starts = range(DEPTH, min(blended + DEPTH, len(planes)), DEPTH)
    return *ends, clear[:DEPTH], *(planes[start : start + DEPTH] for start in starts)


def _agreed(one: float, other: float) -> float:
    """The smaller of two log ratios, as a ratio; 1 if they contradict each other."""
    return float(np.exp(min(one, other, key=abs) if one * other > 0 else 0))


def _ratio(own: Face, other: Face) -> float | None:
    """Median log ratio where both have tissue; None if they share too little."""
    tissue = [face > face.mean() for face in (own, other)]
    both = tissue[0] & tissue[1]
    if both.sum() < max(LEAST_TISSUE, SHARED * max(t.sum() for t in tissue)):
        return None
    return float(np.median(np.log(own[both] / other[both])))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def flips(faces: Sequence[Sequence[Face]]) -> list[str | None]:
    """Axes along which each section must be flipped to fit its neighbours; usually none.

    ``faces`` are the first and last planes of each section. Tissue is nearly symmetric, so all
    boundaries are judged together: the flips maximize the sum of Fisher's z, less ``CLEAR``
    wherever a flipped section begins. None marks a section that fits neither neighbour. The most
    common orientation counts as unflipped.
    """
    known = [False] * len(faces)
    flip = np.arange(len(FLIPS))
    # A flip's number has one bit per axis: XOR combines two flips.
    both = np.bitwise_xor.outer(flip, flip)
    begins = CLEAR * ((both != 0) & (flip != 0))
    total, before = -begins[0], []
    for k, ((_, above), (below, _)) in enumerate(pairwise(faces)):
        scores = np.nan_to_num([_likeness(above, _flipped(below, name)) for name in FLIPS])
        if scores.max() >= LIKELY:
            known[k] = known[k + 1] = True
        else:
            scores[:] = 0
        reached = total[:, None] + fisher(scores)[both] - begins
        before.append(reached.argmax(axis=0))
        total = reached.max(axis=0)
    chosen = [int(total.argmax())]
    for origin in reversed(before):
        chosen.append(int(origin[chosen[-1]]))
    chosen.reverse()
    common = Counter(chosen).most_common(1)[0][0]
    return [FLIPS[own ^ common] if seen else None for own, seen in zip(chosen, known, strict=True)]


class Order(NamedTuple):
    """Places of two sections each: ``exchanged`` ones, and ``repeated`` ones, the first again."""

    exchanged: list[tuple[int, int]]
    repeated: list[tuple[int, int]]


def order_of(faces: Sequence[Sequence[Face]], follows: Sequence[bool]) -> Order:
    """Find sections that fit clearly better in another order, or that show the same tissue.

    ``faces`` are the first planes of each section, and those deep ones that show the next section's
    first planes again. ``follows`` tells of each section but the last whether the next one has the
    next number. Sections up to two apart are compared.
    """
    known: dict[tuple[int, int, int, int], float] = {}

    def fit(one: int, other: int, *sides: int) -> float:
        upper, lower = sides or (1, 0)
        key = (one, other, upper, lower)
        if key not in known:
            score = np.nan_to_num(_likeness(faces[one][upper], faces[other][lower]))
            known[key] = float(fisher(score))
        return known[key]

    def is_better(other: Sequence[float], given: Sequence[float]) -> bool:
        clear = float(np.mean(other) - np.mean(given)) >= CLEAR
        return clear and min(other) >= max(*given, float(fisher(LIKELY)))

    found, count = Order([], []), len(faces)
    for k in range(count - 1):
        for other in (k + 1, k + 2):
            if other < count and all(follows[k:other]):
                same = [fit(k, other, side, side) for side in (0, 1)]
                if is_better(same, [fit(other - 1, other)]):
                    found.repeated.append((k, other))
        places = [n for n in range(k - 1, k + 3) if 0 <= n < count]
        if len(places) > 2 and all(follows[places[0] : places[-1]]):
            swapped = [{k: k + 1, k + 1: k}.get(n, n) for n in places]
            if is_better(*([fit(*p) for p in pairwise(order)] for order in (swapped, places))):
                found.exchanged.append((k, k + 1))
    return found


def _flipped(face: Face, flip: str) -> Face:
    return np.flip(face, tuple("yx".index(axis) for axis in flip))


def _likeness(first: Face, second: Face) -> float:
    """Highest correlation of two faces within the largest displacement of sections."""
    images = (band_passed(face / (face.max() or 1)) for face in (first, second))
    scores = correlation(*images)
    reach = [int(n * ASIDE) for n in first.shape]
    return float(scores[np.ix_(*(np.arange(-r, r + 1) for r in reach))].max())
