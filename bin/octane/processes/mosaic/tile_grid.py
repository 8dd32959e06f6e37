"""Tiles in rows and columns: the list of files from which mosaic grids are written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octane.core.errors import InputError
from octane.core.units import counted, format_lengths
from octane.layout.mosaic import MOST_TILES, Position, Tile
from octane.layout.sections import gaps, list_numbers
from octane.processes.mosaic.names import NamedFile, with_folders
from octane.processes.mosaic.orders import changed_order, tile_at
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.place import Place

SPARSE = 4
"""Most cells of a grid per tile: with more, the numbers are not rows and columns, but, for example,
micrometres."""
NEAR = 0.5
"""Largest distance of a tile from its place in the grid, fraction of a tile."""
APART = 0.2
"""Smallest distance of neighbours, fraction of a tile: nearer tiles are in one row or column."""
USUAL = (0.5, 1.05)
"""Distances of neighbours that microscopes are set to, fraction of a tile."""


@dataclass(frozen=True)
class TileEntry:
    """One file: its tile's section, row and column, from 0.

    ``plane`` is the number of the file's first plane in the tile and ``channel`` its channel, each
    None if the file holds all of them. ``z``, ``y`` and ``x`` are the tile's place in micrometres,
    None if unknown; only differences between tiles count.
    """

    file: Path
    section: int
    row: int
    column: int
    plane: int | None = None
    channel: str | None = None
    z: float | None = None
    y: float | None = None
    x: float | None = None

    @property
    def tile(self) -> Tile:
        """Row and column."""
        return self.row, self.column

    @property
    def position(self) -> Position | None:
        """Place in y and x, micrometres."""
        return None if self.y is None or self.x is None else (self.y, self.x)


@dataclass(frozen=True)
class TileGrid:
    """Tiles of all sections on a grid of the same rows and columns.

    ``placed_by`` names the source of rows and columns, and ``remarks`` are sentences on choices
    that a user may not expect.
    """

    rows: int
    columns: int
    entries: list[TileEntry]
    placed_by: str
    remarks: list[str]

    @cached_property
    def sections(self) -> dict[int, list[TileEntry]]:
        """Files of each section, sections in the order of their numbers."""
        entries = defaultdict[int, list[TileEntry]](list)
        for entry in sorted(self.entries, key=lambda e: (e.section, e.tile)):
            entries[entry.section].append(entry)
        return dict(entries)

    def missing(self, section: int) -> list[Tile]:
        """Tiles of the grid without a file."""
        imaged = {entry.tile for entry in self.sections.get(section, ())}
        every = ((row, column) for row in range(self.rows) for column in range(self.columns))
        return [tile for tile in every if tile not in imaged]

    def is_full(self, entry: TileEntry, axis: int) -> bool:
        """Tell whether a tile is full along y (0) or x (1): the last ones may be smaller."""
        count = (self.rows, self.columns)[axis]
        return entry.tile[axis] < count - 1 or count == 1

    def draw(self, section: int) -> list[str]:
        """Draw the grid of a section: # for a tile, . for one that was not imaged."""
        missing = set(self.missing(section))
        return [
            "".join(".#"[(row, column) not in missing] for column in range(self.columns))
            for row in range(self.rows)
        ]


