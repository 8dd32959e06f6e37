"""MOSAIC: the microscope's tiles in files, written as mosaic grids.

Every file is looked at before anything is written. The voxels stay as they are.
"""

import csv
import logging
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octane.acquisition.names import NamedFile, NamePattern, find_pattern
from octane.acquisition.orders import changed_order
from octane.acquisition.placing import find_placed
from octane.acquisition.section_tiles import SectionTiles, lay_out
from octane.acquisition.tile_files import FolderContents, RawFormat, TileFile, list_files, open_tile
from octane.acquisition.tile_grid import TileGrid, arrange, fitted
from octane.config.params import (
    ExecutionParameters,
    InputParameters,
    OverlapParameters,
    TileParameters,
    bytes_of,
)
from octane.config.sheets import POSITION_COLUMNS
from octane.core.arrays import require_cpu
from octane.core.errors import InputError, collecting
from octane.core.files import require_free, writing
from octane.core.geometry import Grid, spelled
from octane.core.metrics import Metrics
from octane.core.progress import Progress
from octane.core.units import counted, format_bytes
from octane.layout.mosaic import Tile, position_rows, split_positions
from octane.pipeline.workers import cores, plan_workers, run_tiles
from octane.stitch.orientation import Orientation, find_orientation
from octane.store.ngff import Attributes
from octane.store.writer import Level, create_image

logger = logging.getLogger(__name__)

POSITIONS = "positions.csv"
COPIES = 3
"""Tiles that a worker holds at most: as read, as encoded, and what a decoder needs."""
BLOSC_BYTES = 2**31 - 17
"""Most bytes of a chunk that blosc compresses."""
OFF = 0.02
"""Difference of overlaps that is doubtful, fraction of a tile."""
COMPARED_BYTES = 1e9
"""Most bytes of tiles that are read to compare neighbours."""
PROBLEMS = 5
"""Most files whose problems are listed."""


@dataclass(frozen=True)
class Acquisition:
    """Tiles that were found in a folder, and where they are placed.

    ``pattern`` is that of the names, ``source`` what states the places ('' if nothing does), and
    ``remarks`` are sentences on what is missing.
    """

    folder: Path
    pattern: NamePattern
    ignored: Sequence[str]
    grid: TileGrid
    sections: Sequence[SectionTiles]
    source: str
    remarks: Sequence[str]


def write_mosaics(
    folder: Path,
    destination: Path,
    parameters: TileParameters,
    reading: InputParameters,
    placing: OverlapParameters,
    execution: ExecutionParameters,
    *,
    dry_run: bool = False,
) -> Metrics:
    """Write the tiles in ``folder`` as one mosaic grid per section in ``destination``.

    With ``dry_run``, only print what was found. Raises an OctaneError that names what is not
    usable; nothing is left half-written.
    """
    require_cpu(execution.backend, "MOSAIC")
    metrics = Metrics("mosaic", settings=parameters.recorded(reading, placing))
    found = survey(folder, parameters, reading, placing.overlap)
    stores = [destination / f"{_name(section, found)}.ome.zarr" for section in found.sections]
    if dry_run:
        sys.stdout.write("\n".join(report(found, parameters, placing)) + "\n")
        return metrics
    for store in stores:
        require_free(store, overwrite=execution.overwrite)
    table = destination / POSITIONS
    if table.exists():
        position_rows(table)
        if not found.source:
            metrics.warn(f"{table} exists and stays; remove it if it does not place these tiles.")
    for text in found.remarks:
        metrics.warn(text)
    advance = Progress("MOSAIC", sum(len(s.imaged) for s in found.sections))
    for section, store in zip(found.sections, stores, strict=True):
        _write_section(section, store, parameters, execution, metrics, advance)
        if found.source:
            _write_positions(table, section)
    return metrics


def survey(
    folder: Path, p: TileParameters, reading: InputParameters, overlap: Sequence[float] | None
) -> Acquisition:
    """Find the tiles in a folder without reading voxels; an InputError says what is not usable."""
    raw = _raw_format(p)
    pattern = None if p.pattern is None else NamePattern.of(p.pattern)
    listing = list_files(folder, raw=raw is not None)
    listing = listing.at_depth(None if pattern is None else pattern.depth)
    if not listing.tiles:
        raise _nothing(folder, listing, p)
    pattern = pattern or find_pattern(listing.tiles)
    files = [NamedFile.read(name, pattern) for name in listing.tiles]
    contents = _opened(folder, listing.tiles, reading, raw)
    first = contents[files[0].name]
    extent = (first.shape[1] * first.spacing[1], first.shape[2] * first.spacing[2])
    placed = find_placed(folder, pattern, contents, p, reading.input_unit)
    if "section" not in pattern.fields:
        sections = {name: place.section for name, place in placed.places.items()}
        files = [f._replace(section=sections.get(f.name) or f.section) for f in files]
    grid = arrange(files, placed.places, p, folder, extent)
    described = {folder / name: file for name, file in contents.items()}
    sections = lay_out(grid, described, overlap)
    remarks = [*placed.remarks, *_gaps(sections)]
    return Acquisition(folder, pattern, listing.ignored, grid, sections, placed.source, remarks)


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
    return InputError(
        f"{folder} holds no tiles{fit}{shown}; give the folder of TIFF, PNG, NIfTI, MHA, NRRD or "
        "OME-Zarr files, or describe raw ones with --tile_raw_shape and --tile_raw_type."
    )


