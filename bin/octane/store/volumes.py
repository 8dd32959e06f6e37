"""Volumes, whatever the file, OME-Zarr or one that ITK reads, and those that a path stands for."""

import gzip
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk

from octane.core.errors import NoSpaceError, OctaneError
from octane.core.files import writing
from octane.core.geometry import Grid, Region
from octane.core.metrics import Metrics
from octane.store.chunks import is_store
from octane.store.image import Attributes, Image, open_image
from octane.store.itk_files import (
    FORMATS,
    MILLIMETER,
    TAKEN,
    UNITLESS,
    FileVolume,
    open_file,
    require_format,
)
from octane.store.writer import CHUNK, SHARD, Codec, Level, create_image

NIFTI_HEADER = 352
"""Bytes before the voxels of a NIfTI-1 file."""


class Volume(Protocol):
    """Interface of a volume to the steps, (z, y, x), lengths in micrometres."""

    @property
    def path(self) -> Path:
        """Path of its store or file."""

    @property
    def grid(self) -> Grid:
        """Positions of its voxels."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""

    @property
    def attributes(self) -> Attributes:
        """Attributes that octane noted; empty for files of others."""

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Voxels that are decoded at once."""

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``; in ``out``, if it is given and they are not in memory anyway."""


class Writer(Protocol):
    """Takes blocks; those of an OME-Zarr image are whole shards."""

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None: ...


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


def is_ome_zarr(path: Path) -> bool:
    """Tell whether ``path`` names an OME-Zarr store rather than a file of another format."""
    return path.name.endswith(".zarr") or path.is_dir()


def open_volume(
    path: Path,
    *,
    input_unit: str | None = None,
    missing: Literal["error", "fill"] = "error",
) -> Volume:
    """Open an OME-Zarr store, or a file of which voxels are read when they are asked for.

    Parameters and errors are those of :func:`octane.store.image.open_image`.
    """
    if is_ome_zarr(path):
        return open_image(path, input_unit=input_unit, missing=missing)
    if not path.exists():
        raise OctaneError(f"{path} does not exist; check the path.")
    return open_file(path, input_unit=input_unit)


def find_inputs(source: Path) -> list[Path]:
    """Stores or files of ``source``: itself, or a folder's stores; an error without any."""
    if not source.exists():
        raise OctaneError(f"{source} does not exist; check --input.")
    if not source.is_dir() or is_store(source) or source.name.endswith(".zarr"):
        return [source]
    found = sorted(
        p
        for p in source.iterdir()
        # What begins with a dot is the left-over of a killed run, or a Mac's own.
        if not p.name.startswith(".") and (p.name.endswith(".zarr") or (p.is_dir() and is_store(p)))
    )
    if not found:
        raise OctaneError(
            f"{source.resolve()} holds no OME-Zarr store; give a folder of mosaics, one store, or "
            f"a volume ({', '.join(FORMATS)})."
        )
    return found


def as_given(source: Path, path: Path) -> Path:
    """One of the inputs by the name that its owner gave it.

    Nextflow's link to ``source`` is followed; links of the owner's are not, as the number of a
    section may stand in the name of one.
    """
    staged = source.is_symlink() and source.readlink().name == source.name
    return (source.parent / source.readlink() if staged else source) / path.relative_to(source)


def kind_of(volumes: list[Volume], asked: str) -> str:
    """Kind of an input: ``mosaic``, ``section`` or ``volume``; an error where it has several."""
    if asked != "auto":
        return asked
    noted = {str(v.attributes["kind"]) for v in volumes if "kind" in v.attributes}
    if len(noted) == 1:
        return noted.pop()
    if len(noted) > 1:
        raise OctaneError(
            f"{volumes[0].path.parent} mixes {' and '.join(sorted(noted))} stores; separate them."
        )
    first = volumes[0]
    if len(volumes) > 1:
        return "mosaic"
    if not isinstance(first, Image):
        return "volume"
    chunks, shape = first.chunks, first.grid.shape
    cut = chunks[0] >= shape[0] and (chunks[1] < shape[1] or chunks[2] < shape[2])
    return "mosaic" if cut else "volume"


def bring_in(volume: Volume, metrics: Metrics) -> None:
    """Read a file whose format is not OME-Zarr into memory, for a step that takes all of it."""
    if isinstance(volume, FileVolume):
        with metrics.timed("read"):
            volume.load()


def require_holds(destination: Path, dtype: npt.DTypeLike) -> None:
    """Raise unless :func:`create_volume` can write such voxels into a file of this name."""
    if is_ome_zarr(destination):
        return
    require_format(destination)
    native = np.dtype(dtype).newbyteorder("=")
    with TemporaryDirectory() as folder:
        image = _image(np.zeros((2, 2, 2), native), destination)
        _write_file(image, Path(folder) / destination.name, destination)


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
        ) as (writer,):
            yield writer, level.owned
        return
    require_format(destination)
    with writing(destination, overwrite=overwrite) as partial:
        native = np.dtype(dtype).newbyteorder("=")
        voxels = np.empty(like.grid.shape, native)
        nz, ny, nx = like.grid.shape
        yield voxels, (min(nz, CHUNK), min(ny, SHARD), min(nx, SHARD))
        image = _image(voxels, destination)
        if isinstance(like, FileVolume):
            image.SetSpacing(like.frame.GetSpacing())
            image.SetOrigin(like.frame.GetOrigin())
            image.SetDirection(like.frame.GetDirection())
        else:
            image.SetSpacing([s / MILLIMETER for s in reversed(like.grid.spacing)])
            image.SetOrigin([o / MILLIMETER for o in reversed(like.grid.origin)])
        _write_file(image, partial, destination)
        _require_whole(partial, destination, voxels.nbytes)


def _image(voxels: npt.NDArray, destination: Path) -> sitk.Image:
    try:
        return sitk.GetImageFromArray(voxels)
    except (TypeError, KeyError) as error:
        raise OctaneError(
            f"{destination} cannot hold {voxels.dtype} voxels; give --dtype float32 or write "
            "OME-Zarr."
        ) from error


def _write_file(image: sitk.Image, partial: Path, destination: Path) -> None:
    try:
        sitk.WriteImage(image, str(partial))
    except RuntimeError as error:
        raise OctaneError(
            f"{destination} cannot be written as {image.GetPixelIDTypeAsString()}: the disk is "
            "full or the format does not hold it; free space, or give another format or --dtype."
        ) from error


def _require_whole(partial: Path, destination: Path, voxel_bytes: int) -> None:
    """Raise unless all voxels are in the file: ITK only prints when a disk is full under NIfTI."""
    name = destination.name.lower()
    size = partial.stat().st_size
    if name.endswith(".nii.gz"):
        try:
            with gzip.open(partial) as stream:
                size = sum(map(len, iter(lambda: stream.read(1 << 24), b"")))
        except (EOFError, OSError, zlib.error):
            size = 0
    needed = voxel_bytes + NIFTI_HEADER * name.endswith((".nii", ".nii.gz"))
    if size < needed and not name.endswith(UNITLESS):
        raise NoSpaceError(
            f"{destination}: only {size} of {needed} bytes could be written; free some space, or "
            "choose another place for the output. Nothing was left half-written."
        )
