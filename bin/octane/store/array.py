"""Arrays of a store, whose metadata zarr reads and writes, and how octane itself decodes them."""

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

from octane.core.files import write_object
from octane.store.encoding import NotDirectError, ShardLayout, decoding_of


@dataclass(frozen=True)
class Array:
    """An array of the store ``folder``, which zarr has ``opened``.

    ``chunks`` are voxels that are decoded at once, ``shards`` those of a file of several chunks.
    ``checked`` tells whether a crc32c follows a chunk's bytes. ``why_zarr`` is the reason, as the
    end of a sentence, for which only zarr can decode them; it is empty otherwise.
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

    @property
    def path(self) -> str:
        """Path of the array in the store."""
        return self.opened.path

    @property
    def owned(self) -> tuple[int, ...]:
        """Voxels of one stored object, which one writer must own."""
        return self.shards or self.chunks

    def key(self, position: tuple[int, ...]) -> str:
        """Key of the stored object at ``position``, counted in objects along each axis."""
        key = self.opened.metadata.encode_chunk_key(position)
        return f"{self.path}/{key}".removeprefix("/")

    @property
    def chunk_bytes(self) -> int:
        """Size of a decoded chunk, which is stored in full at the array's edge as well."""
        return prod(self.chunks) * self.dtype.itemsize


def open_array(folder: Path, path: str, version: Literal[2, 3]) -> Array:
    """Open an array; whatever zarr has against its metadata is raised."""
    return _described(folder, zarr.open_array(folder, path=path, mode="r", zarr_format=version))


def create_array(
    folder: Path,
    path: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    chunks: tuple[int, ...],
    shards: tuple[int, ...] | None,
    compressors: Sequence[BytesBytesCodec],
) -> Array:
    """Write the metadata of an array of the axes z, y, x with zeros as fill value, and give it."""
    # In memory first: zarr writes in threads of its own, which an interrupt does not stop.
    made: dict[str, Buffer] = {}
    zarr.create_array(
        made, name=path, shape=shape, dtype=dtype, chunks=chunks, shards=shards,
        compressors=compressors, dimension_names=tuple("zyx"),
    )  # fmt: skip
    name = f"{path}/zarr.json"
    write_object(folder / name, [made[name].to_bytes()])
    return open_array(folder, path, 3)


def _described(folder: Path, opened: zarr.Array) -> Array:
    sizes = (opened.shape, opened.dtype, opened.chunks, opened.shards)
    layout = None
    try:
        layout = ShardLayout.of(opened)
        return Array(folder, opened, *sizes, layout, "", *decoding_of(opened))
    except NotDirectError as error:
        return Array(folder, opened, *sizes, layout, str(error))
