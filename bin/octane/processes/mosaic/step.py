"""MOSAIC: the microscope's tiles in files, written as mosaic grids.

The metadata of every file are checked before anything is written. Voxels are not changed.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octane.compare.comparison import Images, shrink_factor
from octane.compare.correlation import coarse
from octane.compare.orientation import FoundOrientation, Orientation, find_orientation
from octane.compare.overlap import depth_mean, middle_tiles
from octane.config.parameters import ExecutionParameters, InputParameters
from octane.config.types import INTERMEDIATE
from octane.core.arrays import require_cpu
from octane.core.errors import InputError, visible
from octane.core.files import require_free, writing
from octane.core.geometry import spelled
from octane.core.metrics import Metrics
from octane.core.progress import Progress
from octane.core.units import bytes_of, counted, format_bytes
from octane.layout.mosaic import (
    OVERLAP_TOLERANCE,
    RATIO_TOLERANCE,
    MosaicGrid,
    Tile,
    complete_positions,
    is_unit_error,
    position_rows,
    stated_overlap,
)
from octane.pictures.tile_map import placed_tiles, preview_map, require_svg
from octane.pipeline.workers import plan_workers, run_tiles
from octane.processes.mosaic.orders import changed_flip, changed_order, other_way, tile_at
from octane.processes.mosaic.parameters import TileOrder, TileParameters
from octane.processes.mosaic.record import MosaicFigures
from octane.processes.mosaic.section_tiles import SectionTiles, write_positions
from octane.processes.mosaic.survey import (
    Acquisition,
    remarks_on_ignored,
    remarks_on_missing,
    survey,
    survey_tile_list,
)
from octane.processes.stitch.parameters import OverlapParameters
from octane.processes.stitch.record import KEEP_PLACES
from octane.store.channels import is_nearest, name_of
from octane.store.stated import stated_orientation
from octane.store.writer import Level, channel_writers, create_image

logger = logging.getLogger(__name__)

POSITIONS = "positions.csv"
COPIES = 3
"""Most tiles that a worker holds: as read, as encoded, and in a decoder."""


def write_mosaics(
    folder: Path,
    destination: Path | None,
    parameters: TileParameters,
    reading: InputParameters,
    placing: OverlapParameters,
    execution: ExecutionParameters,
    *,
    preview: Path | None = None,
) -> Metrics:
    """Write the tiles in ``folder`` as one mosaic grid per section in ``destination``.

    Without ``destination``, only print what was found. ``preview`` is an SVG to write, which shows
    the tiles of the middle section as they are placed. Raises an OctaneError that names what is not
    usable; nothing is left half-written.
    """
    require_cpu(execution.backend, "MOSAIC")
    metrics = Metrics("mosaic", settings=parameters.recorded(reading, placing))
    if destination is not None and destination.resolve().is_relative_to(folder.resolve()):
        # The next run would take the mosaics for tiles.
        raise InputError(f"{destination} is in the folder of the tiles; choose a folder outside.")
    if preview is not None:
        require_svg(preview)
    acquisition = survey(folder, parameters, reading, placing.overlap)
    if idle := acquisition.idle_flags(parameters, placing.overlap):
        raise InputError("\n".join(idle.values()))
    with ExitStack() as outputs:
        if preview is not None:
            drawn = _map(acquisition.sections[len(acquisition.sections) // 2])
            written = outputs.enter_context(writing(preview, overwrite=execution.overwrite))
            written.write_text(drawn, "utf-8")
        if destination is None:
            sys.stdout.write(visible("\n".join(report(acquisition, parameters, placing))) + "\n")
            return metrics
        table = destination / POSITIONS
        if table.exists():
            position_rows(table)
            if not acquisition.source:
                metrics.warn(f"{table} exists and is kept; remove it if it is not of these tiles.")
        for text in acquisition.remarks:
            metrics.warn(text)
        places = table if acquisition.source else None
        _write_sections(
            acquisition.sections, destination, parameters, execution, metrics, placing, places
        )
    return metrics


def write_tile_list(
    folder: Path,
    listed: Path,
    destination: Path,
    parameters: TileParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    placing: OverlapParameters | None = None,
) -> Metrics:
    """Write the mosaic grids of PREFLIGHT's tile list, whose files are in ``folder``.

    Neighbours are compared if ``placing`` says what to do where they fit another way. Raises an
    OctaneError for a file that is not as PREFLIGHT found it.
    """
    require_cpu(execution.backend, "MOSAIC")
    used = parameters.recorded(reading).items()
    # Those by which tiles are found hold the workflow's own values, not the user's.
    used = {name: value for name, value in used if name not in parameters.searching}
    metrics = Metrics("mosaic", settings=used)
    sections = survey_tile_list(folder, listed, parameters, reading)
    # The files are staged one by one; their folder is what the user gave, or a part of it.
    parents = [path.resolve().parent for section in sections for path in section.paths]
    metrics.inputs = {"tiles": {"path": os.path.commonpath(parents)}}
    for text in remarks_on_missing(sections):
        metrics.warn(text)
    for text in remarks_on_ignored(sections):
        metrics.warn_in_report(text)
    _write_sections(sections, destination, parameters, execution, metrics, placing)
    return metrics


def _write_sections(
    sections: Sequence[SectionTiles],
    destination: Path,
    p: TileParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    placing: OverlapParameters | None,
    places: Path | None = None,
) -> None:
    """Write mosaic grids, and their rows of the table ``places``."""
    stores = [destination / f"{section.name}.ome.zarr" for section in sections]
    for store in stores:
        require_free(store, overwrite=execution.overwrite)
    metrics.channel = name_of(sections[0].attributes)
    metrics.orientation = stated_orientation(sections[0].attributes)
    workers = [_workers(section, execution) for section in sections]
    tiles = sum(len(section.grid.imaged_tiles) for section in sections)
    advance = Progress("MOSAIC", tiles, workers=min(workers))
    for section, store, count in zip(sections, stores, workers, strict=True):
        _write_section(section, store, p, execution, metrics, placing, advance, count)
        if places is not None:
            write_positions(places, [section])
    noted = MosaicFigures(
        files=sum(len(section.paths) for section in sections),
        tiles=tiles,
        not_imaged=sum(len(section.grid.not_imaged) for section in sections),
    )
    metrics.add_figures(noted)


def _bytes_in_flight(section: SectionTiles) -> int:
    """Memory that a worker needs for its tile."""
    return max(COPIES * section.tile_bytes, section.tile_bytes + section.decoding)


def _workers(section: SectionTiles, execution: ExecutionParameters) -> int:
    need, memory = _bytes_in_flight(section), bytes_of(execution.memory)
    return plan_workers(need, memory, execution.workers, len(section.grid.imaged_tiles))


def _write_section(
    section: SectionTiles,
    store: Path,
    p: TileParameters,
    execution: ExecutionParameters,
    metrics: Metrics,
    placing: OverlapParameters | None,
    advance: Progress,
    workers: int,
) -> None:
    """Write the mosaic grid of a section; each worker holds one tile at a time.

    The middle tiles come first, and are compared if ``placing`` is given, before the others are
    read.
    """
    grid, several = section.grid, len(section.channels) > 1
    level = Level(grid.grid, grid.tile)
    logger.info(
        "MOSAIC: section %d, %d workers, %s of memory",
        *(section.number, workers, format_bytes(workers * _bytes_in_flight(section))),
    )
    names = [name_of(attributes) for attributes in section.channels.values()] if several else []
    with create_image(
        store,
        [level],
        section.dtype,
        codec=INTERMEDIATE,
        attributes=section.attributes,
        channels=names,
        overwrite=execution.overwrite,
    ) as (writer,):
        # Reused from tile to tile, because the first use of new memory takes time.
        buffers = deque(section.buffer() for _ in range(workers))

        writers = channel_writers(writer, len(section.channels))
        measured = min(section.channels)
        is_compared = placing is not None and not is_nearest(section.channels[measured])
        first = middle_tiles(grid) if is_compared else []
        seen: dict[Tile, npt.NDArray[np.float32]] = {}

        def write(tile: Tile) -> None:
            region, buffer = grid.region(tile), buffers.popleft()
            for channel_writer, channel in zip(writers, section.channels, strict=True):
                with metrics.timed("read"):
                    voxels = section.read(tile, channel, buffer, store.parent)
                if tile in first and channel == measured:
                    with metrics.timed("compute"):
                        seen[tile] = coarse(depth_mean(voxels), shrink_factor(grid.tile[1:]))
                channel_writer[region] = voxels
                metrics.count("written", voxels.nbytes)
            buffers.append(buffer)
            advance(voxels.nbytes * len(section.channels))

        for tiles in (first, [tile for tile in grid.imaged_tiles if tile not in first]):
            run_tiles(
                tiles,
                write,
                workers=workers,
                describe=lambda tile: (
                    f"row {tile[0]}, column {tile[1]} of section {section.number}"
                ),
            )
            if placing is not None and tiles is first and len(first) > 1:
                _check_orientation(section, seen, p, placing, metrics)


def _check_orientation(
    section: SectionTiles,
    seen: Images,
    p: TileParameters,
    placing: OverlapParameters,
    metrics: Metrics,
) -> None:
    """Warn if several neighbours fit only with other rows and columns.

    ``seen`` are the tiles' shrunk means over depth. Raises an InputError if that is certain and
    ``placing`` does not allow it.
    """
    fit, change = _arrangement(section, seen, p, shrink_factor(section.grid.tile[1:]))
    if text := "" if change else _wrong_scale(section, seen, fit):
        text = f"Section {section.number}: {text}"
        if placing.check_overlap == "error":
            raise InputError(f"{text}, {KEEP_PLACES}.")
        metrics.warn_in_report(f"{text}.")
    if fit is None or not change or not fit.is_several:
        return
    text = f"Section {section.number}: neighbouring tiles fit with {change}"
    if fit.is_certain and placing.check_overlap == "error":
        raise InputError(f"{text}, not as they are arranged; run again with that, {KEEP_PLACES}.")
    metrics.warn_in_report(f"{text} better than as they are arranged; compare the two.")


def _wrong_scale(section: SectionTiles, seen: Images, placed: FoundOrientation | None) -> str:
    """Say by how much places lie too far apart or too near, as if in another unit; '' if in none.

    ``placed`` is how the tiles fit as they are placed. It must be certain that they fit otherwise.
    """
    fitting = placed if placed is not None and placed.is_clear else find_orientation(seen)
    if not section.positions or fitting is None or not fitting.is_certain:
        return ""
    stated = stated_overlap(section.positions, section.grid.tile_extent[1:])
    known = [
        (overlap, given, spacing)
        for overlap, given, spacing in zip(
            fitting.overlap, stated, section.grid.spacing[1:], strict=True
        )
        if overlap is not None and given is not None and overlap < 1
    ]
    ratios = [(1 - given) / (1 - overlap) for overlap, given, _ in known]
    if fitting.best != Orientation() or not known or not all(map(is_unit_error, ratios)):
        return ""
    if all(
        abs(ratio * spacing - 1) < RATIO_TOLERANCE
        for ratio, (*_, spacing) in zip(ratios, known, strict=True)
    ):
        what = "as if places were pixels; state that unit, as in x_px, a column of a table"
    elif max(ratios) < (1 + RATIO_TOLERANCE) * min(ratios):
        what = f"as if voxels were {np.mean(ratios):.2g} times as large; correct their size or "
        what += "the places"
    else:
        return ""
    fit, given = (" x ".join(f"{row[k]:.2f}" for row in known) for k in (0, 1))
    return f"neighbouring tiles fit at an overlap of {fit}, but are placed with {given}, {what}"


def _arrangement(
    section: SectionTiles, seen: Images, p: TileParameters, factor: int = 1
) -> tuple[FoundOrientation | None, str]:
    """How the tiles fit by their means over depth, shrunk by a factor, and the flags for it.

    There are no flags if tiles fit as they are, or in no way.
    """
    grid, places = section.grid, section.positions
    is_placed = places.keys() >= seen.keys()
    sy, sx = grid.spacing[1:]
    fit = find_orientation(seen, places if is_placed else None, (sy * factor, sx * factor))
    if p.order is not None and not is_placed and not (fit is not None and fit.is_clear):
        other = other_way(p.order)
        numbers, size = range(grid.rows * grid.columns), (grid.rows, grid.columns)
        renamed = {tile_at(n, p.order, *size): tile_at(n, other, *size) for n in numbers}
        again = find_orientation({renamed[tile]: image for tile, image in seen.items()})
        if again is not None and again.is_clear:
            as_given = 0.0 if fit is None else fit.as_given
            return again._replace(as_given=as_given), _order_flags(other, again.best, grid)
    if fit is None or not fit.is_other:
        return fit, ""
    if p.order is not None and not is_placed:
        return fit, _order_flags(p.order, fit.best, grid)
    # Places come before an order, and flags change them.
    return fit, _flip_flag(fit.best, p) + " instead of --tile_order" * (p.order is not None)


def _map(section: SectionTiles) -> str:
    """Draw the tiles of a section as placed, over the middle plane; raise if that is not known."""
    grid = section.grid
    if section.positions:
        places = complete_positions(section.positions, grid)
    elif grid.pitch is not None:
        places = grid.positions(grid.pitch)
    else:
        raise InputError("--preview needs the places of the tiles; give --overlap or --tile_table.")
    sizes = (grid.tile_extent[1:], grid.extent[1:])
    tiles = placed_tiles(places, *sizes, not_imaged=grid.not_imaged)
    middle = grid.shape[0] // 2
    return preview_map(tiles, section.bytes, lambda tile: section.read(tile)[middle])


def report(acquisition: Acquisition, p: TileParameters, placing: OverlapParameters) -> list[str]:
    """Lines on the tiles found, on missing ones, and on doubts."""
    first = acquisition.sections[0]
    names = [name_of(attributes) for attributes in first.channels.values()]
    lines = [
        f"Names ({'given' if p.pattern else 'found'}): {acquisition.pattern.text}",
        f"Rows and columns: from {acquisition.grid.placed_by}",
        f"Places: {_places(acquisition, placing)}",
        f"Tiles: {spelled(first.grid.tile)} voxels (z y x) of {first.dtype}, "
        f"{spelled(first.grid.spacing)} micrometre; {counted(len(first.channels), 'channel')}"
        + (f" ({', '.join(map(repr, names))})" if any(names) else ""),
    ]
    if acquisition.ignored:
        count = counted(len(acquisition.ignored), "file")
        lines.append(f"Ignored: {count}, such as {acquisition.ignored[0]}")
    for section in acquisition.sections:
        lines += ["", f"Section {section.number}: {_size(section)}"]
        lines += [f"    {row}" for row in acquisition.grid.draw(section.number)]
    lines += [
        "",
        *acquisition.grid.remarks,
        *acquisition.remarks,
        *_uneven(acquisition),
        *_doubts(acquisition, p, placing),
    ]
    return lines


def _places(acquisition: Acquisition, placing: OverlapParameters) -> str:
    if acquisition.source:
        return acquisition.source
    if placing.overlap is None:
        return "unknown; the run measures how tiles overlap"
    return f"a grid with --overlap {spelled(placing.overlap)}"


def _size(section: SectionTiles) -> str:
    grid = section.grid
    return (
        f"{grid.rows} x {grid.columns} tiles, {len(grid.imaged_tiles)} imaged, "
        f"{format_bytes(section.bytes)}"
    )


def _uneven(acquisition: Acquisition) -> list[str]:
    """Name the first section whose tiles lie at different depths."""
    voxel = acquisition.sections[0].grid.spacing[0]
    for number, entries in acquisition.grid.sections.items():
        depths = [entry.z for entry in entries if entry.z is not None]
        if depths and max(depths) - min(depths) > voxel:
            return [
                f"Doubtful: tiles of section {number} lie at {min(depths):g} to {max(depths):g} "
                "micrometre along z; give the run --stitch_refine, or --positions with a column z."
            ]
    return []


def _doubts(acquisition: Acquisition, p: TileParameters, placing: OverlapParameters) -> list[str]:
    """Check overlap and orientation by the tiles in the middle of the middle section."""
    section = acquisition.sections[len(acquisition.sections) // 2]
    tiles = middle_tiles(section.grid, section.tile_bytes)
    if len(tiles) == 1:
        return []
    means = {tile: depth_mean(section.read(tile)) for tile in tiles}
    seen, change = _arrangement(section, means, p)
    if seen is None:
        return ["How tiles are arranged is not checked: none are neighbours, or they are small."]
    if text := "" if change else _wrong_scale(section, means, seen):
        return [f"Doubtful: {text}."]
    if not seen.is_clear:
        return [
            "Doubtful: neighbouring tiles do not fit, in any orientation; they show too little, or "
            "their names, order or places are not what they seem."
        ]
    if change:
        return [
            f"Doubtful: {seen.fit.agreeing:.0%} of neighbours fit with {change}, "
            f"but {seen.as_given:.0%} as given."
        ]
    placed: Sequence[float | None] = placing.overlap or (None, None)
    lines = []
    for axis, overlap, further, asked in zip(
        "yx", seen.overlap, seen.fit.further, placed, strict=True
    ):
        if overlap is not None:
            given = overlap + further if section.positions and further is not None else asked
            differs = given is not None and abs(overlap - given) > OVERLAP_TOLERANCE
            said = f", but are placed with {given:.2f}" if differs else ""
            doubt = "Doubtful: neighbours" if differs else "Neighbours"
            lines.append(f"{doubt} overlap by about {overlap:.2f} of a tile along {axis}{said}.")
    return lines


def _flip_flag(change: Orientation, p: TileParameters) -> str:
    """Spell the flag that changes the orientation further."""
    flip = changed_flip(p, change)
    return f"--tile_flip {flip}" if flip else "no --tile_flip"


def _order_flags(order: TileOrder, change: Orientation, grid: MosaicGrid) -> str:
    """Spell the flags for tiles in an order whose orientation is changed."""
    text = f"--tile_order {changed_order(order, change.flip, transpose=change.transpose)}"
    if change.transpose and grid.rows != grid.columns:
        text += f" --tile_rows {grid.columns} --tile_columns {grid.rows}"
    return text
