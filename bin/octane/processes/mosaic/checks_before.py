"""What PREFLIGHT asks MOSAIC: which inputs are tiles, their mosaics, and sections' tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Required, TypedDict

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.core.geometry import shape_of
from octane.layout.mosaic import is_unit_error, read_positions, stated_overlap
from octane.processes.mosaic.orders import changed_flip
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.section_tiles import SectionTiles, section_name, write_positions
from octane.processes.mosaic.survey import Acquisition, survey
from octane.processes.mosaic.tile_files import list_files
from octane.processes.mosaic.tile_grid import TileEntry, fit_axes
from octane.processes.mosaic.tile_list import tile_list
from octane.store.array import planned_array
from octane.store.channels import name_of
from octane.store.chunks import is_store
from octane.store.image import Image
from octane.store.reading import place_of
from octane.store.stated import CHANNEL

__all__ = [
    "Acquisition",
    "Input",
    "changed_flip",
    "holds_tiles",
    "is_against",
    "planned_mosaic",
    "section_name",
    "survey",
    "write_positions",
]

ROUNDED = 0.01
"""Unit of the places in y and x in a tile list, fraction of a tile: only the comparison of
neighbours depends on them, and a corrected table should not write the mosaics again."""


class Input(TypedDict, total=False):
    """An input of a subject, a mosaic, a section or a volume, and what the workflow stages of it.

    ``file`` is in the input's folder, empty for the input itself; or it has ``tiles`` there, in
    the order of ``tile_list``, the text of a table. ``tables`` are its rows of the user's
    tables, by parameter.
    """

    id: Required[str]
    file: Required[str]
    tiles: list[str]
    tile_list: str
    tables: dict[str, str]


def holds_tiles(source: Path, p: TileParameters) -> bool:
    """Tell whether an input is a folder of tiles.

    Stores are mosaics or sections, whatever files lie next to them, unless --tile_pattern says that
    they are tiles.
    """
    if p.pattern is not None or p.raw_shape is not None:
        return True
    if not source.is_dir() or is_store(source):
        return False
    visible = [path for path in source.iterdir() if not path.name.startswith(".")]
    if any(is_store(path) for path in visible):
        return False
    # Results of an earlier run may be in deeper folders.
    tiles = list_files(source, raw=False).at_depth(None).tiles
    return bool(tiles) and not any(is_store(source / name) for name in tiles)


def planned_mosaic(section: SectionTiles, folder: Path, reading: InputParameters) -> Image:
    """Image of the mosaic that MOSAIC will write, without voxels.

    Raises an InputError if the tiles have several channels and none is chosen.
    """
    names = [name_of(attributes) for attributes in section.channels.values()]
    place_of(folder, [CHANNEL], [len(names)], names, _unchosen(reading))
    grid, path = section.grid, folder / section.name
    array = planned_array(path, grid.shape, section.dtype, grid.tile)
    return Image(path, array, grid.grid, "blank", section.attributes)


def is_against(table: Path, sections: Sequence[SectionTiles]) -> bool:
    """Tell whether a table orders or spreads the tiles of a section otherwise than their files.

    Then nobody can tell from the files where the tiles lie.
    """
    for section in sections:
        extent = section.grid.tile_extent[1:]
        given = fit_axes(read_positions(table, section.number, section.grid), extent)
        stated = fit_axes(section.positions or section.grid.positions(extent), extent)
        signs = [(y.per_row > 0, x.per_column > 0) for y, x in (given, stated)]
        if signs[0] != signs[1]:
            return True
        sources = (read_positions(table, section.number, section.grid), section.positions)
        pairs = zip(*(stated_overlap(places, extent) for places in sources), strict=True)
        known = [(one, two) for one, two in pairs if one is not None and two is not None]
        if any(is_unit_error((1 - one) / (1 - two)) for one, two in known if one < 1 and two < 1):
            return True
    return False


def _round_place(entry: TileEntry, unit_y: float, unit_x: float) -> TileEntry:
    """Round an entry's place in y and x to these units."""
    if entry.y is None or entry.x is None:
        return entry
    y, x = round(entry.y / unit_y) * unit_y, round(entry.x / unit_x) * unit_x
    return replace(entry, y=y, x=x)


def _unchosen(reading: InputParameters) -> InputParameters:
    """Parameters without the channel, which the survey of tiles has applied."""
    return reading.model_copy(update={"channel": None, "timepoint": None})


def item_of(section: SectionTiles, acquisition: Acquisition) -> Input:
    """Files of a section's task, relative to the folder, and its tile list.

    The workflow stages each file under its own name in a folder of its number, from 1. Raises an
    InputError if the task could not tell the size of a full tile.
    """
    entries = acquisition.grid.sections[section.number]
    cut = [shape_of(section.grid.region(e.tile)) for e in entries]
    for axis, name in ((1, "row"), (2, "column")):
        if all(shape[axis] < section.grid.tile[axis] for shape in cut):
            raise InputError(
                f"Section {section.number} of {acquisition.folder} has only smaller tiles, of the "
                f"last {name}; leave it out with --exclude_sections."
            )
    names = [entry.file.relative_to(acquisition.folder).as_posix() for entry in entries]
    others = section.descriptions - {entry.file for entry in entries}
    others = {path for path in others if path.is_relative_to(acquisition.folder)}
    staged = (f"{number}/{Path(name).name}" for number, name in enumerate(names, start=1))
    units = [ROUNDED * length for length in section.grid.tile_extent[1:]]
    listed = tile_list(zip(staged, (_round_place(e, *units) for e in entries), strict=True))
    names += sorted(path.relative_to(acquisition.folder).as_posix() for path in others)
    return {"id": section.name, "file": "", "tiles": names, "tile_list": listed}
