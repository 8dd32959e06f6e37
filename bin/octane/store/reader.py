"""Reading and decoding chunks into the caller's memory, without zarr.

Decoding a zstd chunk of any size needs a few megabytes of memory. The decoders release the GIL, so
that threads decode in parallel. benchmarks/resample.py (reading) compares the reader
with others.
"""

import os
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
from numcodecs import Blosc

from octane.core.errors import ChunkError, CorruptChunkError, MissingChunkError
from octane.core.files import open_regular
from octane.core.geometry import Region, place_in, shape_of
from octane.core.timing import moved
from octane.store.array import Array
from octane.store.chunks import chunk_errors
from octane.store.decode import (
    ChunkStream,
    FillStream,
    StoredBytes,
    Workspace,
    decoded_stream,
    workspace,
)
from octane.store.encoding import ABSENT_CHUNK, ShardIndexError, ShardLayout

MOST_INDICES = 256
"""Shard indices kept in memory: those of several rows of a mosaic."""
BATCH_BYTES = 1_000_000
"""Bytes decoded at once before a copy, few enough for the core's own cache."""


class DirectReader:
    """Reader of one array of a store; many threads may use it.

    ``place`` is an index along the array's first axes. Regions and chunk positions leave these axes
    out: they are those of the image at ``place``. A missing chunk is an error, or the fill value
    with ``fill_missing`` and in the columns of chunks (y, x) that are ``left_out``.
    """

    def __init__(
        self,
        array: Array,
        place: tuple[int, ...] = (),
        *,
        fill_missing: bool = False,
        left_out: Collection[tuple[int, ...]] = (),
    ) -> None:
        self.array = array
        self._fill_missing, self._left_out = fill_missing, left_out
        first = len(place)
        self._shape, self._chunks = array.shape[first:], array.chunks[first:]
        self._image_bytes = prod(self._chunks) * self.array.dtype.itemsize
        self._outer, self._before = (), 0
        # A chunk holds one image after the other, in C order.
        for p, c in zip(place, array.chunks, strict=False):
            self._outer += (p // c,)
            self._before = self._before * c + p % c * self._image_bytes
        # A shard is written once, so its index does not change while this reader exists.
        self._index = lru_cache(MOST_INDICES)(self._read_index)

    @property
    def streams(self) -> bool:
        """True if a chunk is decoded part by part and never held completely."""
        return not isinstance(self.array.compressor, Blosc)

    def fetch(self, position: tuple[int, ...]) -> None:
        """Ask the system to load a chunk into its page cache; ignore missing chunks."""
        if not hasattr(os, "posix_fadvise"):
            return
        try:
            descriptor, _, offset, size = self._open(position, verify=False)
        except ChunkError:
            # Reading the chunk raises it again.
            return
        # Length 0 is the rest of the file.
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, size or 0, os.POSIX_FADV_WILLNEED)
        os.close(descriptor)

    @contextmanager
    def stream(self, position: tuple[int, ...]) -> Generator[ChunkStream]:
        """Stream the decoded bytes of one (inner) chunk, padding at the array's edge included.

        They begin with the image at this reader's place; bytes after it belong to other images.
        They are verified only once they are read, or drained, to the end.

        Raises
        ------
        octane.core.errors.ChunkError
            If it is missing, or cannot be read or decoded; also while reading the stream.
        """
        with workspace() as space, self._open_chunk(position, space) as stream:
            yield stream

    def read(self, region: Region, out: npt.NDArray | None = None) -> npt.NDArray:
        """Read the voxels of a region, into ``out`` if given; errors as in :meth:`stream`."""
        spans = (r.indices(n) for r, n in zip(region, self._shape, strict=True))
        wanted = tuple(slice(a, max(a, b)) for a, b, _ in spans)
        shape = shape_of(wanted)
        if out is None:
            out = np.empty(shape, self.array.dtype)
        elif out.shape != shape or out.dtype != self.array.dtype:
            raise ValueError(
                f"{out.dtype} memory of shape {out.shape} was given for {self.array.dtype} "
                f"voxels of shape {shape}"
            )
        if out.size:
            counts = (
                range(w.start // c, -(-w.stop // c))
                for w, c in zip(wanted, self._chunks, strict=True)
            )
            for position in product(*counts):
                self._read_part(position, wanted, out)
        return out

    def _read_part(self, position: tuple[int, ...], region: Region, out: npt.NDArray) -> None:
        """Read a chunk's part of the region into its place in ``out``."""
        chunks = self._chunks
        chunk = tuple(slice(p * c, (p + 1) * c) for p, c in zip(position, chunks, strict=True))
        axes = zip(region, chunk, strict=True)
        held = tuple(slice(max(r.start, c.start), min(r.stop, c.stop)) for r, c in axes)
        part, (planes, *across) = out[place_in(region, held)], place_in(chunk, held)
        plane_bytes = self._image_bytes // chunks[0]
        with workspace() as space, self._open_chunk(position, space) as stream:
            stream.skip(planes.start * plane_bytes)
            if part.shape[1:] == chunks[1:] and part.flags.c_contiguous:
                stream.read_into(part)
            else:
                size = min(len(part), max(1, BATCH_BYTES // plane_bytes))
                for start in range(0, len(part), size):
                    here = part[start : start + size]
                    batch = stream.take(len(here) * plane_bytes).view(self.array.dtype)
                    here[...] = batch.reshape(-1, *chunks[1:])[(slice(None), *across)]
            stream.drain()

    @contextmanager
    def _open_chunk(self, position: tuple[int, ...], space: Workspace) -> Generator[ChunkStream]:
        """Open a chunk's file and stream the chunk."""
        start = time.perf_counter()
        try:
            descriptor, key, offset, size = self._open(position, verify=True)
            moved("read", time.perf_counter() - start)
        except MissingChunkError as error:
            if not self._fill_missing and position[-2:] not in self._left_out:
                raise
            yield FillStream(error.key, self.array.chunk_bytes, space, self.array.fill)
            return
        try:
            stored = StoredBytes(descriptor, key, offset, size, checked=self.array.checked)
            stream = decoded_stream(stored, self.array, space)
            stream.skip(self._before)
            yield stream
        finally:
            os.close(descriptor)

    def _open(self, position: tuple[int, ...], *, verify: bool) -> tuple[int, str, int, int | None]:
        """Open a chunk's file; its descriptor, and key, offset and size of the chunk.

        Size None is the rest of the file.
        """
        position = (*self._outer, *position)
        shard = self.array.layout
        if shard is None:
            key = self.array.key(position)
            with chunk_errors(key):
                file, offset, size = self.array.locate(key, verify=verify)
                return open_regular(file), key, offset, size
        counts = shard.per_shard
        outer = tuple(p // n for p, n in zip(position, counts, strict=True))
        inner = tuple(p % n for p, n in zip(position, counts, strict=True))
        shard_key = self.array.key(outer)
        key = f"{shard_key} (inner chunk {'/'.join(map(str, inner))})"
        offset, size = self._index(shard, shard_key)[inner].tolist()
        if offset == ABSENT_CHUNK and size == ABSENT_CHUNK:
            raise MissingChunkError(key, "is missing")
        with chunk_errors(key):
            file, start, shard_bytes = self.array.locate(shard_key, verify=verify)
            if shard_bytes is not None and offset + size > shard_bytes:
                raise CorruptChunkError(key, "it extends beyond the end of its shard")
            return open_regular(file), key, start + offset, size

    def _read_index(self, shard: ShardLayout, key: str) -> npt.NDArray[np.uint64]:
        try:
            with chunk_errors(key):
                file, offset, size = self.array.locate(key)
                with os.fdopen(open_regular(file), "rb") as stream:
                    return shard.read_index(stream.fileno(), offset, size)
        except ShardIndexError as error:
            raise CorruptChunkError(key, str(error)) from error
