"""Files of tiles: the files in a folder, their metadata and their voxels."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
from octane.core.errors import InputError, unreadable
from octane.core.geometry import Grid, Vector, spelled, vector
from octane.core.orientation import UNSTATED, Orientation
from octane.store.chunks import is_store
from octane.store.formats.itk_files import READ_SUFFIXES, TIFF_SUFFIXES, readable
from octane.store.formats.tiff_files import TiffVolume, open_tiff
from octane.store.image import open_image
from octane.store.stated import stated_orientation
from octane.store.volumes import (
    Volume,
    is_oblique,
    is_ome_zarr,
    lost_directions,
    open_volume,
    override_warnings,
)

PNG = ".png"
RAW = (".raw", ".bin", ".dat", ".data", ".img")
"""Suffixes of files without a header, which --tile_raw_shape and --tile_raw_type describe."""
DEEPEST = 4
"""Levels of subfolders that are searched for tiles."""
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""Last bytes of a complete PNG."""


class RawFormat(NamedTuple):
    """Shape (z, y, x) and type of the voxels of files without a header."""

    shape: tuple[int, int, int]
    dtype: np.dtype


ChooseChannels = Callable[[Path, Sequence[str]], list[int]]
"""Numbers of the channels to be read from a file, which get its path and its channels' labels."""


class FolderContents(NamedTuple):
    """Names in a folder, relative to it: those of possible tiles, and those ignored."""

    tiles: list[str]
    ignored: list[str]

    def at_depth(self, depth: int | None) -> "FolderContents":
        """Keep only tiles at a depth of subfolders; None: the least depth that has tiles."""
        if depth is None:
            depth = min((name.count("/") for name in self.tiles), default=0)
        kept = [name for name in self.tiles if name.count("/") == depth]
        return FolderContents(kept, [*self.ignored, *(set(self.tiles) - {*kept})])


@dataclass(frozen=True)
class TileFile:
    """A file of voxels (z, y, x), described by its metadata; lengths are in micrometres.

    ``origin`` is the centre of the first voxel, None in formats that do not state it; ``channels``
    are the labels of all channels, empty for those without one, and ``chosen`` the numbers of those
    to be read; ``decoding`` is the memory for decoding a plane of a compressed TIFF;
    ``description`` is the file that describes this one of a set of OME-TIFFs, None if it does so;
    ``overruled`` says in sentences that a stated unit or orientation is replaced,
    and ``lost`` that its directions are not kept.
    """

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype
    spacing: Vector
    origin: Vector | None
    channels: tuple[str, ...]
    reading: InputParameters
    raw: RawFormat | None = None
    chosen: tuple[int, ...] = (0,)
    orientation: Orientation = UNSTATED
    decoding: int = 0
    description: Path | None = None
    overruled: str = ""
    lost: str = ""

    def read_into(self, out: npt.NDArray, channel: int, folder: Path | None) -> None:
        """Read a channel's voxels; a compressed TIFF is decoded into a file in ``folder``."""
        if self.raw is not None:
            out[...] = np.fromfile(self.path, self.raw.dtype).reshape(self.raw.shape)
            return
        if self.path.suffix.lower() == PNG:
            import SimpleITK as sitk

            with readable(self.path):
                image = sitk.ReadImage(str(self.path))
            out[0] = sitk.GetArrayViewFromImage(image)
            return
        volume = _volume(self.path, _of_channel(self.reading, channel))
        volume.load(folder)
        volume.read(tuple(slice(0, n) for n in self.shape), out)


def list_files(folder: Path, *, raw: bool) -> FolderContents:
    """List the files and stores of a folder and its subfolders, in the order of their numbers.

    With ``raw`` only files without a header may be tiles. Hidden files and tables are ignored.
    """
    suffixes = RAW if raw else (*READ_SUFFIXES, PNG)
    contents = FolderContents([], [])

    def walk(place: Path, depth: int) -> None:
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            raise unreadable(error) from error
        for path in entries:
            name = path.relative_to(folder).as_posix()
            hidden = path.name.startswith(".")
            if not hidden and path.is_dir() and not is_store(path):
                if depth < DEEPEST and path.name != "OME":
                    walk(path, depth + 1)
                continue
            # A link to a lost file is a tile, which is refused when it is opened.
            is_file = path.is_file() or not path.exists()
            suffixed = is_file and path.name.lower().endswith(suffixes)
            is_tile = not raw if is_store(path) else suffixed
            (contents.tiles if is_tile and not hidden else contents.ignored).append(name)

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of the tiles' files.")
    walk(folder, 0)
    contents.tiles.sort(key=natural)
    return contents


def natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts names by their numbers: tile_2 before tile_10."""
    return [
        (int(part), "") if k % 2 else (0, part) for k, part in enumerate(re.split(r"(\d+)", name))
    ]


def open_tile(
    path: Path, reading: InputParameters, raw: RawFormat | None, choose: ChooseChannels
) -> TileFile:
    """Describe a file without reading voxels; an InputError says why it cannot be used."""
    if raw is not None:
        return _open_raw(path, reading, raw)
    if path.suffix.lower() == PNG:
        return _open_png(path, reading)
    volume = _volume(path, _of_channel(reading, 0))
    channels, grid = tuple(volume.channels), volume.grid
    chosen = tuple(sorted(choose(path, channels)))
    if is_ome_zarr(path) and reading.missing_chunks == "error":
        for channel in chosen:
            image = open_image(path, _of_channel(reading, channel))
            image.require_chunks(image.whole)
    origin = grid.origin if volume.has_place and not is_oblique(volume) else None
    return TileFile(
        *(path, grid.shape, volume.dtype, grid.spacing, origin, channels, reading),
        chosen=chosen,
        orientation=stated_orientation(volume.attributes),
        decoding=volume.decoding,
        description=volume.description if isinstance(volume, TiffVolume) else None,
        overruled=" ".join(override_warnings([volume])),
        lost=" ".join(lost_directions(volume)),
    )


def _volume(path: Path, reading: InputParameters) -> Volume:
    """Open a file or store; a TIFF may be a single plane."""
    if is_ome_zarr(path):
        return open_image(path, reading)
    if path.name.lower().endswith(TIFF_SUFFIXES):
        return open_tiff(path, reading, flat=True)
    return open_volume(path, reading)


def _of_channel(reading: InputParameters, channel: int) -> InputParameters:
    """Parameters that read one channel of a file."""
    # The kinds are those of the tiles' channels, of which a file may hold only one.
    return reading.model_copy(update={"channel": str(channel), "channel_kind": ()})


def _open_png(path: Path, reading: InputParameters) -> TileFile:
    import SimpleITK as sitk

    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    with readable(path):
        reader.ReadImageInformation()
    types = {sitk.sitkUInt8: np.uint8, sitk.sitkUInt16: np.uint16}
    pixel = reader.GetPixelID()
    if reader.GetNumberOfComponents() != 1 or pixel not in types:
        raise InputError(
            f"{path} is not a grey PNG of 8 or 16 bits; save it as one, or as one per channel."
        )
    with path.open("rb") as stream:
        stream.seek(-min(len(PNG_END), path.stat().st_size), 2)
        if stream.read() != PNG_END:
            raise InputError(f"{path} is truncated; restore it.")
    nx, ny = reader.GetSize()[:2]
    grid = Grid((1, ny, nx), _stated_spacing(path, reading))
    return TileFile(path, grid.shape, np.dtype(types[pixel]), grid.spacing, None, ("",), reading)


def _open_raw(path: Path, reading: InputParameters, raw: RawFormat) -> TileFile:
    size, needed = path.stat().st_size, math.prod(raw.shape) * raw.dtype.itemsize
    if size != needed:
        raise InputError(
            f"{path} has {size} bytes, but {spelled(raw.shape)} voxels of {raw.dtype} take "
            f"{needed}; restore it, or correct --tile_raw_shape and --tile_raw_type."
        )
    spacing = _stated_spacing(path, reading)
    return TileFile(path, raw.shape, raw.dtype, spacing, None, ("",), reading, raw)


def _stated_spacing(path: Path, reading: InputParameters) -> Vector:
    """Voxel size that the user gave for a format that does not state it."""
    if reading.voxel_size is None:
        raise InputError(
            f"{path} does not state its voxel size; give --voxel_size, in micrometres in the order "
            "z y x."
        )
    return vector(*reading.voxel_size)
