"""Places of tiles from the first source that states them: a table, OME-XML or translations."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from octane.core.errors import InputError
from octane.core.files import read_regular
from octane.core.geometry import spelled
from octane.core.units import counted
from octane.layout.mosaic import LARGEST_POSITION
from octane.processes.mosaic.names import NamedFile, NamePattern, compose_accents
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.place import Place
from octane.processes.mosaic.places import find_places, read_places
from octane.processes.mosaic.tile_files import TileFile
from octane.processes.mosaic.xml_places import UnknownUnitError, ome_places, parse_xml, set_places
from octane.store.formats.itk_files import TIFF_SUFFIXES
from octane.store.formats.tiff_files import ome_text

GROUP_XML = "OME/METADATA.ome.xml"
"""File of a bioformats2raw group with the metadata of its images."""
ALIKE = 1e-3
"""Largest difference of translations that count as equal, micrometres."""


class FilePlaces(NamedTuple):
    """Places by file name in micrometres, the source that states them, and remarks on it.

    ``tables`` are the tables in use.
    """

    source: str
    places: dict[str, Place]
    remarks: list[str]
    tables: tuple[Path, ...] = ()


def find_file_places(
    folder: Path,
    every: Sequence[NamedFile],
    pattern: NamePattern,
    contents: Mapping[str, TileFile],
    p: TileParameters,
    unit: str | None,
) -> FilePlaces:
    """Find the places of the files in ``contents``; none if no source states them.

    ``every`` lists the files of all sections and channels, which a table may place too; their
    names fit ``pattern``. ``unit`` is that of OME-XML's positions without one. An InputError names
    the first file that a table leaves out.
    """
    table = p.table or find_places(folder)
    if table is not None:
        return _match_places(every, pattern, read_places(table, unit), contents, table)
    # A table in a section's folder places the tiles of that section.
    beside: dict[Path, list[NamedFile]] = defaultdict(list)
    for file in every:
        beside[(folder / file.name).parent].append(file)
    tables = {
        place: table
        for place, files in beside.items()
        if place != folder and any(file.name in contents for file in files)
        if (table := find_places(place)) is not None
    }
    if tables:
        placed = [
            _match_places(beside[place], pattern, read_places(table, unit), contents, table)
            for place, table in tables.items()
        ]
        left = next((name for name in contents if (folder / name).parent not in tables), None)
        if left is not None:
            raise InputError(
                f"{folder / left} is not placed by a table as tiles in other folders are "
                f"({placed[0].source}); add its table, or give one with --tile_table."
            )
        places = {name: place for one in placed for name, place in one.places.items()}
        source = placed[0].source + (f" and {len(placed) - 1} more" if placed[1:] else "")
        remarks = [remark for one in placed for remark in one.remarks]
        return FilePlaces(source, places, remarks, tuple(tables.values()))
    files = [file for file in every if file.name in contents]
    return _from_metadata(folder, files, contents, p, unit)


def is_named_by(places: Sequence[Place], files: Sequence[NamedFile], pattern: NamePattern) -> bool:
    """Tell whether a table names every file."""
    find = _Index(files, pattern)
    named = [find.tiles(place) for place in places if place.file is not None]
    return {tiles[0].name for tiles in named if len(tiles) == 1} == {file.name for file in files}


def _from_metadata(
    folder: Path,
    files: Sequence[NamedFile],
    contents: Mapping[str, TileFile],
    p: TileParameters,
    unit: str | None,
) -> FilePlaces:
    """Find the places that the files' metadata state; an unknown unit matters if names do not."""
    remarks: list[str] = []
    try:
        stated = _stated_places(folder, files, contents, unit)
    except UnknownUnitError as error:
        if p.order is None and files[0].row is None and files[0].column is None:
            raise
        stated, remarks = {}, [f"Places in OME-XML are not used: {error}"]
    if _are_places(stated, files):
        return FilePlaces("OME-XML", stated, [])
    if stated and len({file.tile_key for file in files}) > len({file.section for file in files}):
        what = "one place for all" if len(stated) == len(files) else "places for some"
        remarks = [f"Places in OME-XML are not used: it states {what} of the tiles."]
    origins = {
        name: Place(name, None, None, None, None, file.origin, "micrometer")
        for name, file in contents.items()
        if file.origin is not None
    }
    if _are_places(origins, files):
        return FilePlaces("translations", origins, remarks)
    return FilePlaces("", {}, remarks)


def _are_places(places: Mapping[str, Place], files: Sequence[NamedFile]) -> bool:
    """Tell whether all files have places, and not all the same: some writers state only 0."""
    axes = [*zip(*(place.position for place in places.values()), strict=True)][1:]
    differ = any(max(axis) - min(axis) > ALIKE for axis in axes)
    return len(places) == len(files) and differ


