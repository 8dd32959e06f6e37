"""Linear interpolation of images on a displaced pixel grid."""

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from octane.layout.mosaic import Position


def sample_linear(
    images: npt.NDArray,
    start: Position,
    step: complex,
    shape: tuple[int, ...],
    *,
    inside: tuple[Position, Position] | None = None,
    beyond: float = np.nan,
) -> npt.NDArray:
    """Interpolate images (n, y, x) linearly on a rotated grid of ``shape``.

    Parameters
    ----------
    start
        Position (y, x) of the first pixel, in pixels of the images.
    step
        Vector from a pixel to the one below it, y + ix; that to the one on its right is i times it.
    inside
        Lowest and highest positions that the images cover, by default the centres of their corner
        pixels; values outside are ``beyond``.
    """
    if images.dtype.kind == "c":
        # A product of complex numbers would carry an infinite part into the other one.
        parts = (np.ascontiguousarray(part) for part in (images.real, images.imag))
        real, imaginary = (
            sample_linear(part, start, step, shape, inside=inside, beyond=beyond) for part in parts
        )
        return real + 1j * imaginary
    low, high = inside or ((0, 0), (images.shape[1] - 1, images.shape[2] - 1))
    places = np.array([*start, step.real, step.imag, *low, *high], np.float64)
    result = np.empty((len(images), *shape), images.dtype)
    sampler(images.dtype)(images, places, beyond, result)
    return result


@cache
def sampler(dtype: np.dtype) -> Callable[..., None]:
    """Compile the loops of :func:`sample_linear` for images of this type."""
    # Here, because numba takes a third of a second to import.
    from octane.core.compiled import compiled

    images = f"{dtype.name}[:, :, ::1]"
    return compiled(f"void({images}, float64[::1], float64, {images})")(_sample)


def _sample(images: np.ndarray, places: np.ndarray, beyond: float, result: np.ndarray) -> None:
    """Interpolate the result row by row, in all images."""
    height, width = images.shape[1], images.shape[2]
    columns = result.shape[2]
    top, left = np.empty(columns, np.int64), np.empty(columns, np.int64)
    down, right = np.empty(columns, result.dtype), np.empty(columns, result.dtype)
    one = result.dtype.type(1)
    for i in range(result.shape[1]):
        for j in range(columns):
            y = places[0] + places[2] * i - places[3] * j
            x = places[1] + places[3] * i + places[2] * j
            top[j], left[j] = -1, j
            if places[4] <= y <= places[6] and places[5] <= x <= places[7]:
                y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
                top[j], left[j] = min(int(y), max(height - 2, 0)), min(int(x), max(width - 2, 0))
                down[j], right[j] = y - top[j], x - left[j]
        first = 0
        while first < columns:
            # Pixels whose samples lie side by side become vectors.
            above, before, stop = top[first], left[first], first + 1
            while stop < columns and top[stop] == above and left[stop] - stop == before - first:
                stop += 1
            r, d, n = right[first:stop], down[first:stop], stop - first
            below, after = min(above + 1, height - 1), min(before + 1, width - 1)
            for k in range(len(images)):
                line = result[k, i, first:stop]
                if above < 0:
                    line[:] = beyond
                    continue
                a, b = images[k, above, before : before + n], images[k, above, after : after + n]
                c, e = images[k, below, before : before + n], images[k, below, after : after + n]
                for j in range(n):
                    upper = (one - r[j]) * a[j] + r[j] * b[j]
                    lower = (one - r[j]) * c[j] + r[j] * e[j]
                    line[j] = (one - d[j]) * upper + d[j] * lower
            first = stop
