"""Tiles of a section as STITCH sees them: their means over depth, of one tissue."""

import numpy as np
from scipy import ndimage

from octane.core.geometry import vector
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement


def light(shape, loss, *, tilt=0.0):
    """Light that falls off to the corners by ``loss``, and from one side to the other."""
    y, x = ((2 * np.arange(n) + 1) / n - 1 for n in (shape, shape))
    made = 1 - loss * (y[:, None] ** 2 + x**2) / 2 + tilt * (y[:, None] + 0.5 * x)
    return made / made.mean()


def tissue(rng, shape):
    """Tissue with structure of all sizes, as bright as 1000, and agarose around it."""
    fine, coarse = (ndimage.gaussian_filter(rng.standard_normal(shape), s) * s for s in (3, 30))
    tissue = np.exp(0.3 * fine + 0.6 * coarse)
    y, x = (np.linspace(-1, 1, n) for n in shape)
    distance = np.hypot(y[:, None], x)
    return 1000 * np.where(distance < 1, tissue, 0.05)


def seen_tiles(rng, flat, count=3, overlap=0.2, noise=0.05, dark=0.0, cut=0):
    """Projections of tiles with their placement, with speckle of ``noise`` per pixel."""
    n = len(flat)
    pitch = round(n * (1 - overlap))
    whole = tissue(rng, [(count - 1) * pitch + n] * 2)
    shape = (1, count * n - cut, count * n)
    edges = (vector(1, *flat.shape), vector(*shape))
    grid = MosaicGrid(shape, (1, n, n), vector(1, 1, 1), vector(0, 0, 0), *edges, None)
    positions = grid.positions((pitch, pitch))
    tiles = {}
    for tile, (y, x) in positions.items():
        part = whole[int(y) : int(y) + n, int(x) : int(x) + n]
        lit = dark + part * flat * rng.gamma(noise**-2, noise**2, flat.shape)
        height = n - cut if tile[0] == count - 1 else n
        tiles[tile] = lit[:height].astype(np.float32)
    return tiles, TilePlacement(grid, positions)
