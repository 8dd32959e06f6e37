"""A synthetic serial-section OCT subject, as functions of physical position.

Every value depends on its position (and, for speckle, on the tile's own random stream) alone, so
that a subject of any size is made tile by tile and two tiles agree where they overlap. Positions
are micrometres in the subject: z from the first section's surface, y and x from the first tile's
nominal edge.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.config.params import PhantomParameters
from octane.core.geometry import Vector
from octane.store.mosaic_grid import Position, Tile

Axis = npt.NDArray[np.floating]
Block = npt.NDArray[np.float32]

EDGE_UM = 15.0
"""Width of the transition between tissues: about what an OCT resolves, and wider than a voxel."""

LAYERS = ((1.0, 0.62), (0.93, 0.95), (0.84, 0.74), (0.74, 0.9), (0.66, 1.3))
"""Outer radius (1 is the surface) and reflectivity of each layer, from the pia to white matter."""

BACKGROUND = 0.06
"""Reflectivity of the agarose around the tissue."""

SCALE = 1000.0
"""Grey levels of reflectivity 1."""


@dataclass(frozen=True)
class Subject:
    """Sizes of a subject in micrometres and voxels.

    Attributes
    ----------
    extent
        Size of the stacked subject (z, y, x) in micrometres.
    pitch
        Distance between neighbouring tiles (y, x) in micrometres.
    tile_extent
        Size of a full tile (z, y, x) in micrometres.
    edge_tile
        Voxels of the last tile in y and x.
    """

    extent: Vector
    pitch: Position
    tile_extent: Vector
    edge_tile: tuple[int, int]

    @classmethod
    def of(cls, p: PhantomParameters) -> "Subject":
        """Sizes that follow from the parameters."""
        tile = [n * s for n, s in zip(p.tile_shape, p.voxel_size, strict=True)]
        pitch = [e * (1 - o) for e, o in zip(tile[1:], p.overlap, strict=True)]
        last = [max(1, round(n * (1 - p.edge_fraction))) for n in p.tile_shape[1:]]
        across = [
            (k - 1) * d + n * s
            for k, d, n, s in zip(p.tiles, pitch, last, p.voxel_size[1:], strict=True)
        ]
        return cls(
            (p.sections * p.section_thickness, across[0], across[1]),
            (pitch[0], pitch[1]),
            (tile[0], tile[1], tile[2]),
            (last[0], last[1]),
        )


def _step(x: npt.NDArray, width: float) -> npt.NDArray:
    """Smooth step from 0 to 1 around 0."""
    return 0.5 * (1 + np.tanh(x / width))


def tissue(subject: Subject, z: Axis, y: Axis, x: Axis) -> Block:
    """Reflectivity of the tissue, without bias, shading, attenuation or speckle.

    A folded, layered ellipsoid with white matter, two ventricles and fibre bundles in agarose.

    Parameters
    ----------
    subject
        Sizes.
    z, y, x
        Positions in micrometres, one array per axis.

    Returns
    -------
    array
        (len(z), len(y), len(x)) float32, about 0 to 1.3.
    """
    ez, ey, ex = subject.extent
    zz = z[:, None, None] / ez
    v = ((y - ey / 2) / (0.44 * ey))[None, :, None]
    u = ((x - ex / 2) / (0.45 * ex))[None, None, :]
    angle = np.arctan2(v, u)
    # Taller in the middle of the stack, with folds that wander from section to section.
    size = 0.86 + 0.14 * np.sin(np.pi * np.clip(zz, 0, 1))
    folds = 1 + 0.05 * np.sin(7 * angle + 4 * zz) + 0.02 * np.sin(17 * angle - 9 * zz)
    radius = np.hypot(u, v) / (size * folds)
    width = EDGE_UM / (0.44 * min(ey, ex))
    value = np.full(radius.shape, BACKGROUND)
    inner = BACKGROUND
    for outer, reflectivity in LAYERS:
        value += (reflectivity - inner) * _step(outer - radius, width)
        inner = reflectivity
    bundles = 0.12 * np.sin(2 * np.pi * (y[None, :, None] + 0.6 * x[None, None, :]) / 90.0)
    value += bundles * _step(0.6 - radius, 4 * width)
    for side in (-1, 1):
        ventricle = np.hypot((u - side * 0.2) / 0.12, (v + 0.05) / 0.24)
        value += (0.3 - LAYERS[-1][1]) * _step(1 - ventricle, 8 * width) * (radius < 1)
    return np.maximum(value, BACKGROUND / 2).astype(np.float32)


def bias_field(subject: Subject, half_range: float, z: Axis, y: Axis, x: Axis) -> Block:
    """The smooth multiplicative field that N4 is to find; same axes as :func:`tissue`.

    Its logarithm runs over about -half_range to half_range.
    """
    ez, ey, ex = subject.extent
    wz = np.cos(np.pi * z / ez)[:, None, None]
    wy = np.cos(np.pi * (y / ey - 0.1))[None, :, None]
    wx = np.sin(np.pi * (0.9 * x / ex - 0.4))[None, None, :]
    return np.exp(half_range * (0.45 * wx + 0.35 * wy + 0.2 * wz * wx)).astype(np.float32)


def attenuation(per_millimeter: float, depth: Axis) -> npt.NDArray[np.float32]:
    """Loss with depth below a section's surface (micrometres), one value per plane."""
    return np.exp(-per_millimeter * depth / 1000).astype(np.float32)


def shading(strength: float, tile_extent: Position, y: Axis, x: Axis) -> npt.NDArray[np.float32]:
    """Vignetting of one tile, (y, x): 1 at its centre, 1 - strength at its corners.

    ``y`` and ``x`` are micrometres from the full tile's edge.
    """
    v = 2 * y / tile_extent[0] - 1
    u = 2 * x / tile_extent[1] - 1
    loss = strength * (v[:, None] ** 2 + u[None, :] ** 2) / 2
    return np.asarray(1 - loss, np.float32)


def section_gain(seed: int, section: int, half_range: float) -> float:
    """Brightness of a section: its logarithm is uniform over -half_range to half_range."""
    generator = np.random.default_rng([seed, section, 1])
    return float(np.exp(generator.uniform(-half_range, half_range)))


def speckle(looks: float, shape: tuple[int, ...], stream: list[int]) -> Block:
    """Multiplicative speckle of mean 1 and variance 1/looks; ``stream`` seeds it."""
    generator = np.random.default_rng(stream)
    return np.asarray(generator.standard_gamma(looks, shape, np.float32) / looks, np.float32)


def stage_errors(p: PhantomParameters, section: int, tiles: list[Tile]) -> dict[Tile, Position]:
    """Error of the stage at each tile of a section in micrometres; the first tile has none."""
    generator = np.random.default_rng([p.seed, section])
    moves = generator.uniform(-p.position_error, p.position_error, (len(tiles), 2))
    moves[0] = 0
    return {tile: (float(dy), float(dx)) for tile, (dy, dx) in zip(tiles, moves, strict=True)}