def _stated_places(
    folder: Path,
    files: Sequence[NamedFile],
    contents: Mapping[str, TileFile],
    unit: str | None,
) -> dict[str, Place]:
    """Places in the OME-XML of files, as far as the first one without, or of their group."""
    group = folder / GROUP_XML
    stated: dict[str, Place | None] = {}
    if group.exists():
        images = ome_places(read_regular(group), group, unit)
        numbers = {f.name: int(f.name) for f in files if f.name.isdecimal()}
        stated = {name: images[n] for name, n in numbers.items() if n < len(images)}
    else:
        sets: dict[Path, dict[str, Place | None]] = {}
        for file in files:
            path = folder / file.name
            xml = ome_text(path) if path.name.lower().endswith(TIFF_SUFFIXES) else ""
            if not xml:
                break
            if described := contents[file.name].description:
                if described not in sets:
                    sets[described] = set_places(ome_text(described), described, unit)
                identity = parse_xml(xml, path).get("UUID", path.name)
                stated[file.name] = sets[described].get(identity)
                continue
            images = ome_places(xml, path, unit)
            named = [image for image in images if image and image.file == path.name]
            stated[file.name] = next(iter(named or images), None)
    return {
        name: _in_micrometers(place, contents[name])
        for name, place in stated.items()
        if place is not None
    }


def _in_micrometers(place: Place, file: TileFile) -> Place:
    """Convert a place, perhaps in pixels of ``file``."""
    factors = file.spacing if place.unit == "pixel" else (1.0, 1.0, 1.0)
    z, y, x = (n * s for n, s in zip(place.position, factors, strict=True))
    if not (np.abs([z, y, x]) <= LARGEST_POSITION).all():
        raise InputError(
            f"{file.path} is placed at {spelled((z, y, x))} um (z y x), farther than "
            f"{LARGEST_POSITION:g}; correct its place, or the unit."
        )
    return place._replace(position=(z, y, x), unit="micrometer")


def _match_places(
    every: Sequence[NamedFile],
    pattern: NamePattern,
    places: Sequence[Place],
    contents: Mapping[str, TileFile],
    table: Path,
) -> FilePlaces:
    """Match the places of a table to ``every`` file; return those of the files in ``contents``.

    The files of one tile share their tile's place. A table may name only files of another channel.
    """
    find = _Index(every, pattern)
    files = [file for file in every if file.name in contents]
    described = {file.tile_key: contents[file.name] for file in files}
    tiles: dict[tuple[object, ...], Place] = {}
    further: dict[tuple[object, ...], Place] = {}
    unknown: list[Place] = []
    for place in places:
        matches = find.tiles(place)
        for file in matches:
            if file.tile_key not in described:
                continue
            converted = _in_micrometers(place, described[file.tile_key])
            if file.name not in contents:
                further.setdefault(file.tile_key, converted)
                continue
            if tiles.setdefault(file.tile_key, converted).position != converted.position:
                raise InputError(
                    f"{table} states two places for {file.name}; remove one, or give "
                    "--tile_pattern with the fields that tell its tiles apart."
                )
        if not matches:
            unknown.append(place)
    tiles = further | tiles
    missing = [file.name for file in files if file.tile_key not in tiles]
    if missing:
        more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
        raise InputError(
            f"{table} states no place for {missing[0]}{more}; its first is {places[0]}: add the "
            "missing ones, or give --tile_pattern with fields that match the table."
        )
    sections = {file.section for file in files}
    absent = [place for place in unknown if place.section is None or place.section in sections]
    remarks = [
        f"{table.name} places {counted(len(absent), 'tile')} without a file, such as {place}."
        for place in absent[:1]
    ]
    own_places = {file.name: tiles[file.tile_key] for file in files}
    return FilePlaces(str(table), own_places, remarks, (table,))


class _Index:
    """Files by name, by number, and by row and column, as a table may identify them."""

    def __init__(self, files: Sequence[NamedFile], pattern: NamePattern) -> None:
        self._has_sections = "section" in pattern.fields
        self._by_name: dict[str, list[tuple[PurePosixPath, NamedFile]]] = defaultdict(list)
        self._by_number: dict[int, list[NamedFile]] = defaultdict(list)
        self._by_cell: dict[tuple[int | None, int | None], list[NamedFile]] = defaultdict(list)
        first = min((file.number for file in files if file.number is not None), default=0)
        order: dict[tuple[object, ...], int] = {}
        for file in files:
            path = PurePosixPath(compose_accents(file.name))
            # A table may name a file without its ending, or the folder of a tile's planes.
            stem = path.with_name(path.stem.removesuffix(".ome").removesuffix(".nii"))
            for part in (path, stem, path.parent):
                self._by_name[part.name].append((part, file))
            index = order.setdefault(file.tile_key, len(order))
            number = index if file.number is None else file.number - first
            self._by_number[number].append(file)
            self._by_cell[file.row, file.column].append(file)

    def tiles(self, place: Place) -> list[NamedFile]:
        """Files that a place belongs to: one tile, or the same tile of every section."""
        files: list[NamedFile] = []
        if place.file is not None:
            wanted = PurePosixPath(compose_accents(place.file))
            named = self._by_name.get(wanted.name, [])
            # The longest common end of the paths: several folders may hold the same name.
            common = [(_common(path, wanted), file) for path, file in named]
            most = max((length for length, _ in common), default=0)
            files = [file for length, file in common if length == most]
        elif place.number is not None:
            files = self._by_number.get(place.number, [])
        if not files and place.row is not None:
            files = self._by_cell.get((place.row, place.column), [])
        if place.section is not None and self._has_sections:
            files = [file for file in files if file.section == place.section]
        return files


def _common(one: PurePosixPath, other: PurePosixPath) -> int:
    """Number of parts that are equal at the end of two paths."""
    pairs = zip(reversed(one.parts), reversed(other.parts), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
