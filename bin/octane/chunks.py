"""Which stored objects (shards or chunks) hold a region of a zarr array, and which are missing.

zarr gives the fill value for a chunk that is not there, which in a mosaic of months is a lost tile
that nobody sees.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

from octane.geometry import Region

__all__ = ["StoredObject", "missing_keys", "owned_shape", "stored_objects"]


@dataclass(frozen=True)
class StoredObject:
    """A file of the store: a shard, or a chunk where there are no shards.

    Attributes
    ----------
    key
        Its key in the store.
    file
        Where it is.
    region
        Voxels of the array that it holds.
    """

    key: str
    file: Path
    region: Region


def owned_shape(array: zarr.Array) -> tuple[int, ...]:
    """Voxels of one stored object: what one writer must own."""
    return array.shards or array.chunks


def stored_objects(array: zarr.Array, store: Path, region: Region) -> Iterator[StoredObject]:
    """Every stored object that holds a part of ``region``, in raster order."""
    size = owned_shape(array)
    spans = (
        range(r.start // n, -(-r.stop // n)) if r.stop > r.start else range(0)
        for r, n in zip(region, size, strict=True)
    )
    for position in product(*spans):
        key = f"{array.path}/{array.metadata.encode_chunk_key(position)}"
        held = tuple(
            slice(p * n, min((p + 1) * n, m))
            for p, n, m in zip(position, size, array.shape, strict=True)
        )
        yield StoredObject(key, store / key, held)


def missing_keys(array: zarr.Array, store: Path, region: Region) -> Iterator[str]:
    """Keys of the objects and inner chunks of ``region`` that are not in the store."""
    for stored in stored_objects(array, store, region):
        if not stored.file.is_file():
            yield stored.key
        elif array.shards is not None:
            for inner in _missing_inner(array, stored, region):
                yield f"{stored.key} (inner chunk {inner})"


def _missing_inner(array: zarr.Array, stored: StoredObject, region: Region) -> Iterator[str]:
    """Inner chunks that a shard's index marks absent.

    The index is 16 bytes a chunk (offset and length, all ones when absent) and a crc32c, at the
    end or the start of the shard (zarr v3, sharding_indexed).
    """
    codec = cast("ArrayV3Metadata", array.metadata).codecs[0]
    if not isinstance(codec, ShardingCodec):
        return
    per_shard = tuple(s // c for s, c in zip(owned_shape(array), array.chunks, strict=True))
    count = int(np.prod(per_shard))
    size = 16 * count + 4 * any(isinstance(c, Crc32cCodec) for c in codec.index_codecs)
    if stored.file.stat().st_size < size:
        yield "index"
        return
    with stored.file.open("rb") as stream:
        if codec.index_location.value == "end":
            stream.seek(-size, 2)
        raw = stream.read(size)
    absent = np.array(struct.unpack(f"<{2 * count}Q", raw[: 16 * count])[::2]) == 2**64 - 1
    for flat in np.flatnonzero(absent):
        inner = [int(i) for i in np.unravel_index(flat, per_shard)]
        start = [
            h.start + i * c for h, i, c in zip(stored.region, inner, array.chunks, strict=True)
        ]
        bounds = zip(start, region, array.chunks, array.shape, strict=True)
        # Chunks of a shard that lie beyond the array's edge are never written.
        if all(a < min(r.stop, n) and a + c > r.start for a, r, c, n in bounds):
            yield "/".join(map(str, inner))
