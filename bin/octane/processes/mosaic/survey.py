"""Survey of a folder of tiles: its files and their places, without reading voxels."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from octane.config.parameters import InputParameters
from octane.core.errors import InputError, collecting, first_lines, told_once
from octane.core.geometry import Grid
from octane.core.units import counted
from octane.layout.mosaic import idle_overlap
from octane.pipeline.workers import cores, run_tiles
from octane.processes.mosaic.names import SHOWN, NamedFile, NamePattern, find_pattern, with_folders
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.places import find_places, read_places, unused_tables
from octane.processes.mosaic.placing import find_file_places, is_named_by
from octane.processes.mosaic.section_tiles import SectionTiles, lay_out
from octane.processes.mosaic.tile_files import (
    ChooseChannels,
    FolderContents,
    RawFormat,
    TileFile,
    list_files,
    open_tile,
)
from octane.processes.mosaic.tile_grid import NAMES, TileGrid, arrange, with_channels
from octane.processes.mosaic.tile_list import read_tile_list
from octane.store.reading import AS_STATED, attributes_of, chosen_channels, place_of
from octane.store.stated import CHANNEL, Attributes


@dataclass(frozen=True)
class Acquisition:
    """Tiles that were found in a folder, and their places.

    ``pattern`` is that of the names, ``source`` states the places ('' if nothing does),
    ``remarks`` are sentences on missing files, and ``channels`` are the labels of all channels of
    the input, of which ``sections`` have those that were chosen.
    """

    folder: Path
    pattern: NamePattern
    ignored: Sequence[str]
    grid: TileGrid
    sections: Sequence[SectionTiles]
    source: str
    remarks: Sequence[str]
    channels: Sequence[str]

    def of_channel(self, number: int) -> "Acquisition":
        """Keep one of the chosen channels, by its number: its files and its sections."""
        label = self.channels[number]
        entries = [entry for entry in self.grid.entries if entry.channel in (None, label)]
        sections = [section.of_channel(number) for section in self.sections]
        return replace(self, grid=replace(self.grid, entries=entries), sections=sections)

    def idle_flags(self, p: TileParameters, overlap: Sequence[float] | None) -> dict[str, str]:
        """Sentences on flags that cannot act on these tiles, by the workflow's parameter."""
        idle = dict[str, str]()
        if p.order is not None and self.grid.placed_by == NAMES:
            idle["tile_order"] = (
                f"--tile_order {p.order} is for numbered tiles, but the names in {self.folder}, "
                f"'{self.pattern.text}', state rows and columns; omit it, or give --tile_pattern "
                "with {tile}."
            )
        places = ((section.positions, section.grid) for section in self.sections)
        if overlap is not None and (text := idle_overlap(overlap, places, self.source)):
            idle["overlap"] = f"{text}, in {self.folder}; omit it, or correct the places."
        return idle

    def about(self) -> str:
        """How the tiles were found, in sentences."""
        text = f"Tiles are named '{self.pattern.text}', with rows and columns from "
        text += self.grid.placed_by
        if self.source:
            text += f" and places from {self.source}"
        if others := [name for name in self.ignored if not name.startswith(".")]:
            text += f"; {counted(len(others), 'other file')}, such as {others[0]}, ignored"
        return f"{text}."


