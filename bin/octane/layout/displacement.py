"""Displacement of a section.

A displacement moves a position ``q`` to ``middle + shift + R (q - middle)``; a positive rotation
turns x towards y.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.layout.mosaic import Position


class Displacement(NamedTuple):
    """Displacement of a section: micrometres (y, x), then degrees about the middle."""

    y: float = 0.0
    x: float = 0.0
    rotation: float = 0.0

    @property
    def turn(self) -> complex:
        """Complex factor that rotates y + ix."""
        return complex(np.exp(-1j * np.deg2rad(self.rotation)))

    @property
    def rounded(self) -> "Displacement":
        """Rounded, so that machines agree; zeros are positive."""
        digits = zip(self, (3, 3, 6), strict=True)
        return Displacement(*(round(value, places) + 0.0 for value, places in digits))

    def of(
        self, y: npt.NDArray, x: npt.NDArray, middle: Position
    ) -> tuple[npt.NDArray, npt.NDArray]:
        """Positions after the displacement, micrometres."""
        c, s = self.turn.real, -self.turn.imag
        v, u = y - middle[0], x - middle[1]
        return middle[0] + self.y + c * v + s * u, middle[1] + self.x - s * v + c * u

    def before(self, y: npt.NDArray, x: npt.NDArray, middle: Position) -> list[npt.NDArray]:
        """Positions before the displacement, micrometres."""
        back = Displacement(rotation=-self.rotation)
        return list(back.of(y - self.y, x - self.x, middle))

    def reach(self, radius: float) -> float:
        """Largest possible displacement within ``radius`` of the middle, micrometres."""
        return float(np.hypot(self.y, self.x) + radius * np.deg2rad(abs(self.rotation)))


IN_PLACE = Displacement()
