"""Sections: boundaries in a volume and, before stacking, numbers, gaps and compatibility."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np

from octane.config.validation import MOST_SECTIONS
from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector
from octane.core.orientation import are_same, spelled_orientation
from octane.store.stated import MOST_LISTED, Attributes, stated_orientation
from octane.store.volumes import Volume

MOST_DIGITS = 9
"""Most digits of a number in a name: more than any count of sections or tiles has."""
DISTANCE_TOLERANCE = 0.05
"""Tolerance of distances along z, relative to their mean: stages that round to micrometres stay
within it; a missing section, one cut twice as thick or a drifting focus exceeds it."""

V = TypeVar("V", bound=Volume)


@dataclass(frozen=True)
class Section:
    """One section of a stacked volume: its store and number, and its planes at the finest level.

    ``missing`` marks the blank slab of a section that was not imaged. ``blended`` is the depth in
    micrometres over which it is blended with the section above.
    """

    name: str
    number: int
    start: int
    stop: int
    missing: bool = False
    blended: float = 0.0


class Distances(NamedTuple):
    """Distances along z from one section to the next, micrometres: their mean, least and most."""

    mean: float
    least: float
    most: float

    @property
    def is_steady(self) -> bool:
        """True if all are equal within :data:`DISTANCE_TOLERANCE`."""
        return max(self.most - self.mean, self.mean - self.least) <= DISTANCE_TOLERANCE * self.mean

    def are_thickness(self, depth: float, voxel: float) -> bool:
        """True if they may be thicknesses: steady, at least a voxel, at most the imaged depth."""
        return self.is_steady and voxel * (1 - 1e-6) <= self.mean <= depth * (1 + 1e-6)

    def __str__(self) -> str:
        """The distance, or the range of distances if not steady."""
        return f"{self.mean:g}" if self.is_steady else f"{self.least:g} to {self.most:g}"


def distances(edges: Mapping[int, float]) -> Distances | None:
    """Distances between sections, from their first edges in z (micrometres, by number), or None.

    Across missing numbers the distance is divided evenly. Edges that go both up and down come from
    the focus and state no distance.
    """
    if len(edges) < 2:
        return None
    numbers, places = zip(*sorted(edges.items()), strict=True)
    steps = np.diff(places) / np.diff(numbers)
    if steps.min() <= 0 <= steps.max():
        return None
    mean = abs(places[-1] - places[0]) / (numbers[-1] - numbers[0])
    # Translations in millimetres or float32 have rounding errors.
    rounded = (float(f"{d:.6g}") for d in (mean, abs(steps).min(), abs(steps).max()))
    return Distances(*rounded)


def read_sections(attributes: Attributes, planes: int) -> list[Section]:
    """Sections in a volume's metadata; without any, all ``planes`` as a single section."""
    noted = cast("list[Mapping[str, object]]", attributes.get("sections", []))
    known = [field.name for field in fields(Section)]
    sections = [Section(**{k: entry[k] for k in known if k in entry}) for entry in noted]  # ty: ignore
    return sections or [Section("volume", 1, 0, planes)]


def rescale_sections(sections: list[Section], factor: float, planes: int) -> list[Section]:
    """Sections on a grid whose planes are ``factor`` times as thick, ``planes`` in all.

    Both grids have the same centre, and a plane belongs to the section that contains its centre.
    """
    before = max(s.stop for s in sections)

    def new_plane(plane: int) -> int:
        border = (plane - before / 2) / factor + planes / 2
        return min(planes, max(0, math.ceil(border - 0.5 - 1e-9)))

    return [replace(s, start=new_plane(s.start), stop=new_plane(s.stop)) for s in sections]


def attributes_on(volume: Volume, grid: Grid) -> Attributes:
    """Attributes of a volume, with its sections' planes converted to another grid."""
    sections = read_sections(volume.attributes, volume.grid.shape[0])
    moved = rescale_sections(sections, grid.spacing[0] / volume.grid.spacing[0], grid.shape[0])
    noted = cast("list[Mapping[str, object]]", volume.attributes.get("sections", []))
    entries = [{**a, "start": b.start, "stop": b.stop} for a, b in zip(noted, moved, strict=False)]
    return {**volume.attributes, **({"sections": entries} if entries else {})}


