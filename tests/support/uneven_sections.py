"""Sections of a phantom that are tilted, cut unevenly, or of tissue that scatters light."""

from pathlib import Path

import numpy as np
import zarr

from octane.config.parameters import ExecutionParameters
from octane.core.arrays import as_dtype
from octane.core.geometry import shape_of, slopes
from octane.layout.mosaic import MosaicGrid, Position, Tile
from octane.processes.phantom import step
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.stack.layout.surfaces import Surface
from octane.store.image import open_image

EVEN = {"speckle_looks": 0, "attenuation": 0, "shading": 0, "bias": 0, "section_steps": 0}
"""Options of a phantom whose grey levels are those of its tissue."""


class UnevenParameters(PhantomParameters):
    """A phantom, and the largest differences of its sections, in micrometres and degrees.

    ``scattering`` is the attenuation coefficient of tissue of reflectivity 1, in 1/mm; that of
    other tissue is proportional to its reflectivity.
    """

    surface_jitter: float = 0.0
    tilt: float = 0.0
    thickness_jitter: float = 0.0
    scattering: float = 0.0


def thicknesses(p: UnevenParameters) -> list[float]:
    """Thickness of each section as cut, in whole micrometres if they differ."""
    if not p.thickness_jitter:
        return [p.section_thickness] * p.sections
    generator = np.random.default_rng([p.seed, 3])
    drawn = generator.uniform(-p.thickness_jitter, p.thickness_jitter, p.sections)
    return [float(own) for own in np.round(p.section_thickness + drawn)]


def surfaces(p: UnevenParameters) -> list[Surface]:
    """Surface of each section."""
    generator = np.random.default_rng([p.seed, 4])
    drawn = generator.uniform(-1, 1, (p.sections, 3)) * (p.surface_jitter, p.tilt, p.tilt)
    return [Surface(p.surface + own[0], (own[1], own[2])) for own in drawn.tolist()]


def render_tile(
    p: UnevenParameters, section: int, tile: Tile, shape: tuple[int, ...], position: Position
) -> step.Block:
    """Voxels of one tile of the first channel, as those of :func:`step.render_tile`."""
    depth, tilt, _ = surfaces(p)[section]
    _, y, x = ((np.arange(n) + 0.5) * s for n, s in zip(shape, p.voxel_size, strict=True))
    (v, u), (_, ey, ex) = slopes(tilt), step.Subject.of(p).extent
    y, x = y + position[0] - ey / 2, x + position[1] - ex / 2
    given = (tile, shape, position, 0, depth + v * y[:, None] + u * x)
    if p.thickness_jitter:
        # Of as many sections as the subject has micrometres, the ones that were cut.
        starts = np.cumsum([0, *thicknesses(p)]).astype(int).tolist()
        p = p.model_copy(update={"sections": starts[-1], "section_thickness": 1.0})
        section = starts[section]
    voxels = step.render_tile(p, section, *given)
    if p.scattering:
        tissue = step.render_tile(p.model_copy(update=EVEN), section, *given) / step.SCALE
        # The light passes all voxels above twice, and half of its own.
        passed = np.cumsum(tissue, axis=0) - tissue / 2
        voxels *= np.exp(-2 * p.scattering * p.voxel_size[0] / 1000 * passed)
    return voxels


def make_phantom(folder: Path, p: UnevenParameters, execution: ExecutionParameters) -> None:
    """Make a phantom of one channel, whose sections are imaged again if they are uneven."""
    step.make_phantom(folder, p, execution)
    if not any((p.surface_jitter, p.tilt, p.thickness_jitter, p.scattering)):
        return
    for section, mosaic in enumerate(sorted((folder / "mosaics").iterdir())):
        grid, array = MosaicGrid.of(open_image(mosaic)), zarr.open_array(mosaic / "0")
        errors = step.stage_errors(p, section, grid.tiles)
        for tile, (y, x) in grid.positions(step.Subject.of(p).pitch).items():
            region, (dy, dx) = grid.region(tile), errors[tile]
            voxels = render_tile(p, section, tile, shape_of(region), (y + dy, x + dx))
            array[region] = as_dtype(voxels, p.dtype)
