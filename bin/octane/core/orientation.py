"""Anatomical orientation of an image's axes, as OME-Zarr (RFC-4), NIfTI and ITK state it.

An orientation says from where to where the subject runs along each axis, in RFC-4's words. A code
gives the last word of each by its letter: in ``PIR``, z runs to posterior, y to inferior and x to
the right. Directions are ITK's: a column for each of x, y and z, along left, posterior, superior.
"""

# NumPy is imported by the functions that use it, so that parameters are read before it.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Orientation = tuple[str, str, str]
"""Orientation of z, y and x, such as ``anterior-to-posterior``; empty for an axis without one."""

UNSTATED: Orientation = ("", "", "")

PAIRS = (
    ("right", "left"),
    ("anterior", "posterior"),
    ("inferior", "superior"),
    ("ventral", "dorsal"),
    ("dorsal", "palmar"),
    ("dorsal", "plantar"),
    ("rostral", "caudal"),
    ("cranial", "caudal"),
    ("proximal", "distal"),
    ("superficial", "deep"),
    ("apical", "basal"),
    ("apex", "base"),
)
"""Ends of an axis in RFC-4; an orientation runs from either of them to the other."""
VALUES = tuple(f"{a}-to-{b}" for pair in PAIRS for a, b in (pair, pair[::-1]))
"""RFC-4's vocabulary."""
LETTERS = {value.rpartition("-")[2][0].upper(): value for value in VALUES[:6]}
"""Orientation by the letter of its end: L, R, P, A, S, I."""
BRAIN = {"rostral": "anterior", "caudal": "posterior", "dorsal": "superior", "ventral": "inferior"}
"""Ends of a brain's axes in the words of NIfTI, ITK and atlases."""
TOLERANCE = 1e-3
"""Largest deviation of a direction's components from 0 and 1 along an axis.

The float32 numbers of a NIfTI's quaternion turn axes by up to 0.04 degrees.
"""


def read_orientation(words: Sequence[str]) -> Orientation:
    """Orientation from the code of z, y and x (``PIR``), or from one of RFC-4's values for each.

    Raises a ValueError for other words, and for two axes along the same one of the subject.
    """
    code = "".join(words).upper()
    if len(code) == 3:
        words = [LETTERS.get(letter, letter) for letter in code]
    values = [word.lower() for word in words]
    if len(values) != 3 or any(value not in VALUES for value in values):
        raise ValueError(
            "give where z, y and x run to, each by one letter of R L, A P and S I, such as PIR, "
            "or one value of OME-Zarr for each, such as 'anterior-to-posterior "
            "superior-to-inferior left-to-right'"
        )
    z, y, x = values
    if not are_distinct((z, y, x)):
        raise ValueError(
            "two axes run along the same axis of the subject; give three different ones"
        )
    return z, y, x


def are_distinct(orientation: Orientation) -> bool:
    """Tell whether no two axes run along the same one of the subject."""
    stated = [frozenset(_plain(value)) for value in orientation if value]
    return len(set(stated)) == len(stated)


def directions_of(orientation: Orientation) -> npt.NDArray[np.float64] | None:
    """ITK's direction matrix (3, 3), columns x, y, z; None if an axis is not along ITK's own axes.

    Rostral, caudal, dorsal and ventral are read as a brain's anterior, posterior, superior and
    inferior.
    """
    import numpy as np

    matrix = np.zeros((3, 3))
    for column, value in zip((2, 1, 0), orientation, strict=True):
        ends = _plain(value)
        for row, pair in enumerate(PAIRS[:3]):
            if sorted(ends) == sorted(pair):
                matrix[row, column] = 1.0 if ends == pair else -1.0
    # Each of the subject's axes must be that of one of the image's.
    return matrix if abs(np.linalg.det(matrix)) == 1 else None


def orientation_of(directions: Sequence[float], tolerance: float = TOLERANCE) -> Orientation:
    """Orientation of z, y, x with ITK's ``directions``, row by row; UNSTATED if oblique.

    A ``tolerance`` of 1 gives the nearest one.
    """
    import numpy as np

    matrix = np.reshape(directions, (3, 3))
    rows = np.abs(matrix).argmax(0)
    along = np.zeros((3, 3))
    along[rows, range(3)] = np.sign(matrix[rows, range(3)])
    if len(set(rows.tolist())) < 3 or not np.allclose(matrix, along, rtol=0, atol=tolerance):
        return UNSTATED
    values = []
    for column in (2, 1, 0):
        start, end = PAIRS[rows[column]][:: int(along[rows[column], column])]
        values.append(f"{start}-to-{end}")
    z, y, x = values
    return z, y, x


def contradict(stated: Orientation, other: Orientation) -> bool:
    """Tell whether an axis has two orientations; a brain's caudal is its posterior, and so on."""
    axes = zip(stated, other, strict=True)
    return any(own and its and _plain(own) != _plain(its) for own, its in axes)


def are_same(stated: Orientation, other: Orientation) -> bool:
    """Tell whether all axes have the same orientation, or none."""
    return [*map(_plain, stated)] == [*map(_plain, other)]


def overruled_orientation(stated: Orientation, given: Orientation | None) -> str:
    """Sentence about a stated orientation that ``given`` replaces; empty unless they contradict."""
    if given is None or not contradict(stated, given):
        return ""
    return (
        f"The stated orientation ({spelled_orientation(stated)}) is replaced by "
        f"{spelled_orientation(given)}, as --orientation says."
    )


def _plain(value: str) -> tuple[str, str]:
    """Ends of an axis, a brain's in the words of NIfTI, ITK and atlases."""
    start, _, end = value.partition("-to-")
    return BRAIN.get(start, start), BRAIN.get(end, end)


def code_of(orientation: Orientation) -> str:
    """Letters of where z, y and x run to; empty if :func:`directions_of` has none."""
    directions = directions_of(orientation)
    if directions is None:
        return ""
    values = orientation_of(directions.ravel().tolist())
    return "".join(value.rpartition("-")[2][0].upper() for value in values)


def spelled_orientation(orientation: Orientation) -> str:
    """Orientation in words: ``z anterior to posterior, y ...``; axes without one are left out."""
    axes = zip("zyx", orientation, strict=True)
    return ", ".join(f"{axis} {value.replace('-', ' ')}" for axis, value in axes if value)
