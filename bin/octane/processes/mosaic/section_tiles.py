"""The tiles of a section as a mosaic grid: its voxels, and the files of each tile."""

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from octane.config.sheets import DEPTH, POSITION_COLUMNS
from octane.core.errors import InputError
from octane.core.files import writing
from octane.core.geometry import Grid, shape_of, spelled, vector
from octane.core.orientation import spelled_orientation
from octane.core.units import counted
from octane.layout.mosaic import MosaicGrid, Position, Tile, position_rows
from octane.processes.mosaic.tile_files import TileFile
from octane.processes.mosaic.tile_grid import TileEntry, TileGrid
from octane.store.channels import joined_attributes, name_of
from octane.store.stated import Attributes

Kind = TypeVar("Kind")


def section_name(number: int) -> str:
    """Name of a section's store, without its ending."""
    return f"section_{number:02d}"


class ChannelFile(NamedTuple):
    """One channel in a file."""

    file: TileFile
    channel: int


@dataclass(frozen=True)
class SectionTiles:
    """Tiles of a section.

    ``channels`` are octane's attributes of each channel by its number in the input, ``files`` those
    of a tile and channel in the order of their planes, and ``positions`` the tiles' places in
    micrometres, empty if unknown.
    """

    number: int
    grid: MosaicGrid
    dtype: np.dtype
    channels: Mapping[int, Attributes]
    files: Mapping[tuple[Tile, int], Sequence[ChannelFile]]
    positions: Mapping[Tile, Position]

    @property
    def name(self) -> str:
        """Name of the section's store, without its ending."""
        return section_name(self.number)

    @property
    def attributes(self) -> Attributes:
        """Metadata of the section's store, octane's own."""
        return {
            "kind": "mosaic",
            "mosaic": self.grid.attributes(),
            "section": {"number": self.number},
            **joined_attributes([*self.channels.values()]),
        }

    def of_channel(self, number: int) -> "SectionTiles":
        """Keep one channel, by its number in the input."""
        files = {key: parts for key, parts in self.files.items() if key[1] == number}
        return replace(self, channels={number: self.channels[number]}, files=files)

    @property
    def position_rows(self) -> list[tuple[float, ...]]:
        """Rows of a table of positions: section, row, column, y and x in micrometres."""
        places = sorted(self.positions.items())
        return [(self.number, *tile, *place) for tile, place in places]

    @property
    def paths(self) -> set[Path]:
        """Paths of the files, which may hold several channels each."""
        return {part.file.path for parts in self.files.values() for part in parts}

    @property
    def descriptions(self) -> set[Path]:
        """Files that describe others of their set of OME-TIFFs."""
        every = (part.file.description for parts in self.files.values() for part in parts)
        return {path for path in every if path is not None}

    @property
    def tile_bytes(self) -> int:
        """Bytes of a full tile of one channel."""
        return prod(self.grid.tile) * self.dtype.itemsize

    @property
    def decoding(self) -> int:
        """Most memory for decoding a plane of any file."""
        return max(part.file.decoding for parts in self.files.values() for part in parts)

    def buffer(self) -> npt.NDArray:
        """Memory for a full tile."""
        return np.empty(self.grid.tile, self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the voxels of all files."""
        every = (part.file for parts in self.files.values() for part in parts)
        return sum(prod(file.shape) for file in every) * self.dtype.itemsize

    def read(
        self,
        tile: Tile,
        channel: int | None = None,
        buffer: npt.NDArray | None = None,
        folder: Path | None = None,
    ) -> npt.NDArray:
        """Voxels of a tile (z, y, x), in ``buffer`` if given, which holds a full tile.

        They are those of the first channel if none is given. Compressed TIFFs are decoded into
        files in ``folder``.
        """
        parts = self.files[tile, min(self.channels) if channel is None else channel]
        shape = shape_of(self.grid.region(tile))
        voxels = self.buffer() if buffer is None else buffer
        voxels = voxels.reshape(-1)[: prod(shape)].reshape(shape)
        start = 0
        for part in parts:
            depth = part.file.shape[0]
            part.file.read_into(voxels[start : start + depth], part.channel, folder)
            start += depth
        return voxels


def lay_out(
    grid: TileGrid,
    contents: Mapping[Path, TileFile],
    channels: Mapping[int, Attributes],
    overlap: Sequence[float] | None,
) -> list[SectionTiles]:
    """Lay out the tiles of all sections; an InputError names a file unlike the others.

    ``contents`` describes the files, ``channels`` are octane's attributes of the channels to be
    read by their numbers in the input, and ``overlap`` is a fraction of a tile in y and x.
    """
    _require_alike(contents, lambda file: f"voxels of type {file.dtype}")
    _require_alike(contents, lambda file: f"voxels of {spelled(file.spacing)} micrometre")
    _require_alike(contents, _shown_orientation)
    _require_alike(contents, _shown_channels)
    _require_alike(contents, lambda file: counted(file.shape[0], "plane"))
    full = []
    for axis in (0, 1):
        entries = [e for e in grid.entries if grid.is_full(e, axis)]
        # If no tile is full, as may happen in a single section, the last ones count as full.
        full.append(
            _most_common([contents[e.file].shape[axis + 1] for e in entries or grid.entries])
        )
    return [
        _lay_out_section(number, grid, entries, contents, channels, (full[0], full[1]), overlap)
        for number, entries in grid.sections.items()
    ]


def write_positions(path: Path, sections: Sequence[SectionTiles]) -> None:
    """Write the table of positions; rows of other sections in an existing one are kept."""
    numbers = {section.number for section in sections}
    kept = [row for _, row in position_rows(path)] if path.exists() else []
    kept = [row for row in kept if float(row["section"]) not in numbers]
    deep = [DEPTH] if any(DEPTH in row for row in kept) else []
    with writing(path, overwrite=True) as partial, partial.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([*POSITION_COLUMNS, *deep])
        for row in kept:
            table.writerow([*(row[column] for column in POSITION_COLUMNS), *map(row.get, deep)])
        for section in sections:
            table.writerows((*row, *([0.0] * len(deep))) for row in section.position_rows)


def _lay_out_section(
    number: int,
    grid: TileGrid,
    entries: Sequence[TileEntry],
    contents: Mapping[Path, TileFile],
    channels: Mapping[int, Attributes],
    full: tuple[int, int],
    overlap: Sequence[float] | None,
) -> SectionTiles:
    sizes = []
    for axis, size in enumerate(full):
        last = [contents[e.file].shape[axis + 1] for e in entries if not grid.is_full(e, axis)]
        sizes.append((size, min(size, _most_common(last)) if last else size))
    for entry in entries:
        shape = contents[entry.file].shape
        wanted = [sizes[axis][not grid.is_full(entry, axis)] for axis in (0, 1)]
        if [*shape[1:]] != wanted:
            raise InputError(
                f"{entry.file} has {spelled(shape[1:])} voxels (y x), but a tile at row "
                f"{entry.row}, column {entry.column} has {spelled(wanted)}; restore it. Only "
                "the last row and column may be smaller."
            )
    first = contents[entries[0].file]
    named = {name_of(attributes): channel for channel, attributes in channels.items()}
    files: dict[tuple[Tile, int], list[ChannelFile]] = {}
    for entry in sorted(entries, key=lambda e: e.plane or 0):
        file = contents[entry.file]
        kept = [*channels] if entry.channel is None else [named[entry.channel]]
        for channel, place in zip(kept, file.chosen, strict=True):
            files.setdefault((entry.tile, channel), []).append(ChannelFile(file, place))
    depth = first.shape[0] * len({e.plane for e in entries})
    tile = (depth, *full)
    (height, lowest), (width, rightmost) = sizes
    shape = (depth, (grid.rows - 1) * height + lowest, (grid.columns - 1) * width + rightmost)
    spacing = first.spacing
    extent = Grid(tile, spacing).extent
    positions = {e.tile: e.position for e in entries if e.position is not None}
    places_z = [e.z for e in entries if e.z is not None]
    edge = vector(float(np.median(places_z)) if places_z else 0.0, 0.0, 0.0)
    pitch = None
    if overlap is not None and not positions:
        pitch = (extent[1] * (1 - overlap[0]), extent[2] * (1 - overlap[1]))
    whole = Grid(shape, spacing).extent
    not_imaged = frozenset(grid.missing(number))
    mosaic = MosaicGrid(shape, tile, spacing, edge, extent, whole, pitch, not_imaged)
    return SectionTiles(number, mosaic, first.dtype, channels, files, positions)


def _shown_orientation(file: TileFile) -> str:
    return f"the orientation {spelled_orientation(file.orientation) or 'unstated'}"


def _shown_channels(file: TileFile) -> str:
    """Number of a file's channels to be read, and their labels if it has several channels."""
    text = counted(len(file.chosen), "channel")
    labels = [f"'{file.channels[number]}'" for number in file.chosen]
    return f"{text} ({', '.join(labels)})" if len(file.channels) > 1 else text


def _most_common(values: Sequence[Kind]) -> Kind:
    return Counter(values).most_common(1)[0][0]


def _require_alike(files: Mapping[Path, TileFile], spell: Callable[[TileFile], str]) -> None:
    """Raise for the first file that ``spell`` describes unlike most others."""
    words = {path: spell(file) for path, file in files.items()}
    usual = _most_common([*words.values()])
    odd = next((path for path, value in words.items() if value != usual), None)
    if odd is not None:
        other = next(path for path, value in words.items() if value == usual)
        raise InputError(
            f"{odd} has {words[odd]}, but most tiles, such as {other.name}, have {usual}; restore "
            "or convert it."
        )
