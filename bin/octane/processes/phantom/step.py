"""PHANTOM: a synthetic serial-section OCT subject, written tile by tile, and its truth.

Every value depends only on its position (and, for speckle, on the tile's own random stream), so
that two tiles agree where they overlap. Positions are micrometres in the subject: z from the first
section's surface, y and x from the first tile's nominal edge. A section's surface may lie below its
first plane, under water; depths are measured from it. Further channels are contrasts of the same
tissue at the same places.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.config.parameters import ExecutionParameters
from octane.config.sheets import POSITION_COLUMNS
from octane.core.arrays import as_dtype
from octane.core.files import writing
from octane.core.geometry import Grid, Region, Vector, blocks, shape_of, vector
from octane.core.metrics import Metrics, write_json
from octane.core.progress import Progress
from octane.core.units import bytes_of
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.pipeline.workers import plan_workers, run_tiles
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.stack.layout.displacement import Displacement
from octane.store.stated import Attributes
from octane.store.writer import Level, create_image

Coordinates = npt.NDArray[np.floating]
Block = npt.NDArray[np.float32]
Truth = Callable[[Coordinates, Coordinates, Coordinates], Block]

EDGE_UM = 15.0
"""Width of the transition between tissues: about the resolution of OCT, and wider than a voxel."""

RADII = (1.0, 0.93, 0.84, 0.74, 0.66)
"""Outer radius of each layer, from the pia to white matter; 1 is the surface."""

BACKGROUND = 0.06
"""Reflectivity of the agarose around the tissue, and its value in every other contrast."""

WATER = 0.01
"""Reflectivity of the water above a section's surface, and its value in every other contrast."""

SCALE = 1000.0
"""Grey levels of reflectivity 1, or of a contrast's value 1."""

SLAB = 8
"""Planes rendered at once, so that the working arrays stay smaller than the tile."""
BYTES_PER_VOXEL = 96
"""Working arrays of the analytic tissue: about twelve float64 for each voxel of a slab."""


class Contrast(NamedTuple):
    """One channel: its name and number, the value of each layer, and the centre of its shading.

    Its number decides its speckle, bias field and brightness of sections. ``centre`` is the
    brightest place of a tile, (y, x) as fractions of it.
    """

    name: str
    number: int
    layers: tuple[float, ...]
    centre: Position = (0.5, 0.5)

    @property
    def stream(self) -> list[int]:
        """Last part of the seeds of a further channel."""
        return [self.number] if self.number else []

    @property
    def prefix(self) -> str:
        """Beginning of the names of a further channel's truth."""
        return f"{self.name}_" if self.number else ""


REFLECTANCE = Contrast("reflectance", 0, (0.62, 0.95, 0.74, 0.9, 1.3))
CONTRASTS = (
    REFLECTANCE,
    Contrast("retardance", 1, (0.2, 0.3, 0.42, 0.55, 1.1), (0.35, 0.6)),
    Contrast("attenuation", 2, (0.5, 0.7, 0.62, 0.85, 1.2), (0.6, 0.4)),
    Contrast("birefringence", 3, (0.15, 0.22, 0.34, 0.6, 1.0), (0.42, 0.35)),
)
"""Contrasts of polarisation-sensitive OCT whose values may be averaged."""

AXIS = "axis"
"""Name of the last of three channels or more: the angle of the fibres."""


class Subject(NamedTuple):
    """Sizes of a subject, (z, y, x): extent, pitch of its tiles and extent of a full tile in µm.

    ``edge_tile`` are the voxels of the last tile in y and x.
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


def _on_axes(z: Coordinates) -> Coordinates:
    """Depths that vary along z only, or (z, y, x), with three axes."""
    return z if z.ndim == 3 else z[:, None, None]


def _step(x: npt.NDArray, width: float, rise: npt.ArrayLike) -> npt.NDArray:
    """Smooth step from 0 to ``rise`` around 0, (1 + tanh(x / width)) / 2; overwrites x."""
    x *= -2 / width
    with np.errstate(over="ignore"):
        np.exp(x, out=x)
    x += 1
    return np.divide(rise, x, out=x)


def contrasts(p: PhantomParameters) -> list[Contrast]:
    """Channels whose values may be averaged: all, but for the axis as the last of three or more."""
    return [*CONTRASTS[: p.channels - (p.channels > 2)]]


def mosaic_channels(p: PhantomParameters) -> list[str]:
    """Names of the mosaics' channels, in order."""
    return [*(contrast.name for contrast in contrasts(p)), *[AXIS] * (p.channels > 2)]


