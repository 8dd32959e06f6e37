"""Zarr arrays: zarr reads and writes their metadata, octane decodes their chunks itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import zarr
from numcodecs import Blosc, Zstd
from zarr.abc.buffer import Buffer
from zarr.abc.codec import BytesBytesCodec
from zarr.storage import ZipStore

from octane.core.files import write_object
from octane.store.encoding import NotDirectError, ShardLayout, decoding_of
from octane.store.formats.archive import Archive, Located, is_archive, open_archive


@dataclass(frozen=True)
class Array:
    """An array in the store ``folder``, as zarr ``opened`` it; or in the ``archive`` of that path.

    ``chunks`` and ``shards`` are shapes in voxels; ``shards`` is None without sharding.
    ``checked`` tells whether a crc32c follows each chunk. ``why_zarr`` says, as the end of a
    sentence, why only zarr can decode the chunks; it is empty if octane can.
    """

    folder: Path
    opened: zarr.Array
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    layout: ShardLayout | None
    why_zarr: str = ""
    fill: np.generic = np.False_
    compressor: Zstd | Blosc | None = None
    checked: bool = False
    archive: Archive | None = None

    @property
    def path(self) -> str:
        """Path of the array in the store."""
        return self.opened.path

    @property
    def object_shape(self) -> tuple[int, ...]:
        """Shape of a stored object, which must have a single writer."""
        return self.shards or self.chunks

    def key(self, position: tuple[int, ...]) -> str:
        """Key of the stored object at ``position``, counted in objects along each axis."""
        key = self.opened.metadata.encode_chunk_key(position)
        return f"{self.path}/{key}".removeprefix("/")

    def locate(self, key: str, *, verify: bool = False) -> Located:
        """Place of a stored object's bytes; in a folder, without looking whether it is there.

        With ``verify``, the checksum of an archive's entry is compared once, unless each chunk has
        its own. Errors in an archive are those of :meth:`locate`.
        """
        if self.archive is None:
            return Located(self.folder / key, 0, None)
        if verify and not self._has_checksums:
            self.archive.verify(key)
        return self.archive.locate(key)

    @property
    def _has_checksums(self) -> bool:
        """True if octane verifies every byte of a stored object as it decodes the chunks."""
        chunks = self.checked or (isinstance(self.compressor, Zstd) and self.compressor.checksum)
        return chunks and (self.layout is None or self.layout.checked)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk; chunks at the array's edge are padded to full size."""
        return prod(self.chunks) * self.dtype.itemsize


def open_array(folder: Path, path: str, version: Literal[2, 3]) -> Array:
    """Open an array of a store; zarr's errors about its metadata pass through."""
    archive = open_archive(folder) if is_archive(folder) else None
    store = folder if archive is None else ZipStore(folder)
    opened = zarr.open_array(store, path=path, mode="r", zarr_format=version)
    if isinstance(store, ZipStore):
        # Thousands of tiles would be too many open files. It is opened again if zarr reads chunks.
        store.close()
    return _describe_array(folder, opened, archive)


def array_metadata(
    shape: tuple[int, ...],
    dtype: np.dtype,
    chunks: tuple[int, ...],
    shards: tuple[int, ...] | None,
    compressors: Sequence[BytesBytesCodec],
) -> bytes:
    """The ``zarr.json`` of an array with axes z, y, x, or c before them, and fill value 0."""
    # In memory: zarr writes in its own threads, which an interrupt does not stop.
    made: dict[str, Buffer] = {}
    zarr.create_array(
        made, shape=shape, dtype=dtype, chunks=chunks, shards=shards,
        compressors=compressors, dimension_names=tuple("czyx"[-len(shape) :]),
    )  # fmt: skip
    return made["zarr.json"].to_bytes()


def array_metadata_2(shape: tuple[int, ...], dtype: np.dtype, chunks: tuple[int, ...]) -> bytes:
    """The ``.zarray`` of an array in zarr v2, with fill value 0 and the codec that all read."""
    made: dict[str, Buffer] = {}
    zarr.create_array(
        made, shape=shape, dtype=dtype, chunks=chunks, compressors=Blosc("lz4"), fill_value=0,
        zarr_format=2, chunk_key_encoding={"name": "v2", "separator": "/"},
    )  # fmt: skip
    return made[".zarray"].to_bytes()


def create_array(folder: Path, path: str, metadata: bytes, version: Literal[2, 3] = 3) -> Array:
    """Create an array: its metadata alone, from :func:`array_metadata` or the one for zarr v2."""
    write_object(folder / path / ("zarr.json" if version == 3 else ".zarray"), [metadata])
    return open_array(folder, path, version)


def planned_array(
    folder: Path, shape: tuple[int, int, int], dtype: np.dtype, chunks: tuple[int, int, int]
) -> Array:
    """Describe an array with axes z, y, x that is to be written later."""
    made = zarr.create_array({}, name="0", shape=shape, dtype=dtype, chunks=chunks)
    return _describe_array(folder, made)


def _describe_array(folder: Path, opened: zarr.Array, archive: Archive | None = None) -> Array:
    sizes = (opened.shape, opened.dtype, opened.chunks, opened.shards)
    layout = None
    try:
        layout = ShardLayout.of(opened)
        return Array(folder, opened, *sizes, layout, "", *decoding_of(opened), archive)
    except NotDirectError as error:
        return Array(folder, opened, *sizes, layout, str(error), archive=archive)
