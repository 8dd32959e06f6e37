"""Faces of sections: which is darker than its neighbours, mirrored, or in another's place."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from octane.compare.comparison import CLEAR_ADVANTAGE, LIKELY_CORRELATION
from octane.compare.correlation import band_pass, correlation, fisher
from octane.compare.faces import Face, ratio

NEIGHBOURS = 4
"""Number of nearest sections compared for brightness, so that one dark section among them does not
matter."""
MAX_SHIFT = 0.15
"""Largest displacement of a section relative to the previous one, fraction of a face."""
FLIPS = ("", "y", "x", "yx")
"""Axes along which a face may be flipped, by number."""


def brightness(faces: Sequence[Sequence[Face]]) -> list[float | None]:
    """Brightness of each section relative to its neighbours, where both have tissue.

    ``faces`` are the first and last planes of each section. Their sum is compared with that of the
    nearest sections, and each with the face that it meets; the smaller difference counts. Tissue
    that ends within a section disturbs the first comparison, light lost with depth the second.
    """
    ratios: list[float | None] = []
    has_light = any(face.any() for ends in faces for face in ends)
    for k, (first, last) in enumerate(faces):
        nearest = sorted((j for j in range(len(faces)) if j != k), key=lambda j: abs(j - k))
        whole = _drop_none(ratio(first + last, np.add(*faces[j])) for j in nearest[:NEIGHBOURS])
        facing = _drop_none(
            ratio(face, faces[j][1 - side])
            for side, (face, j) in enumerate(((first, k - 1), (last, k + 1)))
            if j in nearest
        )
        if not (whole and facing):
            is_blank = not (first.any() or last.any())
            ratios.append(0.0 if is_blank and has_light else None)
            continue
        both = (sorted(whole, key=abs)[(len(whole) - 1) // 2], float(np.mean(facing)))
        ratios.append(_smaller_ratio(*both))
    return ratios


def brightness_steps(faces: Sequence[Sequence[Face]]) -> list[float | None]:
    """Brightness of each section relative to the previous one, as :func:`brightness` finds it."""
    both = (
        (ratio(np.add(*ends), np.add(*before)), ratio(ends[0], before[1]))
        for before, ends in pairwise(faces)
    )
    return [None, *(None if a is None or b is None else _smaller_ratio(a, b) for a, b in both)]


def _smaller_ratio(one: float, other: float) -> float:
    """The smaller of two log ratios, as a ratio; 1 if they contradict each other."""
    return float(np.exp(min(one, other, key=abs) if one * other > 0 else 0))


def _drop_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def proposed_flips(faces: Sequence[Sequence[Face]]) -> list[str | None]:
    """Axes along which each section must be flipped to fit its neighbours; usually none.

    ``faces`` are the first and last planes of each section. Tissue is nearly symmetric, so all
    boundaries are judged together: the flips maximize the sum of Fisher's z, less
    ``CLEAR_ADVANTAGE`` wherever a flipped section begins. None marks a section that fits neither
    neighbour. The most common orientation counts as unflipped.
    """
    fits = [False] * len(faces)
    flip = np.arange(len(FLIPS))
    # A flip's number has one bit per axis: XOR combines two flips.
    both = np.bitwise_xor.outer(flip, flip)
    begins = CLEAR_ADVANTAGE * ((both != 0) & (flip != 0))
    total, before = -begins[0], []
    for k, ((_, above), (below, _)) in enumerate(pairwise(faces)):
        scores = np.nan_to_num([_likeness(above, _flip_face(below, name)) for name in FLIPS])
        if scores.max() >= LIKELY_CORRELATION:
            fits[k] = fits[k + 1] = True
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
    return [
        FLIPS[code ^ common] if is_fit else None for code, is_fit in zip(chosen, fits, strict=True)
    ]


class OrderErrors(NamedTuple):
    """Places of two sections each: ``exchanged`` ones, and ``repeated`` ones, the first again."""

    exchanged: list[tuple[int, int]]
    repeated: list[tuple[int, int]]


def find_order_errors(faces: Sequence[Sequence[Face]], follows: Sequence[bool]) -> OrderErrors:
    """Find sections that fit clearly better in another order, or that show the same tissue.

    ``faces`` are the first planes of each section, and those deep ones that show the next section's
    first planes again. ``follows`` tells of each section but the last whether the next one has the
    next number. Sections up to two apart are compared.
    """
    scores: dict[tuple[int, int, int, int], float] = {}

    def fit(one: int, other: int, *sides: int) -> float:
        upper, lower = sides or (1, 0)
        key = (one, other, upper, lower)
        if key not in scores:
            score = np.nan_to_num(_likeness(faces[one][upper], faces[other][lower]))
            scores[key] = float(fisher(score))
        return scores[key]

    def is_better(other: Sequence[float], given: Sequence[float]) -> bool:
        clear = float(np.mean(other) - np.mean(given)) >= CLEAR_ADVANTAGE
        return clear and min(other) >= max(*given, float(fisher(LIKELY_CORRELATION)))

    errors, count = OrderErrors([], []), len(faces)
    for k in range(count - 1):
        for other in (k + 1, k + 2):
            if other < count and all(follows[k:other]):
                same = [fit(k, other, side, side) for side in (0, 1)]
                if is_better(same, [fit(other - 1, other)]):
                    errors.repeated.append((k, other))
        places = [n for n in range(k - 1, k + 3) if 0 <= n < count]
        if len(places) > 2 and all(follows[places[0] : places[-1]]):
            exchange = [{k: k + 1, k + 1: k}.get(n, n) for n in places]
            if is_better(*([fit(*p) for p in pairwise(order)] for order in (exchange, places))):
                errors.exchanged.append((k, k + 1))
    return errors


def _flip_face(face: Face, flip: str) -> Face:
    return np.flip(face, tuple("yx".index(axis) for axis in flip))


def _likeness(first: Face, second: Face) -> float:
    """Highest correlation of two faces within the largest displacement of sections."""
    images = (band_pass(face / (face.max() or 1)) for face in (first, second))
    scores = correlation(*images)
    reach = [int(n * MAX_SHIFT) for n in first.shape]
    return float(scores[np.ix_(*(np.arange(-r, r + 1) for r in reach))].max())
