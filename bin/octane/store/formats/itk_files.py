"""Volumes in files that ITK reads (NIfTI, MetaImage, NRRD), loaded completely on first access.

The steps need all voxels of such a file, and ITK reads a part of most formats no faster. SimpleITK
is imported by the functions that use it, so that steps on OME-Zarr start sooner.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
from octane.core.errors import InputError, NoSpaceError, unreadable
from octane.core.files import open_regular
from octane.core.geometry import LENGTHS, MICROMETERS, Grid, Region, vector
from octane.core.orientation import (
    UNSTATED,
    Orientation,
    directions_of,
    orientation_of,
)
from octane.store.reading import interpretation
from octane.store.stated import Attributes, Stated

if TYPE_CHECKING:
    import SimpleITK as sitk

TIFF_SUFFIXES = (".tif", ".tiff")
FORMATS = (".nii", ".nii.gz", ".mha", ".nrrd", *TIFF_SUFFIXES)
"""File suffixes; SimpleITK reads and writes all but TIFF."""
READ_SUFFIXES = (*FORMATS, ".mhd", ".nhdr")
"""File suffixes that are read; .mhd and .nhdr are headers whose voxels are in another file."""

HEADER_BYTES = 1_000_000
"""Maximum size of a header."""
VOXEL_FIELD = re.compile(
    rb"^[ \t\r\f\v]*ElementDataFile\s*[=:](.*)|^(?i:data ?file):(.*)", re.MULTILINE
)
"""Header field that says where the voxels are; the last field of a MetaImage."""
# The same as in voxelsOf in lib/functions.nf; Nextflow cannot stage the other characters.
PLAIN_NAME = re.compile(r"(?!LIST|\.\.)[^/\\%*?\[\]{}$\x00-\x1f]+")
"""Name of a file next to its header: neither a list, a pattern nor a path."""
ZLIB_FIELD = re.compile(rb"^([ \t\r\f\v]*CompressedData\s*[=:]\s*[T1]|encoding:\s*gz)", re.M | re.I)
"""Header fields of voxels that zlib has compressed, with a checksum that ITK does not compare."""
PACKED_FIELD = re.compile(
    rb"^([ \t\r\f\v]*(CompressedData\s*[=:]\s*[T1]|BinaryData\s*[=:]\s*F)|encoding:(?!\s*raw))",
    re.M | re.I,
)
"""Header fields of compressed or text voxels, whose size in bytes is not fixed."""
TEXT_FIELD = re.compile(
    rb"^([ \t\r\f\v]*BinaryData\s*[=:]\s*F|encoding:\s*(te?xt|ascii|hex))", re.M | re.I
)
"""Header fields of voxels in text, of a byte or more each."""
LONG_FIELD = re.compile(rb"^(?!content:)[a-z ]+:(?!=).{1000}", re.M)
"""Field of a NRRD that is longer than the buffer of ITK's messages, which it would overflow."""
CONTROLS = re.compile(rb"\r(?!\n)|\0")
"""Characters that ITK treats as field separators, though valid headers do not contain them."""
SKIP_FIELD = re.compile(rb"^([ \t\r\f\v]*HeaderSize|(byte|line) ?skip)\b", re.M | re.I)
"""Header fields for bytes to skip before the voxels."""
SKIPPED_LINES_FIELD = re.compile(rb"^line ?skip: *(\d+)", re.M | re.I)
SKIPPED_BYTES_FIELD = re.compile(rb"^[ \t\r\f\v]*HeaderSize\s*[=:]\s*(\d+)", re.M)
"""Those that count lines, and bytes from the beginning of the file, before compressed voxels."""

DIRECTION_FIELDS = {
    (".nrrd", ".nhdr"): (
        re.compile(
            rb"^space: *(RAS|LAS|LPS|(right|left)-(anterior|posterior)-superior)\b", re.M | re.I
        ),
        re.compile(rb"^space directions:", re.M | re.I),
    ),
    (".mha", ".mhd"): (
        re.compile(rb"^[ \t\r\f\v]*(TransformMatrix|Rotation|Orientation)\s*[=:]", re.M),
    ),
}
"""Header fields that state directions, in order; without them ITK takes its own, which mean
nothing."""

SPACING_FIELD = re.compile(rb"^(?:spacings|space directions):(.*)", re.M | re.I)
"""Field of a NRRD that states the sizes of voxels, nan or none for an axis without one."""
ELEMENT_SPACING_FIELD = re.compile(rb"^[ \t\r\f\v]*Element(Spacing|Size)\s*[=:]", re.M)
"""Fields of a MetaImage that state them."""

