"""Planes of a levelled section: parallel to its tilted surface, interpolated linearly along z."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Line = npt.NDArray[np.float64]


class TiltedPlanes(NamedTuple):
    """Where planes of a levelled section lie in its image, in planes of the image (0: the first).

    ``at`` are their places in the middle of the section, (planes,); a pixel's are deeper by its
    ``down`` (y,) and ``across`` (x,). ``surface`` is the place of the surface in the middle, above
    which no plane is used. What lies outside ``inside`` was not imaged.
    """

    at: Line
    down: Line
    across: Line
    surface: float
    inside: tuple[float, float]

    def source_planes(self, n: int) -> slice:
        """Those of the image's ``n`` planes that are interpolated."""
        low = self.at[0] + (self.down.min() + self.across.min())
        high = max(self.at[-1], self.surface) + (self.down.max() + self.across.max())
        first = min(max(int(np.floor(low)), 0), n - 1)
        return slice(first, min(max(int(np.floor(high)) + 2, first + 1), n))


def level_linear(image: npt.NDArray, first: int, tilted: TiltedPlanes) -> npt.NDArray:
    """Interpolate planes along a tilted surface; 0 where the section was not imaged.

    ``image`` (z, y, x) has floating or complex values and begins with plane ``first`` of the
    section, the first of :meth:`TiltedPlanes.source_planes`. The same bits result from any part.
    """
    result = np.empty((len(tilted.at), *image.shape[1:]), image.dtype)
    if image.dtype.kind == "c":
        # A product of complex numbers would carry an infinite part into the other one.
        result.real, result.imag = (
            level_linear(part, first, tilted) for part in (image.real, image.imag)
        )
        return result
    limits = np.array([tilted.surface, *tilted.inside, first])
    _leveller(image.dtype)(
        np.ascontiguousarray(image), tilted.at, tilted.down, tilted.across, limits, result
    )
    return result


@cache
def _leveller(dtype: np.dtype) -> Callable[..., None]:
    """Compile the loops of :func:`level_linear` for images of this type."""
    # Here, because numba takes a third of a second to import.
    from octane.core.compiled import compiled

    images, line = f"{dtype.name}[:, :, ::1]", "float64[::1]"
    return compiled(f"void({images}, {line}, {line}, {line}, {line}, {images})")(_level)


def _level(
    image: np.ndarray,
    at: np.ndarray,
    down: np.ndarray,
    across: np.ndarray,
    limits: np.ndarray,
    result: np.ndarray,
) -> None:
    """Interpolate the result row by row."""
    surface, low, high, start = limits
    last, columns, one = len(image) - 1, result.shape[2], result.dtype.type(1)
    before, part = np.empty(columns, np.int64), np.empty(columns, result.dtype)
    for i in range(result.shape[1]):
        for k in range(result.shape[0]):
            for j in range(columns):
                deeper = down[i] + across[j]
                z = at[k] + deeper
                is_imaged = low - 1e-6 <= z <= high + 1e-6
                z = max(z, np.ceil(surface + deeper - 1e-6)) - start
                # Places within 1e-6 of a plane copy it.
                whole = np.floor(z + 0.5)
                z = whole if abs(z - whole) < 1e-6 else z
                z = min(max(z, 0.0), float(last))
                plane = np.floor(z)
                part[j] = z - plane
                before[j] = int(plane) if is_imaged else -1
            first = 0
            while first < columns:
                # Pixels between the same planes become vectors.
                plane, stop = before[first], first + 1
                while stop < columns and before[stop] == plane:
                    stop += 1
                line, lower = result[k, i, first:stop], part[first:stop]
                if plane < 0:
                    line[:] = 0
                else:
                    a = image[plane, i, first:stop]
                    b = image[min(plane + 1, last), i, first:stop]
                    for j in range(stop - first):
                        # Not 0 * b, which may be infinite.
                        mixed = (one - lower[j]) * a[j] + lower[j] * b[j]
                        line[j] = mixed if lower[j] > 0 else a[j]
                first = stop
