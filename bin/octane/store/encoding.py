"""Encodings of chunks and shards that octane reads and writes itself; zarr reads all others.

A shard is a file of several (inner) chunks with an index at its end or start: 16 bytes per chunk
(offset and length, all ones if absent) and usually a crc32c.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc, Zstd
from zarr.abc.metadata import Metadata

ABSENT_CHUNK = 2**64 - 1
"""Offset and length of an inner chunk that the shard does not hold."""

CHECKSUM_BYTES = 4
"""Bytes of a crc32c."""

VOXEL_TYPES = [np.dtype(f"<{code}") for code in ("?", *"bBhHiI", "i8", "u8", *"efdFD")]
"""Voxel types that octane decodes."""
SHUFFLES = {
    "noshuffle": Blosc.NOSHUFFLE,
    "shuffle": Blosc.SHUFFLE,
    "bitshuffle": Blosc.BITSHUFFLE,
}
"""Blosc's number for each kind of shuffle."""
LITTLE = ("bytes", {"endian": "little"})
INDEX_CODECS = ([LITTLE], [LITTLE, ("crc32c", {})])
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
        [codec] = array.metadata.codecs
        stated = StatedCodec.of(codec.to_dict()).configuration
        described = cast("Iterable[Mapping[str, object]]", stated["index_codecs"])
        index = [StatedCodec.of(described_codec) for described_codec in described]
        if index not in INDEX_CODECS:
            raise NotDirectError("its shard indices have unsupported codecs")
        counts = (n // c for n, c in zip(array.shards, array.chunks, strict=True))
        return cls(tuple(counts), stated["index_location"] == "end", len(index) > 1)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index with its checksum."""
        return 16 * prod(self.per_shard) + CHECKSUM_BYTES * self.checked

    def read_index(
        self, descriptor: int, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint64]:
        """Offset and length of every inner chunk of a shard, or :data:`ABSENT_CHUNK` for both.

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


class StatedCodec(NamedTuple):
    """A codec of zarr v3 as an array's metadata state it.

    The specification defines these values, while the attributes of zarr's own objects differ
    between its versions: enumerations up to 3.2, strings since.
    """

    name: str
    configuration: Mapping[str, object]

    @classmethod
    def of(cls, stated: Mapping[str, object]) -> "StatedCodec":
        """Take the codec from an entry of the metadata's ``codecs``."""
        configuration = stated.get("configuration", {})
        return cls(str(stated["name"]), cast("Mapping[str, object]", configuration))


def decoding_of(array: zarr.Array) -> tuple[np.generic, Zstd | Blosc | None, bool]:
    """Fill value, compressor (or None) and whether a crc32c follows; or a NotDirectError."""
    if array.filters:
        raise NotDirectError(f"it has the filters {_names(array.filters)}")
    if array.metadata.zarr_format == 2:
        big = array.dtype.byteorder == ">"
        if array.order != "C":
            raise NotDirectError(f"its chunks are in {array.order} order")
    else:
        name, stated = StatedCodec.of(cast("Metadata", array.serializer).to_dict())
        if name != "bytes":
            raise NotDirectError(f"it has the codec {name}")
        big = array.dtype.itemsize > 1 and stated.get("endian") != "little"
    if big:
        raise NotDirectError("it is big-endian")
    if array.dtype not in VOXEL_TYPES:
        raise NotDirectError(f"its voxels are of type {array.dtype}")
    fill = array.dtype.type(0 if array.fill_value is None else array.fill_value)
    # In version 2 they are those of numcodecs.
    codecs = [
        StatedCodec.of(codec.to_dict()) if isinstance(codec, Metadata) else codec
        for codec in array.compressors
    ]
    checked = bool(codecs) and codecs[-1] == ("crc32c", {})
    match codecs[:-1] if checked else codecs:
        case []:
            return fill, None, checked
        case [Zstd() | Blosc() as codec]:
            return fill, codec, checked
        case [StatedCodec("zstd", stated)]:
            return fill, Zstd(stated["level"], stated["checksum"]), checked
        case [StatedCodec("blosc", stated)]:
            shuffle = SHUFFLES[str(stated["shuffle"])]
            sizes = stated["blocksize"], stated["typesize"]
            return fill, Blosc(stated["cname"], stated["clevel"], shuffle, *sizes), checked
    raise NotDirectError(f"it has the codecs {_names(codecs)}")


def _names(codecs: Iterable[object]) -> str:
    """Names of codecs, either as stated, or those of zarr's or numcodecs' classes."""
    return ", ".join(
        codec.name
        if isinstance(codec, StatedCodec)
        else type(codec).__name__.removesuffix("Codec").lower()
        for codec in codecs
    )