def arrange(
    files: Sequence[NamedFile],
    places: Mapping[str, Place],
    p: TileParameters,
    folder: Path,
    extent: Position,
    spacing: Position = (1.0, 1.0),
) -> TileGrid:
    """Arrange files in rows and columns.

    Parameters
    ----------
    files
        The fields in their names.
    places
        Places of files in micrometres, by name; empty if unknown.
    p
        Order, numbers of rows and columns, and flip.
    folder
        Folder of the files.
    extent, spacing
        Size of a tile and of a pixel in y and x, micrometres.

    Raises
    ------
    InputError
        If rows and columns cannot be told, two files are one tile, or names contradict places.
    """
    placed_by, cells = _cells(files, places, p, extent)
    if placed_by == PLACES:
        _require_apart(files, cells, places, extent, spacing)
    if p.order is not None and p.flip:
        better = changed_order(p.order, p.flip_axes, transpose=p.transpose)
        raise InputError(
            f"--tile_order cannot be combined with --tile_flip; give --tile_order {better} alone."
        )
    if p.transpose:
        cells = {name: (column, row) for name, (row, column) in cells.items()}
    sections = {file.section for file in files}
    tiles = {(file.section, cells[file.name]) for file in files}
    cells, remarks = _count_from_zero(cells, placed_by, len(tiles), len(sections))
    if absent := gaps([*sections]):
        remarks.append(f"Missing sections between others: {list_numbers(absent)}.")
    most = [max(cell[axis] for cell in cells.values()) + 1 for axis in (0, 1)]
    rows, columns = (
        _grid_size(flag, asked, count)
        for flag, asked, count in zip(
            ("--tile_rows", "--tile_columns"), (p.rows, p.columns), most, strict=True
        )
    )
    if _is_sparse((rows, columns), len(tiles), len(sections)):
        raise InputError(
            f"{folder} has {counted(len(tiles), 'tile')}, but {placed_by} span {rows} rows and "
            f"{columns} columns; correct the fields of --tile_pattern, or give a --tile_table."
        )
    positions = {name: place.position for name, place in places.items()}
    if p.transpose:
        positions = {name: (z, x, y) for name, (z, y, x) in positions.items()}
    if "y" in p.flip_axes:
        cells = {name: (rows - 1 - row, column) for name, (row, column) in cells.items()}
        positions = {name: (z, -y, x) for name, (z, y, x) in positions.items()}
    if "x" in p.flip_axes:
        cells = {name: (row, columns - 1 - column) for name, (row, column) in cells.items()}
        positions = {name: (z, y, -x) for name, (z, y, x) in positions.items()}
    entries = [
        TileEntry(
            folder / file.name, file.section, *cells[file.name], file.plane, file.channel,
            *positions.get(file.name, (None, None, None)),
        )
        for file in files
    ]  # fmt: skip
    _require_distinct(entries)
    if positions and placed_by != PLACES:
        _require_consistent(entries, extent, spacing, placed_by)
    return TileGrid(rows, columns, _with_plane_indices(entries), placed_by, remarks)


def with_channels(
    grid: TileGrid, first_files: Sequence[NamedFile], others: Sequence[NamedFile], folder: Path
) -> TileGrid:
    """Add the files of ``others``, further channels, at the places of the tiles that they show.

    ``first_files`` are the files in the grid, all of one channel. An InputError names the first
    tile that is not in all channels.
    """
    entries = {entry.file: entry for entry in grid.entries}
    first_entries = {
        (file.tile_key, file.plane): entries[folder / file.name] for file in first_files
    }
    added = list[TileEntry]()
    parts = defaultdict[str | None, set[tuple[object, ...]]](set)
    for file in others:
        part = file.tile_key, file.plane
        if part not in first_entries:
            raise InputError(
                f"{folder / file.name} is of a tile or plane that channel "
                f"{first_files[0].channel} lacks; restore that file, or remove this one."
            )
        parts[file.channel].add(part)
        added.append(replace(first_entries[part], file=folder / file.name, channel=file.channel))
    for channel, present in sorted(parts.items(), key=str):
        if lacking := [part for part in first_entries if part not in present]:
            raise _missing_file(first_entries[lacking[0]], lacking[0][1], channel)
    every = [*grid.entries, *added]
    _require_distinct(every)
    return replace(grid, entries=every)


