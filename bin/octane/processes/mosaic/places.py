"""Places of tiles in the tables of other programs, recognised by their content.

The tables are Fiji's TileConfiguration.txt, XML of BigStitcher, TeraStitcher or OME, and CSV.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from xml.etree.ElementTree import ParseError, iterparse

from octane.config.sheets import MOST_BYTES, Sheet, read_small, read_table, require_few
from octane.core.errors import InputError, unreadable
from octane.core.files import read_regular
from octane.core.geometry import INCHES, METRIC
from octane.processes.mosaic.place import (
    Place,
    Unit,
    distinct_places,
    stated_number,
    stated_whole,
    with_slashes,
)
from octane.processes.mosaic.xml_places import (
    bdv_places,
    local_name,
    ome_places,
    parse_xml,
    terastitcher_places,
)

TABLES = (".txt", ".xml", ".csv", ".tsv")
"""Suffixes of tables among the tiles."""
READERS = {"SpimData": bdv_places, "TeraStitcher": terastitcher_places}
"""Readers by the root element of an XML file."""
HEAD = 65536
"""Bytes in which an XML file's root element begins."""
DIMENSIONS = re.compile(r"dim\s*=")
PLACE = re.compile(r"\s*\(([^()]*)\)")
"""Last part of a tile's line in Fiji's table."""
FIJI = re.compile(rb"^[ \t]*dim[ \t]*=|^[^#\r\n]*;[^;\r\n]*;[ \t]*\(", re.MULTILINE)
REGISTERED = ".registered.txt"
"""End of the name of the table that Fiji writes next to the one it was given."""

COLUMNS = ("file", "tile", "section", "row", "column", "z", "y", "x")
"""Columns of a CSV table; others are not read."""
AXES = ("z", "y", "x")
"""Columns of positions."""
USUAL = {
    "file": ("filename", "name", "image", "imagename", "tilename"),
    "tile": ("tilenumber", "tileindex", "tileid"),
    "section": ("sectionnumber", "slice", "slicenumber"),
    "row": ("r", "rowindex", "tilerow"),
    "column": ("c", "col", "colindex", "columnindex", "tilecol", "tilecolumn"),
    **{
        axis: tuple(f"{word}{axis}" for word in ("stage", "pos", "position", "tile"))
        + tuple(f"{axis}{word}" for word in ("stage", "pos", "position"))
        for axis in AXES
    },
}
"""Names that other programs give to these columns, in small letters without other signs."""
SUFFIX = re.compile(r"[ _(\[]([^\W_]+)[)\]]?$")
"""Unit at the end of a column's name, as in ``stage_y_mm`` or ``Y [px]``."""
LENGTHS = {**METRIC, **INCHES}
"""Lengths that a column's name may end in; others, such as ``line`` or ``point``, are words too."""
PIXELS = ("px", "pixel", "pixels", "voxel", "voxels")


def read_places(path: Path, unit: str | None = None) -> list[Place]:
    """Read a table of places.

    Parameters
    ----------
    path
        The table. In CSV, a unit at the end of a position's name, as in ``stage_y_mm`` or
        ``Y [px]``, holds for its column; otherwise positions are in micrometres.
    unit
        Unit of OME-XML's positions in the ``reference frame``.

    Raises
    ------
    InputError
        For an invalid table, or one that rotates, scales or shears tiles.
    """
    content = _content(path, whole=True)
    is_xml = bool(_root(content))
    if not is_xml and not FIJI.search(content):
        return _csv_places(path, read_table(path))
    if not is_xml:
        return _fiji_places(path, content)
    tree = parse_xml(content, path)
    root = local_name(tree)
    if root == "OME":
        stated = ome_places(content, path, unit)
        return distinct_places(path, [place for place in stated if place is not None])
    if root not in READERS:
        raise InputError(
            f"{path} is XML of an unknown kind (<{root}>); give XML of BigStitcher, TeraStitcher "
            "or OME."
        )
    return READERS[root](path, tree)