def _opened(
    folder: Path, names: Sequence[str], reading: InputParameters, raw: RawFormat | None
) -> dict[str, TileFile]:
    """Describe all files; an InputError has one line for each of the first that are not usable."""
    problems: list[str] = []

    def look(name: str) -> TileFile | None:
        with collecting(problems):
            return open_tile(folder / name, reading, raw)
        return None

    found = run_tiles(names, look, workers=cores())
    if problems:
        more = len(problems) - PROBLEMS
        listed = problems[:PROBLEMS] + [f"{more} more files are not usable."] * (more > 0)
        raise InputError("\n".join(listed))
    return {name: file for name, file in zip(names, found, strict=True) if file is not None}


def _gaps(sections: Sequence[SectionTiles]) -> list[str]:
    """Name the tiles that were not imaged, one sentence per section."""
    lines = []
    for section in sections:
        missing = sorted(section.grid.not_imaged)
        if missing:
            row, column = missing[0]
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            lines.append(
                f"Section {section.number} has no file for row {row}, column {column}{more}: "
                "declared as not imaged."
            )
    return lines


def _name(section: SectionTiles, found: Acquisition) -> str:
    digits = max(2, *(len(str(other.number)) for other in found.sections))
    return f"section_{section.number:0{digits}d}"


def _write_section(
    section: SectionTiles,
    store: Path,
    p: TileParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    advance: Progress,
) -> None:
    """Write the mosaic grid of a section, a tile at a time in every worker."""
    if p.codec == "blosc-lz4" and section.tile_bytes > BLOSC_BYTES:
        raise InputError(
            f"{store.name} has tiles of {format_bytes(section.tile_bytes)}, more than blosc-lz4 "
            "compresses; give --tile_codec zstd."
        )
    grid, several = section.grid, len(section.channels) > 1
    attributes: Attributes = {
        "kind": "mosaic",
        "mosaic": grid.attributes(),
        "section": {"number": section.number},
        **({"channel": section.channels[0]} if not several and section.channels[0] else {}),
    }
    level = Level(Grid.covering(grid.edge, grid.extent, grid.spacing), grid.tile)
    need, memory = COPIES * section.tile_bytes, bytes_of(execution.memory)
    workers = plan_workers(need, memory, execution.workers, len(section.imaged))
    logger.info(
        "MOSAIC: section %d, %d workers, %s of memory",
        *(section.number, workers, format_bytes(workers * need)),
    )
    names = [name or str(k) for k, name in enumerate(section.channels)] if several else []
    with create_image(
        store,
        [level],
        section.dtype,
        codec=p.codec,
        attributes=attributes,
        channels=names,
        overwrite=execution.overwrite,
    ) as (writer,):
        # Reused from tile to tile: new memory would cost as much as reading.
        buffers = deque(section.buffer() for _ in range(workers))

        def write(tile: Tile) -> None:
            region, buffer = grid.region(tile), buffers.popleft()
            for channel in range(len(section.channels)):
                with metrics.timed("read"):
                    voxels = section.read(tile, channel, buffer, store.parent)
                if several:
                    writer[(slice(channel, channel + 1), *region)] = voxels[None]
                else:
                    writer[region] = voxels
                metrics.count("written", voxels.nbytes)
            buffers.append(buffer)
            advance(voxels.nbytes * len(section.channels))

        run_tiles(
            section.imaged,
            write,
            workers=workers,
            describe=lambda tile: f"row {tile[0]}, column {tile[1]} of section {section.number}",
        )


def _write_positions(path: Path, section: SectionTiles) -> None:
    """Write a section's rows of the table of positions; those of other sections are kept."""
    kept = split_positions(path) if path.exists() else {}
    with writing(path, overwrite=True) as partial, partial.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(POSITION_COLUMNS)
        for number, text in kept.items():
            if number != section.number:
                table.writerows(csv.reader(text.splitlines()[1:]))
        for (row, column), (y, x) in sorted(section.positions.items()):
            table.writerow((section.number, row, column, y, x))