def fiber_angle(subject: Subject, z: Coordinates, y: Coordinates, x: Coordinates) -> Block:
    """Angle of the fibres in degrees, from 0 to below 180, where it wraps; as :func:`tissue`."""
    ez, ey, ex = subject.extent
    y, x = (y[:, None], x[None, :]) if y.ndim == 1 else (y, x)
    turns = x / ex + 0.3 * np.sin(2 * np.pi * y / ey) + _on_axes(z) / (3 * ez)
    return np.mod(180 * turns.astype(np.float32), np.float32(180))


def tissue(
    subject: Subject,
    z: Coordinates,
    y: Coordinates,
    x: Coordinates,
    layers: tuple[float, ...] = REFLECTANCE.layers,
) -> Block:
    """Reflectivity of the tissue at positions in micrometres, about 0 to 1.3.

    A folded, layered ellipsoid with white matter, two ventricles and fibre bundles in agarose.
    ``y`` and ``x`` are axes, or positions of pixels (y, x); ``z`` is an axis or one of voxels.
    ``layers`` are the values of the layers, from the pia to white matter.
    """
    ez, ey, ex = subject.extent
    y, x = (y[:, None], x[None, :]) if y.ndim == 1 else (y, x)
    v, u = (y - ey / 2) / (0.44 * ey), (x - ex / 2) / (0.45 * ex)
    angle, distance = np.arctan2(v, u), np.hypot(u, v)
    # The sine of a sum splits into sines of its terms, which depend only on the plane or on z.
    waves = [
        (depth * np.sin(k * angle), depth * np.cos(k * angle), drift)
        for depth, k, drift in ((0.05, 7, 4), (0.02, 17, -9))
    ]
    width = EDGE_UM / (0.44 * min(ey, ex))
    bundles = 0.12 * np.sin(2 * np.pi * (y + 0.6 * x) / 90.0)
    rises = np.diff([BACKGROUND, *layers])
    ventricles = np.zeros_like(distance)
    for side in (-1, 1):
        ventricle = np.hypot((u - side * 0.2) / 0.12, (v + 0.05) / 0.24)
        ventricles += _step(1 - ventricle, 8 * width, 0.3 - layers[-1])
    value = np.empty((len(z), *distance.shape), np.float32)
    for start in range(0, len(z), SLAB):
        zz = _on_axes(z[start : start + SLAB]) / ez
        # Taller in the middle of the stack, with folds that wander from section to section.
        radius = np.ones((len(zz), *distance.shape))
        for sine, cosine, k in waves:
            radius += sine * np.cos(k * zz) + cosine * np.sin(k * zz)
        radius *= 0.86 + 0.14 * np.sin(np.pi * np.clip(zz, 0, 1))
        np.divide(distance, radius, out=radius)
        slab = BACKGROUND + ventricles * (radius < 1)
        for outer, rise in zip(RADII, rises, strict=True):
            slab += _step(outer - radius, width, rise)
        slab += _step(0.6 - radius, 4 * width, bundles)
        np.maximum(slab, BACKGROUND / 2, out=value[start : start + SLAB], casting="same_kind")
    return value


