"""The index of a shard: where in the file each of its inner chunks lies (zarr v3).

It is 16 bytes an inner chunk (offset and length, all ones when absent) and mostly a crc32c, at the
end or the start of the file. Reader, writer and the search for lost chunks share this one account.
"""

import os
from dataclasses import dataclass
from math import prod
from typing import cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

__all__ = ["ABSENT", "CHECKSUM_BYTES", "ShardIndexError", "ShardLayout", "crc32c"]

ABSENT = 2**64 - 1
"""Offset and length of an inner chunk that the shard does not hold."""

CHECKSUM_BYTES = 4
"""Of a crc32c."""


class ShardIndexError(ValueError):
    """What is wrong with the index of a shard."""


def crc32c(content: npt.NDArray[np.uint8], before: int = 0) -> int:
    """Checksum of ``content``, continuing the one of what stands ``before`` it."""
    # The library takes what the buffer protocol calls read-only, and of arrays any.
    return google_crc32c.extend(before, cast("bytes", content))


@dataclass(frozen=True)
class ShardLayout:
    """How the shards of an array are made.

    Attributes
    ----------
    per_shard
        Inner chunks of a shard along each axis.
    at_end
        Whether the index stands behind the chunks.
    checked
        Whether a crc32c follows the index.
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
        plain = isinstance(first, BytesCodec) and first.endian is not None
        if not plain or first.endian.value != "little" or len(others) > 1:
            return None
        if not all(isinstance(other, Crc32cCodec) for other in others):
            return None
        counts = (s // c for s, c in zip(array.shards, array.chunks, strict=True))
        return cls(tuple(counts), codec.index_location.value == "end", bool(others))

    @property
    def index_bytes(self) -> int:
        """Size of the index with its checksum."""
        return 16 * prod(self.per_shard) + CHECKSUM_BYTES * self.checked

    def read_index(self, descriptor: int) -> npt.NDArray[np.uint64]:
        """Offset and length of every inner chunk, from an open shard.

        Returns
        -------
        array
            Two values a chunk, on the last axis; read-only. A chunk that is not there has
            :data:`ABSENT` for both.

        Raises
        ------
        ShardIndexError
            When the file is too short for it or the checksum is another.
        """
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