def _count_from_zero(
    cells: Mapping[str, Tile], placed_by: str, tiles: int, sections: int
) -> tuple[dict[str, Tile], list[str]]:
    """Rows and columns counted from 0, and remarks; numbers in names may count in larger steps."""
    remarks, counted_cells = list[str](), list[Sequence[int]]()
    axes = [np.array(axis) for axis in zip(*cells.values(), strict=True)]
    sparse = _is_sparse([int(np.ptp(axis)) + 1 for axis in axes], tiles, sections)
    for what, axis in zip(("Rows", "Columns"), axes, strict=True):
        first, step = int(axis.min()), 1
        if sparse and placed_by == NAMES:
            step = int(np.gcd.reduce(axis - first)) or 1
        counted_cells.append(((axis - first) // step).tolist())
        if step > 1:
            remarks.append(f"{what} are numbered from {first} in steps of {step}.")
        elif first and placed_by == NAMES:
            remarks.append(f"{what} are numbered from {first}; the first is taken as 0.")
    return dict(zip(cells, zip(*counted_cells, strict=True), strict=True)), remarks


def _is_sparse(size: Sequence[int], tiles: int, sections: int) -> bool:
    """Tell whether a grid has too many rows and columns for its tiles."""
    cells = size[0] * size[1]
    return cells * sections > SPARSE * max(tiles, SPARSE) or cells > MOST_TILES


NAMES, ORDER, PLACES = "the names", "--tile_order", "the places"


def _cells(
    files: Sequence[NamedFile],
    places: Mapping[str, Place],
    p: TileParameters,
    extent: Position,
) -> tuple[str, dict[str, Tile]]:
    """Row and column of each file, and where they come from."""
    if any(file.row is not None or file.column is not None for file in files):
        return NAMES, {file.name: (file.row or 0, file.column or 0) for file in files}
    if p.order is not None:
        return ORDER, _cells_in_order(files, p)
    known = {
        name: (place.row, place.column)
        for name, place in places.items()
        if place.row is not None and place.column is not None
    }
    if files and len(known) == len(files):
        return "the table of places", known
    if places:
        return PLACES, _cells_of_places(files, places, extent)
    if len({file.tile_key for file in files}) == len({file.section for file in files}):
        return "the only tile", dict.fromkeys((file.name for file in files), (0, 0))
    error = InputError(
        f"Names such as {files[0].name} only number the tiles; give --tile_rows, --tile_columns "
        "and --tile_order, such as rows-snake-top-left, or a --tile_table."
    )
    # Folders of sections are not those of subjects.
    is_one = len({file.section for file in files}) == 1
    raise with_folders(error, [file.name for file in files] if is_one else [])


def _cells_in_order(files: Sequence[NamedFile], p: TileParameters) -> dict[str, Tile]:
    """Row and column of files whose tiles are numbered in the order of imaging."""
    numbers = {file.name: file.number for file in files}
    if p.order is None or None in numbers.values():
        raise InputError(
            f"--tile_order needs numbered tiles, but {files[0].name} has no {{tile}} in "
            "--tile_pattern; add it."
        )
    given = {name: number for name, number in numbers.items() if number is not None}
    first = min(given.values())
    count = max(given.values()) - first + 1
    rows, columns = p.rows, p.columns
    if rows is None or columns is None:
        one = rows or columns
        if one is None or count % one:
            raise InputError(
                f"--tile_order needs --tile_rows and --tile_columns, whose product is the number "
                f"of tiles in a section; {count} were found."
            )
        rows, columns = rows or count // one, columns or count // one
    if count > rows * columns:
        raise InputError(
            f"--tile_rows {rows} and --tile_columns {columns} make {rows * columns} tiles, but the "
            f"names number {first} to {first + count - 1}; correct one, or mark the section in "
            "--tile_pattern."
        )
    return {name: tile_at(number - first, p.order, rows, columns) for name, number in given.items()}


def _cells_of_places(
    files: Sequence[NamedFile], places: Mapping[str, Place], extent: Position
) -> dict[str, Tile]:
    """Rows and columns of tiles from their places, which may be off by less than half a pitch."""
    cells: dict[str, list[int]] = {file.name: [0, 0] for file in files}
    sections: dict[int, list[str]] = defaultdict(list)
    for file in files:
        sections[file.section].append(file.name)
    placed = [
        (names, np.array([places[name].position[1:] for name in names]))
        for names in sections.values()
    ]
    for axis in (0, 1):
        pitch = _pitch([points for _, points in placed], axis, extent)
        for names, points in placed:
            for name, index in zip(names, _number_places(points[:, axis], pitch), strict=True):
                cells[name][axis] = index
    return {name: (row, column) for name, (row, column) in cells.items()}


def _pitch(sections: Sequence[np.ndarray], axis: int, extent: Position) -> float | None:
    """Median distance of neighbours along an axis, micrometres; None if there are none."""
    steps: list[float] = []
    for places in sections:
        for place in places:
            ahead = places - place
            beside = np.abs(ahead[:, 1 - axis]) < NEAR * extent[1 - axis]
            further = ahead[beside & (ahead[:, axis] > APART * extent[axis]), axis]
            steps += [float(further.min())] if further.size else []
    return float(np.median(steps)) if steps else None


def _as_if(steps: Position, extent: Position, spacing: Position) -> str:
    """Unit in which places this far apart would be those of neighbours; empty if in none."""
    if any(step >= USUAL[0] * size for step, size in zip(steps, extent, strict=True)):
        return ""
    units = {"pixels": spacing, "in millimetres": (1e3, 1e3), "in nanometres": (1e-3, 1e-3)}
    for unit, lengths in units.items():
        shares = [s * n / e for s, n, e in zip(steps, lengths, extent, strict=True)]
        # Along a single row or column, places are the same.
        if all(USUAL[0] <= share <= USUAL[1] for share in shares if share) and any(shares):
            return f"as if they were {unit}"
    return ""


def _require_apart(
    files: Sequence[NamedFile],
    cells: Mapping[str, Tile],
    places: Mapping[str, Place],
    extent: Position,
    spacing: Position,
) -> None:
    """Raise if different tiles are so near to each other that they have one row and column."""
    tiles = dict[tuple[object, ...], NamedFile]()
    for file in files:
        other = tiles.setdefault((file.section, cells[file.name]), file)
        if other.tile_key == file.tile_key:
            continue
        every = {
            f.tile_key: places[f.name].position[1:] for f in files if f.section == file.section
        }
        steps = [_step([at[axis] for at in every.values()]) for axis in (0, 1)]
        if fit := _as_if((steps[0], steps[1]), extent, spacing):
            raise InputError(
                f"{other.name} and {file.name} nearly coincide: places are {format_lengths(steps)} "
                f"apart (y x), and a tile is {format_lengths(extent)}. They fit {fit}; correct the "
                "unit, such as in a column's name, y_mm or 'y [px]'."
            )


def _step(along: Sequence[float]) -> float:
    """Median distance of the places along one axis that are clearly apart; 0 if none are."""
    gaps_along = np.diff(np.sort(along))
    clear = gaps_along[gaps_along > APART * gaps_along.max(initial=0)]
    return float(np.median(clear)) if clear.size else 0.0


def _number_places(along: np.ndarray, pitch: float | None) -> list[int]:
    """Numbers, from 0, of places along one axis that are about a pitch apart."""
    if pitch is None:
        return [0] * len(along)
    # The phase that most places share: the first one alone may be off.
    phase = np.angle(np.exp(2j * np.pi * along / pitch).mean()) / (2 * np.pi) * pitch
    numbers = np.round((along - phase) / pitch)
    for _ in range(2):
        # The pitch is the median of rounded steps: over many tiles its error adds up.
        if np.ptp(numbers):
            slope, start = np.polyfit(numbers, along, 1)
            numbers = np.round((along - start) / slope)
    return (numbers - numbers.min()).astype(int).tolist()


def _grid_size(flag: str, asked: int | None, count: int) -> int:
    if asked is not None and count > asked:
        raise InputError(f"{flag} is {asked}, but the tiles occupy {count}; correct it.")
    return asked or count


def _require_distinct(entries: Sequence[TileEntry]) -> None:
    """Raise if two files are the same part of a mosaic."""
    files: dict[tuple[object, ...], Path] = {}
    for e in entries:
        key = e.section, e.row, e.column, e.plane, e.channel
        if (other := files.setdefault(key, e.file)) is not e.file:
            raise InputError(
                f"{other} and {e.file} are both at row {e.row}, column {e.column} of section "
                f"{e.section}; remove one, or give --tile_pattern with the field that tells them "
                "apart."
            )


def _with_plane_indices(entries: Sequence[TileEntry]) -> list[TileEntry]:
    """Count planes from 0; raise if a tile lacks one of the planes of the others."""
    planes = sorted({e.plane for e in entries if e.plane is not None})
    tiles = defaultdict[tuple[int, Tile], dict[int, TileEntry]](dict)
    for e in entries:
        if e.plane is not None:
            tiles[e.section, e.tile][e.plane] = e
    for _, parts in sorted(tiles.items()):
        if lacking := [plane for plane in planes if plane not in parts]:
            entry = next(iter(parts.values()))
            raise _missing_file(entry, lacking[0], entry.channel)
    return [e if e.plane is None else replace(e, plane=planes.index(e.plane)) for e in entries]


def _missing_file(entry: TileEntry, plane: int | None, channel: str | None) -> InputError:
    """Make the error for a tile without one of its files."""
    parts = (("plane", plane), ("channel", channel))
    what = " and ".join(f"{word} {value}" for word, value in parts if value is not None)
    return InputError(
        f"The tile at row {entry.row}, column {entry.column} of section {entry.section} lacks "
        f"{what}; restore the file, or remove the tile's other files."
    )


class AxisFit(NamedTuple):
    """Places of a section's tiles along one axis, as a linear function of row and column."""

    start: float
    per_row: float
    per_column: float

    def at(self, tile: Tile) -> float:
        """Place of a tile, micrometres."""
        return self.start + self.per_row * tile[0] + self.per_column * tile[1]


def fit_axes(positions: Mapping[Tile, Position], extent: Position) -> tuple[AxisFit, AxisFit]:
    """Regular grid that the places of most tiles follow, in y and in x.

    Along an axis with a single row or column, the grid is assumed to continue by ``extent``.
    """
    fits = []
    for axis in (0, 1):
        steps = []
        for step in ((1, 0), (0, 1)):
            moves = [
                positions[tile[0] + step[0], tile[1] + step[1]][axis] - place[axis]
                for tile, place in positions.items()
                if (tile[0] + step[0], tile[1] + step[1]) in positions
            ]
            assumed = extent[axis] if step[axis] else 0.0
            steps.append(float(np.median(moves)) if moves else assumed)
        starts = [p[axis] - steps[0] * t[0] - steps[1] * t[1] for t, p in positions.items()]
        fits.append(AxisFit(float(np.median(starts)), steps[0], steps[1]))
    return fits[0], fits[1]


def _require_consistent(
    entries: Sequence[TileEntry], extent: Position, spacing: Position, placed_by: str
) -> None:
    """Raise if places contradict the rows and columns of the names or of an order."""
    sections = defaultdict[int, dict[Tile, Position]](dict)
    for entry in entries:
        if entry.position is not None:
            sections[entry.section][entry.tile] = entry.position
    for section, positions in sections.items():
        along_y, along_x = fit_axes(positions, extent)
        least = APART * extent[0], APART * extent[1]
        is_row, is_column = (len({tile[axis] for tile in positions}) == 1 for axis in (0, 1))
        # Along a single row or column nothing is stated.
        steps = (
            0.0 if is_row else abs(along_y.per_row),
            0.0 if is_column else abs(along_x.per_column),
        )
        if steps[0] < least[0] and steps[1] < least[1] and not (is_row and is_column):
            across = is_column or abs(along_y.per_column) >= least[0]
            if not (across and (is_row or abs(along_x.per_row) >= least[1])):
                fit = _as_if(steps, extent, spacing)
                words = f" (they fit {fit})" if fit else ""
                raise InputError(
                    f"In section {section}, neighbours are placed {format_lengths(steps)} apart (y "
                    f"x), but a tile is {format_lengths(extent)}{words}; "
                    "correct the places or their unit, such as y_mm or 'y [px]' in a column's name."
                )
            if placed_by == ORDER:
                raise _needless_order(section)
            raise InputError(
                f"In section {section}, rows follow each other along x, and columns along y; "
                "exchange {row} and {column} in --tile_pattern, or y and x in the places."
            )
        far = [
            tile
            for tile, (y, x) in positions.items()
            if abs(y - along_y.at(tile)) > NEAR * extent[0]
            or abs(x - along_x.at(tile)) > NEAR * extent[1]
        ]
        if far and placed_by == ORDER:
            raise _needless_order(section)
        if far:
            file = next(e.file for e in entries if e.section == section and e.tile == far[0])
            more = f" (and {len(far) - 1} more)" if far[1:] else ""
            raise InputError(
                f"{file}{more} is more than half a tile from row {far[0][0]}, column {far[0][1]} "
                f"of section {section}; correct the names or the places."
            )


def _needless_order(section: int) -> InputError:
    return InputError(
        f"--tile_order contradicts the places of the tiles in section {section}; omit it: places "
        "say where the tiles lie."
    )
