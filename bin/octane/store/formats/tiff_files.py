"""TIFF volumes: OME-TIFF, ImageJ and plain stacks read in blocks, and OME-TIFF written in blocks.

tifffile finds the planes, which tiff_segments decodes. Voxels are read and written at their offsets
in the file without a lock, so that threads do not wait for one another.
"""

from __future__ import annotations

import logging
import math
import os
import re
import struct
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import IO, TYPE_CHECKING, NamedTuple, cast
from uuid import NAMESPACE_URL, uuid5
from xml.etree.ElementTree import Element, ParseError, fromstring

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
from octane.core.errors import (
    NO_SPACE,
    TOO_LARGE,
    InputError,
    NoSpaceError,
    OctaneError,
    unreadable,
)
from octane.core.files import read_regular
from octane.core.geometry import LENGTHS, Grid, Region, shape_of, spelled
from octane.store.formats.itk_files import BLOCK_SHAPE, TIFF_SUFFIXES
from octane.store.formats.tiff_segments import (
    decode_plane,
    decode_segment,
    decoding_bytes,
    require_codec,
    require_segments,
)
from octane.store.image import DECODING_ERRORS
from octane.store.reading import AS_STATED, interpretation
from octane.store.stated import CHANNEL, TIMEPOINT, Attributes, Stated
from octane.store.writer import Make

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage, TiffPageSeries

TIFF_ERRORS = (
    *DECODING_ERRORS,
    struct.error,
    AssertionError,
    AttributeError,
    ImportError,
    ParseError,
)
"""Exceptions of tifffile and its codecs for an invalid file."""
CLASSIC_BYTES = 4_000_000_000
"""Most bytes of voxels with 32-bit offsets; the rest of the 4 GiB is for metadata."""
PRINT_UNITS = ("in", "inch", "cm")
"""Units of a resolution that may be only a hint for printers."""
JAVA_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")
"""A character as Java escapes it."""
SIGNED_OFFSET = 2**15
"""Offset that ImageJ adds to signed 16-bit values."""
MOST_PLANES = 1_000_000
"""Most planes that metadata may promise without a file that holds them, such as an acquisition that
was stopped: lists of so many take some 50 MB."""
PLANE_COUNTS = ("PlaneCount", "NumPlanes")
"""Attributes of OME-XML that count the planes from a page on; the second is of 2008."""
PROBED_BYTES = 64_000_000
"""Most bytes for decoding a plane of which a part is decoded when its file is opened."""

Length = tuple[object, object]
"""A number, or None, and its unit."""
Parts = list[tuple[Element, list[Element]]]
"""Images of a set of OME-TIFFs (``Pixels``) with the ``TiffData`` of those planes in one file."""


