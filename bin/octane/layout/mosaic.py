"""Mosaic grids: their tiles in voxels and in micrometres, and the tiles' positions.

A mosaic grid is one (Z, Y, X) array of adjacent tiles. Each tile is one chunk in (Y, X) over the
full Z; the last row and column may be smaller. Resampling changes the voxels but not the tiles:
their physical extents and pitch are kept in the store's metadata.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from octane.config.sheets import DEPTH, GAIN_COLUMNS, POSITION_COLUMNS, read_rows
from octane.core.errors import InputError
from octane.core.geometry import (
    Grid,
    Region,
    Vector,
    block_at,
    expected_position,
    samples,
    shape_of,
    spelled,
    vector,
)
from octane.core.records import OverlapFigures
from octane.core.units import comma_in, plain_number
from octane.layout.sections import require_section
from octane.store.stated import Attributes, unimaged_tiles
from octane.store.volumes import Volume

Tile = tuple[int, int]
"""Row and column."""
Position = tuple[float, float]
"""Outer edge of a tile's first voxel in y and x, micrometres, relative to the mosaic's own edge."""
Depths = Mapping[Tile, int]
"""Planes by which tiles lie deeper than their section's first plane, or higher if negative; 0 for
others."""

MOST_TILES = 20_000
LARGEST_POSITION = 1e9
"""Largest position accepted, micrometres: no stage reaches a kilometre."""
LARGEST_SPREAD = 20
"""Limit of the tiles' spread, in lengths of the mosaic: beyond it, a unit is wrong."""
USUAL_FRACTION = 0.75
"""Fraction of mosaics that must be alike before one that differs is reported."""
LARGEST_RATIO = 1.3
"""Largest ratio of distances that an error of an overlap explains: 0.2 in place of 0.38."""
RATIO_TOLERANCE = 0.05
"""Largest difference of ratios that are the same: tiles are compared by whole coarse pixels."""
OVERLAP_TOLERANCE = 0.02
"""Largest difference of overlaps that is not doubtful, fraction of a tile: stages repeat a place to
less, and users state overlaps in hundredths."""