def bias_field(
    subject: Subject,
    half_range: float,
    z: Coordinates,
    y: Coordinates,
    x: Coordinates,
    channel: int = 0,
) -> Block:
    """The smooth multiplicative field that N4 must find; same axes as :func:`tissue`.

    Its logarithm runs over about -half_range to half_range. Those of further channels are mirrored.
    """
    ez, ey, ex = subject.extent
    y, x = ey - y if channel & 1 else y, ex - x if channel & 2 else x
    wz = np.cos(np.pi * _on_axes(z) / ez)
    wy = np.cos(np.pi * (y / ey - 0.1))[None, :, None]
    wx = np.sin(np.pi * (0.9 * x / ex - 0.4))[None, None, :]
    return np.exp(half_range * (0.45 * wx + 0.35 * wy + 0.2 * wz * wx)).astype(np.float32)


def shading(
    strength: float,
    tile_extent: Position,
    y: Coordinates,
    x: Coordinates,
    centre: Position = REFLECTANCE.centre,
) -> npt.NDArray[np.float32]:
    """Vignetting of one tile, (y, x): 1 at its centre, 1 - strength at the farthest corner.

    ``y`` and ``x`` are micrometres from the full tile's edge; ``centre`` is in tiles.
    """
    v = 2 * y / tile_extent[0] - 2 * centre[0]
    u = 2 * x / tile_extent[1] - 2 * centre[1]
    farthest = sum((2 * max(place, 1 - place)) ** 2 for place in centre)
    loss = strength * (v[:, None] ** 2 + u[None, :] ** 2) / farthest
    return np.asarray(1 - loss, np.float32)


def section_gain(p: PhantomParameters, section: int, contrast: Contrast) -> float:
    """Brightness of a section: its logarithm is uniform over the parameters' range."""
    generator = np.random.default_rng([p.seed, section, 1, *contrast.stream])
    half_range = p.section_steps
    return float(np.exp(generator.uniform(-half_range, half_range)))


def speckle(looks: float, shape: tuple[int, ...], stream: list[int]) -> Block:
    """Multiplicative speckle of mean 1 and variance 1/looks; ``stream`` seeds it."""
    generator = np.random.default_rng(stream)
    values = generator.standard_gamma(looks, shape, np.float32)
    values /= looks
    return values


def stage_errors(p: PhantomParameters, section: int, tiles: list[Tile]) -> dict[Tile, Position]:
    """Error of the stage at each tile of a section in micrometres; the first tile has none."""
    generator = np.random.default_rng([p.seed, section])
    moves = generator.uniform(-p.position_error, p.position_error, (len(tiles), 2))
    moves[0] = 0
    return {tile: (float(dy), float(dx)) for tile, (dy, dx) in zip(tiles, moves, strict=True)}


def displacements(p: PhantomParameters) -> list[Displacement]:
    """Displacement of each section, uniform over the parameters' range."""
    generator = np.random.default_rng([p.seed, 2])
    reach = (p.shift, p.shift, p.rotation)
    drawn = generator.uniform(-1, 1, (p.sections, 3)) * reach
    return [Displacement(*map(float, move)) for move in drawn]


def before_displacement(
    p: PhantomParameters, section: int, y: Coordinates, x: Coordinates
) -> tuple[Coordinates, Coordinates]:
    """Positions in the tissue of what the microscope sees at ``y`` and ``x`` in a section."""
    move = displacements(p)[section]
    if not any(move):
        return y, x
    _, ey, ex = Subject.of(p).extent
    before_y, before_x = move.undo(y[:, None], x[None, :], (ey / 2, ex / 2))
    return before_y, before_x


def _tiling(p: PhantomParameters, subject: Subject) -> MosaicGrid:
    nz, ty, tx = p.tile_shape
    shape = (
        nz,
        (p.tiles[0] - 1) * ty + subject.edge_tile[0],
        (p.tiles[1] - 1) * tx + subject.edge_tile[1],
    )
    spacing = vector(*p.voxel_size)
    size = vector(*(n * s for n, s in zip(shape, spacing, strict=True)))
    grid = Grid.covering((0, 0, 0), size, spacing)
    # A single row or column that is cut leaves no full tile: its own size is the chunk.
    tile = (nz, min(ty, shape[1]), min(tx, shape[2]))
    extent = vector(*(n * s for n, s in zip(tile, spacing, strict=True)))
    return MosaicGrid(shape, tile, spacing, grid.edge, extent, grid.extent, subject.pitch)


