"""Volumes, whatever the file: OME-Zarr, TIFF or one of ITK's."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octane.config.params import InputParameters
from octane.core.errors import InputError, unreadable
from octane.core.files import open_regular, writing
from octane.core.geometry import Grid, Region, vector
from octane.core.metrics import Metrics
from octane.store.image import Image, open_image
from octane.store.itk_files import (
    MILLIMETER,
    TAKEN,
    TIFF,
    FileVolume,
    image_of,
    open_file,
    require_format,
    require_whole,
    write_file,
)
from octane.store.ngff import AS_STATED, Attributes, place_of, require_stated
from octane.store.tiff_files import TiffVolume, create_tiff, open_tiff
from octane.store.writer import CHUNK, SHARD, Codec, Level, Make, create_image


@dataclass(frozen=True)
class ArrayVolume:
    """A volume that is in memory already."""

    path: Path
    voxels: npt.NDArray
    grid: Grid
    attributes: Attributes
    chunks: tuple[int, int, int] = TAKEN

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        return self.voxels.dtype

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``, a view."""
        return self.voxels[region]


Volume = Image | TiffVolume | FileVolume | ArrayVolume
"""Volumes as the steps take them, (z, y, x), lengths in micrometres."""


class Writer(Protocol):
    """Takes blocks; those of an OME-Zarr image are whole shards."""

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None: ...

    def fill(self, region: Region, make: Make, source: object, /) -> None:
        """Write a region of what ``make`` makes of the same region of ``source``."""
        ...


class ArrayWriter:
    """Takes the blocks of a file whose voxels are one array, in memory or mapped."""

    def __init__(self, voxels: npt.NDArray) -> None:
        self._voxels = voxels

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region."""
        self._voxels[region] = block

    def fill(self, region: Region, make: Make, _: object, /) -> None:
        """Write a region of what ``make`` makes."""
        self._voxels[region] = make(region)


def is_ome_zarr(path: Path) -> bool:
    """Tell whether ``path`` names an OME-Zarr store rather than a file of another format."""
    return path.name.endswith(".zarr") or path.is_dir()


def is_whole(path: Path) -> bool:
    """Tell whether the format of ``path`` is one that is read and written whole."""
    return not is_ome_zarr(path) and not path.name.lower().endswith(TIFF)


def is_plain(volume: Volume) -> bool:
    """Tell whether a part of a volume is read again without decoding."""
    if not isinstance(volume, Image):
        return True
    return volume.reader is not None and volume.array.compressor is None


def open_volume(
    path: Path,
    reading: InputParameters | None = AS_STATED,
    like: Grid | None = None,
) -> Volume:
    """Open an OME-Zarr store, or a file of which voxels are read when they are asked for.

    Parameters and errors are those of :func:`octane.store.image.open_image` and
    :func:`octane.store.tiff_files.open_tiff`.
    """
    if is_ome_zarr(path):
        return open_image(path, reading)
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path.")
    try:
        os.close(open_regular(path))
    except OSError as error:
        # To ITK it would be no image.
        raise unreadable(error) from error
    if not is_whole(path):
        return open_tiff(path, reading, like)
    # A file of ITK has one channel and one time point.
    place_of(path, [], [], [], reading)
    volume = open_file(path)
    require_stated(path, volume.grid.spacing, reading)
    return volume


def turned(volume: Volume) -> list[str]:
    """Warning for a file whose directions OME-Zarr has no place for."""
    if not isinstance(volume, FileVolume) or not volume.is_turned:
        return []
    return [
        f"{volume.path.name} has axes that are turned in its space, and OME-Zarr keeps no "
        "directions: the results have its voxels in their order, and other positions. Where these "
        "matter, give SimpleITK.DICOMOrient(image, 'LPS')."
    ]


def overruled_units(volumes: Sequence[Volume]) -> list[str]:
    """Warning for stores that state another unit than the one that was given and is taken."""
    return [*dict.fromkeys(v.overruled for v in volumes if isinstance(v, Image) and v.overruled)]


def bring_in(volume: Volume, metrics: Metrics, destination: Path) -> None:
    """Read ITK's file, decode a TIFF beside ``destination``; warn of what that does not keep."""
    for text in overruled_units([volume]):
        metrics.warn_in_report(text)
    if isinstance(volume, FileVolume):
        with metrics.timed("read"):
            volume.load()
    if isinstance(volume, TiffVolume):
        with metrics.timed("read"):
            volume.load(destination.parent)
    for text in turned(volume) if is_ome_zarr(destination) else ():
        metrics.warn(text)


def require_holds(destination: Path, dtype: npt.DTypeLike) -> None:
    """Raise unless :func:`create_volume` can write such voxels into a file of this name."""
    if is_ome_zarr(destination):
        return
    require_format(destination)
    native = np.dtype(dtype).newbyteorder("=")
    with TemporaryDirectory() as folder:
        trial = Path(folder) / destination.name
        if is_whole(destination):
            write_file(image_of(np.zeros((2, 2, 2), native), destination), trial, destination)
        else:
            with create_tiff(trial, destination, Grid((1, 2, 2), vector(1, 1, 1)), native):
                pass


@contextmanager
def create_volume(
    destination: Path,
    like: Volume,
    dtype: npt.DTypeLike,
    *,
    codec: Codec = "zstd",
    attributes: Attributes | None = None,
    overwrite: bool = False,
) -> Generator[tuple[Writer, tuple[int, int, int]]]:
    """Create a volume on the grid of ``like`` and name it when the block ends well.

    Parameters are those of :func:`octane.store.writer.create_image`.

    Yields
    ------
    writer, size
        What takes the blocks, and their size: the grid cut into such blocks, or into multiples of
        them, may be written concurrently.

    Raises
    ------
    OctaneError
        When the destination exists, cannot be written or has an unknown format.
    """
    if is_ome_zarr(destination):
        level = Level.volume(like.grid)
        with create_image(
            destination,
            [level],
            dtype,
            codec=codec,
            attributes={**like.attributes, "kind": "volume", **(attributes or {})},
            overwrite=overwrite,
            to_disk=True,
        ) as (writer,):
            yield writer, level.owned
        return
    require_format(destination)
    native = np.dtype(dtype).newbyteorder("=")
    nz, ny, nx = like.grid.shape
    # As few planes as are decoded at once: all workers have some, and find them in the cache.
    depth = min(CHUNK, max(TAKEN[0], like.chunks[0]))
    size = (min(nz, depth), min(ny, SHARD), min(nx, SHARD))
    with writing(destination, overwrite=overwrite) as partial:
        if not is_whole(destination):
            with create_tiff(partial, destination, like.grid, native) as planes:
                yield planes, size
            return
        voxels = np.empty(like.grid.shape, native)
        yield ArrayWriter(voxels), size
        image = image_of(voxels, destination)
        if isinstance(like, FileVolume):
            image.SetSpacing(like.frame.GetSpacing())
            image.SetOrigin(like.frame.GetOrigin())
            image.SetDirection(like.frame.GetDirection())
        else:
            image.SetSpacing([s / MILLIMETER for s in reversed(like.grid.spacing)])
            image.SetOrigin([o / MILLIMETER for o in reversed(like.grid.origin)])
        write_file(image, partial, destination)
        require_whole(partial, destination, voxels.nbytes)