def find_places(folder: Path) -> Path | None:
    """Table of places among the tiles, or None; in CSV its columns have octane's own names.

    Fiji's registered table takes precedence over the one that it was made from. An InputError names
    the tables if several are left.
    """
    try:
        files = [f for f in sorted(folder.iterdir()) if f.is_file() and f.name[0] != "."]
    except OSError as error:
        raise unreadable(error) from error
    tables = [f for f in files if f.suffix.lower() in TABLES and _is_place_table(f)]
    replaced = {f.with_name(f.name.removesuffix(REGISTERED) + ".txt") for f in tables}
    tables = [f for f in tables if f not in replaced or f.name.endswith(REGISTERED)]
    if len(tables) > 1:
        raise InputError(
            f"{folder} holds {len(tables)} tables of places ({', '.join(f.name for f in tables)}); "
            "choose one with --tile_table."
        )
    return tables[0] if tables else None


def unused_tables(folder: Path) -> list[str]:
    """Sentences on the CSV tables in a folder that :func:`find_places` does not take for places."""
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and f.name[0] != "."]
    lines = []
    for file in files:
        content = _as_utf_8(_content(file)) if file.suffix.lower() in (".csv", ".tsv") else b""
        cells = _header(content)
        if len(cells) > 1 and not _is_table(content):
            shown = ", ".join(cells)[:200]
            lines.append(
                f"{file.name} lies there, but its columns are {shown}; if it places the tiles, "
                f"give --tile_table {file}."
            )
    return lines


def _is_place_table(file: Path) -> bool:
    """Tell whether a file is a table of places; raise if it is one in UTF-16."""
    content = _content(file)
    text = _as_utf_8(content)
    is_table = _is_table(text)
    if is_table and text is not content:
        raise InputError(f"{file} is a table of places in UTF-16; save it as UTF-8.")
    return is_table


def _as_utf_8(content: bytes) -> bytes:
    """The same bytes, unless they begin as text in UTF-16."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode(errors="replace")
    return content


def _header(content: bytes) -> list[str]:
    """Cells of the first line of a CSV table."""
    line = content.lstrip().partition(b"\n")[0].decode(errors="replace")
    return [cell.strip(' "\r\ufeff') for cell in re.split("[,;\t]", line)]


def _content(path: Path, *, whole: bool = False) -> bytes:
    try:
        # To tell what a file is, as a large log, its beginning is enough.
        return read_small(path, str(path)) if whole else read_regular(path, MOST_BYTES)
    except OSError as error:
        error.filename = path
        raise unreadable(error) from error


def _root(content: bytes) -> str:
    """Name of the root element of XML, without its namespace; empty for another file."""
    if not content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return ""
    with suppress(ParseError, LookupError, ValueError):
        for _, element in iterparse(BytesIO(content[:HEAD]), ("start",)):
            return local_name(element)
    return "?"


def _is_table(content: bytes) -> bool:
    """Tell whether a file among the tiles is a table of places."""
    if root := _root(content):
        return root in READERS
    if FIJI.search(content):
        return True
    return _place_tiles(_names_of(_header(content)))


def _place_tiles(columns: Collection[str]) -> bool:
    """Tell whether columns give positions and the tiles that they belong to."""
    names = {*columns}
    named = {"file", "tile"} & names or {"row", "column"} <= names
    return {"y", "x"} <= names and bool(named)


def _names_of(cells: Collection[str]) -> dict[str, str]:
    """Name in a header of each of :data:`COLUMNS` that it has, in letters of any case.

    Those of axes may end in a unit.
    """
    names: dict[str, str] = {}
    for column in COLUMNS:
        if column in cells:
            names[column] = column
            continue
        bare = {c: _without_unit(c) if column in AXES else c for c in cells}
        for called in (bare, {c: name.lower() for c, name in bare.items()}):
            matches = [cell for cell, name in called.items() if name == column]
            if len(matches) == 1:
                names.setdefault(column, matches[0])
    return names


def _usual_names_of(cells: Collection[str]) -> dict[str, str]:
    """As :func:`_names_of`, with :data:`USUAL` names for the columns that are missing."""
    names = _names_of(cells)
    for column, usual in USUAL.items():
        bare = {c: _without_unit(c) if column in AXES else c for c in cells}
        matches = [c for c, name in bare.items() if re.sub(r"[\W_]", "", name.lower()) in usual]
        if column not in names and len(matches) == 1:
            names[column] = matches[0]
    return names


def _without_unit(name: str) -> str:
    match = SUFFIX.search(name)
    return name[: match.start()].rstrip() if match and _is_unit(match[1].lower()) else name


def _is_unit(word: str) -> bool:
    return word in LENGTHS or word in PIXELS


def _fiji_places(path: Path, content: bytes) -> list[Place]:
    """Places of a TileConfiguration.txt: lines of ``file; series; (x, y)`` or ``(x, y, z)``."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; save it as UTF-8.") from error
    require_few(str(path), len(lines))
    dimensions, places = 0, list[Place]()
    for number, line in enumerate(lines, 1):
        where, line = f"{path}, line {number}", line.strip()
        if not line or line.startswith(("#", "multiseries")):
            continue
        if DIMENSIONS.match(line):
            dimensions = stated_whole(line.partition("=")[2], f"{where}: dim")
            continue
        # Between the semicolons it may name an image of the file.
        *tile, _, end = line.rsplit(";", 2) if line.count(";") > 1 else ("", "")
        place = PLACE.fullmatch(end)
        texts = place[1].split(",") if place and tile and tile[0] else []
        if len(texts) != dimensions or dimensions not in (2, 3):
            raise InputError(
                f"{where}: '{line[:100]}' is not a tile; write 'file; ; (x, y)' after the line "
                "'dim = 2', or 'file; ; (x, y, z)' after 'dim = 3'."
            )
        x, y, *depth = (stated_number(text, f"{where}: a coordinate") for text in texts)
        position = (depth[0] if depth else 0.0, y, x)
        places.append(
            Place(with_slashes(tile[0].rstrip()), None, None, None, None, position, "pixel")
        )
    return distinct_places(path, places)


