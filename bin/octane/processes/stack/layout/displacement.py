"""Displacement of a section.

A displacement moves a position ``q`` to ``middle + shift + R (q - middle)``; a positive rotation
turns x towards y.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.config.sheets import read_rows
from octane.core.errors import InputError
from octane.core.geometry import Grid
from octane.core.units import comma_in, plain_number
from octane.layout.mosaic import Position
from octane.layout.sections import require_section

COLUMNS = ("section", "y", "x", "rotation")
"""Section number, then its displacement in micrometres and degrees."""
NEGLIGIBLE = 0.25
"""Displacement at a section's border, voxels, below which it is not undone: interpolation would
blur it for nothing."""


class Displacement(NamedTuple):
    """Displacement of a section: micrometres (y, x), then degrees about the middle."""

    y: float = 0.0
    x: float = 0.0
    rotation: float = 0.0

    @property
    def turn(self) -> complex:
        """Complex factor that rotates y + ix."""
        return complex(np.exp(-1j * np.deg2rad(self.rotation)))

    def round_off(self) -> "Displacement":
        """Round it, so that machines agree; zeros become positive."""
        digits = zip(self, (3, 3, 6), strict=True)
        return Displacement(*(round(value, places) + 0.0 for value, places in digits))

    def apply(
        self, y: npt.NDArray, x: npt.NDArray, middle: Position
    ) -> tuple[npt.NDArray, npt.NDArray]:
        """Positions after the displacement, micrometres."""
        c, s = self.turn.real, -self.turn.imag
        v, u = y - middle[0], x - middle[1]
        return middle[0] + self.y + c * v + s * u, middle[1] + self.x - s * v + c * u

    def undo(self, y: npt.NDArray, x: npt.NDArray, middle: Position) -> list[npt.NDArray]:
        """Positions before the displacement, micrometres."""
        back = Displacement(rotation=-self.rotation)
        return list(back.apply(y - self.y, x - self.x, middle))

    def reach(self, radius: float) -> float:
        """Largest possible displacement within ``radius`` of the middle, micrometres."""
        return float(np.hypot(self.y, self.x) + radius * np.deg2rad(abs(self.rotation)))


IN_PLACE = Displacement()


def read_displacements(path: Path, numbers: Collection[int], grid: Grid) -> dict[int, Displacement]:
    """Displacements in a CSV table, by section number; rows with empty cells give none.

    ``numbers`` are those of the sections, and ``grid`` is the volume's before they are moved.
    Raises an InputError that names the line: of another section, a second row for one, or a
    displacement farther than the volume is wide.
    """
    rows = read_rows(path, COLUMNS)
    is_moving = any(name in row for _, row in rows for name in COLUMNS[1:])
    if is_moving and not np.isclose(*grid.spacing[1:], rtol=1e-6):
        raise InputError(
            f"{path} displaces sections, which needs voxels as high as wide, but they have "
            f"{grid.spacing[1]:g} x {grid.spacing[2]:g} micrometre (y x); resample to one "
            "--resolution, or omit --displacements."
        )
    displacements: dict[int, Displacement | None] = {}
    for line, row in rows:
        try:
            number = plain_number(row["section"])
            displacement = _displacement(row)
        except (KeyError, ValueError) as error:
            remedy = "invalid row; give a section number, and y, x and rotation as numbers with "
            remedy += "decimal points, or leave all three empty."
            raise InputError(f"{path}, line {line}: {comma_in(row) or remedy}") from error
        require_section(number, numbers, f"{path}, line {line}")
        if number in displacements:
            raise InputError(
                f"{path}, line {line}: a second row for section {number:g}; remove one."
            )
        width = max(grid.extent[1:])
        # Also false for NaN.
        if displacement is not None and not (
            math.hypot(displacement.y, displacement.x) <= width
            and abs(displacement.rotation) <= 180
        ):
            raise InputError(
                f"{path}, line {line}: section {number:g} is displaced by more than the volume's "
                f"width, {width:g} micrometre, or 180 degrees; give micrometres and degrees."
            )
        displacements[int(number)] = displacement
    return {number: move for number, move in displacements.items() if move is not None}


def _displacement(row: dict[str, str]) -> Displacement | None:
    """Displacement in the cells of a row; None if all are empty."""
    values = [plain_number(row[name]) for name in COLUMNS[1:] if name in row]
    if len(values) not in (0, 3):
        raise ValueError("a displacement has three values")
    return Displacement(*values) if values else None
