"""Encodings of chunks and shards that octane reads and writes itself; zarr reads all others.

A shard is a file of several (inner) chunks with an index at its end or start: 16 bytes per chunk
(offset and length, all ones if absent) and usually a crc32c.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc, Zstd
from zarr.codecs import (
    BloscCodec,
    BloscShuffle,
    BytesCodec,
    Crc32cCodec,
    Endian,
    ShardingCodec,
    ZstdCodec,
)

ABSENT = 2**64 - 1
"""Offset and length of an inner chunk that the shard does not hold."""

CHECKSUM_BYTES = 4
"""Bytes of a crc32c."""

TYPES = [np.dtype(f"<{code}") for code in ("?", *"bBhHiI", "i8", "u8", *"efdFD")]
"""Voxel types that octane decodes."""
SHUFFLES = {
    BloscShuffle.noshuffle: Blosc.NOSHUFFLE,
    BloscShuffle.shuffle: Blosc.SHUFFLE,
    BloscShuffle.bitshuffle: Blosc.BITSHUFFLE,
}
"""Blosc's number for each kind of shuffle."""
INDEX_CODECS = ([BytesCodec()], [BytesCodec(), Crc32cCodec()])
"""Codecs of a shard's index that octane decodes."""


class ShardIndexError(ValueError):
    """The index of a shard is damaged."""


def crc32c(content: npt.NDArray[np.uint8], before: int = 0) -> int:
    """Checksum of ``content``, continued from ``before``, the checksum of the bytes before it."""
    # Typed as bytes, but the library accepts any contiguous buffer.
    return google_crc32c.extend(before, cast("bytes", content))


@dataclass(frozen=True)
class ShardLayout:
    """Layout of an array's shards.

    ``per_shard`` counts inner chunks along each axis; ``at_end`` tells whether the index follows
    them, and ``checked`` whether a crc32c follows the index.
    """

    per_shard: tuple[int, ...]
    at_end: bool
    checked: bool

    @classmethod
    def of(cls, array: zarr.Array) -> "ShardLayout | None":
        """Layout of an array's shards, or None; NotDirectError for unsupported index codecs."""
        if array.shards is None or array.metadata.zarr_format == 2:
            return None
        codec = next(c for c in array.metadata.codecs if isinstance(c, ShardingCodec))
        index = [*codec.index_codecs]
        if index not in INDEX_CODECS:
            raise NotDirectError("its shard indices have unsupported codecs")
        counts = (n // c for n, c in zip(array.shards, array.chunks, strict=True))
        return cls(tuple(counts), codec.index_location.value == "end", len(index) > 1)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index with its checksum."""
        return 16 * prod(self.per_shard) + CHECKSUM_BYTES * self.checked

    def read_index(
        self, descriptor: int, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint64]:
        """Offset and length of every inner chunk of a shard, or :data:`ABSENT` for both.

        The shard begins at ``offset`` of an open file, and ends with it for size None.
        """
        if size is None:
            size = os.fstat(descriptor).st_size - offset
        start = size - self.index_bytes if self.at_end else 0
        fits = 0 <= start <= size - self.index_bytes
        raw = os.pread(descriptor, self.index_bytes, offset + start) if fits else b""
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
    """Only zarr can read the array; the message says why, as the end of a sentence."""


def decoding_of(array: zarr.Array) -> tuple[np.generic, Zstd | Blosc | None, bool]:
    """Fill value, compressor (or None) and whether a crc32c follows; or a NotDirectError."""
    if array.filters:
        raise NotDirectError(f"it has the filters {_names(array.filters)}")
    if array.metadata.zarr_format == 2:
        big = array.dtype.byteorder == ">"
        if array.order != "C":
            raise NotDirectError(f"its chunks are in {array.order} order")
    elif isinstance(array.serializer, BytesCodec):
        big = array.dtype.itemsize > 1 and array.serializer.endian is not Endian.little
    else:
        raise NotDirectError(f"it has the codec {_names([array.serializer])}")
    if big:
        raise NotDirectError("it is big-endian")
    if array.dtype not in TYPES:
        raise NotDirectError(f"its voxels are of type {array.dtype}")
    fill = array.dtype.type(0 if array.fill_value is None else array.fill_value)
    codecs = [*array.compressors]
    checked = bool(codecs) and isinstance(codecs[-1], Crc32cCodec)
    match codecs[:-1] if checked else codecs:
        case []:
            return fill, None, checked
        case [Zstd() | Blosc() as codec]:
            return fill, codec, checked
        case [ZstdCodec() as codec]:
            return fill, Zstd(codec.level, codec.checksum), checked
        case [BloscCodec() as codec]:
            shuffle = SHUFFLES[codec.shuffle]
            sizes = codec.blocksize, codec.typesize
            return fill, Blosc(codec.cname.value, codec.clevel, shuffle, *sizes), checked
    raise NotDirectError(f"it has the codecs {_names(codecs)}")


def _names(codecs: Iterable[object]) -> str:
    """Names of codecs, either zarr's or, in version 2, those of numcodecs."""
    return ", ".join(type(codec).__name__.removesuffix("Codec").lower() for codec in codecs)
