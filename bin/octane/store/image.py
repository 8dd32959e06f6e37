"""OME-Zarr images read: NGFF 0.4 (zarr v2) and 0.5 (zarr v3).

Axes are z, y, x, of one channel and time point. Units are read from the axes and never guessed.
Facts that NGFF has no place for (tile pitch, section boundaries) stand in the group's attributes
under ``octane``.
"""

import lzma
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import prod
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from octane.config.params import InputParameters
from octane.core.errors import (
    ChunkError,
    CorruptChunkError,
    InputError,
    MissingChunkError,
    UnreadableChunkError,
)
from octane.core.files import task_folder
from octane.core.geometry import Grid, Region, place_in, shape_of, spelled
from octane.store.array import Array, open_array
from octane.store.chunks import METADATA, missing_keys, stored_objects
from octane.store.ngff import CHANNEL, TIMEPOINT, Metadata, read_json, read_metadata
from octane.store.reader import DirectReader

Attributes = dict[str, object]

DECODING_ERRORS = (
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions of zarr, numcodecs and Python's codecs for metadata or chunks that are wrong."""


MOST_VOXELS = 10**14
"""Voxels of an array, all channels and time points counted: beyond them a number is wrong."""

LISTED, SHOWN = 16, 24
"""Places that an error lists, and characters of a name in it."""


@dataclass(frozen=True)
class Image:
    """A 3-D image in an OME-Zarr store: the array of one level, and its grid in micrometres.

    ``missing`` is the meaning of a chunk that is not in the store; ``attributes`` are octane's own;
    ``place`` is the image's place along those axes of the array that are before z, y and x;
    ``overruled`` is a sentence on the unit that the store states, where another one is taken.
    """

    path: Path
    array: Array
    grid: Grid
    missing: Literal["error", "fill"] = "error"
    attributes: Attributes = field(default_factory=dict)
    place: tuple[int, ...] = ()
    overruled: str = ""

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        return self.array.dtype

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Voxels that are decoded at once."""
        return cast("tuple[int, int, int]", self.array.chunks[-3:])

    def within(self, region: Region) -> Region:
        """A region of the image as one of the array."""
        return (*(slice(p, p + 1) for p in self.place), *region)

    @cached_property
    def reader(self) -> DirectReader | None:
        """Reader that works without zarr; None where only zarr can read, for ``array.why_zarr``."""
        if self.array.why_zarr:
            return None
        return DirectReader(self.array, self.place, fill_missing=self.missing == "fill")

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Voxels of ``region``, (z, y, x), in ``out`` if it is given.

        A ChunkError names the key of a chunk that is missing or cannot be read or decoded.
        """
        if self.reader is not None:
            with self.naming_chunks():
                return self.reader.read(region, out)
        self.require_chunks(region)
        # One object after the other, so that an error has its key.
        if out is None:
            out = np.empty(shape_of(region), self.dtype)
        for stored in stored_objects(self.array, self.within(region)):
            axes = list(zip(region, stored.region[-3:], strict=True))
            part = tuple(slice(max(r.start, h.start), min(r.stop, h.stop)) for r, h in axes)
            out[place_in(region, part)] = self._decoded(stored.key, part)
        return out

    def _decoded(self, key: str, region: Region) -> npt.NDArray:
        """Voxels of a region in one object, as zarr gives them."""
        try:
            return np.asarray(self.array.opened[(*self.place, *region)])
        except DECODING_ERRORS as error:
            # Codecs raise OSErrors as well, which have no number of the system's.
            if isinstance(error, OSError) and error.errno is not None:
                reason = error.strerror or str(error)
                raise self._named(UnreadableChunkError(key, reason)) from error
            raise self._named(CorruptChunkError(key, type(error).__name__)) from error

    @contextmanager
    def naming_chunks(self) -> Generator[None]:
        """Name the store and the remedy in what :attr:`reader` finds wrong with a chunk."""
        try:
            yield
        except ChunkError as error:
            raise self._named(error) from error

    def require_chunks(self, region: Region) -> None:
        """Raise a MissingChunkError for the first chunk of ``region`` that is lost."""
        with self.naming_chunks():
            for key in missing_keys(self.array, self.within(region)):
                if self.missing == "error":
                    raise MissingChunkError(key, "is missing")

    def missing_chunks(self) -> list[str]:
        """Keys of chunks that are not in the store, the first thousand."""
        whole = self.within(tuple(slice(0, n) for n in self.grid.shape))
        with self.naming_chunks():
            return list(islice(missing_keys(self.array, whole), 1000))

    def _named(self, error: ChunkError) -> ChunkError:
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
                "restore it, or give --missing_chunks fill if empty chunks were left out on "
                "purpose."
            )
        else:
            remedy = _restore(self.path)
        sentence = f"{self.path}: chunk {error.key} {problem}; {remedy}"
        return type(error)(error.key, error.reason, sentence)


def _restore(path: Path) -> str:
    """Remedy for a damaged store, as the end of a sentence."""
    task = task_folder(path)
    if task is None:
        return "write it again or restore it from the original."
    return f"it is the output of an earlier step: remove {task} and run again with -resume."


def require_stated(path: Path, spacing: Sequence[float], reading: InputParameters | None) -> None:
    """Raise where another voxel size is given than a file states, in micrometres."""
    given = None if reading is None else reading.voxel_size
    if given is not None and not np.allclose(spacing, given, rtol=1e-3):
        raise InputError(
            f"{path} states voxels of {spelled(spacing)} um (z y x) and --voxel_size says "
            f"{spelled(given)}; give what it states, or correct its metadata."
        )


