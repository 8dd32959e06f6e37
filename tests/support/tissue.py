"""Sections of textured tissue, displaced by known amounts."""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from octane.processes.stack.layout.displacement import IN_PLACE, Displacement

MARGIN = 40
GROUND = 0.6
"""Brightness of the background around an ellipse of tissue, relative to the tissue."""


def texture(shape: tuple[int, int], seed: int = 0) -> npt.NDArray[np.float64]:
    """Positive values with structures of 3 to 12 pixels; ``shape`` plus a margin on each side."""
    noise = np.random.default_rng(seed).normal(size=[n + 2 * MARGIN for n in shape])
    layers = [ndimage.gaussian_filter(noise, sigma) * sigma for sigma in (3, 6, 12)]
    return np.exp(1.5 * np.sum(layers, axis=0))


def seen(
    tissue: npt.NDArray[np.float64], displaced: Displacement = IN_PLACE
) -> npt.NDArray[np.float32]:
    """The centre of a texture, displaced by pixels."""
    shape = [n - 2 * MARGIN for n in tissue.shape]
    middle = ((shape[0] - 1) / 2, (shape[1] - 1) / 2)
    y, x = (p.astype(float) for p in np.indices(shape))
    at = np.array(displaced.undo(y, x, middle)) + MARGIN
    return ndimage.map_coordinates(tissue, at, order=3).astype(np.float32)


def speckled(face: npt.NDArray, looks: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A face with multiplicative speckle."""
    return (face * rng.gamma(looks, 1 / looks, face.shape)).astype(np.float32)


def ellipse(shape: tuple[int, int], seed: int) -> npt.NDArray[np.float32]:
    """Textured tissue in an ellipse, the same for all seeds, on a uniform background."""
    noise = np.random.default_rng(seed).normal(size=shape)
    layers = np.sum([ndimage.gaussian_filter(noise, sigma) * sigma for sigma in (2, 4, 8)], axis=0)
    v, u = ((at - n / 2) / (0.4 * n) for at, n in zip(np.indices(shape), shape, strict=True))
    there = ndimage.gaussian_filter((np.hypot(v, u) < 1).astype(float), 1.5)
    return (there * np.exp(0.3 * layers / layers.std()) + GROUND * (1 - there)).astype(np.float32)
