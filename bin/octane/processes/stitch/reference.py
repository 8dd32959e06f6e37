"""Places and surface that STITCH found on the reference channel, for other channels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from octane.core.errors import InputError
from octane.core.geometry import Vector, spelled
from octane.core.records import Figures, Shape, read_reference
from octane.layout.mosaic import LARGEST_POSITION, Depths, MosaicGrid, Position, Tile
from octane.layout.sections import number_of
from octane.processes.stitch.record import MisplacedFigures, SurfaceFigures, by_tile
from octane.store.image import Image

Place = Annotated[str, Field(pattern=r"^\d+,\d+$")]
Length = Annotated[float, Field(ge=-LARGEST_POSITION, le=LARGEST_POSITION)]


class PlacedFigures(Figures):
    """Figures of :class:`StitchFigures` that place another channel."""

    section: int | None
    positions: dict[Place, tuple[Length, Length]]
    surface: SurfaceFigures
    misplaced: list[MisplacedFigures]
    depths: dict[Place, int]
    tile_extent: tuple[float, float]
    mosaic_extent: tuple[float, float]
    voxel_size: Vector
    shape: Shape


class Tiles(NamedTuple):
    """The tiles of a mosaic; lengths in micrometres, (y, x) but for ``voxel_size``."""

    tiles: list[Tile]
    extent: Position
    mosaic: Position
    planes: int
    voxel_size: Vector

    def __str__(self) -> str:
        """The tiles in words, as far as mosaics usually differ."""
        return (
            f"{len(self.tiles)} tiles of {spelled(self.extent)} (in all {spelled(self.mosaic)}) "
            f"micrometre, {self.planes} planes and voxels of {spelled(self.voxel_size)}"
        )


@dataclass(frozen=True)
class Reference:
    """Final places of a section's tiles, its ``surface``, and the tiles out of place."""

    positions: dict[Tile, Position]
    depths: Depths
    surface: SurfaceFigures
    odd: frozenset[Tile]


def reference_of(path: Path, image: Image, tiling: MosaicGrid) -> Reference:
    """Read the STITCH record of the same section of the reference channel.

    Raises an InputError that names the record if its tiles are not those of ``image``.
    """
    figures = read_reference(path, "stitch", PlacedFigures)
    number = number_of(image)
    if figures.section != number:
        known, expected = (
            "without a number" if n is None else n for n in (figures.section, number)
        )
        raise InputError(
            f"{path} is the record of section {known}, but {image.path} is section {expected}; "
            "give --reference the record of the same section."
        )
    positions = by_tile(figures.positions)
    given = Tiles(
        *(sorted(positions), figures.tile_extent, figures.mosaic_extent),
        *(figures.shape[0], figures.voxel_size),
    )
    expected = Tiles(
        *(tiling.tiles, tiling.tile_extent[1:], tiling.extent[1:]),
        *(tiling.shape[0], tiling.spacing),
    )
    if given != expected:
        raise InputError(
            f"{path} is the record of {given}, but {image.path} has {expected}; give "
            "--reference the record of the same mosaic at the same voxel size."
        )
    odd = (t for t in figures.misplaced if t.planes is None)
    return Reference(
        {tile: positions[tile] for tile in tiling.tiles},
        by_tile(figures.depths),
        figures.surface,
        frozenset((t.row, t.column) for t in odd),
    )
