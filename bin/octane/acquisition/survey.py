"""Survey of a folder of tiles: its files and their places, without reading voxels."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octane.acquisition.names import NamedFile, NamePattern, find_pattern
from octane.acquisition.placing import find_placed
from octane.acquisition.section_tiles import SectionTiles, lay_out
from octane.acquisition.tile_files import FolderContents, RawFormat, TileFile, list_files, open_tile
from octane.acquisition.tile_grid import TileGrid, arrange
from octane.acquisition.tile_list import read_tile_list
from octane.config.params import InputParameters, TileParameters
from octane.core.errors import InputError, collecting, first_lines, told_once
from octane.core.geometry import Grid
from octane.core.units import counted
from octane.pipeline.workers import cores, run_tiles
from octane.store.ngff import CHANNEL, place_of


@dataclass(frozen=True)
class Acquisition:
    """Tiles that were found in a folder, and their places.

    ``pattern`` is that of the names, ``source`` states the places ('' if nothing does), and
    ``remarks`` are sentences on missing files.
    """

    folder: Path
    pattern: NamePattern
    ignored: Sequence[str]
    grid: TileGrid
    sections: Sequence[SectionTiles]
    source: str
    remarks: Sequence[str]

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
) -> Acquisition:
    """Find the tiles in a folder without reading voxels; an InputError says what is not usable.

    ``choose`` gets the numbers of all sections in the names, and returns those whose files are
    opened.
    """
    raw = _raw_format(p)
    pattern = None if p.pattern is None else NamePattern.of(p.pattern)
    listing = list_files(folder, raw=raw is not None)
    listing = listing.at_depth(None if pattern is None else pattern.depth)
    if not listing.tiles:
        raise _nothing(folder, listing, p)
    pattern = pattern or find_pattern(listing.tiles)
    files = [NamedFile.read(name, pattern) for name in listing.tiles]
    if reading.channel is not None and "channel" in pattern.fields:
        files, reading = _of_channel(folder, files, reading)
    every = files
    if choose is not None:
        chosen = choose({file.section for file in files})
        files = [file for file in files if file.section in chosen]
    contents = _opened(folder, [file.name for file in files], reading, raw)
    first = contents[files[0].name]
    extent = Grid(first.shape, first.spacing).extent[1:]
    placed = find_placed(folder, every, pattern, contents, p, reading.input_unit)
    if "section" not in pattern.fields:
        sections = {name: place.section for name, place in placed.places.items()}
        files = [f._replace(section=sections.get(f.name) or f.section) for f in files]
    grid = arrange(files, placed.places, p, folder, extent)
    described = {folder / name: file for name, file in contents.items()}
    sections = lay_out(grid, described, overlap)
    remarks = [*placed.remarks, *not_imaged(sections)]
    tables = {table.resolve() for table in placed.tables}
    ignored = [name for name in listing.ignored if (folder / name).resolve() not in tables]
    return Acquisition(folder, pattern, ignored, grid, sections, placed.source, remarks)


def _of_channel(
    folder: Path, files: Sequence[NamedFile], reading: InputParameters
) -> tuple[list[NamedFile], InputParameters]:
    """Files of the chosen channel, which their names state, and how to read them."""
    names = sorted({file.channel for file in files if file.channel is not None})
    (index,) = place_of(folder, [CHANNEL], [len(names)], names, reading)
    kept = [file for file in files if file.channel == names[index]]
    return kept, reading.model_copy(update={"channel": None})


def survey_listed(
    folder: Path, listed: Path, p: TileParameters, reading: InputParameters
) -> list[SectionTiles]:
    """Sections of a tile list, whose files are in ``folder``; p states the rows and columns."""
    entries = read_tile_list(listed, folder)
    names = [entry.file.relative_to(folder).as_posix() for entry in entries]
    if any(entry.channel is not None for entry in entries):
        reading = reading.model_copy(update={"channel": None})
    contents = _opened(folder, names, reading, _raw_format(p))
    rows = p.rows or 1 + max(entry.row for entry in entries)
    columns = p.columns or 1 + max(entry.column for entry in entries)
    grid = TileGrid(rows, columns, entries, "the tile list", [])
    return lay_out(grid, {folder / name: file for name, file in contents.items()}, None)


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


def _opened(
    folder: Path, names: Sequence[str], reading: InputParameters, raw: RawFormat | None
) -> dict[str, TileFile]:
    """Describe all files; an InputError has a line for each problem."""
    problems: list[tuple[Path, str]] = []

    def look(name: str) -> TileFile | None:
        own: list[str] = []
        with collecting(own):
            return open_tile(folder / name, reading, raw)
        problems.extend((folder / name, problem) for problem in own)
        return None

    found = run_tiles(names, look, workers=cores())
    if problems:
        raise InputError("\n".join(first_lines(told_once(sorted(problems)))))
    return {name: file for name, file in zip(names, found, strict=True) if file is not None}


def not_imaged(sections: Sequence[SectionTiles]) -> list[str]:
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
