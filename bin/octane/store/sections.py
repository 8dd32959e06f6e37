"""Section boundaries of a stacked volume, as its metadata records them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

from octane.core.errors import OctaneError
from octane.store.image import Attributes

__all__ = ["Section", "noted_sections", "read_sections", "rescaled", "sections_from"]


@dataclass(frozen=True)
class Section:
    """One section of a stacked volume.

    Attributes
    ----------
    name
        Store that it came from; ``missing`` for a gap.
    number
        Place in the numbering of the subject's sections.
    start, stop
        First plane, and the one after the last, at the volume's finest resolution.
    missing
        Whether it is a blank slab that stands for a section that was not imaged.
    """

    name: str
    number: int
    start: int
    stop: int
    missing: bool = False


def read_sections(attributes: Attributes, planes: int) -> list[Section]:
    """Sections of a volume of ``planes`` planes; the whole of it as one where none are noted."""
    noted = cast("list[Mapping[str, object]]", attributes.get("sections", []))
    found = [Section(**cast("dict[str, str | int]", dict(entry))) for entry in noted]  # ty: ignore
    return found or [Section("volume", 1, 0, planes)]


def sections_from(starts: Sequence[int], planes: int) -> list[Section]:
    """Sections of a volume of ``planes`` planes that begin at ``starts``.

    Raises
    ------
    OctaneError
        When these are no rising planes of the volume.
    """
    stops = [*starts[1:], planes]
    if not starts or any(not 0 <= a < b <= planes for a, b in zip(starts, stops, strict=True)):
        raise OctaneError(
            f"--section-starts is {' '.join(map(str, starts))}; give rising planes from 0 to "
            f"{planes - 1}."
        )
    return [
        Section(f"section {k}", k, a, b)
        for k, (a, b) in enumerate(zip(starts, stops, strict=True), start=1)
    ]


def noted_sections(sections: list[Section]) -> list[dict[str, object]]:
    """Sections as metadata."""
    return [asdict(section) for section in sections]


def rescaled(sections: list[Section], factor: float, planes: int) -> list[Section]:
    """Sections on a grid whose planes are ``factor`` times as thick, ``planes`` in all.

    Both grids have the same centre, and a plane belongs to the section that its centre lies in.
    """
    before = max(s.stop for s in sections)

    def moved(plane: int) -> int:
        border = (plane - before / 2) / factor + planes / 2
        return min(planes, max(0, math.ceil(border - 0.5 - 1e-9)))

    return [replace(s, start=moved(s.start), stop=moved(s.stop)) for s in sections]
