"""Volumes in files that ITK reads: NIfTI, MetaImage and NRRD, read whole when voxels are asked for.

The steps take all voxels of such a file, and ITK reads a part of most formats no faster. SimpleITK
is loaded by what works with a file: steps on OME-Zarr start sooner without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octane.core.errors import InputError, NoSpaceError, unreadable
from octane.core.files import open_regular
from octane.core.geometry import LENGTHS, MICROMETERS, Grid, Region, vector
from octane.store.ngff import Attributes

if TYPE_CHECKING:
    import SimpleITK as sitk

TIFF = (".tif", ".tiff")
FORMATS = (".nii", ".nii.gz", ".mha", ".nrrd", *TIFF)
"""Suffixes of files; SimpleITK reads and writes all but TIFF."""
READ = (*FORMATS, ".mhd", ".nhdr")
"""Suffixes of files that are read: the last two are headers of voxels in another file."""

HEADER_BYTES = 1_000_000
"""Bytes of a file that its header lies in."""
VOXELS = re.compile(rb"^\s*ElementDataFile\s*[=:](.*)|^(?i:data ?file):(.*)", re.MULTILINE)
"""Field of a header that tells where the voxels are, in MetaImage its last."""
# As voxelsOf in lib/functions.nf takes it; Nextflow stages no file with the other signs.
PLAIN = re.compile(r"(?!LIST|\.\.)[^/\\%*?\[\]{}$\x00-\x1f]+")
"""Name of a file next to a header: no list, no pattern and no path."""
PACKED = re.compile(rb"^(CompressedData *= *T|BinaryData *= *F|encoding:(?! *raw))", re.M | re.I)
CONTROLS = re.compile(rb"\r(?!\n)|\0")
"""Characters that no header has, between which ITK reads fields."""
SKIPPED = re.compile(rb"^(HeaderSize|(byte|line) ?skip)\b", re.M | re.I)
"""Fields of voxels that are no plain numbers, and of what lies before them."""

MILLIMETER = MICROMETERS["millimeter"]

TAKEN = (16, 256, 256)
"""Voxels taken at once of a volume that is in memory: few enough planes to stay in the cache."""

NIFTI_HEADER = 352
"""Bytes before the voxels of a NIfTI-1 file."""

PIECE_BYTES = 8_000_000
"""Most that is read at once of a NIfTI file, which ITK holds twice."""


class FileVolume:
    """A file of :data:`FORMATS`, read whole by the first thread that asks for voxels.

    ``frame`` is one voxel with the file's type, spacing, origin and directions as ITK has them;
    ``place`` is the path that ITK reads.
    """

    def __init__(self, path: Path, grid: Grid, frame: sitk.Image, place: Path) -> None:
        import SimpleITK as sitk

        self.path, self.grid, self.frame, self._place = path, grid, frame, place
        self.dtype: np.dtype = sitk.GetArrayFromImage(frame).dtype
        self.chunks = TAKEN
        self.attributes: Attributes = {}
        self._voxels: npt.NDArray | None = None
        self._image: sitk.Image | None = None
        self._lock = Lock()

    @property
    def is_turned(self) -> bool:
        """True where its axes do not run along those of its space."""
        return not np.allclose(self.frame.GetDirection(), np.eye(3).ravel(), rtol=0, atol=1e-4)

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``, a copy."""
        voxels = self.load()
        if out is None:
            return voxels[region].copy()
        out[...] = voxels[region]
        return out

    def load(self) -> npt.NDArray:
        """Bring all voxels into memory, if they are not there; an error for a damaged file."""
        with self._lock:
            if self._voxels is None:
                self._voxels = self._read_all()
            return self._voxels

    def _read_all(self) -> npt.NDArray:
        import SimpleITK as sitk

        shape, name = self.grid.shape, self.path.name.lower()
        if not name.endswith((".nii", ".nii.gz")):
            with _readable(self.path):
                self._image = sitk.ReadImage(str(self._place))
            # A view, which is good for as long as the image is kept.
            return sitk.GetArrayViewFromImage(self._image)
        # ITK takes a NIfTI file that is cut short for whole unless it is asked for a part, and
        # holds that twice. Half of a compressed one costs half its decompression more.
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
        """Read a part of the file, which ITK does fast for NIfTI alone."""
        import SimpleITK as sitk

        reader = sitk.ImageFileReader()
        reader.SetFileName(str(self.path))
        reader.SetExtractIndex([r.start for r in reversed(region)])
        reader.SetExtractSize([r.stop - r.start for r in reversed(region)])
        with _readable(self.path):
            image = reader.Execute()
        out[...] = sitk.GetArrayViewFromImage(image)