def open_image(
    path: Path,
    reading: InputParameters | None = None,
    *,
    input_unit: str | None = None,
    missing: Literal["error", "fill"] = "error",
) -> Image:
    """Open the finest level of an OME-Zarr image, as ``reading`` says.

    Its unit overrules a stated one. Without it the other parameters hold, ``input_unit`` for axes
    that state none, and there may be one channel and one time point. An OctaneError says why the
    store is no image of axes z, y, x with scale and unit.
    """
    if reading is not None:
        input_unit, missing = reading.input_unit, reading.missing_chunks
    metadata = read_metadata(path, input_unit, overrule=reading is not None)
    array, place = _array(path, metadata.datasets[0], metadata, reading)
    grid = Grid(_shape(array), metadata.spacing, metadata.origin)
    require_stated(path, grid.spacing, reading)
    channel = dict(zip(metadata.axes, place, strict=True)).get(CHANNEL, 0)
    label = "".join(metadata.labels[channel : channel + 1])
    foreign: Attributes = {"channel": label} if label else {}
    own = foreign if metadata.octane is None else metadata.octane
    for section in cast("list[Mapping[str, int]]", own.get("sections", [])):
        if not section["start"] <= section["stop"] <= grid.shape[0]:
            raise InputError(
                f"{path} has {grid.shape[0]} planes and notes section {section['number']} in planes"
                f" {section['start']} to {section['stop']}; correct octane.sections in metadata."
            )
    overruled = metadata.overruled and (
        f"The store states lengths in {metadata.overruled}; they are read in {input_unit}, as "
        "input_unit says."
    )
    return Image(path, array, grid, missing, own, place, overruled)


def _shape(array: Array) -> tuple[int, int, int]:
    return cast("tuple[int, int, int]", array.shape[-3:])


def open_levels(path: Path) -> list[Image]:
    """Open every level of an OME-Zarr image, finest first, all with the voxel size of the finest.

    Chunks that are absent are errors in images of octane's own, which store every chunk.
    """
    metadata = read_metadata(path, "micrometer")
    missing = "fill" if metadata.octane is None else "error"
    images = []
    for name in metadata.datasets:
        array, place = _array(path, name, metadata, None)
        images.append(Image(path, array, Grid(_shape(array), metadata.spacing), missing, {}, place))
    return images


def _array(
    path: Path, name: str, metadata: Metadata, reading: InputParameters | None
) -> tuple[Array, tuple[int, ...]]:
    """The array of one dataset, and the image's place in it."""
    found = {file: read_json(path / name / file) for file in METADATA}
    if not (found["zarr.json"] or found[".zarray"]):
        raise InputError(
            f"{path} names the dataset {name} and has no such array; the store is incomplete: "
            f"{_restore(path)}"
        )
    try:
        array = open_array(path, name, found)
    except DECODING_ERRORS as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"{path} has metadata of the dataset {name} that cannot be read ({reason}); "
            f"{_restore(path)}"
        ) from error
    count = len(metadata.axes) + 3
    if len(array.shape) != count or min(array.shape) < 1 or array.dtype.kind not in "biufc":
        raise InputError(
            f"{path} holds an array of shape {array.shape} and dtype {array.dtype}; octane takes "
            f"images of numbers, here of {count} axes."
        )
    most = max(prod(array.shape), prod(array.chunks))
    if min(*array.chunks, *array.owned) < 1 or most > MOST_VOXELS:
        shards = f" in shards of {spelled(array.shards)}" if array.shards else ""
        raise InputError(
            f"{path} states the shape {spelled(array.shape)} and chunks of {spelled(array.chunks)}"
            f"{shards} for the dataset {name}, which no image has; correct its metadata."
        )
    return array, place_of(path, metadata.axes, array.shape[:-3], metadata.labels, reading)


def place_of(
    path: Path,
    axes: Sequence[str],
    sizes: Sequence[int],
    labels: Sequence[str],
    reading: InputParameters | None,
) -> tuple[int, ...]:
    """Place of a 3-D image along the other axes of its array, which have these sizes.

    ``labels`` are names of the first channels, empty where one has none; ``reading`` is None where
    there is no way to choose, as for a mask. An OctaneError lists what there is, where that is
    several and none is chosen, or not the one that is chosen.
    """
    wishes = {CHANNEL: reading.channel, TIMEPOINT: reading.timepoint} if reading else {}
    places: dict[str, int] = {}
    open_axes: dict[str, str] = {}
    for axis, count in {CHANNEL: 1, TIMEPOINT: 1, **dict(zip(axes, sizes, strict=True))}.items():
        names, asked = labels[:count] if axis == CHANNEL else [], wishes.get(axis)
        number = "0" if asked is None and count == 1 else str(asked)
        found = [place for place, name in enumerate(names) if name == asked]
        # No array has so many places that the number of one has ten digits.
        if number.isdecimal() and len(number) < 10 and int(number) < count:
            found = [int(number)]
        if len(found) != 1:
            has = f"{count} {axis}s" if asked is None else f"no single {axis} '{asked}' but {count}"
            shown = enumerate([*names, *[""] * LISTED][: min(count, LISTED)])
            listed = ", ".join(f"{n} '{name[:SHOWN]}'" if name else str(n) for n, name in shown)
            more = f" and {count - LISTED} more" if count > LISTED else ""
            open_axes[axis] = f"{has}: {listed}{more}"
        else:
            places[axis] = found[0]
    if open_axes:
        of_each = " of each" if len(open_axes) > 1 else ""
        flags = " and ".join(f"--{axis}" for axis in open_axes)
        choice = f"give one{of_each} with {flags}"
        remedy = choice if open_axes.keys() <= wishes.keys() else "write one of them alone"
        raise InputError(f"{path} has {', and '.join(open_axes.values())}; {remedy}.")
    return tuple(places[axis] for axis in axes)