MILLIMETER = MICROMETERS["millimeter"]

BLOCK_SHAPE = (16, 256, 256)
"""Block of a volume in memory that is processed at once: few enough planes for the cache."""

NIFTI_HEADER = 352
"""Bytes before the voxels of a NIfTI-1 file."""
NIFTI_SIZE = b"\x5c\x01\0\0"
"""First field of a little-endian NIfTI-1 header: the size of its fields."""
NIFTI_PIXDIM = 80
"""Offset of the sizes of a voxel along x, y and z in a NIfTI-1 header."""
GZIP_START = b"\x1f\x8b"
"""First bytes of a file of gzip."""

PIECE_BYTES = 8_000_000
"""Most bytes of a NIfTI file read at once; ITK holds them twice."""
INFLATED_BYTES = 1_000_000
"""Most bytes decompressed at once while a checksum is computed: they stay in the cache."""
ZLIB_OR_GZIP = 47
"""Argument of zlib for either format, whichever is found."""


class ItkGeometry(NamedTuple):
    """Geometry of an image in ITK's order, lengths in millimetres; directions row by row."""

    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    directions: tuple[float, ...]

    def apply(self, image: sitk.Image) -> None:
        """Give an image this geometry."""
        image.SetSpacing(self.spacing)
        image.SetOrigin(self.origin)
        image.SetDirection(self.directions)


def itk_geometry(grid: Grid, orientation: Orientation) -> ItkGeometry:
    """Geometry of a grid whose origin is along its own axes, as that of every image is.

    ITK's origin is the same place along left, posterior and superior. Directions are the identity,
    ITK's default, for an orientation without :func:`octane.core.orientation.directions_of`.
    """
    directions = directions_of(orientation)
    if directions is None:
        directions = np.eye(3)
    origin = directions @ np.divide(grid.origin[::-1], MILLIMETER)
    # Adding 0.0 avoids -0.0, which would be written.
    return ItkGeometry(
        tuple(s / MILLIMETER for s in reversed(grid.spacing)),
        tuple((origin + 0.0).tolist()),
        tuple(directions.ravel().tolist()),
    )


class CompressedVoxels(NamedTuple):
    """Voxels that zlib has compressed: their file, where they begin in it, and their bytes."""

    file: Path
    start: int
    skipped_lines: int
    needed: int

    def require_intact(self) -> None:
        """Raise unless they match their checksum, which ITK does not compare."""
        with readable(self.file), self.file.open("rb") as stream:
            stream.seek(self.start)
            for _ in range(self.skipped_lines):
                stream.readline()
            size, decoder = 0, zlib.decompressobj(ZLIB_OR_GZIP)
            while not decoder.eof or size < self.needed:
                piece = decoder.unconsumed_tail
                if decoder.eof:
                    # gzip allows several members.
                    piece, decoder = decoder.unused_data, zlib.decompressobj(ZLIB_OR_GZIP)
                piece = piece or stream.read(INFLATED_BYTES)
                if not piece:
                    raise EOFError("its compressed voxels are truncated")
                size += len(decoder.decompress(piece, INFLATED_BYTES))


