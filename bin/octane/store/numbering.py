"""The sections of a subject before they are a volume: their numbers, gaps, and whether they fit."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octane.core.errors import OctaneError
from octane.core.geometry import Vector, section_number
from octane.store.volumes import Volume

__all__ = ["Voxels", "gaps", "number_of", "require_alike"]


class Voxels(NamedTuple):
    """Of a section, as STACK will get it.

    Attributes
    ----------
    path
        Where it is stored, for messages.
    spacing
        (z, y, x), micrometres.
    dtype
        Type of the voxels.
    """

    path: Path
    spacing: Vector
    dtype: np.dtype


def number_of(section: Volume) -> int | None:
    """Number that stands in a section's metadata, or else in its name; None where there is none."""
    noted = section.attributes.get("section")
    number = noted.get("number") if isinstance(noted, dict) else None
    return section_number(section.path.name) if number is None else int(number)


def gaps(numbers: Sequence[int]) -> list[int]:
    """Numbers that are missing between the first and the last."""
    return [n for a, b in pairwise(sorted(numbers)) for n in range(a + 1, b)]


def require_alike(sections: Sequence[Voxels]) -> None:
    """Raise unless sections can be stacked.

    Raises
    ------
    OctaneError
        When two differ in voxel size or type; names them.
    """
    first = sections[0]
    for section in sections[1:]:
        if not np.allclose(section.spacing, first.spacing, rtol=1e-6):
            raise OctaneError(
                f"{section.path} has another voxel size than {first.path}; "
                "resample all sections to one --resolution."
            )
        if section.dtype != first.dtype:
            raise OctaneError(
                f"{section.path} is {section.dtype} and {first.path} is {first.dtype}; convert "
                "one, or resample all to one type (--resample_dtype)."
            )
