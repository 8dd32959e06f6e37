"""Encodings of chunks and shards that octane reads and writes without zarr, which reads all others.

A shard is a file of several (inner) chunks and an index: 16 bytes for each chunk (offset and
length, all ones when absent) and mostly a crc32c, at the end or the start of the file.
"""

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc, Zstd
from zarr.abc.codec import Codec
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.storage import LocalStore

ABSENT = 2**64 - 1
"""Offset and length of an inner chunk that the shard does not hold."""

CHECKSUM_BYTES = 4
"""Bytes of a crc32c."""

SHUFFLES = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}


class ShardIndexError(ValueError):
    """A damaged index of a shard."""


def crc32c(content: npt.NDArray[np.uint8], before: int = 0) -> int:
    """Checksum of ``content``, continuing the one of what stands ``before`` it."""
    # The library takes what the buffer protocol calls read-only, and of arrays any.
    return google_crc32c.extend(before, cast("bytes", content))


@dataclass(frozen=True)
class ShardLayout:
    """Layout of an array's shards.

    Inner chunks along each axis, whether the index stands behind them, and whether it has a crc32c.
    """

    per_shard: tuple[int, ...]
    at_end: bool
    checked: bool

    @classmethod
    def of(cls, array: zarr.Array) -> "ShardLayout | None":
        """Layout of the array's shards; None without shards, or when they are encoded again."""
        metadata = array.metadata
        if not isinstance(metadata, ArrayV3Metadata) or array.shards is None:
            return None
        codec = metadata.codecs[0]
        if not isinstance(codec, ShardingCodec) or len(metadata.codecs) > 1:
            return None
        first, *others = codec.index_codecs
        if not isinstance(first, BytesCodec) or not first.endian or first.endian.value != "little":
            return None
        if [type(other) for other in others] not in ([], [Crc32cCodec]):
            return None
        counts = (s // c for s, c in zip(array.shards, array.chunks, strict=True))
        return cls(tuple(counts), codec.index_location.value == "end", bool(others))

    @property
    def index_bytes(self) -> int:
        """Size of the index with its checksum."""
        return 16 * prod(self.per_shard) + CHECKSUM_BYTES * self.checked

    def read_index(self, descriptor: int) -> npt.NDArray[np.uint64]:
        """Offset and length of every inner chunk of an open shard, or :data:`ABSENT` for both."""
        size = os.fstat(descriptor).st_size
        start = size - self.index_bytes if self.at_end else 0
        raw = os.pread(descriptor, self.index_bytes, start) if start >= 0 else b""
        if len(raw) < self.index_bytes:
            raise ShardIndexError("the shard is too short for its index")
        entries = np.frombuffer(raw, np.uint8, 16 * prod(self.per_shard))
        if self.checked and self._checksum(entries) != raw[entries.size :]:
            raise ShardIndexError("the shard's index does not match its checksum")
        return entries.view("<u8").reshape(*self.per_shard, 2)

    def encoded_index(self, index: npt.NDArray[np.uint64]) -> bytes:
        """The bytes of an index, checksum included."""
        entries = np.ascontiguousarray(index, "<u8").reshape(-1).view(np.uint8)
        return entries.tobytes() + (self._checksum(entries) if self.checked else b"")

    @staticmethod
    def _checksum(entries: npt.NDArray[np.uint8]) -> bytes:
        return crc32c(entries).to_bytes(CHECKSUM_BYTES, "little")


class NotDirectError(Exception):
    """Why an array has to be read through zarr, as the end of a sentence."""


@dataclass(frozen=True)
class Encoding:
    """Encoding of an array's (inner) chunks, which are stored in full at the array's edge as well.

    ``dtype`` is little-endian, ``checked`` tells whether a crc32c follows the bytes, ``shard`` is
    None for one file a chunk, and ``folder`` is the store that keys are relative to.
    """

    dtype: np.dtype
    chunks: tuple[int, ...]
    fill: np.generic
    compressor: Zstd | Blosc | None
    checked: bool
    shard: ShardLayout | None
    folder: Path

    @classmethod
    def of(cls, array: zarr.Array) -> "Encoding":
        """Encoding of an array; a NotDirectError names the part of it that octane does not know."""
        store = array.store_path.store
        if not isinstance(store, LocalStore):
            raise NotDirectError("the store is not a folder")
        if array.dtype.kind not in "biufc":
            raise NotDirectError(f"its voxels are of type {array.dtype}")
        shard = ShardLayout.of(array)
        if isinstance(array.metadata, ArrayV2Metadata):
            compressor, checked = _version_2(array.metadata, array.dtype), False
        else:
            codecs = array.metadata.codecs
            if isinstance(codecs[0], ShardingCodec):
                if shard is None:
                    raise NotDirectError("its shards, or their indices, have further codecs")
                codecs = codecs[0].codecs
            compressor, checked = _version_3(codecs, array.dtype)
        fill = array.metadata.fill_value
        dtype = array.dtype.newbyteorder("<")
        return cls(
            dtype,
            array.chunks,
            dtype.type(0 if fill is None else fill),
            compressor,
            checked,
            shard,
            Path(store.root),
        )

    @property
    def compression(self) -> Literal["zstd", "blosc", "none"]:
        """Compression of the voxels' bytes."""
        if self.compressor is None:
            return "none"
        return "zstd" if isinstance(self.compressor, Zstd) else "blosc"

    @property
    def chunk_bytes(self) -> int:
        """Size of a decoded chunk."""
        return int(np.prod(self.chunks)) * self.dtype.itemsize


def _version_2(metadata: ArrayV2Metadata, dtype: np.dtype) -> Zstd | Blosc | None:
    if metadata.order != "C":
        raise NotDirectError(f"its chunks are in {metadata.order} order")
    if metadata.filters:
        raise NotDirectError("it has filters")
    if dtype.byteorder == ">":
        raise NotDirectError("it is big-endian")
    compressor = metadata.compressor
    if compressor is not None and not isinstance(compressor, Zstd | Blosc):
        raise NotDirectError(f"it is compressed with {type(compressor).__name__}")
    return compressor


def _version_3(codecs: tuple[Codec, ...], dtype: np.dtype) -> tuple[Zstd | Blosc | None, bool]:
    """Compressor, and whether a checksum follows."""
    first, *others = codecs
    if not isinstance(first, BytesCodec):
        raise NotDirectError(f"it has the codec {type(first).__name__}")
    if dtype.itemsize > 1 and (first.endian is None or first.endian.value != "little"):
        raise NotDirectError("it is big-endian")
    checked = bool(others) and isinstance(others[-1], Crc32cCodec)
    compressors = others[:-1] if checked else others
    match compressors:
        case []:
            return None, checked
        case [ZstdCodec() as codec]:
            return Zstd(level=codec.level, checksum=codec.checksum), checked
        case [BloscCodec() as codec]:
            blosc = Blosc(
                cname=codec.cname.value,
                clevel=codec.clevel,
                shuffle=SHUFFLES[codec.shuffle.value],
                blocksize=codec.blocksize,
                typesize=codec.typesize,
            )
            return blosc, checked
        case _:
            names = ", ".join(type(codec).__name__ for codec in compressors)
            raise NotDirectError(f"it has the codecs {names}")
