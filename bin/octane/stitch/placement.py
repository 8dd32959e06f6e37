"""Placement of the tiles of a section in the voxel grid of the section."""

from dataclasses import dataclass

import numpy as np

from octane.core.geometry import Grid, vector
from octane.store.mosaic_grid import MosaicGrid, Position, Tile


@dataclass(frozen=True)
class Placement:
    """Placement of a tile in the grid of a section, in y or x.

    Attributes
    ----------
    shift
        Index in the section's grid of the tile's first voxel; need not be whole.
    count
        Voxels of the tile.
    before, after
        Voxels that the neighbours cover at either side.
    first, last
        Range of the section's voxels whose centres lie on the imaged tile; ``last`` excluded.
    """

    shift: float
    count: int
    before: float
    after: float
    first: int
    last: int


class TilePlacement:
    """A section's grid and the placement of its tiles in it."""

    def __init__(
        self, tiling: MosaicGrid, positions: dict[Tile, Position], *, subpixel: bool
    ) -> None:
        extents: dict[Tile, Position] = {t: tiling.extent_of(t)[1:] for t in positions}
        low = [min(p[axis] for p in positions.values()) for axis in range(2)]
        high = [max(positions[t][axis] + extents[t][axis] for t in positions) for axis in range(2)]
        edge = vector(tiling.edge[0], tiling.edge[1] + low[0], tiling.edge[2] + low[1])
        self.extent = vector(tiling.extent[0], high[0] - low[0], high[1] - low[1])
        covering = Grid.covering(edge, self.extent, tiling.spacing)
        # Planes stay those of the tiles, whose first one need not touch the surface.
        nz = tiling.shape[0]
        top = edge[0] + (tiling.extent[0] - nz * tiling.spacing[0]) / 2 + tiling.spacing[0] / 2
        self.grid = Grid(
            (nz, *covering.shape[1:]), tiling.spacing, vector(top, *covering.origin[1:])
        )
        self.edge = edge
        self.places: dict[Tile, tuple[Placement, Placement]] = {
            tile: (
                self._place(tiling, positions, extents, tile, 0, low[0], subpixel),
                self._place(tiling, positions, extents, tile, 1, low[1], subpixel),
            )
            for tile in positions
        }

    def _place(
        self,
        tiling: MosaicGrid,
        positions: dict[Tile, Position],
        extents: dict[Tile, Position],
        tile: Tile,
        axis: int,
        low: float,
        subpixel: bool,
    ) -> Placement:
        spacing = tiling.spacing[axis + 1]
        region = tiling.region(tile)[axis + 1]
        start = positions[tile][axis] - low
        shift = (start + tiling.margin(tile)[axis + 1]) / spacing
        if not subpixel or abs(shift - round(shift)) < 1e-6:
            shift = float(round(shift))
        step = (1, 0) if axis == 0 else (0, 1)
        previous = (tile[0] - step[0], tile[1] - step[1])
        following = (tile[0] + step[0], tile[1] + step[1])
        before = after = 0.0
        if previous in positions:
            before = positions[previous][axis] + extents[previous][axis] - positions[tile][axis]
        if following in positions:
            after = positions[tile][axis] + extents[tile][axis] - positions[following][axis]
        # A voxel belongs to a tile when its centre was imaged.
        end = (start + extents[tile][axis]) / spacing
        first = int(np.ceil(start / spacing - 0.5 - 1e-6))
        last = int(np.floor(end - 0.5 + 1e-6)) + 1
        return Placement(
            shift,
            region.stop - region.start,
            before / spacing,
            after / spacing,
            max(0, first),
            min(self.grid.shape[axis + 1], last),
        )

    def uncovered(self) -> int:
        """Count pixels between the tiles that no tile covers.

        Only the frame that the outer tiles enclose is looked at: outside of it the stage's errors
        make the outline ragged, and nothing is missing there.
        """
        frame = [(self._inner(axis, 0), self._inner(axis, -1)) for axis in range(2)]
        edges = [
            np.unique(
                np.clip(
                    [v for p in self.places.values() for v in (p[axis].first, p[axis].last)],
                    *frame[axis],
                )
            )
            for axis in range(2)
        ]
        seen = np.zeros([len(e) - 1 for e in edges], np.bool_)
        for place in self.places.values():
            rows, columns = (
                slice(*np.searchsorted(e, np.clip((p.first, p.last), *f)))
                for e, p, f in zip(edges, place, frame, strict=True)
            )
            seen[rows, columns] = True
        return int((np.outer(*(np.diff(e) for e in edges)) * ~seen).sum())

    def _inner(self, axis: int, side: int) -> int:
        """Pixel where all tiles of the first (side 0) or last (-1) row or column began or ended."""
        outer = sorted({tile[axis] for tile in self.places})[side]
        own = [p[axis] for tile, p in self.places.items() if tile[axis] == outer]
        return max(p.first for p in own) if side == 0 else min(p.last for p in own)
