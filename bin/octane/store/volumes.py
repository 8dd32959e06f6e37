"""Volumes in any format, OME-Zarr, TIFF or one of ITK: what a step reads, opened or created."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
from octane.config.types import Codec
from octane.core.errors import InputError, unreadable
from octane.core.files import open_regular, writing
from octane.core.geometry import Grid, Region, vector
from octane.core.metrics import Metrics
from octane.core.orientation import (
    UNSTATED,
    Orientation,
    code_of,
    orientation_of,
    spelled_orientation,
)
from octane.store.formats.archive import ARCHIVE_SUFFIXES, is_archive
from octane.store.formats.itk_files import (
    BLOCK_SHAPE,
    MILLIMETER,
    READ_SUFFIXES,
    TIFF_SUFFIXES,
    ItkGeometry,
    image_of,
    itk_geometry,
    open_file,
    require_format,
    require_whole,
    write_file,
)
from octane.store.formats.tiff_files import create_tiff, open_tiff
from octane.store.image import open_image
from octane.store.reading import AS_STATED, chosen_channels
from octane.store.stated import Attributes, orientation_in_words, stated_orientation
from octane.store.writer import CHUNK, SHARD, Level, Make, create_image, require_store_name

logger = logging.getLogger(__name__)


class Volume(Protocol):
    """A volume (z, y, x), lengths in micrometres, whose voxels are read on demand."""

    @property
    def path(self) -> Path:
        """File or store."""
        ...

    @property
    def grid(self) -> Grid:
        """Voxels, their size and the place of the first one."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        ...

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of the blocks that are best read at once."""
        ...

    @property
    def attributes(self) -> dict[str, object]:
        """Octane's own: the orientation, the channel, sections and the like."""
        ...

    @property
    def channels(self) -> Sequence[str]:
        """Names of all channels in the file, empty for those without one."""
        ...

    @property
    def overruled(self) -> str:
        """Sentences on what the file states and the user replaces, or octane does not use."""
        ...

    @property
    def geometry(self) -> ItkGeometry | None:
        """Geometry that a file of ITK states, also an oblique one; None in other formats."""
        ...

    @property
    def has_place(self) -> bool:
        """True if the format states where the volume lies."""
        ...

    @property
    def is_plain(self) -> bool:
        """True if a part can be read again without decoding."""
        ...

    @property
    def whole_bytes(self) -> int:
        """Memory that the voxels keep if the file is read whole; else 0."""
        ...

    @property
    def decoding(self) -> int:
        """Memory for decoding a plane, once; 0 if none is compressed."""
        ...

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker for decoding, besides the voxels that it reads."""
        ...

    @property
    def access(self) -> str:
        """How voxels are read, for the log."""
        ...

    def load(self, folder: Path | None = None) -> None:
        """Read a file that is read whole, and decode a compressed TIFF into ``folder``."""
        ...

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the voxels of ``region``, into ``out`` if given."""
        ...


@dataclass(frozen=True)
class ArrayVolume:
    """A volume in memory."""

    path: Path
    voxels: npt.NDArray
    grid: Grid
    attributes: Attributes
    chunks: tuple[int, int, int] = BLOCK_SHAPE
    channels: Sequence[str] = ("",)

    overruled = ""
    geometry = None
    has_place = is_plain = True
    decoding = worker_bytes = 0
    access = "in memory"

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        return self.voxels.dtype

    @property
    def whole_bytes(self) -> int:
        """Memory of all voxels."""
        return prod(self.grid.shape) * self.dtype.itemsize

    def load(self, folder: Path | None = None) -> None:
        """Do nothing: they are loaded."""

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """View the voxels of ``region``."""
        return self.voxels[region]


class Writer(Protocol):
    """Writer of blocks, which are entire shards in an OME-Zarr image."""

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None: ...

    def fill(self, region: Region, make: Make, source: object, /) -> None:
        """Write the voxels that ``make`` computes from the same region of ``source``."""
        ...