def render_tile(
    p: PhantomParameters,
    section: int,
    tile: Tile,
    shape: tuple[int, ...],
    position: Position,
    channel: int = 0,
    surface: Coordinates | None = None,
) -> npt.NDArray[np.float32]:
    """Voxels of one tile in grey levels, (z, y, x), as the microscope would see them.

    ``section`` is its index from 0, ``tile`` its row and column, ``shape`` its voxels, ``position``
    its true edge in the subject (y, x) in micrometres. The channel of the axis is in degrees.
    ``surface`` is the depth of the section's surface at each pixel, instead of ``p.surface``.
    """
    subject = Subject.of(p)
    depth, dy, dx = ((np.arange(n) + 0.5) * s for n, s in zip(shape, p.voxel_size, strict=True))
    y, x = dy + position[0], dx + position[1]
    below = depth[:, None, None] - (p.surface if surface is None else surface)
    z = section * p.section_thickness + below
    seen = before_displacement(p, section, y, x)
    if channel == len(contrasts(p)):
        return fiber_angle(subject, z, *seen)
    contrast = contrasts(p)[channel]
    if p.speckle_looks > 0:
        values = speckle(p.speckle_looks, shape, [p.seed, section, *tile, *contrast.stream])
    else:
        values = np.ones(shape, np.float32)
    values *= _lit(p, below, tissue(subject, z, *seen, contrast.layers), contrast)
    for start in range(0, len(z), SLAB):
        planes = slice(start, start + SLAB)
        values[planes] *= bias_field(subject, p.bias, z[planes], y, x, contrast.number)
    extent = (subject.tile_extent[1], subject.tile_extent[2])
    values *= shading(p.shading, extent, dy, dx, contrast.centre)
    values *= SCALE * section_gain(p, section, contrast)
    return values


def _lit(p: PhantomParameters, below: Coordinates, value: Block, contrast: Contrast) -> Block:
    """Light that comes back from tissue at depths ``below`` the surface, and from water above.

    Further contrasts are ratios of light, which depth does not change.
    """
    # The part of each voxel that lies below the surface.
    inside = np.clip(below / p.voxel_size[0] + 0.5, 0, 1).astype(np.float32)
    if contrast.number:
        return inside * value + (1 - inside) * np.float32(WATER)
    light = np.exp(-p.attenuation * np.maximum(below, 0) / 1000).astype(np.float32)
    return inside * value * light + (1 - inside) * np.float32(WATER)


def make_phantom(
    destination: Path, parameters: PhantomParameters, execution: ExecutionParameters
) -> Metrics:
    """Write a subject: ``mosaics/``, ``truth/`` and ``positions.csv`` under ``destination``."""
    p = parameters
    subject = Subject.of(p)
    tiling = _tiling(p, subject)
    metrics = Metrics("phantom", settings=p.model_dump(mode="json"))
    nominal = tiling.positions(subject.pitch)
    rows: list[tuple[int, int, int, float, float]] = []
    with writing(destination, overwrite=execution.overwrite) as partial:
        partial.mkdir()
        advance = Progress("PHANTOM", p.sections * len(tiling.tiles) * p.channels)
        for section in range(p.sections):
            errors = stage_errors(p, section, tiling.tiles)
            true = {t: (y + errors[t][0], x + errors[t][1]) for t, (y, x) in nominal.items()}
            rows += [(section + 1, *t, *true[t]) for t in tiling.tiles]
            store = partial / "mosaics" / f"section_{section + 1:02d}.ome.zarr"
            _write_section(store, p, tiling, section, true, execution, metrics, advance)
        _write_table(partial / "positions.csv", [POSITION_COLUMNS, *rows])
        _write_truth(partial / "truth", p, subject, execution)
    return metrics


