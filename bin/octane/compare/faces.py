"""Faces of sections: their first and last planes, and jumps between them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.compare.correlation import finite
from octane.core.records import JumpFigures

FACE_EDGE = 64
"""Longest edge of a compared face, pixels."""
MEAN_PLANES = 4
"""Planes averaged into a face, which reduces speckle."""
LEAST_TISSUE = 16
"""Minimum pixels of tissue that two compared faces share."""
SHARED_FRACTION = 0.4
"""Minimum fraction of the larger tissue that they share."""

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
        self.shape, self.step = shape, max(1, -(-max(shape) // FACE_EDGE))
        self.ends = {number: faces for number, faces in ends.items() if len(faces[0])}
        size = [-(-n // self.step) for n in shape]
        self.sums = {n: [np.zeros(size) for _ in faces] for n, faces in self.ends.items()}
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

    def divide(self, factors: Mapping[int, Sequence[float]]) -> "Faces":
        """Copy whose faces are divided by factors, one for each face of a section."""
        copy = Faces(self.ends, self.shape)
        copy.sums = {
            n: [face / by for face, by in zip(faces, factors[n], strict=True)]
            for n, faces in self.sums.items()
        }
        return copy


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
    shown = face[(face >= planes[0]) & (face <= planes[-1])]
    if not len(shown):
        return None
    seen = np.abs(block[np.searchsorted(planes, shown)])
    mean = seen.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        mean = finite(seen).mean(axis=0, dtype=np.float64)
    pixels = [np.arange(r.start, r.stop) // step for r in area]
    (rows, first), (columns, left) = (np.unique(p, return_index=True) for p in pixels)
    part = np.add.reduceat(np.add.reduceat(mean, first, axis=0), left, axis=1)
    return FacePart(np.ix_(rows, columns), part * len(shown) / len(face))


def boundaries(faces: Faces) -> dict[int, float]:
    """Factor by which brightness jumps where a section begins, by section number.

    The jump is from the previous section's last planes to the first ones, less the trend next to
    them: anatomy changes along z as well. Where sections are blended, it is the largest jump from
    face to face through the blended planes, less the trend outside them. ``faces`` hold the
    :func:`ends_of` each section. Sections that do not follow another, or share no tissue with it,
    are left out.
    """
    jumps_by_number: dict[int, float] = {}
    for before, number in pairwise(faces.sums):
        if number != before + 1:
            continue
        within = _trend(faces, before, 3, 1), _trend(faces, number, _clear(faces, number), 2)
        crossed = [(before, 1), (number, 0)]
        crossed += [(number, face) for face in range(CLEAR_FACE + 1, len(faces.ends[number]))]
        jumps = []
        for (one, upper), (other, lower) in pairwise(crossed):
            jump = ratio(faces.sums[other][lower], faces.sums[one][upper])
            if jump is not None:
                distance = faces.ends[other][lower].mean() - faces.ends[one][upper].mean()
                low, high = distance * min(within), distance * max(within)
                jumps.append(jump - np.clip(jump, low, high))
        if jumps:
            jumps_by_number[number] = float(np.exp(max(jumps, key=abs)))
    return jumps_by_number


def mean_jumps(before: Faces, after: Faces) -> JumpFigures | None:
    """Jumps at the same boundaries without and with a correction; None if none is in both."""
    one, other = boundaries(before), boundaries(after)
    shared = one.keys() & other.keys()
    if not shared:
        return None
    means = (np.mean([abs(np.log(jumps[n])) for n in sorted(shared)]) for jumps in (one, other))
    return JumpFigures(before=float(np.expm1(next(means))), after=float(np.expm1(next(means))))


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
            change = ratio(sums[lower], sums[upper]) if distance else None
            if change is not None:
                return float(change / distance)
    return 0.0


def ends_of(planes: npt.NDArray[np.int64], blended: int = 0) -> Ends:
    """First and last planes of a section, which are its faces, and those next to each.

    If the first ``blended`` planes are blended with the section above, those next to the first ones
    lie below these, and more faces follow: the first that is not blended (in a section that is
    blended to its end, the last), then all between the section's first planes and that one.
    """
    clear = planes[min(blended, max(len(planes) - MEAN_PLANES, 0)) :]
    ends = (
        planes[:MEAN_PLANES],
        planes[-MEAN_PLANES:],
        clear[MEAN_PLANES : 2 * MEAN_PLANES],
        clear[-2 * MEAN_PLANES : -MEAN_PLANES],
    )
    if not blended:
        return ends
    starts = range(MEAN_PLANES, min(blended + MEAN_PLANES, len(planes)), MEAN_PLANES)
    return *ends, clear[:MEAN_PLANES], *(planes[start : start + MEAN_PLANES] for start in starts)


def ratio(one: Face, other: Face) -> float | None:
    """Median log ratio where both have tissue; None if they share too little."""
    tissue = [face > face.mean() for face in (one, other)]
    both = tissue[0] & tissue[1]
    if both.sum() < max(LEAST_TISSUE, SHARED_FRACTION * max(t.sum() for t in tissue)):
        return None
    return float(np.median(np.log(one[both] / other[both])))