class FileVolume:
    """A file that ITK reads, loaded completely by the first thread that reads voxels.

    ``frame`` is an image of one voxel with the file's pixel type, spacing, origin and direction;
    ``place`` is the path that ITK reads. The origin of ``grid`` is along the file's own axes.
    """

    chunks = BLOCK_SHAPE
    has_place = is_plain = True
    decoding = worker_bytes = 0
    access = "read whole, as its format requires"

    def __init__(self, path: Path, grid: Grid, frame: sitk.Image, place: Path) -> None:
        import SimpleITK as sitk

        self.path, self.grid, self.frame, self._place = path, grid, frame, place
        self.dtype: np.dtype = sitk.GetArrayFromImage(frame).dtype
        self.channels: Sequence[str] = ("",)
        self.attributes: Attributes = {}
        self.overruled = ""
        self.compressed: CompressedVoxels | None = None
        self._voxels: npt.NDArray | None = None
        self._image: sitk.Image | None = None
        self._lock = Lock()

    @property
    def geometry(self) -> ItkGeometry:
        """The file's geometry, or that of the given orientation."""
        frame = self.frame
        return ItkGeometry(frame.GetSpacing(), frame.GetOrigin(), frame.GetDirection())

    @property
    def whole_bytes(self) -> int:
        """Memory of all voxels."""
        return math.prod(self.grid.shape) * self.dtype.itemsize

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Copy the voxels of ``region``, into ``out`` if given."""
        voxels = self.voxels
        if out is None:
            return voxels[region].copy()
        out[...] = voxels[region]
        return out

    def load(self, folder: Path | None = None) -> None:
        """Read all voxels, at the first call; an InputError if the file is damaged."""
        _ = self.voxels

    @property
    def voxels(self) -> npt.NDArray:
        """All voxels, read by the first call."""
        with self._lock:
            if self._voxels is None:
                self._voxels = self._read_all()
            return self._voxels

    def _read_all(self) -> npt.NDArray:
        import SimpleITK as sitk

        shape, name = self.grid.shape, self.path.name.lower()
        if self.compressed is not None:
            self.compressed.require_intact()
        if not name.endswith((".nii", ".nii.gz")):
            with readable(self.path):
                self._image = sitk.ReadImage(str(self._place))
            # The view is valid only while the image is kept.
            return sitk.GetArrayViewFromImage(self._image)
        # ITK notices that a NIfTI file is truncated only if it reads a part, which it holds twice.
        # Reading a compressed file in halves costs half a decompression more.
        voxels = np.empty(shape, self.dtype)
        count = 2 if name.endswith(".gz") else -(-voxels.nbytes // PIECE_BYTES)
        axis = next((a for a, n in enumerate(shape) if n > 1), 0)
        count = min(count, shape[axis])
        for first, last in pairwise(shape[axis] * k // count for k in range(count + 1)):
            region = [slice(0, n) for n in shape]
            region[axis] = slice(first, last)
            self._read_part(tuple(region), voxels[tuple(region)])
        return voxels

    def _read_part(self, region: Region, out: npt.NDArray) -> None:
        """Read a part of the file; ITK does this fast only for NIfTI."""
        import SimpleITK as sitk

        reader = sitk.ImageFileReader()
        reader.SetFileName(str(self.path))
        reader.SetExtractIndex([r.start for r in reversed(region)])
        reader.SetExtractSize([r.stop - r.start for r in reversed(region)])
        with readable(self.path):
            image = reader.Execute()
        out[...] = sitk.GetArrayViewFromImage(image)


def open_file(
    path: Path, reading: InputParameters | None = None, like: Grid | None = None
) -> FileVolume:
    """Open a file that ITK reads, without reading voxels.

    A voxel size that the file does not state is taken from ``reading``, else from ``like``.
    """
    import SimpleITK as sitk

    require_format(path, READ_SUFFIXES)
    name = path.name.lower()
    place, detached, header, end = path, None, b"", 0
    if name.endswith((".mha", ".mhd", ".nrrd", ".nhdr")):
        header, end = _head(path)
        place, detached = _split_header(path, header)
        header = header[:end]
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(place))
    with readable(path):
        reader.ReadImageInformation()
    _require_millimeters(path, header)
    pixel, dimension = reader.GetPixelIDValue(), reader.GetDimension()
    # In some formats ITK counts the two parts of a complex number.
    complex_pixels = (sitk.sitkComplexFloat32, sitk.sitkComplexFloat64)
    components = 1 if pixel in complex_pixels else reader.GetNumberOfComponents()
    if dimension != 3 or components != 1:
        raise InputError(
            f"{path} has {dimension} dimensions and {components} components per voxel; octane "
            "reads 3-D volumes with one. Extract one, or add a third axis to a plane."
        )
    with readable(path):
        frame = _frame(reader, pixel)
    sizes, orientation = _stated_sizes(path, header, reader), orientation_of(frame.GetDirection())
    is_stated = any(orientation) and _states_directions(path, header, reader)
    listed = ", ".join("not stated" if n is None else f"{n / MILLIMETER:g} mm" for n in sizes)
    notes = ""
    if name.endswith((".nii", ".nii.gz")):
        notes = _turned_axes(reader) or _other_place(reader, frame)
    stated = Stated(
        path,
        sizes,
        orientation=orientation if is_stated else UNSTATED,
        notes=notes,
        is_oblique=orientation == UNSTATED,
        without_size=f"{path} does not state its voxel size along all axes (z y x: {listed}); give "
        "--voxel_size, in micrometres in this order, or correct its header.",
    )
    meaning = interpretation(stated, reading, like)
    if None in sizes:
        frame.SetSpacing([s / MILLIMETER for s in reversed(meaning.voxel_size)])
    directions = directions_of(orientation)
    if directions is None:
        directions = np.reshape(frame.GetDirection(), (3, 3))
    origin = [o * MILLIMETER for o in reversed((directions.T @ frame.GetOrigin()).tolist())]
    shape = nz, ny, nx = reader.GetSize()[::-1]
    grid = Grid((nz, ny, nx), meaning.voxel_size, vector(*origin))
    if reading is not None and reading.orientation is not None:
        itk_geometry(grid, reading.orientation).apply(frame)
    volume = FileVolume(path, grid, frame, place)
    volume.attributes, volume.overruled = meaning.attributes, meaning.overruled
    if name.endswith(".nii"):
        with readable(path):
            start, bits = (float(reader.GetMetaData(key)) for key in ("vox_offset", "bitpix"))
        # ITK does not notice a truncated file.
        _require_size(path, path, start + math.prod(shape) * bits / 8, at_least=True)
    elif ZLIB_FIELD.search(header):
        volume.compressed = _compressed_voxels(volume, header, detached, end)
    elif not name.endswith(".nii.gz") and (
        TEXT_FIELD.search(header) or not PACKED_FIELD.search(header)
    ):
        # ITK touches the memory of all voxels before it reads any.
        _require_voxels(volume, header, detached)
    return volume


def _stated_sizes(path: Path, header: bytes, reader: sitk.ImageFileReader) -> list[float | None]:
    """Size of a voxel along z, y and x in micrometres; None for an axis whose size ITK makes up."""
    name = path.name.lower()
    if name.endswith((".nii", ".nii.gz")):
        with path.open("rb") as stream:
            packed = stream.read(len(GZIP_START)) == GZIP_START
        with readable(path), gzip.open(path) if packed else path.open("rb") as stream:
            head = stream.read(NIFTI_HEADER)
        order = "<" if head.startswith(NIFTI_SIZE) else ">"
        sizes = struct.unpack_from(f"{order}3f", head, NIFTI_PIXDIM)
        is_stated = [0 < abs(size) < math.inf for size in sizes]
    elif name.endswith((".nrrd", ".nhdr")):
        field = SPACING_FIELD.search(header)
        words = re.findall(rb"\([^()]*\)|[^\s()]+", field[1])[-3:] if field else [b"none"] * 3
        is_stated = [word.lower() not in (b"none", b"nan") for word in words]
    else:
        is_stated = [ELEMENT_SPACING_FIELD.search(header) is not None] * 3
    axes = zip(reader.GetSpacing(), is_stated, strict=True)
    return [abs(s) * MILLIMETER if has_size else None for s, has_size in axes][::-1]


def _states_directions(path: Path, header: bytes, reader: sitk.ImageFileReader) -> bool:
    """Tell whether a file states its directions, as the codes of a NIfTI say."""
    name = path.name.lower()
    for suffixes, fields in DIRECTION_FIELDS.items():
        if name.endswith(suffixes):
            return _follow(header, fields)
    return any(int(reader.GetMetaData(key)) > 0 for key in ("qform_code", "sform_code"))


def _follow(header: bytes, fields: Sequence[re.Pattern[bytes]]) -> bool:
    """Tell whether a header has fields in this order."""
    start = 0
    for field in fields:
        match = field.search(header, start)
        if match is None:
            return False
        start = match.end()
    return True


def _turned_axes(reader: sitk.ImageFileReader) -> str:
    """Sentence about a NIfTI with negative sizes; empty if it has none."""
    named = [axis for axis, size in zip("xyz", reader.GetSpacing(), strict=True) if size < 0]
    if not named:
        return ""
    return (
        f"The file states a negative voxel size along {', '.join(named)}. Octane uses its "
        "magnitude and turns the axis, as ITK does; nibabel ignores the sign. Correct pixdim if "
        "the place matters."
    )


def _other_place(reader: sitk.ImageFileReader, frame: sitk.Image) -> str:
    """Sentence about a NIfTI whose sform differs from what ITK read; empty if it does not."""
    if int(reader.GetMetaData("sform_code")) <= 0:
        return ""
    rows = [[float(n) for n in reader.GetMetaData(f"srow_{axis}").split()] for axis in "xyz"]
    # NIfTI's x and y run to right and anterior.
    stated = np.array(rows) * [[-1], [-1], [1]]
    spacing = np.array(frame.GetSpacing())
    read = np.column_stack([np.reshape(frame.GetDirection(), (3, 3)) * spacing, frame.GetOrigin()])
    if np.allclose(stated, read, rtol=1e-4, atol=1e-2 * spacing.min()):
        return ""
    return (
        "The file states two places. Octane uses its qform, as ITK does; nibabel and FSL use its "
        "sform. Make them equal if the place matters."
    )


def voxel_file(path: Path) -> Path | None:
    """The file in which the header at ``path`` says its voxels are, or None if there is no other.

    Raises an OctaneError if that is not one file next to the header.
    """
    if not path.name.lower().endswith((".mha", ".mhd", ".nrrd", ".nhdr")):
        return None
    return _split_header(path, _head(path)[0])[1]


def _split_header(path: Path, head: bytes) -> tuple[Path, Path | None]:
    """Path for ITK to read, and the file of the voxels if that is not the header itself.

    An OctaneError says that the voxels are not in one file next to the header.
    """
    field, is_nrrd = VOXEL_FIELD.search(head), path.name.lower().endswith((".nrrd", ".nhdr"))
    # ITK may find a field that VOXEL_FIELD does not.
    fields = head if is_nrrd else head[: field.start()] if field else b"\0"
    if CONTROLS.search(fields) or (is_nrrd and LONG_FIELD.search(fields)):
        raise InputError(
            f"{path} has a malformed header, which does not clearly say where its voxels are; "
            "write it again, for example with SimpleITK.WriteImage(image, 'a.mha')."
        )
    if field is None or (field[1] or b"").strip().upper() == b"LOCAL":
        return path, None
    # unu writes ./ before the name.
    name = b"".join(field.groups(b"")).strip().decode(errors="replace").removeprefix("./")
    if not PLAIN_NAME.fullmatch(name):
        raise InputError(
            f"{path} has its voxels in '{name[:100]}', but octane reads only one file next to it, "
            "with a plain name; write both into one file, as by "
            "SimpleITK.WriteImage."
        )
    # Nextflow stages a header as a link.
    places = (path, Path(os.path.realpath(path)))
    place = next((header for header in places if header.with_name(name).exists()), path)
    detached = place.with_name(name)
    if not detached.exists():
        raise InputError(f"{detached}, with the voxels of {path.name}, is missing; restore it.")
    try:
        os.close(open_regular(detached))
    except OSError as error:
        raise unreadable(error) from error
    return place, detached


def _compressed_voxels(
    volume: FileVolume, header: bytes, detached: Path | None, end: int
) -> CompressedVoxels:
    lines, before = SKIPPED_LINES_FIELD.search(header), SKIPPED_BYTES_FIELD.search(header)
    return CompressedVoxels(
        detached or volume.path,
        int(before[1]) if before else 0 if detached else end,
        int(lines[1]) if lines else 0,
        math.prod(volume.grid.shape) * volume.dtype.itemsize,
    )


def _head(path: Path) -> tuple[bytes, int]:
    """Read the header of a MetaImage or NRRD, and where it ends; for MetaImage, with more bytes."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    is_nrrd = path.name.lower().endswith((".nrrd", ".nhdr"))
    ended = re.search(rb"\r?\n\r?\n" if is_nrrd else VOXEL_FIELD, head)
    if ended is None and len(head) == HEADER_BYTES:
        raise InputError(f"{path} has a header without an end; convert or restore it.")
    if ended is None:
        return head, len(head)
    # The line of a MetaImage's last field ends too.
    return (head[: ended.start()], ended.end()) if is_nrrd else (head, ended.end() + 1)


