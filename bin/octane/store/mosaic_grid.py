"""How a mosaic grid is cut into tiles and where the tiles lie, in voxels and in micrometres.

A mosaic grid is one (Z, Y, X) array whose tiles lie side by side, one tile a chunk in (Y, X) over
the full Z; the last row and column may be cut. Resampling changes the voxels and not the tiles:
their physical extents and their pitch travel in the store's metadata.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from octane.core.errors import OctaneError
from octane.core.geometry import Region, Vector, vector
from octane.store.image import Attributes, Image

__all__ = ["Position", "Tile", "Tiling"]

Tile = tuple[int, int]
"""Row and column."""
Position = tuple[float, float]
"""Outer edge of a tile's first voxel in y and x, micrometres, relative to the mosaic's own edge."""


@dataclass(frozen=True)
class Tiling:
    """The tiles of a mosaic grid.

    Attributes
    ----------
    shape
        Voxels of the whole grid (z, y, x).
    tile
        Voxels of a full tile (z, y, x).
    spacing
        Voxel size in micrometres.
    edge
        Outer edge of the first voxel that was imaged, micrometres.
    tile_extent
        Physical size of a full tile in micrometres.
    extent
        Sum of the tiles' physical sizes along each axis, so that the last one may be smaller.
    pitch
        Distance between the edges of neighbouring tiles in y and x; None where it is not known.
    """

    shape: tuple[int, int, int]
    tile: tuple[int, int, int]
    spacing: Vector
    edge: Vector
    tile_extent: Vector
    extent: Vector
    pitch: Position | None

    @classmethod
    def of(cls, image: Image) -> "Tiling":
        """Read the tiling of a mosaic grid.

        Raises
        ------
        OctaneError
            When a chunk does not span the full Z.
        """
        tile = cast("tuple[int, int, int]", image.array.chunks)
        grid = image.grid
        if tile[0] < grid.shape[0]:
            raise OctaneError(
                f"{image.path} has chunks of {tile[0]} of {grid.shape[0]} planes, and in a mosaic "
                "grid each tile is one chunk over the full Z: rechunk it, or give it as a volume."
            )
        tile = (grid.shape[0], min(tile[1], grid.shape[1]), min(tile[2], grid.shape[2]))
        noted = cast("Mapping[str, list[float]]", image.attributes.get("mosaic", {}))
        own = vector(*(n * s for n, s in zip(tile, grid.spacing, strict=True)))
        return cls(
            grid.shape,
            tile,
            grid.spacing,
            vector(*noted.get("edge", grid.edge)),
            vector(*noted.get("tile_extent", own)),
            vector(*noted.get("extent", grid.extent)),
            cast("Position", tuple(noted["pitch"])) if "pitch" in noted else None,
        )

    @property
    def rows(self) -> int:
        """Number of tiles along y."""
        return -(-self.shape[1] // self.tile[1])

    @property
    def columns(self) -> int:
        """Number of tiles along x."""
        return -(-self.shape[2] // self.tile[2])

    @property
    def tiles(self) -> list[Tile]:
        """All tiles in raster order."""
        return [(row, column) for row in range(self.rows) for column in range(self.columns)]

    def region(self, tile: Tile) -> Region:
        """Voxels of a tile in the grid."""
        starts = (0, tile[0] * self.tile[1], tile[1] * self.tile[2])
        return tuple(
            slice(a, min(a + n, m)) for a, n, m in zip(starts, self.tile, self.shape, strict=True)
        )

    def extent_of(self, tile: Tile) -> Vector:
        """Physical size of a tile in micrometres; smaller at a cut edge."""
        counts = (0, *tile)
        return vector(
            *(
                min(full, total - k * full)
                for full, total, k in zip(self.tile_extent, self.extent, counts, strict=True)
            )
        )

    def margin(self, tile: Tile) -> Vector:
        """From a tile's outer edge to its voxels' outer edge, micrometres.

        Exact spacing seldom divides a tile: the voxels are centred on it, so that they begin a
        little inside (positive) or outside (negative) of its edge.
        """
        region = self.region(tile)
        return vector(
            *(
                (e - (r.stop - r.start) * s) / 2
                for e, r, s in zip(self.extent_of(tile), region, self.spacing, strict=True)
            )
        )

    def positions(self, pitch: Position) -> dict[Tile, Position]:
        """Nominal position of every tile."""
        return {(r, c): (r * pitch[0], c * pitch[1]) for r, c in self.tiles}

    def attributes(self) -> Attributes:
        """What travels with the mosaic through resampling."""
        noted: Attributes = {
            "edge": list(self.edge),
            "tile_extent": list(self.tile_extent),
            "extent": list(self.extent),
        }
        if self.pitch is not None:
            noted["pitch"] = list(self.pitch)
        return noted
