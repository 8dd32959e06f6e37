"""A tile's place, as a table states it, and the numbers in such tables."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from octane.core.errors import InputError
from octane.core.geometry import Vector
from octane.core.units import plain_number, without_comma
from octane.layout.mosaic import LARGEST_POSITION

Unit = Literal["micrometer", "pixel"]
SHOWN = 100
"""Most characters of a cell that a sentence quotes."""


class Place(NamedTuple):
    """Place of a tile.

    ``file`` is the path of the tile's file, or of the folder with its planes, as the table writes
    it but with forward slashes; ``number`` counts the tiles. Fields that it lacks are None.
    ``position`` is that of the tile's first voxel along z, y and x, of which only differences
    matter; z is 0 if the table has none.
    """

    file: str | None
    number: int | None
    section: int | None
    row: int | None
    column: int | None
    position: Vector
    unit: Unit

    def __str__(self) -> str:
        """The tile, in the words of its table."""
        if self.file is not None:
            name = self.file
        elif self.number is not None:
            name = f"tile {self.number}"
        else:
            name = f"row {self.row}, column {self.column}"
        return name if self.section is None else f"{name} of section {self.section}"


def stated_number(text: str | None, where: str) -> float:
    """Read a number; ``where`` begins the error's sentence with the file and the element."""
    try:
        number = plain_number(text or "")
    except ValueError:
        number = math.nan
    if mended := without_comma(text):
        raise InputError(f"{where} is '{text}', which has a comma; write {mended}.")
    if not abs(number) <= LARGEST_POSITION:
        stated = "is missing" if text is None else f"is '{text.strip()[:SHOWN]}'"
        raise InputError(
            f"{where} {stated}; give a number with a decimal point, up to {LARGEST_POSITION:g}."
        )
    return number


def stated_whole(text: str | None, where: str) -> int:
    """Read a whole number; other programs may write it as 3.0."""
    number = stated_number(text, where)
    if number % 1:
        raise InputError(f"{where} is {number:g}; give a whole number.")
    return int(number)


def with_slashes(file: str) -> str:
    """Write a path, perhaps of Windows, with forward slashes."""
    return file.replace("\\", "/")


def distinct_places(path: Path, places: Sequence[Place]) -> list[Place]:
    """Merge the places of a tile, such as of its channels; raise if they differ or none exists."""
    by_tile: dict[tuple[object, ...], Place] = {}
    for place in places:
        other = by_tile.setdefault(_tile_of(place), place)
        if other.position != place.position:
            raise InputError(
                f"{path} states two places for {place}; keep one, or, if the file holds several "
                "images, save each as its own file."
            )
    if not by_tile:
        raise InputError(f"{path} does not state the place of any tile; restore or correct it.")
    return list(by_tile.values())


def _tile_of(place: Place) -> tuple[object, ...]:
    if place.file is not None:
        return (place.section, place.file)
    if place.number is not None:
        return (place.section, place.number)
    return (place.section, place.row, place.column)
