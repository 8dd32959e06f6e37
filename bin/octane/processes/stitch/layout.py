"""Positions of tiles before they are measured."""

from pathlib import Path

from octane.core.errors import InputError
from octane.layout.mosaic import (
    Depths,
    MosaicGrid,
    Position,
    Tile,
    _within_reach,
    read_depths,
    read_positions,
)
from octane.layout.sections import number_or_first
from octane.processes.stitch.parameters import StitchParameters
from octane.store.volumes import Volume


def nominal_positions(
    image: Volume, tiling: MosaicGrid, parameters: StitchParameters, positions: Path | None
) -> dict[Tile, Position]:
    """Positions of the tiles before any refinement: table, overlap or metadata, in this order.

    Raises an OctaneError if all three are missing (an overlap is never guessed), or if the tiles
    spread far beyond the area that they cover.
    """
    if positions is not None:
        places = read_positions(positions, number_or_first(image), tiling)
        return _within_reach(places, image, tiling, str(positions))
    if parameters.overlap is not None:
        y, x = (
            extent * (1 - overlap)
            for extent, overlap in zip(tiling.tile_extent[1:], parameters.overlap, strict=True)
        )
        return tiling.positions((y, x))
    if tiling.pitch is not None:
        places = tiling.positions(tiling.pitch)
        return _within_reach(places, image, tiling, "The pitch in the metadata")
    raise InputError(
        f"{image.path} does not state how its tiles overlap; give --overlap (0 if they abut) or "
        "--positions. If it is not a mosaic, give the workflow --input_kind section or volume."
    )


def nominal_depths(image: Volume, tiling: MosaicGrid, positions: Path | None) -> Depths:
    """Depths of the tiles before any refinement, which only a table gives.

    Raises an OctaneError if they are not usable.
    """
    return {} if positions is None else read_depths(positions, number_or_first(image), tiling)
