"""Encodings of chunks and shards that octane reads and writes without zarr, which reads all others.

A shard is a file of several (inner) chunks and an index: 16 bytes for each chunk (offset and
length, all ones when absent) and mostly a crc32c, at the end or the start of the file.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd

ABSENT = 2**64 - 1
"""Offset and length of an inner chunk that the shard does not hold."""

CHECKSUM_BYTES = 4
"""Bytes of a crc32c."""

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SINGLE = {"name": "bytes"}
CRC32C = {"name": "crc32c"}
"""Codecs in zarr's metadata: of voxels of several bytes, of single bytes, and a checksum."""

FIELDS = {
    "zstd": {"level": int, "checksum": bool},
    "blosc": {"typesize": int, "cname": str, "clevel": int, "shuffle": str, "blocksize": int},
    "sharding_indexed": dict.fromkeys(("chunk_shape", "codecs", "index_codecs"), list)
    | {"index_location": str},
}
"""Fields of other codecs."""
COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
SHUFFLES = ["noshuffle", "shuffle", "bitshuffle"]
"""Those that blosc has, in the order of its numbers."""

Json = dict[str, Any]
"""Metadata of zarr, or a part of them."""

# As zarr sets it: octane's own threads encode and decode side by side.
numcodecs.blosc.use_threads = False
# Each chunk is encoded into an array of its own. glibc returns such memory to the system at once,
# which clears it for the next chunk, until an array as large as any that it keeps has been freed.
np.empty(30_000_000, np.uint8)


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
    def of(cls, codecs: list[Json], owned: Sequence[int]) -> "ShardLayout":
        """Layout of shards of so many voxels; a NotDirectError where it is of another kind."""
        given = _configuration(codecs[0])
        counts = [divmod(n, c) for n, c in zip(owned, given["chunk_shape"], strict=True)]
        index, location = given["index_codecs"], given["index_location"]
        known = index in ([LITTLE], [LITTLE, CRC32C]) and location in ("start", "end")
        if len(codecs) > 1 or not known or any(rest for _, rest in counts):
            raise NotDirectError("its shards, or their indices, have further codecs")
        return cls(tuple(n for n, _ in counts), location == "end", len(index) > 1)

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


def _configuration(codec: Json) -> Json:
    """Configuration of a codec that has its fields and no others."""
    given = codec["configuration"]
    if len(codec) > 2 or {f: type(given[f]) for f in given} != FIELDS[codec["name"]]:
        raise NotDirectError(f"it has a codec {codec['name']} of another form")
    return given


def decoding_of(
    codecs: list[Json], dtype: np.dtype, fill: Any
) -> tuple[np.generic, Zstd | Blosc | None, bool]:
    """Fill value and compressor, and whether a checksum follows; or a NotDirectError."""
    value, (first, *others) = _fill(fill, dtype), codecs
    if first != (LITTLE if dtype.itemsize > 1 else SINGLE):
        known = first["name"] == "bytes"
        raise NotDirectError("it is big-endian" if known else f"it has the codec {first['name']}")
    checked = others[-1:] == [CRC32C]
    match compressors := others[:-1] if checked else others:
        case []:
            return value, None, checked
        case [{"name": "zstd"} as codec] if (given := _configuration(codec))["level"] < 23:
            return value, Zstd(**given), checked
        case [{"name": "blosc"} as codec]:
            given = _configuration(codec)
            if given["cname"] in COMPRESSORS:
                shuffle = SHUFFLES.index(given["shuffle"])
                return value, Blosc(**given | {"shuffle": shuffle}), checked
    names = ", ".join(codec["name"] for codec in compressors)
    raise NotDirectError(f"it has the codecs {names}")


def _fill(value: Any, dtype: np.dtype) -> np.generic:
    """Value of voxels of chunks that are not there."""
    match dtype.kind, value:
        case ("b", bool()) | ("i" | "u", int()):
            return dtype.type(value)
        case "f", float() | int() | "NaN" | "Infinity" | "-Infinity":
            return dtype.type(float(value))
        case "c", [real, imaginary]:
            real, imaginary = (_fill(part, np.dtype(float)) for part in (real, imaginary))
            return dtype.type(complex(real, imaginary))
    raise NotDirectError(f"it has the fill value {value}")
