"""Volumes, whatever the file, OME-Zarr, TIFF or one of ITK's, and those that a path stands for."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from octane.config.params import InputParameters
from octane.core.errors import NoSpaceError, OctaneError, unreadable
from octane.core.files import open_regular, writing
from octane.core.geometry import Grid, Region, spelled, vector
from octane.core.metrics import Metrics
from octane.core.units import format_lengths
from octane.store.chunks import is_store
from octane.store.image import Attributes, Image, open_image, place_of, require_stated
from octane.store.itk_files import (
    MILLIMETER,
    READ,
    TAKEN,
    TIFF,
    FileVolume,
    open_file,
    require_format,
)
from octane.store.tiff_files import TiffVolume, create_tiff, open_tiff
from octane.store.writer import CHUNK, SHARD, Codec, DirectWriter, Level, create_image

if TYPE_CHECKING:
    import SimpleITK as sitk

CUT = 256
"""Longest edge of a cut through a volume, pixels."""
TOLERANCE = 1e-4
"""Part of a voxel that two grids may differ by: what is lost in float32 and TIFF's fractions."""
VOXELS, SECTIONS = (0.01, 1e3), (100.0, 1e6)
"""Finest and coarsest voxels, and smallest and largest sections, that are not doubted,
micrometres."""
NIFTI_HEADER = 352
"""Bytes before the voxels of a NIfTI-1 file."""


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


