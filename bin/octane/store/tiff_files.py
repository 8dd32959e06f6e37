"""TIFF volumes: OME-TIFF, ImageJ's and plain stacks read by piece, and OME-TIFF written by piece.

tifffile finds and decodes the planes. Voxels are read and written by their place in the file and
without a lock, so that threads do not wait for one another.
"""

from __future__ import annotations

import logging
import math
import os
import struct
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import IO, TYPE_CHECKING, cast
from uuid import NAMESPACE_URL, uuid5
from xml.etree.ElementTree import ParseError, fromstring

import numpy as np
import numpy.typing as npt

from octane.config.params import InputParameters
from octane.core.errors import NO_SPACE, InputError, NoSpaceError, OctaneError, unreadable
from octane.core.geometry import LENGTHS, Grid, Region, Vector, shape_of, spelled, vector
from octane.store.image import DECODING_ERRORS
from octane.store.itk_files import TAKEN
from octane.store.ngff import AS_STATED, CHANNEL, TIMEPOINT, Attributes, place_of, require_stated
from octane.store.writer import Make

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage, TiffPageSeries

FAULTS = (*DECODING_ERRORS, struct.error, AssertionError, AttributeError, ImportError, ParseError)
"""Exceptions of tifffile and its codecs for a file that is wrong."""
PIECE_BYTES = 32_000_000
"""Most that is read or written at once."""
WASTE = 8
"""Most voxels that are read for one that is asked for."""
CLASSIC_BYTES = 4_000_000_000
"""Most voxels of a file with offsets of 32 bits; the rest of 4 GiB is for what describes them."""
PRINTERS = ("in", "inch", "cm")
"""Units of a resolution that may be no more than a hint for printers."""
SIGNED = 2**15
"""Value that ImageJ adds to signed ones of 16 bits."""

Length = tuple[object, object]
"""A number, or None, and its unit."""