def _require_voxels(volume: FileVolume, header: bytes, detached: Path | None) -> None:
    """Raise unless the file of uncompressed voxels is as large as the header says."""
    text = TEXT_FIELD.search(header)
    needed = math.prod(volume.grid.shape) * (1 if text else volume.dtype.itemsize)
    if detached is not None:
        at_least = bool(text or SKIP_FIELD.search(header))
        _require_size(volume.path, detached, needed, at_least=at_least)
    elif volume.path.stat().st_size < needed:
        with readable(volume.path):
            raise EOFError(f"its voxels are truncated: {needed} bytes are described")


def _require_size(path: Path, file: Path, needed: float, *, at_least: bool) -> None:
    """Raise unless ``file`` has the size that its header, in ``path``, describes."""
    size, named = file.stat().st_size, "" if file == path else f" {path.name}"
    if size < needed or (size > needed and not at_least):
        raise InputError(
            f"{file} has {size} bytes, but its header{named} describes {needed:.0f}; restore it, "
            "or correct the header."
        )


def _require_millimeters(path: Path, header: bytes) -> None:
    """Raise if a NRRD or MetaImage states another unit, which ITK ignores; Fiji writes microns."""
    is_nrrd = path.name.lower().endswith((".nrrd", ".nhdr"))
    text = header.decode(errors="replace").lower()
    field = r"^(?:space )?units:(.*)" if is_nrrd else r"^[ \t]*distanceunits\s*[=:]\s*(\w\S*)"
    for units in re.findall(field, text, re.MULTILINE):
        for unit in re.findall(r'"([^"]*)"', units) if is_nrrd else [units]:
            if unit and LENGTHS.get(unit) != MILLIMETER:
                raise InputError(
                    f"{path} has voxel sizes in {unit}, but ITK reads them as millimetres; write "
                    "sizes and origin in mm."
                )