def open_file(path: Path) -> FileVolume:
    """Open a file of ITK's; no voxel is read."""
    import SimpleITK as sitk

    require_format(path, READ)
    name = path.name.lower()
    place, detached, header = path, None, b""
    if name.endswith((".mha", ".mhd", ".nrrd", ".nhdr")):
        header = _head(path)
        place, detached = _detached(path, header)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(place))
    with _readable(path):
        reader.ReadImageInformation()
    if name.endswith((".nrrd", ".nhdr")):
        _require_millimeters(path, header)
    pixel, dimension = reader.GetPixelIDValue(), reader.GetDimension()
    # Of a complex number ITK counts the parts in some formats.
    complex_pixels = (sitk.sitkComplexFloat32, sitk.sitkComplexFloat64)
    components = 1 if pixel in complex_pixels else reader.GetNumberOfComponents()
    if dimension != 3 or components != 1:
        raise InputError(
            f"{path} has {dimension} dimensions and {components} components a voxel; "
            "octane takes one 3-D volume: extract it, or give a plane a third axis."
        )
    with _readable(path):
        frame = _frame(reader, pixel)
    spacing = [s * MILLIMETER for s in reversed(frame.GetSpacing())]
    origin = [o * MILLIMETER for o in reversed(frame.GetOrigin())]
    shape = nz, ny, nx = reader.GetSize()[::-1]
    volume = FileVolume(path, Grid((nz, ny, nx), vector(*spacing), vector(*origin)), frame, place)
    if name.endswith(".nii"):
        with _readable(path):
            start, bits = (float(reader.GetMetaData(key)) for key in ("vox_offset", "bitpix"))
        # ITK would take a file that is cut short for whole.
        _require_size(path, path, start + prod(shape) * bits / 8, at_least=True)
    elif detached is not None and not PACKED.search(header):
        needed, at_least = prod(shape) * volume.dtype.itemsize, bool(SKIPPED.search(header))
        _require_size(path, detached, needed, at_least=at_least)
    return volume


def _detached(path: Path, head: bytes) -> tuple[Path, Path | None]:
    """Path by which ITK finds a file's voxels, and the file of these if it is not the header's own.

    An OctaneError says that they lie in anything but one file next to the header.
    """
    found, is_nrrd = VOXELS.search(head), path.name.lower().endswith((".nrrd", ".nhdr"))
    # ITK may find there what is not found here.
    known = head if is_nrrd else head[: found.start()] if found else b"\0"
    if CONTROLS.search(known):
        raise InputError(
            f"{path} has a header that does not say plainly where its voxels are; write it again, "
            "as by SimpleITK.WriteImage(image, 'a.mha')."
        )
    if found is None or (found[1] or b"").strip().upper() == b"LOCAL":
        return path, None
    # unu writes it so.
    name = b"".join(found.groups(b"")).strip().decode(errors="replace").removeprefix("./")
    if not PLAIN.fullmatch(name):
        raise InputError(
            f"{path} has its voxels in '{name[:100]}', and octane takes one file next to it, of "
            "plain name; write all into one file, as by SimpleITK.WriteImage(image, 'a.mha')."
        )
    # Nextflow hands a header on by a link to it.
    places = (path, Path(os.path.realpath(path)))
    place = next((header for header in places if header.with_name(name).exists()), path)
    detached = place.with_name(name)
    if not detached.exists():
        raise InputError(f"{detached} is missing, where {path.name} has its voxels; restore it.")
    try:
        os.close(open_regular(detached))
    except OSError as error:
        raise unreadable(error) from error
    return place, detached