@dataclass(frozen=True)
class RawPlanes:
    """Planes of a file that are not compressed: any thread reads and writes any part of them.

    ``starts`` are their places in the file, ``shape`` is that of one (y, x).
    """

    file: IO[bytes]
    starts: npt.NDArray[np.int64]
    shape: tuple[int, int]
    dtype: np.dtype

    def __post_init__(self) -> None:
        """Close the file when no one reads any more."""
        weakref.finalize(self, self.file.close)

    def _runs(self, region: Region) -> Generator[tuple[int, tuple[int, slice]]]:
        """Places in the file, and planes and rows in a block, of what lies in one run."""
        planes, rows, columns = region
        row = self.shape[1] * self.dtype.itemsize
        is_whole = columns.stop - columns.start == self.shape[1]
        count = max(1, PIECE_BYTES // row) if is_whole else 1
        for plane, start in enumerate(self.starts[planes]):
            for y in range(rows.start, rows.stop, count):
                offset = int(start) + y * row + columns.start * self.dtype.itemsize
                stop = min(y + count, rows.stop)
                yield offset, (plane, slice(y - rows.start, stop - rows.start))

    def read(self, region: Region, out: npt.NDArray) -> None:
        """Read a region; a ValueError where the file ends before it."""
        planes, rows, columns = region
        width, first = columns.stop - columns.start, 0
        # Whole rows at once are faster than many parts of them, up to some ratio.
        if width * WASTE >= self.shape[1]:
            width, first, columns = self.shape[1], columns.start, slice(0, self.shape[1])
        for offset, (plane, part) in self._runs((planes, rows, columns)):
            count = part.stop - part.start
            found = os.pread(self.file.fileno(), count * width * self.dtype.itemsize, offset)
            voxels = np.frombuffer(found, self.dtype).reshape(count, width)
            out[plane, part] = voxels[:, first : first + out.shape[2]]

    def fill(self, region: Region, make: Make, _: object, /) -> None:
        """Write a region of what ``make`` makes."""
        self[region] = make(region)

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region."""
        for offset, place in self._runs(region):
            left = np.ascontiguousarray(block[place], self.dtype).tobytes()
            # A disk that fills up takes a part first.
            while left:
                written = os.pwrite(self.file.fileno(), left, offset)
                left, offset = left[written:], offset + written


class TiffVolume:
    """A stack in a TIFF. What is compressed is decoded once, into a file without a name."""

    chunks = TAKEN

    def __init__(
        self, path: Path, grid: Grid, dtype: np.dtype, planes: list[int], raw: RawPlanes | None
    ) -> None:
        self.path, self.grid, self.dtype = path, grid, dtype
        self.attributes: Attributes = {}
        self._planes, self._raw = planes, raw
        self._lock = Lock()

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``, in ``out`` if it is given."""
        raw = self.load()
        if out is None:
            out = np.empty(shape_of(region), self.dtype)
        with _naming_faults(self.path):
            raw.read(region, out)
        return out

    def load(self, folder: Path | None = None) -> RawPlanes:
        """Decode all planes, where that is needed, into a file in ``folder``."""
        with self._lock:
            if self._raw is None:
                self._raw = self._decoded(folder)
            return self._raw

    def _decoded(self, folder: Path | None) -> RawPlanes:
        nz, ny, nx = self.grid.shape
        starts = np.arange(nz, dtype=np.int64) * (ny * nx * self.dtype.itemsize)
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            # Nothing of it stays, however the process ends.
            raw = RawPlanes(TemporaryFile(dir=folder), starts, (ny, nx), self.dtype)  # noqa: SIM115
            with _opened(self.path) as file:
                series = _stack_of(self.path, file)
                for z, number in enumerate(self._planes):
                    plane = cast("TiffPage", series[number]).asarray()
                    raw[slice(z, z + 1), slice(0, ny), slice(0, nx)] = plane[None]
        except OSError as error:
            raise (NoSpaceError if error.errno in NO_SPACE else OctaneError)(
                f"{self.path} cannot be decoded into a file in {folder or gettempdir()} "
                f"({error.strerror}); choose another place for the output, or give the TIFF "
                "without compression."
            ) from error
        return raw


def open_tiff(
    path: Path, reading: InputParameters | None = None, like: Grid | None = None
) -> TiffVolume:
    """Open the stack of a TIFF; no voxel is read.

    A file that does not state its voxel size has the one of ``reading``, else that of ``like``.
    """
    with _opened(path) as file:
        series = _stack_of(path, file)
        stated, names = _stated(file, series)
        numbers = _planes(path, series, names, reading)
        key, start = series.keyframe, series.dataoffset
        ny, nx = key.shape
        if start is not None:
            starts = start + np.array(numbers, np.int64) * key.nbytes
            end = int(starts.max()) + key.nbytes
        else:
            pages = [page for k in numbers if (page := series[k]) is not None]
            if len(pages) < len(numbers):
                raise ValueError(
                    f"{len(numbers) - len(pages)} of {len(numbers)} planes are missing"
                )
            starts = np.array([page.dataoffsets[0] for page in pages], np.int64)
            ends = (np.add(page.dataoffsets, page.databytecounts).max() for page in pages)
            end = int(max(ends))
        if end > file.filehandle.size:
            raise ValueError("planes lie beyond its end")
        raw = None
        if key.is_final:
            dtype = series.dtype.newbyteorder(file.byteorder)
            raw = RawPlanes(path.open("rb"), starts, (ny, nx), dtype)
        else:
            # One piece tells whether the codec is there.
            next(key.segments(maxworkers=1))
    size = _voxel_size(path, stated, reading or AS_STATED, like)
    return TiffVolume(path, Grid((len(numbers), ny, nx), size), series.dtype, numbers, raw)


@contextmanager
def _naming_faults(path: Path) -> Generator[None]:
    """Make an OctaneError of what is wrong with a file."""
    try:
        yield
    except FAULTS as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = path
            raise unreadable(error) from error
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        remedy = "restore or convert it"
        if "imagecodecs" in reason or isinstance(error, ImportError):
            remedy = "install imagecodecs with pip, or write it with deflate or no compression"
        raise InputError(f"{path} cannot be read as an image ({reason}); {remedy}.") from error


@contextmanager
def _opened(path: Path) -> Generator[TiffFile]:
    """Open a file by tifffile, with errors for what is wrong with it and it would only log."""
    from tifffile import TiffFile

    log = logging.getLogger("tifffile")
    log.addFilter(_refuse)
    try:
        # Of Micro-Manager the OME-XML is read, which says of what other files there should be.
        with _naming_faults(path), TiffFile(path, _multifile=False, is_mmstack=False) as file:
            yield file
    finally:
        log.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    """Raise for what tifffile takes for an error and goes on after; show nothing else of it."""
    if record.levelno >= logging.ERROR:
        raise ValueError(record.getMessage())
    return False


def _stack_of(path: Path, file: TiffFile) -> TiffPageSeries:
    """The one series of a file; thumbnails and labels, which are single planes, do not count."""
    found = [series for series in file.series if len(series) > 1] or file.series
    if len(found) > 1 and len({(s.kind, s.axes, s.shape, s.dtype) for s in found}) == 1:
        first, pages = found[0], [series.keyframe for series in found]
        # Each plane was written by a call of its own.
        if first.kind == "shaped" and first.axes == "YX":
            from tifffile import TiffPageSeries

            found = [TiffPageSeries(pages, (len(pages), *first.shape), first.dtype, "IYX")]
    if (file.imagej_metadata or {}).get("c0") == -SIGNED:
        raise InputError(
            f"{path} holds signed values as ImageJ stores them, {SIGNED} too high; make them "
            "32-bit in ImageJ (Image, Type) and save it again."
        )
    whole = not found[0].is_multifile and (not file.is_ome or found[0].kind == "ome")
    if len(found) != 1 or not whole:
        shapes = ", ".join(spelled(series.shape) for series in found)
        raise InputError(
            f"{path} holds {len(found)} images ({shapes}) or a part of one; octane takes a file "
            "with one whole image: extract or join it, for example with bfconvert."
        )
    return found[0]


def _planes(
    path: Path, series: TiffPageSeries, names: Sequence[str], reading: InputParameters | None
) -> list[int]:
    """Numbers of the planes in a series that make the volume, in the order of their depth."""
    axes, shape = series.get_axes(squeeze=False), series.get_shape(squeeze=False)
    sizes = dict(zip(axes, shape, strict=True))
    before = [(axis, n) for axis, n in zip(axes, shape, strict=True) if axis not in "YXS"]
    depth = [a for a, n in before if a not in "TC" and n > 1] or ["Z"] * ("Z" in sizes)
    if series.keyframe.shape != (sizes["Y"], sizes["X"]) or len(depth) != 1:
        raise InputError(
            f"{path} has {len(series.shape)} dimensions ({spelled(series.shape)}, {series.axes}); "
            "octane takes one 3-D volume of single values and no RGB: extract it."
        )
    place = place_of(path, (CHANNEL, TIMEPOINT), [sizes.get(a, 1) for a in "CT"], names, reading)
    taken = {**dict(zip("CT", place, strict=True)), depth[0]: slice(None)}
    numbers = np.arange(math.prod(n for _, n in before)).reshape([n for _, n in before])
    # There may be several of one name and of length 1.
    return numbers[tuple(taken.get(axis, 0) for axis, _ in before)].ravel().tolist()


def _stated(file: TiffFile, series: TiffPageSeries) -> tuple[list[Length], list[str]]:
    """Voxel size along z, y and x as the file states it, and names of channels."""
    if series.kind == "ome":
        root = fromstring(file.ome_metadata or "")
        found = [element for element in root.iter() if element.tag.endswith("}Pixels")]
        pixels = found[file.series.index(series)]
        names = [e.get("Name", "") for e in pixels if e.tag.endswith("}Channel")]
        sizes = [f"PhysicalSize{axis}" for axis in "ZYX"]
        return [(pixels.get(size), pixels.get(f"{size}Unit", "µm")) for size in sizes], names
    page, imagej = series.keyframe, file.imagej_metadata or {}
    unit = imagej.get("unit") if file.is_imagej else {2: "in", 3: "cm"}.get(page.resolutionunit)
    # Pixels in a unit; where there is no z, they may be no more than a hint for printers.
    across = [1 / n if 282 in page.tags and n > 0 else None for n in reversed(page.resolution)]
    units = [imagej.get("zunit", unit), imagej.get("yunit", unit), unit]
    return list(zip([imagej.get("spacing"), *across], units, strict=True)), []


def _voxel_size(
    path: Path, stated: Sequence[Length], reading: InputParameters, like: Grid | None
) -> Vector:
    """Micrometres along z, y and x: those that the file states, else those that are given."""
    given, unit = reading.voxel_size, reading.input_unit
    found = [_micrometres(*length, unit) for length in stated]
    known = [n for n in found if n is not None]
    if given is not None:
        hints = PRINTERS if len(known) < 3 else ()
        axes = zip(found, stated, given, strict=True)
        own = [g if n is None or u in hints else n for n, (_, u), g in axes]
        require_stated(path, own, reading)
    if len(known) == 3:
        return vector(*known)
    if given is not None:
        return vector(*given)
    if like is not None:
        return like.spacing
    shown = [(f"{n:g}" if isinstance(n, float) else n, unit or "") for n, unit in stated]
    sizes = ", ".join("not stated" if n is None else f"{n} {unit}".strip() for n, unit in shown)
    raise InputError(
        f"{path} is a TIFF that does not state its voxel size along all axes (z y x: {sizes}); "
        "give it with --voxel_size, in micrometres in this order, or --input_unit where only the "
        "unit is missing."
    )


def _micrometres(value: object, unit: object, input_unit: str | None) -> float | None:
    """A length in micrometres; None where it is none, or its unit is not known."""
    try:
        length = float(str(value))
    except ValueError:
        return None
    # ImageJ escapes what is not ASCII as Java does.
    name = str(unit or input_unit or "").strip().replace("\\u00B5", "µ")
    scale = LENGTHS.get(name, LENGTHS.get(name.lower()))
    return length * scale if scale is not None and 0 < length < math.inf else None


@contextmanager
def create_tiff(
    partial: Path, destination: Path, grid: Grid, dtype: np.dtype
) -> Generator[RawPlanes]:
    """Create an OME-TIFF without compression, whose planes take blocks in any order."""
    from tifffile import OmeXmlError, TiffWriter

    nz, ny, nx = grid.shape
    size = ny * nx * dtype.itemsize
    metadata: dict[str, object] = {"axes": "ZYX"}
    # One name, one file: a random number would make others of equal results.
    metadata["UUID"] = str(uuid5(NAMESPACE_URL, destination.name))
    for axis, length in zip("ZYX", grid.spacing, strict=True):
        metadata |= {f"PhysicalSize{axis}": length, f"PhysicalSize{axis}Unit": "µm"}
    try:
        with TiffWriter(partial, ome=True, bigtiff=nz * size > CLASSIC_BYTES) as file:
            place = file.write(
                shape=grid.shape, dtype=dtype, photometric="minisblack", returnoffset=True,
                metadata=metadata,
            )  # fmt: skip
    except OmeXmlError as error:
        raise InputError(
            f"{destination} cannot hold {dtype} voxels; give --n4_dtype float32 or write OME-Zarr."
        ) from error
    starts = cast("tuple[int, int]", place)[0] + np.arange(nz, dtype=np.int64) * size
    with partial.open("r+b") as stream:
        yield RawPlanes(stream, starts, (ny, nx), dtype)
