"""Placement of the tiles of a section in the voxel grid of the section."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Grid, vector
from octane.layout.mosaic import Depths, MosaicGrid, Position, Tile

LEAST_DISTANCE = 0.02
"""Smallest plausible distance between neighbouring tiles, as a fraction of a tile."""


@dataclass(frozen=True)
class Placement:
    """Placement of a tile in the grid of a section, in y or x.

    ``shift`` is the index, possibly fractional, of the tile's first voxel in that grid; ``count``
    the number of the tile's voxels; ``before`` and ``after`` how many of them overlap the neighbour
    on either side; ``first`` to ``last`` (excluded) the section's voxels whose centres were imaged
    in the tile.
    """

    shift: float
    count: int
    before: float
    after: float
    first: int
    last: int


def shown_planes(count: int, depth: int) -> slice:
    """Planes of a section of ``count`` planes that a tile at this depth shows."""
    return slice(max(0, depth), min(count, count + depth))


class TilePlacement:
    """A section's grid and the placement of its tiles in it.

    ``depths`` move no plane of the grid: what tiles show beyond it is cut.
    """

    def __init__(
        self,
        tiling: MosaicGrid,
        positions: dict[Tile, Position],
        depths: Depths = MappingProxyType({}),
    ) -> None:
        self.positions, self.depths = positions, depths
        extents = {t: tiling.extent_of(t)[1:] for t in positions}
        ends = {t: np.add(positions[t], extents[t]) for t in positions}
        low, high = np.min([*positions.values()], axis=0), np.max([*ends.values()], axis=0)
        edge = vector(tiling.edge[0], tiling.edge[1] + low[0], tiling.edge[2] + low[1])
        self.extent = vector(tiling.extent[0], high[0] - low[0], high[1] - low[1])
        covering = Grid.covering(edge, self.extent, tiling.spacing)
        # The planes remain those of the tiles; the first need not touch the surface.
        nz = tiling.shape[0]
        top = edge[0] + (tiling.extent[0] - nz * tiling.spacing[0]) / 2 + tiling.spacing[0] / 2
        self.grid = Grid(
            (nz, *covering.shape[1:]), tiling.spacing, vector(top, *covering.origin[1:])
        )
        self.edge = edge

        def place(tile: Tile, axis: int) -> Placement:
            spacing = tiling.spacing[axis + 1]
            region = tiling.region(tile)[axis + 1]
            position = positions[tile][axis]
            start = position - low[axis]
            shift = (start + tiling.margin(tile)[axis + 1]) / spacing
            if abs(shift - round(shift)) < 1e-6:
                shift = float(round(shift))
            before = after = 0.0
            # Rows and columns may be numbered against the axis.
            for near in ((tile[0] + d * (1 - axis), tile[1] + d * axis) for d in (-1, 1)):
                if near in ends and positions[near][axis] < position:
                    before = ends[near][axis] - position
                elif near in ends:
                    after = ends[tile][axis] - positions[near][axis]
            # A voxel belongs to a tile when its centre was imaged.
            first = int(np.ceil(start / spacing - 0.5 - 1e-6))
            last = int(np.floor((start + extents[tile][axis]) / spacing - 0.5 + 1e-6)) + 1
            return Placement(
                shift, region.stop - region.start, before / spacing, after / spacing,
                max(0, first), min(self.grid.shape[axis + 1], last),
            )  # fmt: skip

        self.places = {tile: (place(tile, 0), place(tile, 1)) for tile in positions}

    def box(self, tile: Tile) -> list[float]:
        """Corners of a tile, micrometres: first y and x, last y and x."""
        y, x = self.places[tile]
        (_, top, left), (_, high, wide) = self.grid.edge, self.grid.spacing
        ends = (y.first * high, x.first * wide, y.last * high, x.last * wide)
        return [end + edge for end, edge in zip(ends, (top, left) * 2, strict=True)]

    def depth(self, tile: Tile) -> int:
        """Planes by which a tile lies deeper than the section's first plane."""
        return self.depths.get(tile, 0)

    def common(self, tile: Tile) -> slice:
        """Planes of a tile that all tiles of the section show."""
        start, stop = max(0, *self.depths.values(), 0), min(0, *self.depths.values(), 0)
        depth = self.depth(tile)
        return slice(start - depth, self.grid.shape[0] + stop - depth)

    def plane_ranges(
        self, tiles: Collection[Tile]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """First plane that these tiles show at each pixel (y, x), and the one after the last.

        Where there is no tile, both are 0. None if no tile is moved along z.
        """
        if not self.depths:
            return None
        first, stop = np.zeros((2, *self.grid.shape[1:]), np.int64)
        for tile in tiles:
            y, x = self.places[tile]
            here = np.s_[y.first : y.last, x.first : x.last]
            planes = shown_planes(self.grid.shape[0], self.depth(tile))
            # Each tile shows the middle plane.
            first[here] = np.where(
                stop[here] > 0, np.minimum(first[here], planes.start), planes.start
            )
            stop[here] = np.maximum(stop[here], planes.stop)
        return first, stop

    def coverage(self) -> npt.NDArray[np.bool_]:
        """Pixels (y, x) of the section that a tile covers."""
        seen = np.zeros(self.grid.shape[1:], np.bool_)
        for y, x in self.places.values():
            seen[y.first : y.last, x.first : x.last] = True
        return seen

    def gap_pixels(self) -> int:
        """Count pixels between the tiles that no tile covers.

        Only the frame enclosed by the outer tiles counts: outside it, the outline is ragged from
        stage errors and nothing is missing.
        """
        rows, columns = (slice(self._inner(axis, 0), self._inner(axis, -1)) for axis in range(2))
        framed = self.coverage()[rows, columns]
        return framed.size - int(np.count_nonzero(framed))

    def _inner(self, axis: int, side: int) -> int:
        """Start (side 0) or end (-1) of the pixels that all tiles of an outer row or column share.

        ``axis`` 0 stands for rows, 1 for columns; side 0 for the first of them, -1 for the last.
        """
        outer = sorted(self.places, key=lambda tile: self.places[tile][axis].shift)[side][axis]
        placements = [p[axis] for tile, p in self.places.items() if tile[axis] == outer]
        return max(p.first for p in placements) if side == 0 else min(p.last for p in placements)


def tiles_apart(names: Sequence[str], placements: Sequence[TilePlacement]) -> list[str]:
    """Warning about tiles placed more than a voxel away from a neighbour."""
    odd = [
        f"{name}, row {row}, column {column}"
        for name, placement in zip(names, placements, strict=False)
        for (row, column), axes in placement.places.items()
        if min(shared for place in axes for shared in (place.before, place.after)) < -1
    ]
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    return [f"{t}{more} does not touch its neighbour; correct --positions." for t in odd[:1]]


def crowded_tiles(
    names: Sequence[str], mosaics: Sequence[MosaicGrid], placements: Sequence[TilePlacement]
) -> list[str]:
    """Warning about tiles placed almost on top of each other."""
    odd: list[tuple[str, str]] = []
    for name, tiling, placement in zip(names, mosaics, placements, strict=False):
        steps = []
        for axis, number in enumerate((tiling.rows, tiling.columns)):
            first = [axes[axis].shift for axes in placement.places.values()]
            if number > 1:
                apart = (max(first) - min(first)) * tiling.spacing[axis + 1] / (number - 1)
                steps.append(apart / tiling.tile_extent[axis + 1])
        if steps and max(steps) < LEAST_DISTANCE:
            odd.append((name, f"{max(steps):.2g}"))
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    return [
        f"Neighbouring tiles of {name}{more} are at most {step} of a tile apart; --positions may "
        "be in millimetres: give micrometres."
        for name, step in odd[:1]
    ]