def imaged_plane(sections: list[Section], planes: int) -> int:
    """Imaged plane nearest the middle; the middle plane if all sections are missing."""
    imaged = [p for s in sections if not s.missing for p in range(s.start, s.stop)]
    return min(imaged, key=lambda plane: abs(plane - planes // 2), default=planes // 2)


def number_of(section: Volume) -> int | None:
    """Section number from the metadata, else from the name, or None."""
    noted = section.attributes.get("section")
    number = noted.get("number") if isinstance(noted, dict) else None
    return section_number(section.path.name) if number is None else int(number)


def number_or_first(section: Volume) -> int:
    """Section number; 1 for a single section, which needs none."""
    number = number_of(section)
    return 1 if number is None else number


def require_section(number: float, known: Collection[int | None], line: str) -> None:
    """Raise if the ``line`` of a table is of a section that is not ``known``."""
    if number not in known:
        raise InputError(
            f"{line}: the input has no section {number:g}; remove the row, or correct it."
        )


def gaps(numbers: Sequence[int]) -> list[int]:
    """Numbers missing between the first and the last."""
    if numbers and max(numbers) - min(numbers) > MOST_SECTIONS:
        raise InputError(
            f"Sections are numbered {min(numbers)} to {max(numbers)}; give consecutive numbers."
        )
    return [n for a, b in pairwise(sorted(numbers)) for n in range(a + 1, b)]


def list_numbers(numbers: Sequence[int | str]) -> str:
    """The first numbers of a list, and how many more there are."""
    more = f" and {len(numbers) - MOST_LISTED} more" if len(numbers) > MOST_LISTED else ""
    return ", ".join(map(str, numbers[:MOST_LISTED])) + more


def sections_by_number(
    sections: Sequence[V], allowed: int, closed: Collection[int | None] = ()
) -> dict[int, V]:
    """Sections by number, in the order given; a single section needs no number.

    Sections without a number, duplicate numbers, and more than ``allowed`` gaps raise an
    OctaneError with one line per problem. Numbers in ``closed``, of sections that are left out or
    cannot be opened, are not gaps.
    """
    by_number: dict[int, V] = {}
    problems: list[str] = []
    unnamed = [section.path for section in sections if number_of(section) is None]
    if unnamed and len(sections) > 1:
        more = f" (and {len(unnamed) - 1} more)" if unnamed[1:] else ""
        problems.append(
            f"{unnamed[0]}{more} lacks a number in its name; name sections like "
            "section_01.ome.zarr."
        )
    for section in sections:
        number = number_of(section)
        if number is None and len(sections) > 1:
            continue
        if (other := by_number.setdefault(number_or_first(section), section)) is not section:
            problems.append(
                f"{section.path} and {other.path} are both section {number}; rename one, "
                "remove it from the folder, or give the workflow --tile_pattern if they are tiles."
            )
    missing = [number for number in gaps(list(by_number)) if number not in closed]
    if len(missing) > allowed:
        problems.append(
            f"{sections[0].path.parent} lacks section {list_numbers(missing)} of "
            f"{min(by_number)} to {max(by_number)}; add what is missing, or give "
            f"--allow_missing_sections {len(missing)}."
        )
    if problems:
        raise InputError("\n".join(problems))
    return by_number


def require_alike(sections: Sequence[tuple[Path, Vector, np.dtype]]) -> None:
    """Raise unless sections, given by path, voxel size and type, can be stacked."""
    first, voxel_size, kind = sections[0]
    for path, spacing, dtype in sections[1:]:
        if not np.allclose(spacing, voxel_size, rtol=1e-6):
            raise InputError(
                f"{path} and {first} differ in voxel size; resample all sections to one "
                "--resolution."
            )
        if dtype != kind:
            raise InputError(
                f"{path} is {dtype} and {first} is {kind}; convert one, or resample all to one "
                "type (--resample_dtype)."
            )


def require_one_orientation(volumes: Sequence[Volume]) -> None:
    """Raise unless volumes of one subject state the same orientation, or none."""
    first, *others = [(volume.path, stated_orientation(volume.attributes)) for volume in volumes]
    for path, orientation in others:
        if not are_same(orientation, first[1]):
            stated = [spelled_orientation(one) or "none" for one in (orientation, first[1])]
            raise InputError(
                f"{path} states the orientation {stated[0]}, but {first[0]} {stated[1]}; correct "
                "one, or give the same --orientation for all."
            )


def section_number(name: str) -> int | None:
    """Number of a section in its store's name, or None.

    The digits after ``section``, ``slice``, ``slab`` or ``sec`` if the name contains one of these
    (``section_07_10um.ome.zarr`` and ``slice_z07_stitch_3d.ome.zarr`` are 7), else the last digits.
    An InputError names a number that is too large.
    """
    stem = name.removesuffix(".zarr").removesuffix(".ome")
    named = re.search(r"(?:section|slice|slab|sec)[ ._-]?z?(\d+)", stem, re.IGNORECASE)
    runs = [named[1]] if named else re.findall(r"\d+", stem)
    if runs and len(runs[-1].lstrip("0")) > MOST_DIGITS:
        raise InputError(
            f"{name} has a number of more than {MOST_DIGITS} digits, {runs[-1]}; rename it."
        )
    return int(runs[-1]) if runs else None


def blended_planes(depth: float, spacing: float) -> int:
    """The most planes in which sections can be blended over ``depth``, both in micrometres."""
    return math.ceil(depth / spacing - 1e-6)
