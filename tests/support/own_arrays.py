"""Arrays written by zarr in any encoding, and opened by octane."""

import numpy as np
import zarr
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from octane.store.array import Array, open_array


def own(array: zarr.Array) -> Array:
    """Reopen with octane an array that zarr stores in a folder."""
    folder = array.store_path.store.root  # ty: ignore - a folder's
    return open_array(folder, array.path, array.metadata.zarr_format)


def create(folder, version, shape, chunks, *, dtype="f4", **more):
    """Create an array ``a/0`` with zarr, without writing chunks."""
    zarr.open_group(folder, mode="w", zarr_format=version)
    return zarr.create(
        store=folder, path="a/0", shape=shape, chunks=chunks, dtype=dtype, zarr_format=version,
        config={"write_empty_chunks": False}, **more,
    )  # fmt: skip


def create_v3(folder, codecs, shape, chunks, *, shards=None, **more):
    """Create an array in zarr format 3.

    ``shards``: inner chunks per shard along each axis, location of the index, and whether the index
    has a checksum.
    """
    files = chunks
    if not codecs or not isinstance(codecs[0], ArrayArrayCodec | ArrayBytesCodec):
        codecs = [BytesCodec(), *codecs]
    if shards is not None:
        counts, location, checked = shards
        files = tuple(c * n for c, n in zip(chunks, counts, strict=True))
        index = [BytesCodec(), *([Crc32cCodec()] if checked else [])]
        codecs = [
            ShardingCodec(
                chunk_shape=chunks, codecs=codecs, index_codecs=index, index_location=location
            )
        ]
    return create(folder, 3, shape, files, codecs=codecs, **more)


def create_v2(folder, compressor, *given, **more):
    """Create an array in zarr format 2."""
    return create(folder, 2, *given, compressor=compressor, **more)


def any_bits(dtype, shape, seed=0):
    """Compressible voxels with arbitrary bits, including many kinds of NaN."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * dtype.itemsize
    some = np.array([0, 1, 3, 17, 0x7F, 0x80, 0xC0, 0xFF], np.uint8)
    return rng.choice(some, size).view(dtype).reshape(shape)