class TiffVolume:
    """A stack in a TIFF. Compressed planes are decoded once, into an unnamed temporary file.

    ``stored`` is the voxels' type in the file, ``planes`` are page numbers, ``starts`` the offsets
    of their voxels in the file, None if they are compressed, ``channels`` the names of all
    channels, empty for those without one, ``decoding`` the bytes that decoding a plane takes, and
    ``description`` the file that describes this one of a set, None if it describes itself.
    """

    chunks = BLOCK_SHAPE
    geometry = None
    # The format does not state an origin.
    has_place = False
    is_plain = True
    whole_bytes = worker_bytes = decoding = 0
    access = "read in parts, after decoding it once if it is compressed"
    description: Path | None = None

    def __init__(
        self,
        path: Path,
        grid: Grid,
        stored: np.dtype,
        planes: list[int],
        starts: npt.NDArray[np.int64] | None,
        channels: Sequence[str] = ("",),
    ) -> None:
        self.channels = channels
        self.path, self.grid, self.dtype = path, grid, stored.newbyteorder("=")
        self.attributes: Attributes = {}
        self.overruled = ""
        self._file: Path | IO[bytes] = path
        self._stored, self._planes, self._starts = stored, planes, starts
        self._lock = Lock()

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the voxels of ``region``, into ``out`` if given."""
        starts = self._offsets()
        planes, *within = region
        if out is None:
            out = np.empty(shape_of(region), self.dtype)
        with _naming_faults(self.path):
            for plane, start in zip(out, starts[planes].tolist(), strict=True):
                # Mapped only for this copy, so that the process does not hold pages already read.
                shape = self.grid.shape[1:]
                plane[...] = np.memmap(self._file, self._stored, "r", start, shape)[tuple(within)]
        return out

    def load(self, folder: Path | None = None) -> None:
        """Decode compressed planes into ``folder``, at the first call."""
        self._offsets(folder)

    def _offsets(self, folder: Path | None = None) -> npt.NDArray[np.int64]:
        """Offsets of the planes; the first call decodes compressed ones."""
        with self._lock:
            if self._starts is None:
                self._starts = self._decode(folder)
            return self._starts

    def _decode(self, folder: Path | None) -> npt.NDArray[np.int64]:
        nz, ny, nx = self.grid.shape
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            # Unnamed, so that it vanishes however the process ends.
            with TemporaryFile(dir=folder) as decoded, _open_file(self.path) as file:
                series, plane = _stack_of(self.path, file), np.empty((ny, nx), self.dtype)
                for number in self._planes:
                    page = cast("TiffPage", series[number])
                    decode_plane(page, series.keyframe, file.filehandle.fileno(), plane)
                    decoded.write(plane.data)
                decoded.flush()
                kept = os.fdopen(os.dup(decoded.fileno()), "rb")
        except OSError as error:
            remedy = (
                "raise ulimit -f" if error.errno == TOO_LARGE else "choose another output folder"
            )
            raise (NoSpaceError if error.errno in NO_SPACE else OctaneError)(
                f"{self.path} cannot be decoded into a file in {folder or gettempdir()} "
                f"({error.strerror}); {remedy}, or save the TIFF uncompressed."
            ) from error
        weakref.finalize(self, kept.close)
        self._file, self._stored = kept, self.dtype
        return np.arange(nz, dtype=np.int64) * (ny * nx * self.dtype.itemsize)


class OmeTiffWriter:
    """Writer of blocks, in any order, of an OME-TIFF whose voxels begin at offset ``start``."""

    def __init__(
        self, path: Path, start: int, shape: tuple[int, int, int], dtype: np.dtype
    ) -> None:
        self._path, self._start, self._shape, self._dtype = path, start, shape, dtype

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region row by row: unlike in a mapping, a full disk is then an OSError."""
        (z, y, x), (_, ny, nx) = (r.start for r in region), self._shape
        rows = np.ascontiguousarray(block, self._dtype)
        with self._path.open("r+b") as file:
            for place in np.ndindex(rows.shape[:2]):
                before = ((z + place[0]) * ny + y + place[1]) * nx + x
                file.seek(self._start + before * self._dtype.itemsize)
                file.write(rows[place].data)

    def fill(self, region: Region, make: Make, _: object, /) -> None:
        """Write the voxels that ``make`` returns for a region."""
        self[region] = make(region)


def open_tiff(
    path: Path,
    reading: InputParameters | None = None,
    like: Grid | None = None,
    *,
    flat: bool = False,
) -> TiffVolume:
    """Open the stack of a TIFF without reading its voxels, or a single plane if it may be ``flat``.

    A voxel size that the file does not state is taken from ``reading``, else from ``like``.
    """
    with _open_file(path) as file:
        series = _stack_of(path, file)
        depth = _depth_of(path, series, flat=flat)
        sizes, names = _sizes_and_names(path, file, series)
        description = _description_of(path, file) if file.is_ome else path
        counts = [dict(_axes_of(series)).get(axis, 1) for axis in "CT"]
        stated = Stated(
            *(path, _voxel_size(sizes, reading or AS_STATED)),
            *((CHANNEL, TIMEPOINT), counts, names),
            without_size=_without_size(path, sizes),
        )
        meaning = interpretation(stated, reading, like)
        numbers = _planes(series, depth, meaning.place)
        key, start, decoding = series.keyframe, series.dataoffset, 0
        # A damaged tag may hold a fraction.
        if not all(isinstance(n, int) and n > 0 for n in key.shape):
            raise ValueError(f"its planes have {spelled(key.shape)} pixels")
        if start is not None:
            starts = start + np.array(numbers, np.int64) * key.nbytes
            if int(starts.max()) + key.nbytes > file.filehandle.size:
                raise ValueError("planes extend beyond the end of the file")
        else:
            pages = [page for k in numbers if (page := series[k]) is not None]
            if len(pages) < len(numbers):
                raise ValueError(
                    f"{len(numbers) - len(pages)} of {len(numbers)} planes are missing"
                )
            longest = require_segments(pages, key, file.filehandle.size)
            starts = np.array([page.dataoffsets[0] for page in pages], np.int64)
            if not key.is_final:
                require_codec(key)
                decoding, starts = decoding_bytes(key, longest), None
                if decoding <= PROBED_BYTES:
                    decode_segment(pages[0], key, 0, file.filehandle.fileno())
        dtype = series.dtype.newbyteorder(file.byteorder)
        ny, nx = key.shape
    grid = Grid((len(numbers), ny, nx), meaning.voxel_size)
    volume = TiffVolume(path, grid, dtype, numbers, starts, meaning.channels)
    volume.attributes, volume.overruled = meaning.attributes, meaning.overruled
    volume.decoding = decoding
    if description != path:
        volume.description = description
    return volume


