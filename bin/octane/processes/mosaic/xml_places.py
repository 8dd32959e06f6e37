"""Places of tiles in the XML of BigStitcher (BigDataViewer), of TeraStitcher and of OME."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, fromstring

import numpy as np
import numpy.typing as npt

from octane.config.sheets import MOST_CELLS, require_few
from octane.core.errors import InputError
from octane.core.geometry import LENGTHS, vector
from octane.processes.mosaic.place import (
    Place,
    Unit,
    distinct_places,
    stated_number,
    stated_whole,
    with_slashes,
)

NEGLIGIBLE = 1e-6
"""Rotation, shear or difference in scale that moves no voxel of a tile noticeably."""
UNDEFINED = "reference frame"
"""OME's unit of positions whose unit is unknown, and its default."""

Matrix = npt.NDArray[np.float64]


class UnknownUnitError(InputError):
    """A position in a unit whose length is unknown."""


def parse_xml(content: bytes | str, source: Path) -> Element:
    """Parse XML; an InputError names ``source`` and the line."""
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    parts = data.count(b"<") + data.count(b"=")
    require_few(str(source), parts, MOST_CELLS, "elements and attributes")
    try:
        return fromstring(content)
    except (ParseError, LookupError, ValueError) as error:
        raise InputError(
            f"{source} is not valid XML ({error}); restore it, or write it again."
        ) from error