def require_format(path: Path, known: tuple[str, ...] = FORMATS) -> None:
    """Raise unless the name ends in one of the ``known`` suffixes."""
    if not path.name.lower().endswith(known):
        raise InputError(f"{path} has an unsupported format; use .ome.zarr, {', '.join(known)}.")


def _frame(reader: sitk.ImageFileReader, pixel: int) -> sitk.Image:
    """Image of one voxel with the file's geometry; ITK flips an axis of negative spacing."""
    import SimpleITK as sitk

    spacing, direction = reader.GetSpacing(), reader.GetDirection()
    frame = sitk.Image([1, 1, 1], pixel)
    frame.SetSpacing([abs(s) for s in spacing])
    frame.SetOrigin(reader.GetOrigin())
    if not np.isfinite(direction).all():
        raise RuntimeError("its axes have no direction")
    # Each column is an axis of the volume. Adding 0.0 avoids -0.0, which would be written.
    frame.SetDirection([(-d if spacing[k % 3] < 0 else d) + 0.0 for k, d in enumerate(direction)])
    return frame


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn an error of ITK or of a decoder into an InputError that names the file."""
    try:
        yield
    except (RuntimeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        # ITK gives the place in its own code before the reason.
        reason = str(error).rpartition("ERROR: ")[2].partition("\n")[0][:200]
        raise InputError(
            f"{path} cannot be read as an image ({reason}); convert or restore it."
        ) from error


def image_of(voxels: npt.NDArray, destination: Path) -> sitk.Image:
    """Convert voxels to an ITK image; an OctaneError if ITK does not support their type."""
    import SimpleITK as sitk

    try:
        return sitk.GetImageFromArray(voxels)
    except (TypeError, KeyError) as error:
        raise InputError(
            f"{destination} cannot hold {voxels.dtype} voxels; give --n4_dtype float32 or write "
            "OME-Zarr."
        ) from error


def write_file(image: sitk.Image, partial: Path, destination: Path) -> None:
    """Write an image to ``partial``; an error names ``destination``."""
    import SimpleITK as sitk

    try:
        sitk.WriteImage(image, str(partial))
    except RuntimeError as error:
        _require_room(partial)
        raise InputError(
            f"{destination} cannot be written as {image.GetPixelIDTypeAsString()}: change the "
            "format or --n4_dtype, or free space on the disk."
        ) from error


def _require_room(partial: Path) -> None:
    """Raise the OSError of a full disk or of a limit of file sizes, which ITK does not report."""
    with partial.open("ab", buffering=0) as file:
        file.write(b"\0")


def require_whole(partial: Path, destination: Path, voxel_bytes: int) -> None:
    """Raise unless the file is complete: for NIfTI, ITK only prints that the disk is full."""
    name = destination.name.lower()
    needed = voxel_bytes + NIFTI_HEADER * name.endswith((".nii", ".nii.gz"))
    complete = partial.stat().st_size >= needed
    if name.endswith(".nii.gz"):
        with partial.open("rb") as stream:
            # gzip ends with the uncompressed size modulo 2^32.
            stream.seek(-min(4, partial.stat().st_size), os.SEEK_END)
            complete = int.from_bytes(stream.read(), "little") == needed % 2**32
    if not complete:
        _require_room(partial)
        raise NoSpaceError(
            f"{destination}: not all of {needed} bytes could be written; free some space, or "
            "choose another place for the output. Nothing was left half-written."
        )