def _csv_places(path: Path, table: Sheet) -> list[Place]:
    """Places of a CSV table; the names of its columns may be octane's or all that are usual."""
    names = _names_of(table.columns)
    if not _place_tiles(names):
        names = _usual_names_of(table.columns)
    if not _place_tiles(names):
        raise InputError(
            f"{path} must have the columns y and x, and file, tile, or row and column, but its "
            f"columns are {', '.join(table.columns)}; correct its header."
        )
    factors, unit = _units(path, names)
    places: list[Place] = []
    for line, row in table.rows:
        where = f"{path}, line {line}"
        cells = {column: row.get(name) for column, name in names.items()}
        if "file" in cells and cells["file"] is None:
            raise InputError(f"{where}: {names['file']} is missing; give the tile's file.")
        numbers = [
            stated_whole(cells[column], f"{where}: {names[column]}") if column in cells else None
            for column in ("tile", "section", "row", "column")
        ]
        z, y, x = (
            stated_number(cells[axis], f"{where}: {names[axis]}") * factors[axis]
            if axis in cells
            else 0.0
            for axis in AXES
        )
        file = cells.get("file")
        places.append(Place(file and with_slashes(file), *numbers, (z, y, x), unit))
    return distinct_places(path, places)


def _units(path: Path, names: Mapping[str, str]) -> tuple[dict[str, float], Unit]:
    """Factor of each axis and the unit of the result, from the ends of the columns' names."""
    words: dict[str, str] = {}
    for axis in AXES:
        match = SUFFIX.search(names.get(axis, ""))
        word = match[1].lower() if match else ""
        words[axis] = word if _is_unit(word) else "micrometer"
    kinds = {words[axis] in PIXELS for axis in AXES if axis in names}
    if len(kinds) > 1:
        raise InputError(
            f"{path} states places in pixels and in units of length "
            f"({', '.join(names[axis] for axis in AXES if axis in names)}); use one of them."
        )
    factors = {axis: LENGTHS.get(word, 1.0) for axis, word in words.items()}
    return factors, "pixel" if kinds == {True} else "micrometer"