def local_name(element: Element) -> str:
    """Name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


# Scales that multiply to 0 or infinity give places that are refused as such.
@np.errstate(all="ignore")
def bdv_places(path: Path, root: Element) -> list[Place]:
    """Places in voxels at the first time point of a project of BigDataViewer or BigStitcher.

    The transforms of a view, from the calibration to the refined position, must differ from those
    of the other views by translations alone. Tiles have the file that the image loader names, and
    the number of their tile attribute, else of their view setup.
    """
    numbers = _tile_numbers(path, root)
    registrations = [
        (_whole(path, view, "timepoint"), _whole(path, view, "setup"), view)
        for view in root.iter("ViewRegistration")
    ]
    first = min((time for time, _, _ in registrations), default=0)
    missing = {
        _whole(path, view, "setup")
        for view in root.iter("MissingView")
        if _whole(path, view, "timepoint") == first
    }
    files = dict(_bdv_files(path, root, first))
    places, scales = list[Place](), dict[int, Matrix]()
    for time, setup, view in registrations:
        if time != first or setup in missing:
            continue
        whole = _affine(path, view, setup)
        scales[setup] = scale = whole.diagonal()
        one, other = next(iter(scales.items()))
        if (np.abs(scale / other - 1) > NEGLIGIBLE).any():
            raise InputError(
                f"{path} scales view setups {one} and {setup} differently; octane only moves "
                "tiles: save the project with translations alone."
            )
        x, y, z = (whole[:, 3] / scale).tolist()
        number = numbers.get(setup, setup)
        places.append(Place(files.get(setup), number, None, None, None, (z, y, x), "pixel"))
    return distinct_places(path, places)


def _tile_numbers(path: Path, root: Element) -> dict[int, int]:
    """Tile number by view setup; raise for views from several angles."""
    numbers, angles = dict[int, int](), set[str]()
    for view in root.iter("ViewSetup"):
        setup = stated_whole(view.findtext("id"), f"{path}: the id of a ViewSetup")
        angles.add(view.findtext("attributes/angle", "0").strip())
        if (tile := view.findtext("attributes/tile")) is not None:
            numbers[setup] = stated_whole(tile, f"{path}: the tile of ViewSetup {setup}")
    if len(angles) > 1:
        raise InputError(
            f"{path} holds views from {len(angles)} angles; save the project with the views of one "
            "angle."
        )
    return numbers


def _bdv_files(path: Path, root: Element, time: int) -> Iterator[tuple[int, str]]:
    """View setups with their files at a time point; HDF5 and N5 keep all tiles in one."""
    for view in root.iter("FileMapping"):
        file = view.findtext("file", "").strip()
        if file and _whole(path, view, "timepoint") == time:
            yield _whole(path, view, "view_setup"), with_slashes(file)
    folder = root.findtext(".//ImageLoader/zarr", "").strip()
    for view in root.iter("zgroup"):
        # Its first version has a child for the path, later ones attributes.
        name = view.get("path") or view.findtext("path", "").strip()
        if name and _whole(path, view, "timepoint" if view.get("tp") is None else "tp") == time:
            yield _whole(path, view, "setup"), with_slashes("/".join(filter(None, (folder, name))))


def _affine(path: Path, view: Element, setup: int) -> Matrix:
    """Product of a view's transforms, of shape (3, 4), in the order x y z.

    The last one in the file is applied first.
    """
    whole = np.eye(4)
    for transform in view.iter("ViewTransform"):
        name = (transform.findtext("Name") or transform.findtext("name") or "affine").strip()
        where = f"{path}: the transform '{name}' of view setup {setup}"
        texts = transform.findtext("affine", "").split()
        if len(texts) != 12:
            raise InputError(f"{where} has {len(texts)} numbers, not 12; save the project again.")
        affine = np.array([stated_number(text, where) for text in texts]).reshape(3, 4)
        scale = affine.diagonal()
        if (np.abs(affine[:, :3] - np.diag(scale)) > NEGLIGIBLE).any() or (scale <= 0).any():
            raise InputError(
                f"{where} rotates, shears or mirrors the tile; octane only moves tiles: save the "
                "project with translations alone."
            )
        whole = whole @ np.vstack([affine, [0, 0, 0, 1]])
    return whole[:3]


def terastitcher_places(path: Path, root: Element) -> list[Place]:
    """Places in voxels of TeraStitcher's stacks: V is y, H is x and D is z.

    Before its step Place they are the nominal ones; displacements between neighbours are not read.
    A folder that several stacks share, each with an IMG_REGEX, does not name a stack.
    """
    stacks = list(root.iter("Stack"))
    folders = Counter(stack.get("DIR_NAME", "") for stack in stacks)
    places: list[Place] = []
    for count, stack in enumerate(stacks, 1):
        where = f"{path}, Stack {count}"
        folder = stack.get("DIR_NAME", "")
        row, column = (stated_whole(stack.get(n), f"{where}: {n}") for n in ("ROW", "COL"))
        z, y, x = (
            stated_number(stack.get(f"ABS_{axis}"), f"{where}: ABS_{axis}") for axis in "DVH"
        )
        file = with_slashes(folder) if folder and folders[folder] == 1 else None
        places.append(Place(file, None, None, row, column, (z, y, x), "pixel"))
    return distinct_places(path, places)


def ome_places(xml: bytes | str, source: Path, unit: str | None = None) -> list[Place | None]:
    """Places of the images of OME-XML, in their order; None for one without a position.

    Parameters
    ----------
    xml
        The OME-XML of a file, or of all files of a data set.
    source
        File for the messages.
    unit
        Unit of positions in the ``reference frame``.

    Returns
    -------
    list
        For each image, the position of its first plane in micrometres, or in pixels where that
        is the unit; the number is the image's index, and the file, if stated, ``source`` if it has
        voxels of the image, else the first one that has.

    Raises
    ------
    UnknownUnitError
        For positions other than 0 in the ``reference frame`` without a ``unit``.
    InputError
        For invalid XML or numbers, or a position along x without one along y.
    """
    root = parse_xml(xml, source)
    images = [element for element in root if local_name(element) == "Image"]
    return [_ome_place(source, index, image, unit) for index, image in enumerate(images)]


def set_places(xml: str, source: Path, unit: str | None = None) -> dict[str, Place | None]:
    """Places of the files of a set that ``source`` describes, by their UUIDs and their names.

    An InputError names an image of which no file is there. Parameters as for :func:`ome_places`.
    """
    images = [element for element in parse_xml(xml, source) if local_name(element) == "Image"]
    places: dict[str, Place | None] = {}
    for image, place in zip(images, ome_places(xml, source, unit), strict=True):
        parts = [element for element in image.iter() if local_name(element) == "UUID"]
        names = {with_slashes(part.get("FileName", "")).rpartition("/")[2] for part in parts} - {""}
        if names and not any((source.parent / name).exists() for name in names):
            raise InputError(
                f"{source} describes {min(names)}, which is not in the same folder; restore it, or "
                "give the places of the other tiles with --tile_table."
            )
        places |= dict.fromkeys({*names, *(part.text or "" for part in parts)}, place)
    return places


def _ome_place(source: Path, index: int, image: Element, unit: str | None) -> Place | None:
    every = (_stated_plane(element) for element in image.iter() if local_name(element) == "Plane")
    planes = [plane for plane in every if {"PositionX", "PositionY"} & {*plane}]
    if not planes:
        return None
    where = f"{source}, {image.get('ID', f'Image:{index}')}"
    order = ("TheT", "TheC", "TheZ")
    plane = min(planes, key=lambda p: [stated_whole(p.get(n), f"{where}: {n}") for n in order])
    position, units = list[float](), set[Unit]()
    for axis in "ZYX":
        name = f"Position{axis}"
        if axis == "Z" and plane.get(name) is None:
            position.append(0.0)
            continue
        number = stated_number(plane.get(name), f"{where}: {name}")
        stated = plane.get(f"{name}Unit", UNDEFINED)
        word = unit if stated == UNDEFINED and unit else stated
        position.append(number * LENGTHS.get(word, 1.0))
        if word in LENGTHS or word == "pixel":
            units.add("pixel" if word == "pixel" else "micrometer")
        elif number:
            # 0 is the same in every unit: writers that know no positions state it for all tiles.
            raise UnknownUnitError(
                f"{where}: {name} is in '{word}', whose length is unknown; give --input_unit, or "
                "the tiles' places with --tile_table."
            )
    if len(units) > 1:
        raise InputError(
            f"{where} is placed in pixels along one axis and in a length along another; give the "
            "tiles' places with --tile_table."
        )
    names = (e.get("FileName") for e in image.iter() if local_name(e) == "UUID")
    files = [with_slashes(name) for name in names if name]
    file = source.name if source.name in files else next(iter(files), None)
    length_unit: Unit = units.pop() if units else "micrometer"
    return Place(file, index, None, None, None, vector(*position), length_unit)


def _stated_plane(plane: Element) -> dict[str, str]:
    """Attributes of a plane; until 2008 an element in it had those of its position."""
    places = [child.attrib for child in plane if local_name(child) == "StagePosition"]
    return {**next(iter(places), {}), **plane.attrib}


def _whole(path: Path, element: Element, name: str) -> int:
    return stated_whole(element.get(name), f"{path}: {name} of a {element.tag}")
