"""OME-Zarr images read: NGFF 0.4 (zarr v2) and 0.5 (zarr v3).

Axes are z, y, x. Units are read from the axes and never guessed. Facts that NGFF has no place for
(tile pitch, section boundaries) stand in the group's attributes under ``octane``.
"""

import lzma
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import zarr
import zarr.errors

from octane.core.errors import OctaneError, unreadable
from octane.core.files import task_folder
from octane.core.geometry import Grid, Region
from octane.store.chunks import (
    ChunkError,
    CorruptChunkError,
    MissingChunkError,
    UnreadableChunkError,
    missing_keys,
    owned_shape,
    stored_objects,
)
from octane.store.encoding import NotDirectError
from octane.store.ngff import dataset_paths, finest_dataset
from octane.store.reader import DirectReader

Attributes = dict[str, object]

DECODING_ERRORS = (
    RuntimeError,
    ValueError,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zarr.errors.BaseZarrError,
)
"""Exceptions of zarr, numcodecs and Python's codecs for a chunk that cannot be decoded."""


@dataclass(frozen=True)
class Image:
    """A 3-D image in an OME-Zarr store, at its finest resolution.

    Attributes
    ----------
    path
        The store, as given.
    array
        The finest level.
    grid
        In micrometres.
    attributes
        What octane noted in the store; empty for stores of others.
    """

    path: Path
    array: zarr.Array
    grid: Grid
    missing: Literal["error", "fill"] = "error"
    attributes: Attributes = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        return self.array.dtype

    @property
    def owned(self) -> tuple[int, int, int]:
        """Region that is best read at once: a shard, or a chunk where there are none."""
        return cast("tuple[int, int, int]", owned_shape(self.array))

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Voxels that are decoded at once."""
        return cast("tuple[int, int, int]", self.array.chunks)

    @cached_property
    def _direct(self) -> tuple[DirectReader | None, str]:
        try:
            return DirectReader(self.array, fill_missing=self.missing == "fill"), ""
        except NotDirectError as error:
            return None, str(error)

    @property
    def reader(self) -> DirectReader | None:
        """Reader that works without zarr; None where only zarr can read."""
        return self._direct[0]

    @property
    def why_zarr(self) -> str:
        """Why only zarr can read it, as the end of a sentence; empty where it need not."""
        return self._direct[1]

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``, (z, y, x).

        Parameters
        ----------
        region
            One slice an axis.
        out
            Taken for the result, of the region's shape and the image's type.

        Raises
        ------
        OctaneError
            When a chunk in it is missing or cannot be read or decoded; names the chunk's key.
        """
        if self.reader is not None:
            with self.naming_chunks():
                return self.reader.read(region, out)
        if self.missing == "error":
            self.require_chunks(region)
        try:
            voxels = np.asarray(self.array[region])
        except DECODING_ERRORS as error:
            raise self._named(self._broken_chunk(region, error)) from error
        if out is None:
            return voxels
        out[...] = voxels
        return out

    @contextmanager
    def naming_chunks(self) -> Generator[None]:
        """Make what :attr:`reader` finds wrong with a chunk an OctaneError that says what to do."""
        try:
            yield
        except ChunkError as error:
            raise self._named(error) from error

    def require_chunks(self, region: Region) -> None:
        """Raise an OctaneError naming the first chunk of ``region`` that is not in the store."""
        with self.naming_chunks():
            for key in missing_keys(self.array, self.path, region):
                raise MissingChunkError(key, "is missing")

    def missing_chunks(self) -> list[str]:
        """Keys of all chunks that are not in the store."""
        whole = tuple(slice(0, n) for n in self.array.shape)
        with self.naming_chunks():
            return list(missing_keys(self.array, self.path, whole))

    def _named(self, error: ChunkError) -> OctaneError:
        missing = isinstance(error, MissingChunkError)
        problem = "is missing" if missing else f"cannot be decoded ({error.reason})"
        if isinstance(error, UnreadableChunkError):
            problem = f"cannot be read ({error.reason})"
            remedy = (
                "check your rights, the disk and the network, and run again (a workflow with "
                "-resume)."
            )
        elif missing and task_folder(self.path) is None:
            remedy = (
                "restore it, or give --missing-chunks fill if empty chunks were left out on "
                "purpose."
            )
        else:
            remedy = _restore(self.path)
        return OctaneError(f"{self.path}: chunk {error.key} {problem}; {remedy}")

    def _broken_chunk(self, region: Region, error: Exception) -> ChunkError:
        """Error for the first stored object of a region that zarr cannot read."""
        key = f"in {[[r.start, r.stop] for r in region]}"
        for stored in stored_objects(self.array, self.path, region):
            try:
                self.array[stored.region]
            except DECODING_ERRORS as own:
                key, error = stored.key, own
                break
        # Codecs raise OSErrors as well, which have no number of the system's.
        if isinstance(error, OSError) and error.errno is not None:
            return UnreadableChunkError(key, error.strerror or str(error))
        return CorruptChunkError(key, type(error).__name__)


