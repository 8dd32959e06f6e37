"""Nearest voxels of a section in place of interpolated ones, for values such as angles."""

import numpy as np
import numpy.typing as npt

from octane.layout.mosaic import Position
from octane.processes.stack.levelling import TiltedPlanes


def nearest_samples(places: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Round places between samples to the nearest sample."""
    # Halves go up in spite of rounding errors: otherwise a row would be taken twice and the next
    # one left out.
    return np.floor(places + (0.5 + 1e-6))


def sample_nearest(
    images: npt.NDArray,
    start: Position,
    step: complex,
    shape: tuple[int, ...],
    inside: tuple[Position, Position],
) -> npt.NDArray:
    """Nearest pixels of images (n, y, x) on a rotated grid of ``shape``; 0 where not ``inside``.

    The arguments are those of :func:`octane.processes.stack.sampling.sample_linear`.
    """
    i, j = np.ogrid[: shape[0], : shape[1]]
    y = start[0] + step.real * i - step.imag * j
    x = start[1] + step.imag * i + step.real * j
    (top, left), (bottom, right) = inside
    beyond = (y < top) | (y > bottom) | (x < left) | (x > right)
    height, width = images.shape[1:]
    rows = np.clip(nearest_samples(y), 0, height - 1).astype(np.int64)
    columns = np.clip(nearest_samples(x), 0, width - 1).astype(np.int64)
    values = images.reshape(len(images), -1).take(rows * width + columns, axis=1)
    values[:, beyond] = 0
    return values


def level_nearest(image: npt.NDArray, first: int, tilted: TiltedPlanes) -> npt.NDArray:
    """Nearest voxels along a tilted surface; 0 where the section was not imaged.

    The arguments are those of :func:`octane.processes.stack.levelling.level_linear`.
    """
    low, high = tilted.inside
    deeper = tilted.down[:, None] + tilted.across
    surface = np.ceil(tilted.surface + deeper - 1e-6)
    planes = np.empty((len(tilted.at), *image.shape[1:]), image.dtype)
    for plane, at in zip(planes, tilted.at, strict=True):
        z = at + deeper
        index = np.clip(nearest_samples(np.maximum(z, surface)) - first, 0, len(image) - 1)
        plane[...] = np.take_along_axis(image, index[None].astype(np.int64), axis=0)[0]
        plane[(z < low - 1e-6) | (z > high + 1e-6)] = 0
    return planes
