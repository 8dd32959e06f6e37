"""Reading OME-Zarr images: NGFF 0.4 (zarr v2), 0.5 and 0.6 (zarr v3).

An image is one channel and time point, with axes z, y, x. Units are read from the axes and never
guessed. Facts that NGFF does not cover (tile pitch, section boundaries) are in the group's
attributes under ``octane``.
"""

import lzma
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import prod
from pathlib import Path
from typing import Literal, cast
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from octane.config.parameters import InputParameters
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
from octane.store.chunks import (
    METADATA_FILES,
    chunk_errors,
    missing_keys,
    other_key,
    stored_objects,
)
from octane.store.ngff import Metadata, read_json, read_metadata
from octane.store.reader import DirectReader
from octane.store.reading import AS_STATED, apply_orientation, interpretation
from octane.store.stated import Attributes, Stated, unimaged_tiles

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
    BadZipFile,
)
"""Exceptions of zarr, numcodecs and Python's codecs for invalid metadata or chunks."""


DECODER_BYTES = 12_000_000
"""Memory of a streaming zstd decoder with its window, and of a piece of compressed input."""
MOST_VOXELS = 10**14
"""Most voxels of a plausible array, all channels and time points included."""


@dataclass(frozen=True)
class Image:
    """A 3-D image in an OME-Zarr store: the array of one level, and its grid in micrometres.

    ``missing`` says how to treat a missing chunk: as an error, as the fill value unless the array
    has no chunk at all, or as the fill value even then (``blank``). ``attributes`` are octane's
    own; ``place`` is the image's index along the array's axes before z, y and x; ``overruled`` says
    in sentences that a stated unit or orientation is replaced; ``channels`` are the names of all
    channels in the array, empty for those without one.
    """

    path: Path
    array: Array
    grid: Grid
    missing: Literal["error", "fill", "blank"] = "error"
    attributes: Attributes = field(default_factory=dict)
    place: tuple[int, ...] = ()
    overruled: str = ""
    channels: Sequence[str] = ("",)

    geometry = None
    has_place = True
    whole_bytes = 0
    decoding = 0

    @property
    def is_plain(self) -> bool:
        """True if a part can be read again without decoding."""
        return self.reader is not None and self.array.compressor is None

    @property
    def worker_bytes(self) -> int:
        """Memory that a worker takes for decoding, besides the voxels that it reads."""
        if self.reader is not None and self.reader.streams:
            return DECODER_BYTES
        # The chunk as stored and as decoded.
        return 2 * prod(self.array.chunks) * self.dtype.itemsize

    @property
    def access(self) -> str:
        """How voxels are read, for the log."""
        if self.reader is None:
            return f"read through zarr, because {self.array.why_zarr}"
        return f"chunks decoded {'a few planes at a time' if self.reader.streams else 'whole'}"

    def load(self, folder: Path | None = None) -> None:
        """Do nothing: chunks are read on demand."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the voxels."""
        return self.array.dtype

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of a chunk, (z, y, x)."""
        return cast("tuple[int, int, int]", self.array.chunks[-3:])

    @cached_property
    def unimaged_tiles(self) -> frozenset[tuple[int, int]]:
        """Tiles of :func:`unimaged_tiles`; a chunk that they lack is read as the fill value."""
        return unimaged_tiles(self.attributes)

    @property
    def whole(self) -> Region:
        """Region of all voxels, (z, y, x)."""
        return tuple(slice(0, n) for n in self.grid.shape)

    def within(self, region: Region) -> Region:
        """Convert a region of the image to a region of the array."""
        return (*(slice(p, p + 1) for p in self.place), *region)

    @cached_property
    def reader(self) -> DirectReader | None:
        """Reader without zarr; None if only zarr can read the array (see ``array.why_zarr``).

        An InputError says that chunks are to be filled, but none exists.
        """
        fill = self.missing != "error"
        if fill:
            self.require_any_chunk()
        if self.array.why_zarr:
            return None
        return DirectReader(self.array, self.place, fill_missing=fill, left_out=self.unimaged_tiles)

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the voxels of ``region``, (z, y, x), into ``out`` if given.

        A ChunkError names a chunk that is missing or cannot be read or decoded.
        """
        if self.reader is not None:
            with self.naming_chunks():
                return self.reader.read(region, out)
        self.require_chunks(region)
        # Object by object, so that an error can name the key.
        if out is None:
            out = np.empty(shape_of(region), self.dtype)
        for stored in stored_objects(self.array, self.within(region)):
            axes = list(zip(region, stored.region[-3:], strict=True))
            part = tuple(slice(max(r.start, h.start), min(r.stop, h.stop)) for r, h in axes)
            out[place_in(region, part)] = self._decode(stored.key, part)
        return out

    def _decode(self, key: str, region: Region) -> npt.NDArray:
        """Read a region of one stored object through zarr."""
        if self.array.shards is not None:
            # zarr reads parts of a shard, for which the checksum of its entry is not compared.
            with self.naming_chunks(), suppress(MissingChunkError), chunk_errors(key):
                self.array.locate(key, verify=True)
        try:
            return np.asarray(self.array.opened[(*self.place, *region)])
        except DECODING_ERRORS as error:
            # Codecs raise OSErrors too, but without an errno.
            if isinstance(error, OSError) and error.errno is not None:
                reason = error.strerror or str(error)
                raise self._name_chunk(UnreadableChunkError(key, reason)) from error
            raise self._name_chunk(CorruptChunkError(key, type(error).__name__)) from error

    @contextmanager
    def naming_chunks(self) -> Generator[None]:
        """Add the store and the remedy to a ChunkError of :attr:`reader`."""
        try:
            yield
        except ChunkError as error:
            raise self._name_chunk(error) from error

    def require_chunks(self, region: Region) -> None:
        """Raise for the first chunk of ``region`` that is missing (unless filled) or unreadable."""
        with self.naming_chunks():
            for key in missing_keys(self.array, self.within(region), self.unimaged_tiles):
                if self.missing == "error":
                    raise MissingChunkError(key, "is missing")

    def missing_chunks(self) -> list[str]:
        """Keys of the first thousand missing chunks, without tiles that were not imaged."""
        with self.naming_chunks():
            keys = missing_keys(self.array, self.within(self.whole), self.unimaged_tiles)
            return list(islice(keys, 1000))

    def require_any_chunk(self) -> None:
        """Raise an InputError if no chunk of the array exists, so that all would be filled.

        Not if the image may be blank, unless files are there under other names, nor if all its
        tiles are declared as not imaged.
        """
        other = other_key(self.array)
        sizes = zip(self.grid.shape[1:], self.chunks[1:], strict=True)
        may_be_blank = self.missing == "blank" or len(self.unimaged_tiles) == prod(
            -(-n // c) for n, c in sizes
        )
        if other is None or (not other and may_be_blank):
            return
        first = self.array.key((0,) * len(self.array.shape))
        if other:
            raise InputError(
                f"{self.path} names its chunks like {other}, and not like {first}, as its "
                "metadata say; correct the axes, dimension_separator in .zarray, or "
                "chunk_key_encoding in zarr.json."
            )
        remedy = _restore(self.path)
        if task_folder(self.path) is None:
            remedy = (
                "restore it and all others of its dataset, of which none exists, or leave the "
                "image out if it is blank (--exclude_sections for a section)."
            )
        raise InputError(f"{self.path}: chunk {first} is missing; {remedy}")

    def _name_chunk(self, error: ChunkError) -> ChunkError:
        missing = isinstance(error, MissingChunkError)
        problem = "is missing" if missing else f"cannot be decoded ({error.reason})"
        if isinstance(error, UnreadableChunkError):
            problem = f"cannot be read ({error.reason})"
            remedy = "check permissions, disk and network, and run again (a workflow with -resume)."
        elif missing and task_folder(self.path) is None:
            self.require_any_chunk()
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


def open_image(path: Path, reading: InputParameters | None = AS_STATED) -> Image:
    """Open the finest level of an OME-Zarr image, as ``reading`` says.

    Its unit overrules a stated one. With None, as for a mask, lengths without a unit are in
    micrometres, missing chunks are filled, and only one channel and time point is allowed. An
    OctaneError says why the store is not an image with axes z, y, x, a scale and a unit.
    """
    metadata = read_metadata(path, reading)
    missing = "blank" if reading is None else reading.missing_chunks
    array = _array(path, metadata.datasets[0], metadata)
    grid = Grid(_shape(array), metadata.spacing, metadata.origin)
    meaning = interpretation(_statement(path, metadata, array.shape[:-3]), reading)
    for section in cast("list[Mapping[str, int]]", meaning.attributes.get("sections", [])):
        if not section["start"] <= section["stop"] <= grid.shape[0]:
            raise InputError(
                f"{path} has {grid.shape[0]} planes, but section {section['number']} is in planes "
                f"{section['start']} to {section['stop']}; correct octane.sections in its metadata."
            )
    return Image(
        *(path, array, grid, missing, meaning.attributes, meaning.place),
        *(meaning.overruled, meaning.channels),
    )


def _statement(path: Path, metadata: Metadata, counts: Sequence[int]) -> Stated:
    return Stated(
        *(path, metadata.spacing, metadata.axes, counts, metadata.labels),
        *(metadata.orientation, metadata.octane, metadata.notes),
    )


def _shape(array: Array) -> tuple[int, int, int]:
    return cast("tuple[int, int, int]", array.shape[-3:])


def open_levels(path: Path, reading: InputParameters | None = None) -> list[Image]:
    """Open every level of an OME-Zarr image, finest first; of each channel and time point.

    ``reading`` says how, except for which channel and time point. With None, lengths without a unit
    are in micrometres, and missing chunks are errors in octane's own images, which store every
    chunk that was imaged.
    """
    metadata = read_metadata(path, reading)
    missing = "fill" if metadata.octane is None else "error"
    if reading is not None:
        missing = reading.missing_chunks
    # Without a choice along the axes before z, y and x.
    attributes, overruled = apply_orientation(_statement(path, metadata, ()), reading)
    images: list[Image] = []
    for index, name in enumerate(metadata.datasets):
        array, level = _array(path, name, metadata), read_metadata(path, reading, index)
        grid = Grid(_shape(array), level.spacing, level.origin)
        places = np.ndindex(array.shape[:-3])
        # A coarser level may be blank where the finest is not.
        if index and missing == "fill":
            missing = "blank"
        images += [
            Image(path, array, grid, missing, attributes, place, overruled) for place in places
        ]
    return images


def _array(path: Path, name: str, metadata: Metadata) -> Array:
    """Open the array of a dataset."""
    # Read before zarr reads them: it would hang on a FIFO.
    contents = {file: read_json(path, f"{name}/{file}") for file in METADATA_FILES}
    # From lib/plan.nf; tools/summary/results.py reads the sentence.
    if (path / name / "emptied.json").exists():
        raise InputError(
            f"{path} was emptied after use (--keep_intermediates false), and is needed again; run "
            "again with -resume, which makes it again."
        )
    if not (contents["zarr.json"] or contents[".zarray"]):
        raise InputError(f"{path} lists the dataset {name} but lacks its array; {_restore(path)}")
    try:
        array = open_array(path, name, 3 if contents["zarr.json"] else 2)
    except DECODING_ERRORS as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"{path}: the metadata of dataset {name} cannot be read ({reason}); {_restore(path)}"
        ) from error
    count = len(metadata.axes) + 3
    if len(array.shape) != count or min(array.shape) < 1 or array.dtype.kind not in "biufc":
        raise InputError(
            f"{path} holds an array of shape {array.shape} and dtype {array.dtype}; give a numeric "
            f"image, whose arrays have the {count} axes of its metadata."
        )
    most = max(prod(array.shape), prod(array.chunks))
    if min(*array.chunks, *array.object_shape) < 1 or most > MOST_VOXELS:
        shards = f" in shards of {spelled(array.shards)}" if array.shards else ""
        raise InputError(
            f"{path} states the shape {spelled(array.shape)} and chunks of {spelled(array.chunks)}"
            f"{shards} for the dataset {name}, which is not plausible; correct its metadata."
        )
    return array