def _restore(path: Path) -> str:
    """Remedy for a damaged store, as the end of a sentence."""
    task = task_folder(path)
    if task is None:
        return "write it again or restore it from the original."
    return f"it is the output of an earlier step: remove {task} and run again with -resume."


def _group(path: Path) -> zarr.Group:
    if not path.exists():
        raise OctaneError(f"{path} does not exist; check the path.")
    try:
        return zarr.open_group(path, mode="r")
    except (zarr.errors.BaseZarrError, FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise OctaneError(
            f"{path} is not an OME-Zarr image (no zarr group in it); give the folder that holds "
            "zarr.json or .zgroup."
        ) from error
    except OSError as error:
        raise unreadable(error) from error


def open_image(
    path: Path,
    *,
    input_unit: str | None = None,
    missing: Literal["error", "fill"] = "error",
) -> Image:
    """Open the finest level of an OME-Zarr image.

    Parameters
    ----------
    path
        Folder of the store.
    input_unit
        Unit for axes that state none.
    missing
        What a chunk that is not in the store means.

    Raises
    ------
    OctaneError
        When it is not an OME-Zarr image of axes z, y, x with scale and unit; says what to do.
    """
    group = _group(path)
    root = group.attrs.asdict()
    dataset = finest_dataset(path, root, input_unit)
    array = _array(path, group, dataset.path)
    grid = Grid(cast("tuple[int, int, int]", array.shape), dataset.spacing, dataset.origin)
    attributes = dict(cast("Attributes", root.get("octane", {})))
    # Stores of earlier versions name a list of their files, which nothing reads any more.
    attributes.pop("manifest", None)
    return Image(path, array, grid, missing, attributes)


def open_levels(path: Path) -> list[Image]:
    """Open every level of an OME-Zarr image, finest first, on grids of unit spacing.

    Chunks that are absent are errors in images of octane's own, which store every chunk.

    Raises
    ------
    OctaneError
        When it is not an OME-Zarr image, or lacks a level.
    """
    group = _group(path)
    root = group.attrs.asdict()
    missing = "error" if "octane" in root else "fill"
    arrays = [_array(path, group, name) for name in dataset_paths(path, root)]
    return [
        Image(path, a, Grid(cast("tuple[int, int, int]", a.shape), (1.0, 1.0, 1.0)), missing)
        for a in arrays
    ]


def _array(path: Path, group: zarr.Group, name: str) -> zarr.Array:
    """The array of one dataset."""
    try:
        array = group.get(name)
    except (zarr.errors.BaseZarrError, ValueError) as error:
        raise OctaneError(
            f"{path} has metadata of the dataset {name} that cannot be read; the store is "
            f"incomplete: {_restore(path)}"
        ) from error
    if not isinstance(array, zarr.Array):
        raise OctaneError(
            f"{path} names the dataset {name} and has no such array; the store is incomplete: "
            f"{_restore(path)}"
        )
    if array.ndim != 3 or 0 in array.shape:
        raise OctaneError(
            f"{path} holds an array of shape {array.shape}; octane takes 3-D images with voxels."
        )
    return array