@dataclass(frozen=True)
class MosaicGrid:
    """The tiles of a mosaic grid; lengths in micrometres.

    ``shape`` and ``tile`` are voxels of the whole grid and of a full tile (z, y, x), ``edge`` is
    the outer edge of the first voxel that was imaged, ``tile_extent`` the size of a full tile, and
    ``extent`` the sum of the tiles' sizes along each axis (the last may be smaller). ``pitch`` is
    the distance between the edges of neighbouring tiles in y and x, or None if unknown.
    ``not_imaged`` are tiles that were not imaged and are left out, whether they are stored or not.
    """

    shape: tuple[int, int, int]
    tile: tuple[int, int, int]
    spacing: Vector
    edge: Vector
    tile_extent: Vector
    extent: Vector
    pitch: Position | None
    not_imaged: frozenset[Tile] = frozenset()

    @classmethod
    def of(cls, image: Volume) -> "MosaicGrid":
        """Read the tiles of a volume, whose chunks must span the full Z."""
        grid, tile = image.grid, image.chunks
        if tile[0] < grid.shape[0]:
            raise InputError(
                f"{image.path} has chunks of {tile[0]} of {grid.shape[0]} planes, but in a mosaic "
                "grid each tile is one chunk over the full Z; rechunk it. Without a mosaic grid, "
                "give the workflow --input_kind section or volume, or --tile_pattern for a store "
                "per tile."
            )
        tile = (grid.shape[0], min(tile[1], grid.shape[1]), min(tile[2], grid.shape[2]))
        count = prod(-(-n // c) for n, c in zip(grid.shape, tile, strict=True))
        if count > MOST_TILES:
            raise InputError(
                f"{image.path} has {count} tiles (one per chunk), more than the {MOST_TILES} that "
                "octane accepts: rechunk it, or correct its shape or chunks."
            )
        noted = cast("Mapping[str, list[float]]", image.attributes.get("mosaic", {}))
        tile_extent = vector(*(n * s for n, s in zip(tile, grid.spacing, strict=True)))
        made = cls(
            grid.shape,
            tile,
            grid.spacing,
            vector(*noted.get("edge", grid.edge)),
            vector(*noted.get("tile_extent", tile_extent)),
            vector(*noted.get("extent", grid.extent)),
            cast("Position", tuple(noted["pitch"])) if "pitch" in noted else None,
            unimaged_tiles(image.attributes),
        )
        made.require_imaged_tiles(image.path)
        return made

    def require_imaged_tiles(self, path: Path) -> None:
        """Raise if a tile declared as not imaged is outside the mosaic, or if all tiles are."""
        beyond = [(r, c) for r, c in self.not_imaged if r >= self.rows or c >= self.columns]
        if beyond:
            row, column = min(beyond)
            raise InputError(
                f"{path} has {self.rows} x {self.columns} tiles, but declares row {row}, column "
                f"{column} as not imaged; correct octane.mosaic.not_imaged in its metadata."
            )
        if len(self.not_imaged) == self.rows * self.columns:
            raise InputError(
                f"{path} declares all its tiles as not imaged; remove it, and give "
                "--allow_missing_sections, or correct octane.mosaic.not_imaged in its metadata."
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

    @property
    def imaged_tiles(self) -> list[Tile]:
        """The tiles that were imaged, in raster order."""
        return [tile for tile in self.tiles if tile not in self.not_imaged]

    @property
    def voxels(self) -> int:
        """Number of voxels that were imaged."""
        return prod(self.shape) - sum(prod(shape_of(self.region(t))) for t in self.not_imaged)

    @property
    def holes(self) -> set[Tile]:
        """Tiles that were not imaged and are enclosed by imaged ones."""
        left = set(self.not_imaged)
        edges = ({0, self.rows - 1}, {0, self.columns - 1})
        outside = [(r, c) for r, c in left if r in edges[0] or c in edges[1]]
        while outside:
            row, column = outside.pop()
            left.discard((row, column))
            near = ((row + d, column + e) for d, e in ((-1, 0), (1, 0), (0, -1), (0, 1)))
            outside += [tile for tile in near if tile in left]
        return left

    def surrounds(self, tile: Tile) -> bool:
        """Tell whether a tile lies within the rows and the columns of those that were imaged."""
        lines = zip(tile, *self.imaged_tiles, strict=True)
        return all(min(others) <= line <= max(others) for line, *others in lines)

    @property
    def grid(self) -> Grid:
        """Grid of the voxels; those of a full tile are centred on its imaged extent."""
        axes = zip(self.edge, self.tile_extent, self.tile, self.spacing, strict=True)
        edge = (e + (length - n * s) / 2 for e, length, n, s in axes)
        extent = (n * s for n, s in zip(self.shape, self.spacing, strict=True))
        return Grid.covering(vector(*edge), vector(*extent), self.spacing)

    def with_spacing(self, spacing: Vector) -> "MosaicGrid":
        """The same tiles in voxels of ``spacing`` (micrometres), each resampled separately."""

        def voxels(shape: Sequence[int]) -> tuple[int, int, int]:
            axes = zip(shape, self.spacing, spacing, strict=True)
            z, y, x = (samples(n * s, t) for n, s, t in axes)
            return z, y, x

        tile, last = voxels(self.tile), voxels(shape_of(self.region(self.tiles[-1])))
        rows, columns = (
            (k - 1) * n for k, n in zip((self.rows, self.columns), tile[1:], strict=True)
        )
        shape = (tile[0], rows + last[1], columns + last[2])
        return replace(self, shape=shape, tile=tile, spacing=vector(*spacing))

    def region(self, tile: Tile) -> Region:
        """Voxels of a tile in the grid."""
        return block_at((0, *tile), self.tile, self.shape)

    def extent_of(self, tile: Tile) -> Vector:
        """Physical size of a tile in micrometres; smaller at a cut edge."""
        counts = (0, *tile)
        axes = zip(self.tile_extent, self.extent, counts, strict=True)
        return vector(*(min(full, total - k * full) for full, total, k in axes))

    def margin(self, tile: Tile) -> Vector:
        """Distance from a tile's outer edge to that of its voxels, micrometres.

        The spacing seldom divides a tile exactly: the voxels are centred on it, so they begin
        slightly inside (positive) or outside (negative) its edge.
        """
        axes = zip(self.extent_of(tile), self.region(tile), self.spacing, strict=True)
        return vector(*((e - (r.stop - r.start) * s) / 2 for e, r, s in axes))

    def positions(self, pitch: Position) -> dict[Tile, Position]:
        """Nominal position of every tile."""
        return {(r, c): (r * pitch[0], c * pitch[1]) for r, c in self.tiles}

    def attributes(self) -> Attributes:
        """Metadata that resampling keeps."""
        names = ("edge", "tile_extent", "extent", *(["pitch"] if self.pitch is not None else []))
        noted: Attributes = {name: list(getattr(self, name)) for name in names}
        if self.not_imaged:
            noted["not_imaged"] = [list(tile) for tile in sorted(self.not_imaged)]
        return noted


def unlike_mosaics(names: Sequence[str], mosaics: Sequence[MosaicGrid]) -> list[str]:
    """Warning about mosaics whose tiles differ: rechunked, incomplete or wrongly scaled."""
    sizes = [f"{m.rows} x {m.columns} tiles of {spelled(m.tile_extent)}" for m in mosaics]
    usual, count = Counter(sizes).most_common(1)[0] if sizes else ("", 0)
    odd = [k for k, size in enumerate(sizes) if size != usual]
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    return [
        f"{names[k]}{more} has {sizes[k]} micrometre (z y x), but most mosaics have {usual}: check "
        "its chunks, its voxel size, and whether all of it was imaged."
        for k in odd[:1]
        if count >= USUAL_FRACTION * len(sizes)
    ]


def position_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of each row of a table of tile positions; raise if it is not one."""
    return read_rows(path, POSITION_COLUMNS)


def require_sections(
    path: Path, known: Collection[int | None], columns: Sequence[str] = POSITION_COLUMNS
) -> None:
    """Raise if a table of tiles has a row for a section that is not ``known``."""
    for line, row in read_rows(path, columns):
        with suppress(KeyError, ValueError):
            # Cells that are not numbers are refused when the table is read.
            require_section(plain_number(row["section"]), known, f"{path}, line {line}")


def split_sections(path: Path, columns: Sequence[str] = POSITION_COLUMNS) -> dict[float, str]:
    """Split a table of tiles into one CSV text per section number."""
    tables: dict[float, list[dict[str, str]]] = {}
    for _, row in read_rows(path, columns):
        tables.setdefault(plain_number(row["section"]), []).append(row)
    return {number: _text(rows, columns) for number, rows in tables.items()}


def _text(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Rows as CSV, with the column of depths if any row has one."""
    deep = columns == POSITION_COLUMNS and any(DEPTH in row for row in rows)
    lines = [",".join(row[column] for column in columns) for row in rows]
    if deep:
        lines = [f"{line},{row.get(DEPTH, '')}" for line, row in zip(lines, rows, strict=True)]
    return "\n".join([",".join([*columns, *[DEPTH] * deep]), *lines, ""])


def read_positions(path: Path, section: int | None, tiling: MosaicGrid) -> dict[Tile, Position]:
    """Tile positions of one section from a CSV table; an error names the line.

    The table may lack tiles that were not imaged; a linear fit of the others places them.
    """
    values = _read_tiles(path, section, tiling, POSITIONS)
    return complete_positions({tile: (y, x) for tile, (y, x, _) in values.items()}, tiling)


def read_depths(path: Path, section: int | None, tiling: MosaicGrid) -> Depths:
    """Depths of one section's tiles from the same table, in whole planes: its optional column z.

    If all are alike, no tile is moved. Raises an InputError if a tile would show less than half of
    the section's planes, or if no tile stays, so that z is not relative to the first plane.
    """
    spacing, planes = tiling.spacing[0], tiling.shape[0]
    of = {tile: z for tile, (*_, z) in _read_tiles(path, section, tiling, POSITIONS).items()}
    depths = {tile: round(of[tile] / spacing) for tile in tiling.imaged_tiles}
    if len({*depths.values()}) == 1:
        return {}
    remedy = "give z relative to the section's first plane, 0 for tiles that stay"
    for (row, column), depth in depths.items():
        if 2 * abs(depth) >= max(2, planes):
            raise InputError(
                f"{path}: z of row {row}, column {column} of section {section} is "
                f"{of[row, column]:g} micrometre, but must be less than half of the section's "
                f"{planes * spacing:g}; {remedy}."
            )
    if all(depths.values()):
        raise InputError(f"{path}: all tiles of section {section} have a z other than 0; {remedy}.")
    return {tile: depth for tile, depth in depths.items() if depth}


def read_gains(path: Path, section: int | None, tiling: MosaicGrid) -> dict[Tile, float]:
    """Tile gains of one section from a CSV table; an error names the line.

    The table may lack tiles that were not imaged.
    """
    return {tile: values[0] for tile, values in _read_tiles(path, section, tiling, GAINS).items()}


class TileTable(NamedTuple):
    """Kind of a table of tiles: ``what`` it lists, and the range of its values.

    Of its ``columns``, it may lack an ``optional`` one, whose values are then 0.
    """

    what: str
    columns: tuple[str, ...]
    optional: str
    lowest: float
    highest: float
    accepted: str


POSITIONS = TileTable(
    "positions",
    POSITION_COLUMNS,
    DEPTH,
    -LARGEST_POSITION,
    LARGEST_POSITION,
    f"up to {LARGEST_POSITION:g}",
)
GAINS = TileTable("gains", GAIN_COLUMNS, "", 1e-3, 1e3, "gains from 0.001 to 1000")


def _read_tiles(
    path: Path, section: int | None, tiling: MosaicGrid, table: TileTable
) -> dict[Tile, list[float]]:
    """Values of the tiles of one section, all that were imaged, from a table of them."""
    values_by_tile: dict[Tile, list[float]] = {}
    for line, row in read_rows(path, table.columns):
        try:
            if plain_number(row["section"]) == section:
                row_number, column_number, *values = (
                    plain_number(row[column]) for column in table.columns[1:]
                )
                if table.optional:
                    values.append(plain_number(row.get(table.optional, "0")))
                if not all(table.lowest <= value <= table.highest for value in values):
                    raise ValueError("a value must be finite and within reach")
                tile = (int(row_number), int(column_number))
                if tile in values_by_tile or tile != (row_number, column_number):
                    raise ValueError("a tile has one row, and its row and column are whole")
                if not (0 <= tile[0] < tiling.rows and 0 <= tile[1] < tiling.columns):
                    raise InputError(
                        f"{path}, line {line}: row {tile[0]}, column {tile[1]} is outside section "
                        f"{section}: it has {tiling.rows} x {tiling.columns} tiles, counted from "
                        "0; correct the row."
                    )
                values_by_tile[tile] = values
        except (KeyError, ValueError, OverflowError) as error:
            said = "invalid row, or a second one for its tile; give numbers with decimal points"
            said += f", {table.accepted}."
            raise InputError(f"{path}, line {line}: {comma_in(row) or said}") from error
    missing = [tile for tile in tiling.imaged_tiles if tile not in values_by_tile]
    if missing:
        row, column = missing[0]
        raise InputError(
            f"{path} lacks the {table.what} of {len(missing)} tiles, the first at row {row}, "
            f"column {column} of section {section}; add them."
        )
    return values_by_tile


def complete_positions(
    positions: Mapping[Tile, Position], tiling: MosaicGrid
) -> dict[Tile, Position]:
    """Positions of all tiles: those without one lie on a linear fit of the others."""
    return {
        tile: positions.get(tile) or expected_position(tile, positions) for tile in tiling.tiles
    }


def idle_overlap(
    overlap: Sequence[float],
    places: Iterable[tuple[Mapping[Tile, Position], MosaicGrid]],
    source: str,
) -> str:
    """Say that ``source`` places the tiles of a section with another overlap; empty if none do.

    ``places`` are those of each section's tiles, in micrometres.
    """
    for positions, grid in places:
        stated = zip("yx", stated_overlap(positions, grid.tile_extent[1:]), overlap, strict=True)
        known = [
            (axis, fraction, asked) for axis, fraction, asked in stated if fraction is not None
        ]
        if any(abs(fraction - asked) > OVERLAP_TOLERANCE for _, fraction, asked in known):
            words = " and ".join(f"{fraction:.2f} along {axis}" for axis, fraction, _ in known)
            return (
                f"--overlap {spelled(overlap)} is not used: the tiles' places ({source}) have an "
                f"overlap of {words}"
            )
    return ""


def is_unit_error(ratio: float) -> bool:
    """Tell whether a ratio of distances is no error of an overlap, but one of units."""
    return not 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO


def scale_remark(overlaps: Sequence[OverlapFigures]) -> str:
    """Say that voxels seem larger or smaller than stated if places are so by one ratio, else ''."""
    pairs = [
        (overlap.given, overlap.found)
        for overlap in overlaps
        if overlap.found is not None and overlap.found < 1
    ]
    ratios = [(1 - given) / (1 - measured) for given, measured in pairs]
    is_one = bool(ratios) and max(ratios) < (1 + RATIO_TOLERANCE) * min(ratios)
    if not is_one or not all(map(is_unit_error, ratios)):
        return ""
    return f", as if voxels were {np.mean(ratios):.2g} times as large"


def stated_overlap(
    positions: Mapping[Tile, Position], extent: Position
) -> tuple[float | None, float | None]:
    """Overlap of neighbours in y and x as places state it, fraction of a tile of this extent.

    It is that of most neighbours, negative if they lie apart, and None along an axis without any.
    """
    overlaps: list[float | None] = []
    for axis, step in enumerate(((1, 0), (0, 1))):
        moves = [
            abs(positions[ahead][axis] - place[axis])
            for tile, place in positions.items()
            if (ahead := (tile[0] + step[0], tile[1] + step[1])) in positions
        ]
        overlaps.append(1 - float(np.median(moves)) / extent[axis] if moves else None)
    return overlaps[0], overlaps[1]


def _within_reach(
    positions: dict[Tile, Position], image: Volume, tiling: MosaicGrid, source: str
) -> dict[Tile, Position]:
    """Return the positions; raise if the tiles spread implausibly far."""
    covered = max(n * s for n, s in zip(tiling.shape[1:], tiling.spacing[1:], strict=True))
    span = max(max(places) - min(places) for places in zip(*positions.values(), strict=True))
    if span > LARGEST_SPREAD * covered:
        raise InputError(
            f"{source} spreads the tiles of {image.path} over {span:g} micrometre, but side by "
            f"side they cover {covered:g}: give positions in micrometres, or correct the voxel "
            "size."
        )
    return positions