def _head(path: Path) -> bytes:
    """The header of a MetaImage or NRRD, for MetaImage with what follows."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    is_nrrd = path.name.lower().endswith((".nrrd", ".nhdr"))
    ended = re.search(rb"\r?\n\r?\n" if is_nrrd else VOXELS, head)
    if ended is None and len(head) == HEADER_BYTES:
        raise InputError(f"{path} has a header without an end; convert or restore it.")
    return head[: ended.start()] if ended is not None and is_nrrd else head


def _require_size(path: Path, file: Path, needed: float, *, at_least: bool) -> None:
    """Raise unless ``file`` has as many bytes as its header, in ``path``, describes."""
    size, named = file.stat().st_size, "" if file == path else f" {path.name}"
    if size < needed or (size > needed and not at_least):
        raise InputError(
            f"{file} has {size} bytes, and its header{named} describes {needed:.0f}; restore it, "
            "or correct the header."
        )


def _require_millimeters(path: Path, header: bytes) -> None:
    """Raise where a NRRD states another unit, as Fiji writes microns: ITK does not read it."""
    text = header.decode(errors="replace").lower()
    for units in re.findall(r"^(?:space )?units:(.*)", text, re.MULTILINE):
        for unit in re.findall(r'"([^"]*)"', units):
            if unit and LENGTHS.get(unit) != MILLIMETER:
                raise InputError(
                    f"{path} has voxel sizes in {unit}, and ITK takes NRRD in millimetres; write "
                    "sizes and origin in mm."
                )


def require_format(path: Path, known: tuple[str, ...] = FORMATS) -> None:
    """Raise unless the name is that of a known format."""
    if not path.name.lower().endswith(known):
        raise InputError(
            f"{path} has no format that octane knows; use .ome.zarr, {', '.join(known)}."
        )


def _frame(reader: sitk.ImageFileReader, pixel: int) -> sitk.Image:
    """One voxel that lies as the image would: ITK turns an axis whose spacing is negative."""
    import SimpleITK as sitk

    spacing, direction = reader.GetSpacing(), reader.GetDirection()
    frame = sitk.Image([1, 1, 1], pixel)
    frame.SetSpacing([abs(s) for s in spacing])
    frame.SetOrigin(reader.GetOrigin())
    # An axis of the volume is a column. What is added makes 0 of -0, which would be written.
    frame.SetDirection([(-d if spacing[k % 3] < 0 else d) + 0.0 for k, d in enumerate(direction)])
    return frame


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Name the file where ITK raises."""
    try:
        yield
    except RuntimeError as error:
        # ITK says where in its own code, and then why.
        reason = str(error).rpartition("ERROR: ")[2].partition("\n")[0][:200]
        raise InputError(
            f"{path} cannot be read as an image ({reason}); convert or restore it."
        ) from error


def image_of(voxels: npt.NDArray, destination: Path) -> sitk.Image:
    """ITK's image of voxels; an OctaneError where it has none of their type."""
    import SimpleITK as sitk

    try:
        return sitk.GetImageFromArray(voxels)
    except (TypeError, KeyError) as error:
        raise InputError(
            f"{destination} cannot hold {voxels.dtype} voxels; give --n4_dtype float32 or write "
            "OME-Zarr."
        ) from error


def write_file(image: sitk.Image, partial: Path, destination: Path) -> None:
    """Write an image to ``partial``; an OctaneError names ``destination``."""
    import SimpleITK as sitk

    try:
        sitk.WriteImage(image, str(partial))
    except RuntimeError as error:
        raise InputError(
            f"{destination} cannot be written as {image.GetPixelIDTypeAsString()}: the disk is "
            "full or the format does not hold it; free space, or give another format or --n4_dtype."
        ) from error


def require_whole(partial: Path, destination: Path, voxel_bytes: int) -> None:
    """Raise unless all voxels are in the file: ITK only prints when a disk is full under NIfTI."""
    name = destination.name.lower()
    needed = voxel_bytes + NIFTI_HEADER * name.endswith((".nii", ".nii.gz"))
    complete = partial.stat().st_size >= needed
    if name.endswith(".nii.gz"):
        with partial.open("rb") as stream:
            # gzip ends with the number of bytes that it holds, of which it keeps 32 bits.
            stream.seek(-min(4, partial.stat().st_size), os.SEEK_END)
            complete = int.from_bytes(stream.read(), "little") == needed % 2**32
    if not complete:
        raise NoSpaceError(
            f"{destination}: not all of {needed} bytes could be written; free some space, or "
            "choose another place for the output. Nothing was left half-written."
        )