class ArrayWriter:
    """Writer of blocks into one array, in memory or mapped."""

    def __init__(self, voxels: npt.NDArray) -> None:
        self._voxels = voxels

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region."""
        self._voxels[region] = block

    def fill(self, region: Region, make: Make, _: object, /) -> None:
        """Write the voxels that ``make`` returns for a region."""
        self._voxels[region] = make(region)


def is_ome_zarr(path: Path) -> bool:
    """Tell whether ``path`` names an OME-Zarr store rather than a file of another format."""
    return path.name.endswith(".zarr") or path.is_dir() or is_archive(path)


def bare_name(path: Path) -> str:
    """Name of a volume without the suffixes of its format."""
    endings = (
        ".ome.zarr",
        ".zarr",
        *ARCHIVE_SUFFIXES,
        *sorted(READ_SUFFIXES, key=len, reverse=True),
    )
    name = path.name.removesuffix(next(filter(path.name.endswith, endings), ""))
    return name.removesuffix(".ome")


def is_whole(path: Path) -> bool:
    """Tell whether files of the format of ``path`` are read and written in one piece."""
    return not is_ome_zarr(path) and not path.name.lower().endswith(TIFF_SUFFIXES)


def open_volume(
    path: Path,
    reading: InputParameters | None = AS_STATED,
    like: Grid | None = None,
) -> Volume:
    """Open an OME-Zarr store or a file; voxels are read on demand.

    Parameters and errors are those of :func:`octane.store.image.open_image` and
    :func:`octane.store.formats.tiff_files.open_tiff`.
    """
    if is_ome_zarr(path):
        return open_image(path, reading)
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path.")
    try:
        os.close(open_regular(path))
    except OSError as error:
        # ITK would only say that it is not an image.
        raise unreadable(error) from error
    if not is_whole(path):
        return open_tiff(path, reading, like)
    return open_file(path, reading, like)


def each_channel(path: Path, asked: str, reading: InputParameters) -> list[InputParameters]:
    """How to read each channel of a volume that ``--channels`` names, in the order of the file.

    Errors are those of :func:`open_volume` and :func:`octane.store.channels.chosen_channels`.
    """
    labels = open_volume(path, reading.model_copy(update={"channel": "0"})).channels
    chosen = chosen_channels(path, labels, len(labels), asked)
    return [reading.model_copy(update={"channel": str(index)}) for index in chosen]


def is_oblique(volume: Volume) -> bool:
    """Tell whether a file states axes that are not along those of the subject."""
    stated = volume.geometry
    return stated is not None and orientation_of(stated.directions) == UNSTATED


def lost_directions(volume: Volume) -> list[str]:
    """Warning for a file with oblique axes, whose directions the results do not keep."""
    if volume.geometry is None or not is_oblique(volume):
        return []
    nearest = code_of(orientation_of(volume.geometry.directions, tolerance=1))
    return [
        f"{volume.path.name} has axes oblique to those of the subject. OME-Zarr and OME-TIFF "
        "cannot state them: the results lose the positions in space. If these matter, resample "
        "the volume along the axes with SimpleITK.Resample; "
        f"--orientation {nearest or 'CODE'} states the nearest ones."
    ]


def default_directions(volume: Volume, destination: Path) -> list[str]:
    """Note on a file whose format states directions although the volume does not."""
    orientation = stated_orientation(volume.attributes)
    if is_oblique(volume) or code_of(orientation) or not is_whole(destination):
        return []
    default = orientation_of(geometry_of(volume, volume.grid, orientation).directions)
    return [
        f"{volume.path.name} does not state an orientation along R L, A P and S I, so "
        f"{destination.name} has ITK's default: {spelled_orientation(default)}. --orientation "
        "states another."
    ]


def geometry_of(volume: Volume, grid: Grid, orientation: Orientation) -> ItkGeometry:
    """ITK's geometry of the part of a volume on ``grid``, whose axes have this ``orientation``.

    A file's own directions are kept exactly, also oblique ones, unless the part is reoriented.
    """
    stated = volume.geometry
    if stated is None or orientation != stated_orientation(volume.attributes):
        return itk_geometry(grid, orientation)
    steps = np.subtract(grid.origin, volume.grid.origin)[::-1] / MILLIMETER
    origin = stated.origin + np.reshape(stated.directions, (3, 3)) @ steps
    return stated._replace(origin=tuple(origin.tolist()))


def override_warnings(volumes: Sequence[Volume]) -> list[str]:
    """Warnings for volumes whose stated unit or orientation is replaced by the given one."""
    return [*dict.fromkeys(v.overruled for v in volumes if v.overruled)]


def log_orientation(path: Path, attributes: Attributes) -> None:
    """Log in words which orientation is stated, so that a wrong code is seen."""
    if words := orientation_in_words(attributes):
        logger.info("%s: orientation %s", path.name, words)


def bring_in(volume: Volume, metrics: Metrics, destination: Path) -> None:
    """Read an ITK file, or decode a TIFF next to ``destination``; warn about lost metadata."""
    for text in override_warnings([volume]):
        metrics.warn_in_report(text)
    log_orientation(volume.path, volume.attributes)
    if volume.whole_bytes or volume.decoding:
        with metrics.timed("read"):
            volume.load(destination.parent)
    for text in lost_directions(volume) if is_ome_zarr(destination) else ():
        metrics.warn(text)


def require_holds(destination: Path, dtype: npt.DTypeLike) -> None:
    """Raise unless :func:`create_volume` can write voxels of this type to ``destination``."""
    if is_ome_zarr(destination):
        require_store_name(destination)
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
    """Create a volume on the grid of ``like``, and name it when the block succeeds.

    Parameters are those of :func:`octane.store.writer.create_image`.

    Yields
    ------
    writer, size
        Writer of blocks, and their size: the grid may be written concurrently in such blocks, or
        in multiples of them.

    Raises
    ------
    OctaneError
        If the destination exists, cannot be written or has an unknown format.
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
            yield writer, level.object_shape
        return
    require_format(destination)
    native = np.dtype(dtype).newbyteorder("=")
    nz, ny, nx = like.grid.shape
    # Only the planes decoded at once, so that every worker gets some and they stay in the cache.
    depth = min(CHUNK, max(BLOCK_SHAPE[0], like.chunks[0]))
    size = (min(nz, depth), min(ny, SHARD), min(nx, SHARD))
    with writing(destination, overwrite=overwrite) as partial:
        if not is_whole(destination):
            with create_tiff(partial, destination, like.grid, native) as planes:
                yield planes, size
            return
        voxels = np.empty(like.grid.shape, native)
        yield ArrayWriter(voxels), size
        image = image_of(voxels, destination)
        for text in default_directions(like, destination):
            logger.info("%s", text)
        geometry_of(like, like.grid, stated_orientation(like.attributes)).apply(image)
        write_file(image, partial, destination)
        require_whole(partial, destination, voxels.nbytes)