def report(found: Acquisition, p: TileParameters, placing: OverlapParameters) -> list[str]:
    """Lines that say what was found where, what is missing, and what is doubtful."""
    first = found.sections[0]
    names = "given" if p.pattern else "found"
    lines = [
        f"Names ({names}): {found.pattern.text}",
        f"Rows and columns: from {found.grid.placed_by}",
        f"Places: {_places(found, placing)}",
        f"Tiles: {spelled(first.grid.tile)} voxels (z y x) of {first.dtype}, "
        f"{spelled(first.grid.spacing)} micrometre; {counted(len(first.channels), 'channel')}"
        + (f" ({', '.join(first.channels)})" if any(first.channels) else ""),
    ]
    if found.ignored:
        lines.append(f"Ignored: {counted(len(found.ignored), 'file')}, such as {found.ignored[0]}")
    for section in found.sections:
        lines += ["", f"Section {section.number}: {_size(section)}"]
        lines += [f"    {row}" for row in found.grid.drawn(section.number)]
    lines += ["", *found.grid.remarks, *found.remarks, *_uneven(found), *_doubts(found, p, placing)]
    return lines


def _places(found: Acquisition, placing: OverlapParameters) -> str:
    if found.source:
        return found.source
    if placing.overlap is None:
        return "unknown; give --overlap here or to STITCH"
    return f"a grid with --overlap {spelled(placing.overlap)}"


def _size(section: SectionTiles) -> str:
    grid = section.grid
    return (
        f"{grid.rows} x {grid.columns} tiles, {len(section.imaged)} imaged, "
        f"{format_bytes(section.bytes)}"
    )


def _uneven(found: Acquisition) -> list[str]:
    """Name the first section whose tiles lie at different depths."""
    voxel = found.sections[0].grid.spacing[0]
    for number, entries in found.grid.sections.items():
        depths = [entry.z for entry in entries if entry.z is not None]
        if depths and max(depths) - min(depths) > voxel:
            return [
                f"Doubtful: tiles of section {number} lie at {min(depths):g} to {max(depths):g} "
                "micrometre along z; tiles are not moved in z."
            ]
    return []


def _doubts(found: Acquisition, p: TileParameters, placing: OverlapParameters) -> list[str]:
    """Check overlap and orientation by the tiles in the middle of the middle section."""
    section = found.sections[len(found.sections) // 2]
    tiles = _middle(section)
    extent = section.grid.tile_extent[1:]
    grid = fitted(section.positions, extent) if section.positions else None
    # Places count, not the numbers of rows and columns, which may run against them.
    signs = [-1 if grid is not None and grid[k][k + 1] < 0 else 1 for k in (0, 1)]
    images = {
        (signs[0] * row, signs[1] * column): np.abs(section.read((row, column), 0)).mean(
            0, np.float32
        )
        for row, column in tiles
    }
    seen = find_orientation(images) if len(images) > 1 else None
    if seen is None or not seen.is_clear:
        return ["Neighbouring tiles show too little in common to check how they are arranged."]
    if seen.is_other:
        return [
            f"Doubtful: {seen.agreeing:.0%} of neighbours fit with {_changed(seen.best, p)}, "
            f"but {seen.as_given:.0%} as given."
        ]
    placed: Sequence[float | None] = placing.overlap or (None, None)
    if grid is not None:
        placed = [1 - abs(grid[k][k + 1]) / extent[k] for k in (0, 1)]
    lines = []
    for axis, own, given in zip("yx", seen.overlap, placed, strict=True):
        if own is not None:
            differs = given is not None and abs(own - given) > OFF
            said = f", but are placed with {given:.2f}" if differs else ""
            doubt = "Doubtful: neighbours" if differs else "Neighbours"
            lines.append(f"{doubt} overlap by about {own:.2f} of a tile along {axis}{said}.")
    return lines


def _middle(section: SectionTiles) -> list[Tile]:
    """The middle 3 x 3 tiles that were imaged, fewer if they are large."""
    centre = section.grid.rows // 2, section.grid.columns // 2
    near = [t for t in section.imaged if max(abs(t[0] - centre[0]), abs(t[1] - centre[1])) <= 1]
    near.sort(key=lambda t: abs(t[0] - centre[0]) + abs(t[1] - centre[1]))
    return near[: max(2, int(COMPARED_BYTES // section.tile_bytes))]


def _changed(change: Orientation, p: TileParameters) -> str:
    """Spell the parameters that change the orientation further."""
    if p.order is not None:
        order = changed_order(p.order, change.flip, transpose=change.transpose)
        return f"--tile_order {order}"
    before = p.flip.translate(str.maketrans("yx", "xy")) if change.transpose else p.flip
    flip = "".join(axis for axis in "yx" if (axis in before) != (axis in change.flip))
    words = ["--tile_transpose"] * (p.transpose != change.transpose)
    words += [f"--tile_flip {flip}"] * bool(flip)
    return " ".join(words) or "neither --tile_flip nor --tile_transpose"