def survey(
    folder: Path,
    p: TileParameters,
    reading: InputParameters,
    overlap: Sequence[float] | None,
    choose: Callable[[set[int]], Collection[int | None]] | None = None,
    channels: str | None = None,
) -> Acquisition:
    """Find the tiles in a folder without reading voxels; an InputError says what is not usable.

    ``choose`` gets the numbers of all sections in the names, and returns those whose files are
    opened. Of several channels, those that ``reading`` and ``channels`` (the value of --channels)
    name are read, all if neither does; all have the places of the one that ``reading`` names, else
    of the first.
    """
    raw = _raw_format(p)
    pattern = None if p.pattern is None else NamePattern.of(p.pattern)
    listing = list_files(folder, raw=raw is not None)
    listing = listing.at_depth(None if pattern is None else pattern.depth)
    if not listing.tiles:
        raise _nothing(folder, listing, p)
    pattern = pattern or _pattern_of(folder, listing.tiles, p, reading.input_unit)
    every, left_out = NamedFile.read_fitting(listing.tiles, pattern)
    files = every
    if choose is not None:
        chosen = choose({file.section for file in files})
        files = [file for file in files if file.section in chosen]
    named = sorted({file.channel for file in every if file.channel is not None})
    numbers = _chosen(folder, named, reading, channels) if named else []
    wanted: list[str | None] = [named[number] for number in numbers] or [None]
    first_files = [file for file in files if file.channel == wanted[0]]
    others = [file for file in files if file.channel in wanted[1:]]
    if not first_files:
        raise InputError(
            f"{folder} holds no tile of channel {wanted[0]} in the chosen sections; choose another "
            "--channel, or other sections."
        )

    def choose_channels(path: Path, labels: Sequence[str]) -> list[int]:
        return _the_only(path, labels) if named else _chosen(path, labels, reading, channels)

    names = [file.name for file in (*first_files, *others)]
    contents = _describe_files(folder, names, reading, raw, choose_channels)
    first = contents[first_files[0].name]
    placed = find_file_places(
        *(folder, every, pattern, {file.name: contents[file.name] for file in first_files}, p),
        reading.input_unit,
    )
    numbered = first_files
    if "section" not in pattern.fields:
        sections = {name: place.section for name, place in placed.places.items()}
        numbered = [f._replace(section=sections.get(f.name) or f.section) for f in first_files]
    extent = Grid(first.shape, first.spacing).extent[1:]
    grid = arrange(numbered, placed.places, p, folder, extent, first.spacing[1:])
    grid = with_channels(grid, first_files, others, folder)
    labels = named or first.channels
    attributes = _attributes(folder, labels, numbers or first.chosen, reading, first)
    files_of = {folder / name: file for name, file in contents.items()}
    sections = lay_out(grid, files_of, attributes, overlap)
    unused = [] if placed.source or overlap is not None else unused_tables(folder)
    remarks = [
        *remarks_on_names(left_out, pattern),
        *placed.remarks,
        *unused,
        *remarks_on_missing(sections),
        *remarks_on_ignored(sections),
    ]
    tables = {table.resolve() for table in placed.tables}
    ignored = [
        name for name in (*listing.ignored, *left_out) if (folder / name).resolve() not in tables
    ]
    return Acquisition(folder, pattern, ignored, grid, sections, placed.source, remarks, labels)


def remarks_on_names(names: Sequence[str], pattern: NamePattern) -> list[str]:
    """Say which files are left out because they do not fit a pattern."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [
        f"{counted(len(names), 'file')} left out, not named as --tile_pattern '{pattern.text}' "
        f"says: {', '.join(names[:SHOWN])}{more}."
        for _ in names[:1]
    ]


def _pattern_of(
    folder: Path, names: Sequence[str], p: TileParameters, unit: str | None
) -> NamePattern:
    """Find the pattern of names; a table that names all of them needs none.

    Then each file is a tile.
    """
    try:
        return find_pattern(names)
    except InputError as error:
        table = p.table or find_places(folder)
        every = NamePattern.of("/".join("*" for _ in Path(names[0]).parts))
        files = [NamedFile.read(name, every) for name in names]
        if table is None or not is_named_by(read_places(table, unit), files, every):
            raise with_folders(error, names) from error
    return every


def _chosen(
    path: Path, labels: Sequence[str], reading: InputParameters, channels: str | None = None
) -> list[int]:
    """Numbers of the channels that ``reading``, as the first, and --channels name, else of all."""
    count = len(labels)
    numbers: list[int] = []
    if reading.channel is not None:
        asked = AS_STATED.model_copy(update={"channel": reading.channel})
        numbers += place_of(path, [CHANNEL], [count], labels, asked)
    if channels is not None:
        numbers += chosen_channels(path, labels, count, channels)
    return [*dict.fromkeys(numbers)] or [*range(count)]


def _attributes(
    path: Path,
    labels: Sequence[str],
    numbers: Sequence[int],
    reading: InputParameters,
    first: TileFile,
) -> dict[int, Attributes]:
    """Octane's attributes of the channels with these numbers; ``first`` is any of the tiles."""
    orientation = reading.orientation or first.orientation
    stated = {"orientation": orientation} if any(orientation) else {}
    count = len(labels)
    return {n: stated | attributes_of(path, labels, count, n, reading) for n in sorted(numbers)}


