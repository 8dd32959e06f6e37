"""Sections of textured tissue, displaced by known amounts."""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from octane.stitch.displacement import IN_PLACE, Displacement

MARGIN = 40


def texture(shape: tuple[int, int], seed: int = 0) -> npt.NDArray[np.float64]:
    """Positive values with structures of 3 to 12 pixels, wider than ``shape`` by a margin."""
    noise = np.random.default_rng(seed).normal(size=[n + 2 * MARGIN for n in shape])
    layers = [ndimage.gaussian_filter(noise, sigma) * sigma for sigma in (3, 6, 12)]
    return np.exp(1.5 * np.sum(layers, axis=0))


def seen(
    tissue: npt.NDArray[np.float64], displaced: Displacement = IN_PLACE
) -> npt.NDArray[np.float32]:
    """The middle of a texture, displaced by pixels."""
    shape = [n - 2 * MARGIN for n in tissue.shape]
    middle = ((shape[0] - 1) / 2, (shape[1] - 1) / 2)
    y, x = (p.astype(float) for p in np.indices(shape))
    at = np.array(displaced.before(y, x, middle)) + MARGIN
    return ndimage.map_coordinates(tissue, at, order=3).astype(np.float32)


def speckled(face: npt.NDArray, looks: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A face under multiplicative speckle."""
    return (face * rng.gamma(looks, 1 / looks, face.shape)).astype(np.float32)