@contextmanager
def _naming_faults(path: Path) -> Generator[None]:
    """Turn :data:`TIFF_ERRORS` into an OctaneError that names the file and a remedy."""
    try:
        yield
    except TIFF_ERRORS as error:
        if isinstance(error, OSError) and error.errno in (*NO_SPACE, TOO_LARGE):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = path
            raise unreadable(error) from error
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        remedy = "restore or convert it"
        if isinstance(error, NotImplementedError | ImportError):
            remedy = "save it with LZW, deflate or no compression"
        raise InputError(f"{path} cannot be read as an image ({reason}); {remedy}.") from error


@contextmanager
def _open_file(path: Path) -> Generator[TiffFile]:
    """Open a file with tifffile; raise the errors that it would only log."""
    from tifffile import TiffFile

    log = logging.getLogger("tifffile")
    # An object of its own: a thread that is done must not remove the filter of another.
    refuse = partial(_refuse)
    log.addFilter(refuse)
    try:
        # For Micro-Manager, read the OME-XML, which tells whether other files belong to it.
        with _naming_faults(path), TiffFile(path, _multifile=False, is_mmstack=False) as file:
            yield file
    finally:
        log.removeFilter(refuse)


def _refuse(record: logging.LogRecord) -> bool:
    """Raise for an error that tifffile logs and survives; hide its other messages."""
    if record.levelno >= logging.ERROR:
        raise ValueError(record.getMessage())
    return False


def _stack_of(path: Path, file: TiffFile) -> TiffPageSeries:
    """The only series of a file, not counting thumbnails and labels, which are single planes."""
    if file.is_ome:
        # Before tifffile lists the planes.
        _require_planes(path, file, _promised_by_ome(fromstring(file.ome_metadata or ""), file))
    stacks = [series for series in file.series if len(series) > 1] or file.series
    if len(stacks) > 1 and len({(s.kind, s.axes, s.shape, s.dtype) for s in stacks}) == 1:
        first, pages = stacks[0], [series.keyframe for series in stacks]
        # Each plane was written by a separate call.
        if first.kind == "shaped" and first.axes == "YX":
            from tifffile import TiffPageSeries

            stacks = [TiffPageSeries(pages, (len(pages), *first.shape), first.dtype, "IYX")]
    if (file.imagej_metadata or {}).get("c0") == -SIGNED_OFFSET:
        raise InputError(
            f"{path} holds signed values, which ImageJ stores {SIGNED_OFFSET} too high; "
            "convert them to 32-bit in ImageJ (Image > Type) and save it again."
        )
    if file.is_ome and stacks[0].kind != "ome":
        stacks = _own_series(path, file) or stacks
    whole = not stacks[0].is_multifile and (not file.is_ome or stacks[0].kind == "ome")
    if len(stacks) != 1 or not whole:
        shapes = ", ".join(spelled(series.shape) for series in stacks)
        raise InputError(
            f"{path} holds {len(stacks)} images ({shapes}) or a part of one; octane reads a file "
            "with one complete image. Extract or join it, for example with bfconvert."
        )
    _require_planes(
        path, file, math.prod(n for axis, n in _axes_of(stacks[0]) if axis not in "YXS")
    )
    return stacks[0]