def _the_only(path: Path, labels: Sequence[str]) -> list[int]:
    """The number of a file's only channel; raise if it holds several."""
    if len(labels) > 1:
        raise InputError(
            f"{path} holds {len(labels)} channels, but its name states one as well; save each "
            "channel as a file of its own."
        )
    return [0]


def survey_tile_list(
    folder: Path, listed: Path, p: TileParameters, reading: InputParameters
) -> list[SectionTiles]:
    """Sections of a tile list, whose files are in ``folder``; p states the rows and columns."""
    entries = read_tile_list(listed, folder)
    names = [entry.file.relative_to(folder).as_posix() for entry in entries]
    named = sorted({entry.channel for entry in entries if entry.channel is not None})
    if named:
        # The list has one channel, which the flags may call by its number in the input.
        kinds = tuple(f"0={kind}" for kind in reading.kinds.values())
        reading = reading.model_copy(update={"channel": None, "channel_kind": kinds})
    contents = _describe_files(
        folder, names, reading, _raw_format(p), partial(_chosen, reading=reading)
    )
    first = contents[names[0]]
    attributes = _attributes(folder, named or first.channels, first.chosen, reading, first)
    rows = p.rows or 1 + max(entry.row for entry in entries)
    columns = p.columns or 1 + max(entry.column for entry in entries)
    grid = TileGrid(rows, columns, entries, "the tile list", [])
    files = {folder / name: file for name, file in contents.items()}
    return lay_out(grid, files, attributes, None)


def _raw_format(p: TileParameters) -> RawFormat | None:
    if p.raw_shape is None and p.raw_type is None:
        return None
    if p.raw_shape is None or p.raw_type is None:
        raise InputError("--tile_raw_shape and --tile_raw_type belong together; give both.")
    try:
        dtype = np.dtype(p.raw_type)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise InputError(
            f"--tile_raw_type is '{p.raw_type}'; give a type such as uint16, or >u2 (big-endian)."
        )
    z, y, x = p.raw_shape
    return RawFormat((z, y, x), dtype)


def _nothing(folder: Path, listing: FolderContents, p: TileParameters) -> InputError:
    """Error for a folder without tiles."""
    others = counted(len(listing.ignored), "other")
    shown = f" ({others}, such as {listing.ignored[0]})" if listing.ignored else ""
    fit = f" that fit --tile_pattern '{p.pattern}'" if p.pattern else ""
    remedy = "correct the pattern, give" if p.pattern else "give"
    return InputError(
        f"{folder} holds no tiles{fit}{shown}; {remedy} the folder of TIFF, PNG, NIfTI, MHA, NRRD "
        "or OME-Zarr files, or describe raw ones with --tile_raw_shape and --tile_raw_type."
    )


def _describe_files(
    folder: Path,
    names: Sequence[str],
    reading: InputParameters,
    raw: RawFormat | None,
    choose: ChooseChannels,
) -> dict[str, TileFile]:
    """Describe all files; an InputError has a line for each problem."""
    problems: list[tuple[Path, str]] = []

    def look(name: str) -> TileFile | None:
        lines: list[str] = []
        with collecting(lines):
            return open_tile(folder / name, reading, raw, choose)
        problems.extend((folder / name, problem) for problem in lines)
        return None

    contents = run_tiles(names, look, workers=cores())
    if problems:
        raise InputError("\n".join(first_lines(told_once(sorted(problems)))))
    return {name: file for name, file in zip(names, contents, strict=True) if file is not None}


def remarks_on_ignored(sections: Sequence[SectionTiles]) -> list[str]:
    """Sentences on what files state and a parameter replaces, and on the first oblique one."""
    files = [
        part.file for section in sections for parts in section.files.values() for part in parts
    ]
    oblique = [file.lost for file in files if file.lost]
    return [*dict.fromkeys(file.overruled for file in files if file.overruled), *oblique[:1]]


def remarks_on_missing(sections: Sequence[SectionTiles]) -> list[str]:
    """Name the tiles that were not imaged, one sentence per section."""
    lines = []
    for section in sections:
        missing = sorted(section.grid.not_imaged)
        if missing:
            row, column = missing[0]
            more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            lines.append(
                f"Section {section.number} has no file for row {row}, column {column}{more}: "
                "declared as not imaged."
            )
    return lines