class Cuts:
    """A writer of a volume that keeps cuts: across z at ``plane``, across y and x in the middle.

    They are taken from the blocks, so that no chunk is read again.
    """

    def __init__(self, writer: Writer, grid: Grid, dtype: npt.DTypeLike, plane: int) -> None:
        self._writer, self._grid = writer, grid
        self.centre = (plane, grid.shape[1] // 2, grid.shape[2] // 2)
        self._step = max(1, -(-max(grid.shape) // CUT))
        counts = [-(-n // self._step) for n in grid.shape]
        self._planes = [np.zeros(counts[:a] + counts[a + 1 :], dtype) for a in range(3)]

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region, and take its part of each cut."""
        self._writer[region] = block
        self.take(region, block)

    def take(self, region: Region, block: npt.NDArray) -> None:
        """Take a block's part of each cut."""
        kept = [slice(-r.start % self._step, None, self._step) for r in region]
        first = [-(-r.start // self._step) for r in region]
        for axis, (plane, at, r) in enumerate(zip(self._planes, self.centre, region, strict=True)):
            if r.start <= at < r.stop:
                part = block[(*kept[:axis], at - r.start, *kept[axis + 1 :])]
                places = zip(first[:axis] + first[axis + 1 :], part.shape, strict=True)
                plane[tuple(slice(start, start + n) for start, n in places)] = part

    def note(self, metrics: Metrics) -> None:
        """Add the cuts, complex ones by modulus, and their pixels' spacing to a record."""
        for name, plane in zip("zyx", self._planes, strict=True):
            metrics.previews[f"slice_{name}"] = np.abs(plane) if plane.dtype.kind == "c" else plane
        metrics.previews["slice_spacing"] = np.multiply(self._grid.spacing, self._step)


def fill(
    writer: Writer, region: Region, source: Volume, make: Callable[[Region], npt.NDArray]
) -> None:
    """Write a region of what ``make`` makes of the same region of ``source``.

    It is made a chunk at a time, which the cache holds from file to file, unless chunks of the
    source would be decoded again for that.
    """
    if isinstance(writer, DirectWriter):
        axes = zip(writer.array.chunks, source.chunks, source.grid.shape, strict=True)
        # Others are in memory, or stored as they are.
        if not isinstance(source, Image) or all(n % min(c, whole) == 0 for n, c, whole in axes):
            writer.fill(region, make)
            return
    writer[region] = make(region)


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
    reading: InputParameters | None = None,
    *,
    input_unit: str | None = None,
    missing: Literal["error", "fill"] = "error",
    like: Grid | None = None,
) -> Volume:
    """Open an OME-Zarr store, or a file of which voxels are read when they are asked for.

    Parameters and errors are those of :func:`octane.store.image.open_image` and
    :func:`octane.store.tiff_files.open_tiff`.
    """
    if is_ome_zarr(path):
        return open_image(path, reading, input_unit=input_unit, missing=missing)
    if not path.exists():
        raise OctaneError(f"{path} does not exist; check the path.")
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


RESAMPLE_IT = (
    "resample it onto the volume with SimpleITK.Resample, or correct its header where that is "
    "wrong, as docs/n4.md shows"
)


def open_beside(
    volume: Volume, mask: Path | None = None, weights: Path | None = None, truth: Path | None = None
) -> dict[str, Volume]:
    """Open what is given of ``mask``, ``weights``, and ``tissue`` and ``bias`` of a truth folder.

    One that does not lie on the volume's grid, as far as both files state one, is an error.
    """
    paths = {"mask": mask, "weights": weights}
    found = {name: _on_grid(path, volume, RESAMPLE_IT) for name, path in paths.items() if path}
    if truth is not None:
        remedy = "make the phantom with --truth-resolution as the run's --resolution"
        for name in ("tissue", "bias"):
            found[name] = _on_grid(truth / f"{name}.ome.zarr", volume, remedy)
    return found


def _on_grid(path: Path, volume: Volume, remedy: str) -> Volume:
    """One file beside a volume."""
    beside = open_volume(path, input_unit="micrometer", missing="fill", like=volume.grid)
    ours, theirs = beside.grid, volume.grid
    # A TIFF states no origin, and axes in space are stated by ITK's formats alone.
    is_placed = not isinstance(beside, TiffVolume) and not isinstance(volume, TiffVolume)
    turned = ""
    if isinstance(beside, FileVolume) and isinstance(volume, FileVolume):
        directions = beside.frame.GetDirection(), volume.frame.GetDirection()
        if not np.allclose(*directions, rtol=0, atol=TOLERANCE):
            turned = f" with the directions {spelled(directions[0])} and {spelled(directions[1])}"
    off = TOLERANCE * np.array(theirs.spacing)
    # NIfTI keeps an origin in float32.
    near = off + np.finfo(np.float32).eps * np.abs(theirs.origin)
    if (
        ours.shape != theirs.shape
        or (np.abs(np.subtract(ours.spacing, theirs.spacing)) > off).any()
        or (is_placed and (np.abs(np.subtract(ours.origin, theirs.origin)) > near).any())
        or turned
    ):
        raise OctaneError(
            f"{path} lies on another grid than {volume.path}: {_described(ours)} and "
            f"{_described(theirs)}{turned} (z y x); {remedy}."
        )
    return beside


def _described(grid: Grid) -> str:
    origin = ", ".join(f"{n:g}" for n in grid.origin)
    return f"{spelled(grid.shape)} voxels of {spelled(grid.spacing)} um from {origin}"


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
            f"a volume in one file ({', '.join(READ)})."
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
    """Kind of an input: ``mosaic``, ``section`` or ``volume``; an error where it is several."""
    kind = _kind(volumes) if asked == "auto" else asked
    if kind == "volume" and len(volumes) > 1:
        folder = volumes[0].path.parent
        raise OctaneError(f"{folder} holds {len(volumes)} volumes; give one of them.")
    return kind


def _kind(volumes: list[Volume]) -> str:
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


def turned(volume: Volume) -> list[str]:
    """Warning for a file whose directions OME-Zarr has no place for."""
    if not isinstance(volume, FileVolume) or not volume.is_turned:
        return []
    return [
        f"{volume.path.name} has axes that are turned in its space, and OME-Zarr keeps no "
        "directions: the results have its voxels in their order, and other positions. Where these "
        "matter, give SimpleITK.DICOMOrient(image, 'LPS')."
    ]


def doubted_sizes(volumes: Sequence[Volume]) -> list[str]:
    """Warning for voxels and extents that no microscope gives, as where a unit is wrong."""

    def is_odd(volume: Volume) -> bool:
        spacing, edge = volume.grid.spacing, max(volume.grid.extent[1:])
        # The size of voxels in a file of ITK that states none.
        if isinstance(volume, FileVolume) and min(spacing) == MILLIMETER:
            return True
        return (
            max(spacing) < VOXELS[0]
            or min(spacing) > VOXELS[1]
            or not SECTIONS[0] <= edge <= SECTIONS[1]
        )

    odd = [volume for volume in volumes if is_odd(volume)]
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    texts = []
    for volume in odd[:1]:
        remedy = (
            "Its unit may be wrong by 1000; check it and the scale in its metadata, or give "
            "--input_unit, which overrules a stated one."
            if isinstance(volume, Image)
            else "Files that state no size, or micrometres as millimetres, look like this; if that "
            "is so, correct the header."
        )
        voxels, whole = (format_lengths(n) for n in (volume.grid.spacing, volume.grid.extent))
        texts.append(f"{volume.path.name}{more} is {whole} (z y x) in voxels of {voxels}. {remedy}")
    return texts


def overruled_units(volumes: Sequence[Volume]) -> list[str]:
    """Warning for stores that state another unit than the one that was given and is taken."""
    return [*dict.fromkeys(v.overruled for v in volumes if isinstance(v, Image) and v.overruled)]


def bring_in(volume: Volume, metrics: Metrics, destination: Path) -> None:
    """Read ITK's file, decode a TIFF beside ``destination``; warn of what that does not keep."""
    for text in overruled_units([volume]):
        metrics.remark(text)
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
            _write_file(_image(np.zeros((2, 2, 2), native), destination), trial, destination)
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
        yield voxels, size
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
    import SimpleITK as sitk

    try:
        return sitk.GetImageFromArray(voxels)
    except (TypeError, KeyError) as error:
        raise OctaneError(
            f"{destination} cannot hold {voxels.dtype} voxels; give --dtype float32 or write "
            "OME-Zarr."
        ) from error


def _write_file(image: sitk.Image, partial: Path, destination: Path) -> None:
    import SimpleITK as sitk

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