def _require_planes(path: Path, file: TiffFile, promised: float) -> None:
    """Raise if metadata promise many planes, and more than the file can hold."""
    if promised <= MOST_PLANES:
        return
    size, pages = file.filehandle.size, len(file.pages)
    # ImageJ writes a single page before the planes of a large stack.
    if promised > max(pages, size // max(1, file.pages.first.nbytes)):
        raise InputError(
            f"{path} promises {promised:.0f} planes, which its {pages} pages and {size} bytes "
            "cannot hold; restore or convert it."
        )


def _promised_by_ome(root: Element, file: TiffFile) -> float:
    """Planes of the images that OME-XML says are in its file, and lengths of axes in its notes.

    A plane larger than its page counts as several, as for tifffile.
    """
    identifier, promised = root.get("UUID"), 0.0
    for element in root.iter():
        if element.tag.endswith("Pixels"):
            # Without a UUID, a set tells its files apart by their names.
            here = [
                data
                for data in _children(element, "TiffData")
                if identifier is None or all(e.text == identifier for e in _children(data, "UUID"))
            ]
            counts = [int(data.get(key, "0")) for data in here for key in PLANE_COUNTS]
            shape = [int(element.get(f"Size{axis}", "1")) for axis in "ZCTYX"]
            first = min((int(data.get("IFD", "0")) for data in here), default=0)
            page = file.pages[min(first, len(file.pages) - 1)]
            planes = math.prod(shape[:3]) * max(1, math.prod(shape[3:]) // max(1, page.size))
            promised += max([planes, *counts]) * bool(here)
        elif element.tag[:-1].endswith("ModuloAlong") and "Start" in element.attrib:
            start, end, step = (float(element.get(key, "1")) for key in ("Start", "End", "Step"))
            promised += abs((end - start) / (step or 1))
    return promised


class OwnImage(NamedTuple):
    """Image of a set of OME-TIFFs, or one channel of it, whose planes are all in one file.

    ``pages`` are their numbers in the file by the axes of ``order``; ``names`` are of the channels.
    """

    pixels: Element
    order: str
    pages: npt.NDArray[np.int64]
    names: list[str]


def described_by(path: Path, root: Element) -> Path:
    """File whose OME-XML describes an OME-TIFF with the OME-XML ``root``: itself, or its set's."""
    others = _children(root, "BinaryOnly")
    if not others:
        return path
    name = others[0].get("MetadataFile", "").replace("\\", "/").rpartition("/")[2]
    # A task has links to single files.
    for folder in (path.parent, path.resolve().parent):
        if name and (folder / name).is_file():
            return folder / name
    raise InputError(
        f"{path} is a file of a set of OME-TIFFs, which {name or 'another file'} describes; that "
        "one is not in the same folder: restore it."
    )


def ome_text(path: Path) -> str:
    """OME-XML of a TIFF, or of a file next to the TIFFs that it describes; empty without any."""
    if not path.name.lower().endswith(TIFF_SUFFIXES):
        return read_regular(path).decode(errors="replace")
    with _open_file(path) as file:
        return file.ome_metadata or ""


def _description_of(path: Path, file: TiffFile) -> Path:
    return described_by(path, fromstring(file.ome_metadata or ""))


def _own_parts(path: Path, file: TiffFile) -> Parts:
    """Images of a set of OME-TIFFs that have planes in this file."""
    root = fromstring(file.ome_metadata or "")
    described = described_by(path, root)
    if described == path:
        parts = _parts_of(root)
    else:
        state = described.stat()
        parts = _parts_in(described, state.st_size, state.st_mtime_ns)
    return parts.get(root.get("UUID") or path.name, [])


@lru_cache(maxsize=4)
def _parts_in(path: Path, _bytes: int, _time: int) -> dict[str, Parts]:
    """Parts of a set that a file describes; read once for its many files."""
    text = ome_text(path)
    with _naming_faults(path):
        return _parts_of(fromstring(text))


def _parts_of(root: Element) -> dict[str, Parts]:
    """Parts of a set by the UUID of each file, and by its name."""
    parts_by_key: dict[str, dict[Element, list[Element]]] = {}
    for pixels in root.iter():
        if pixels.tag.endswith("}Pixels"):
            for data in _children(pixels, "TiffData"):
                for identifier in _children(data, "UUID"):
                    for key in {identifier.text or "", identifier.get("FileName", "")}:
                        parts_by_key.setdefault(key, {}).setdefault(pixels, []).append(data)
    return {key: [*parts.items()] for key, parts in parts_by_key.items()}


def _own_image(parts: Parts, count: int) -> OwnImage | None:
    """The only image of a set of OME-TIFFs that has planes in this file, of ``count`` pages.

    None if some of its planes are not in this file.
    """
    if len(parts) != 1:
        return None
    pixels, here = parts[0]
    order = pixels.get("DimensionOrder", "XYZCT")[:1:-1]
    shape = [int(pixels.get(f"Size{axis}", "1")) for axis in order]
    if math.prod(shape) > MOST_PLANES:
        return None
    pages = np.full(shape, -1, np.int64)
    firsts = np.array([[int(data.get(f"First{axis}", "0")) for axis in order] for data in here])
    # Leica's MatrixScreener states the size of the file, but the index in the set.
    firsts[:, (firsts == firsts[0]).all(0) & (firsts[0] >= shape)] = 0
    if (firsts >= shape).any():
        return None
    starts = np.ravel_multi_index(tuple(firsts.T), shape).tolist()
    for data, start in zip(here, starts, strict=True):
        page = int(data.get("IFD", "0"))
        # Without any number, all pages of the file.
        planes = int(data.get("PlaneCount", "1" if "IFD" in data.attrib else count))
        if start + planes > pages.size:
            return None
        pages.flat[start : start + planes] = np.arange(page, page + planes)
    by_channel = np.moveaxis(pages, order.index("C"), 0)
    channels = [c for c, planes in enumerate(by_channel) if (planes >= 0).any()]
    pages = pages.take(channels, order.index("C"))
    is_whole = len(channels) in (1, len(by_channel))
    if not is_whole or pages.min() < 0 or np.unique(pages).size < pages.size:
        return None
    names = _channel_labels(pixels)
    return OwnImage(pixels, order, pages, [name for c, name in enumerate(names) if c in channels])


def _own_series(path: Path, file: TiffFile) -> list[TiffPageSeries]:
    """The image that this file of a set of OME-TIFFs holds entirely; none, if it holds parts."""
    from tifffile import TiffPageSeries

    image = _own_image(_own_parts(path, file), len(file.pages))
    if image is None or image.pages.max() >= len(file.pages):
        return []
    planes = [file.pages[page] for page in image.pages.ravel().tolist()]
    key = cast("TiffPage", planes[0].keyframe)
    shape = (*image.pages.shape, *key.shape)
    return [TiffPageSeries(planes, shape, key.dtype, f"{image.order}YX", kind="ome")]


def _channel_labels(pixels: Element) -> list[str]:
    return [element.get("Name", "") for element in _children(pixels, "Channel")]


def _children(element: Element, name: str) -> list[Element]:
    return [child for child in element if child.tag.endswith(f"}}{name}")]


def _axes_of(series: TiffPageSeries) -> list[tuple[str, int]]:
    """Names and lengths of the axes of a series, those of length 1 included."""
    axes, shape = series.get_axes(squeeze=False), series.get_shape(squeeze=False)
    return [*zip(axes, shape, strict=True)]


def _depth_of(path: Path, series: TiffPageSeries, *, flat: bool) -> str:
    """Name of the axis of depth."""
    axes = _axes_of(series)
    sizes = dict(axes)
    before = [(axis, n) for axis, n in axes if axis not in "YXS"]
    depth = [a for a, n in before if a not in "TC" and n > 1]
    depth = depth or ["Z"] * (flat or "Z" in sizes)
    if series.keyframe.shape != (sizes["Y"], sizes["X"]) or len(depth) != 1:
        raise InputError(
            f"{path} has {len(series.shape)} dimensions ({spelled(series.shape)}, {series.axes}); "
            "octane reads one 3-D volume of scalar values, not RGB: extract it."
        )
    return depth[0]


def _planes(series: TiffPageSeries, depth: str, place: Sequence[int]) -> list[int]:
    """Page numbers, within a series, of the planes of a channel and time point, by depth."""
    before = [(axis, n) for axis, n in _axes_of(series) if axis not in "YXS"]
    taken = {**dict(zip("CT", place, strict=True)), depth: slice(None)}
    numbers = np.arange(math.prod(n for _, n in before)).reshape([n for _, n in before])
    # Several axes of length 1 may share a name.
    chosen = numbers[tuple(taken.get(axis, 0) for axis, _ in before)]
    return chosen.ravel().tolist()


def _sizes_and_names(
    path: Path, file: TiffFile, series: TiffPageSeries
) -> tuple[list[Length], list[str]]:
    """Voxel size along z, y and x as the file states it, and channel names."""
    if series.kind == "ome":
        if series in file.series:
            root = fromstring(file.ome_metadata or "")
            images = [element for element in root.iter() if element.tag.endswith("}Pixels")]
            pixels = images[file.series.index(series)]
            names = _channel_labels(pixels)
        else:
            image = _own_image(_own_parts(path, file), len(file.pages))
            assert image is not None
            pixels, names = image.pixels, image.names
        sizes = [f"PhysicalSize{axis}" for axis in "ZYX"]
        return [(pixels.get(size), pixels.get(f"{size}Unit", "µm")) for size in sizes], names
    page, imagej = series.keyframe, file.imagej_metadata or {}
    unit = imagej.get("unit") if file.is_imagej else {2: "in", 3: "cm"}.get(page.resolutionunit)
    # Pixels per unit; without z, they may be only a hint for printers.
    across = [1 / n if 282 in page.tags and n > 0 else None for n in reversed(page.resolution)]
    units = [imagej.get("zunit", unit), imagej.get("yunit", unit), unit]
    return list(zip([imagej.get("spacing"), *across], units, strict=True)), []


def _voxel_size(stated: Sequence[Length], reading: InputParameters) -> list[float | None]:
    """Voxel size along z, y and x in micrometres; None for an axis without one."""
    sizes = [_micrometres(*length, reading.input_unit) for length in stated]
    if None in sizes:
        axes = zip(sizes, stated, strict=True)
        sizes = [None if unit in PRINT_UNITS else n for n, (_, unit) in axes]
    return sizes


def _without_size(path: Path, stated: Sequence[Length]) -> str:
    """Sentence on a file without a voxel size."""
    shown = [(f"{n:g}" if isinstance(n, float) else n, unit or "") for n, unit in stated]
    listed = ", ".join("not stated" if n is None else f"{n} {unit}".strip() for n, unit in shown)
    return (
        f"{path} is a TIFF that does not state its voxel size along all axes (z y x: {listed}); "
        "give --voxel_size, in micrometres in this order, or --input_unit if only the unit is "
        "missing."
    )


def _micrometres(value: object, unit: object, input_unit: str | None) -> float | None:
    """Convert a length to micrometres; None if it is invalid or its unit unknown."""
    try:
        length = float(str(value))
    except ValueError:
        return None
    # ImageJ escapes non-ASCII characters as Java does.
    name = JAVA_ESCAPE.sub(
        lambda code: chr(int(code[1], 16)), str(unit or input_unit or "").strip()
    )
    scale = LENGTHS.get(name, LENGTHS.get(name.lower()))
    return length * scale if scale is not None and 0 < length < math.inf else None


@contextmanager
def create_tiff(
    partial: Path, destination: Path, grid: Grid, dtype: np.dtype
) -> Generator[OmeTiffWriter]:
    """Create an uncompressed OME-TIFF, written in blocks in any order."""
    from tifffile import OmeXmlError, imwrite

    metadata: dict[str, object] = {"axes": "ZYX"}
    # Derived from the name: a random UUID would make equal results differ.
    metadata["UUID"] = str(uuid5(NAMESPACE_URL, destination.name))
    for axis, length in zip("ZYX", grid.spacing, strict=True):
        metadata |= {f"PhysicalSize{axis}": length, f"PhysicalSize{axis}Unit": "µm"}
    try:
        place = imwrite(
            partial, ome=True, bigtiff=math.prod(grid.shape) * dtype.itemsize > CLASSIC_BYTES,
            shape=grid.shape, dtype=dtype, photometric="minisblack", returnoffset=True,
            metadata=metadata,
        )  # fmt: skip
    except OmeXmlError as error:
        raise InputError(
            f"{destination} cannot hold {dtype} voxels; give --n4_dtype float32 or write OME-Zarr."
        ) from error
    yield OmeTiffWriter(partial, cast("tuple[int, int]", place)[0], grid.shape, dtype)