def _write_section(
    store: Path,
    p: PhantomParameters,
    tiling: MosaicGrid,
    section: int,
    positions: dict[Tile, Position],
    execution: ExecutionParameters,
    metrics: Metrics,
    advance: Progress,
) -> None:
    level = Level(Grid.covering(tiling.edge, tiling.extent, tiling.spacing), tiling.tile)
    attributes: Attributes = {
        "kind": "mosaic",
        "mosaic": tiling.attributes(),
        "section": {"number": section + 1, "thickness": p.section_thickness},
    }
    names = mosaic_channels(p) if p.channels > 1 else []

    def render(region: Region) -> npt.NDArray:
        # Without an axis of channels, number 0.
        channel, block = sum(r.start for r in region[:-3]), region[-3:]
        _, row, column = (r.start // n for r, n in zip(block, tiling.tile, strict=True))
        tile = (row, column)
        voxels = render_tile(p, section, tile, shape_of(block), positions[tile], channel)
        advance(voxels.nbytes)
        made = as_dtype(voxels, p.dtype).reshape(shape_of(region))
        metrics.count("written", made.nbytes)
        return made

    _write(store, level, p.dtype, render, execution, attributes, names)


def _write_table(path: Path, rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


def _write_truth(
    folder: Path, p: PhantomParameters, subject: Subject, execution: ExecutionParameters
) -> None:
    """Tissue (grey levels), its bias field, and further channels on the stacked volume's grid."""
    spacing = vector(*[p.truth_resolution] * 3)
    level = Level.volume(Grid.covering((0, 0, 0), subject.extent, spacing))

    def in_grey_levels(contrast: Contrast) -> Truth:
        return lambda *at: tissue(subject, *at, contrast.layers) * np.float32(SCALE)

    first, *others = contrasts(p)
    truths: dict[str, Truth] = {
        "tissue": in_grey_levels(first),
        "bias": lambda *at: bias_field(subject, p.bias, *at),
        **{contrast.name: in_grey_levels(contrast) for contrast in others},
    }
    if AXIS in mosaic_channels(p):
        truths[AXIS] = lambda *at: fiber_angle(subject, *at)
    for name, function in truths.items():

        def render(region: Region, function: Truth = function) -> Block:
            z, y, x = ((np.arange(r.start, r.stop) + 0.5) * p.truth_resolution for r in region)
            slabs = (z[start : start + SLAB] for start in range(0, len(z), SLAB))
            return np.concatenate([function(slab, y, x) for slab in slabs])

        _write(folder / f"{name}.ome.zarr", level, "float32", render, execution)
    rows = [(k, *move) for k, move in enumerate(displacements(p), start=1)]
    _write_table(folder / "displacements.csv", [("section", *Displacement._fields), *rows])
    write_json(folder / "truth.json", p.model_dump(mode="json"))
    _, height, width = subject.tile_extent
    _, y, x = ((np.arange(n) + 0.5) * s for n, s in zip(p.tile_shape, p.voxel_size, strict=True))
    for contrast in contrasts(p):
        field = shading(p.shading, (height, width), y, x, contrast.centre)
        np.save(folder / f"{contrast.prefix}flat_field.npy", field)


def _write(
    store: Path,
    level: Level,
    dtype: str,
    render: Callable[[Region], npt.NDArray],
    execution: ExecutionParameters,
    attributes: Attributes | None = None,
    channels: Sequence[str] = (),
) -> None:
    """Write an image whose blocks, each of one channel, are rendered by several threads."""
    of_one = blocks(level.grid.shape, level.object_shape)
    leads = [(slice(k, k + 1),) for k in range(len(channels))] or [()]
    regions = [(*lead, *region) for lead in leads for region in of_one]
    # The block in its own type, a tile and its light in float32, and a slab's working arrays.
    depth, height, width = level.object_shape
    need = height * width * (40 * depth + BYTES_PER_VOXEL * SLAB)
    workers = plan_workers(need, bytes_of(execution.memory), execution.workers, len(regions))
    with create_image(store, [level], dtype, attributes=attributes, channels=channels) as (writer,):

        def work(region: Region) -> None:
            writer[region] = render(region)

        run_tiles(regions, work, workers=workers)
