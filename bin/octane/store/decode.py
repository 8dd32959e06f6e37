"""Streams of the decoded bytes of one chunk, in pieces of any size.

A stream reads stored bytes as it needs them. At its end it has verified that the chunk is complete:
that its length is right and its checksums match.
"""

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, cast

import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs import Blosc, Zstd

from octane.core.errors import CorruptChunkError
from octane.core.timing import moved, span
from octane.store.array import Array
from octane.store.chunks import chunk_errors
from octane.store.encoding import CHECKSUM_BYTES, crc32c

Bytes = npt.NDArray[np.uint8]

PIECE_BYTES = 256_000
"""Stored bytes read at once."""

BLOSC_HEADER = 16

SENTINEL = b"octane: the end."
SENTINEL_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(SENTINEL)
"""Appended to a chunk's frames: it is decoded only if all frames before it were complete.

The decoder does not distinguish a truncated frame from a finished one.
"""


class Workspace:
    """Memory and a decoder, reused from chunk to chunk."""

    def __init__(self) -> None:
        # The largest window: like zarr, accept whatever memory the writer's frames need.
        self.zstd = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._memory: dict[str, Bytes] = {}

    def memory(self, use: str, size: int) -> Bytes:
        """Return ``size`` uninitialised bytes, from a buffer reused for the same ``use``."""
        memory = self._memory.get(use)
        if memory is None or len(memory) < size:
            memory = self._memory[use] = np.empty(size, np.uint8)
        return memory[:size]


_idle: deque[Workspace] = deque()


@contextmanager
def workspace() -> Generator[Workspace]:
    """Lend a workspace; the pool grows to the number ever in use at once."""
    try:
        space = _idle.pop()
    except IndexError:
        space = Workspace()
    yield space
    # Not after an error, which may leave the decoder in any state.
    _idle.append(space)


class StoredBytes:
    """The stored bytes of one chunk of an open file, in order.

    They begin at ``offset`` and end with the file for size None. If ``checked``, the last four are
    a crc32c of the others, which is verified and not returned. Errors, also while reading, are
    :class:`ChunkError`.
    """

    def __init__(
        self, descriptor: int, key: str, offset: int, size: int | None, *, checked: bool
    ) -> None:
        self.key = key
        self._descriptor = descriptor
        self._offset = offset
        with chunk_errors(key):
            available = os.fstat(descriptor).st_size - offset
        self.left = (available if size is None else size) - CHECKSUM_BYTES * checked
        if self.left < 0 or (size is not None and size > available):
            raise CorruptChunkError(key, "it extends beyond the end of the file")
        self._checksum = 0 if checked else None

    def read_into(self, memory: Bytes) -> int:
        """Fill ``memory`` as far as bytes are left, and return how many were read."""
        memory = memory[: self.left]
        if not len(memory):
            return 0
        self._read(memory)
        self.left -= len(memory)
        if self._checksum is not None:
            self._checksum = crc32c(memory, self._checksum)
            if not self.left:
                self._verify(self._checksum)
        return len(memory)

    def skip(self, count: int) -> bool:
        """Skip ``count`` bytes and return True, or False if the checksum needs them."""
        if self._checksum is not None:
            return False
        self._offset += count
        self.left -= count
        return True

    def _verify(self, checksum: int) -> None:
        stored = np.empty(CHECKSUM_BYTES, np.uint8)
        self._read(stored)
        if int.from_bytes(stored.tobytes(), "little") != checksum:
            raise CorruptChunkError(self.key, "it does not match its crc32c checksum")

    def _read(self, memory: Bytes) -> None:
        start = time.perf_counter()
        done = 0
        with chunk_errors(self.key):
            while done < len(memory):
                count = os.preadv(self._descriptor, [memory[done:].data], self._offset)
                if not count:
                    raise CorruptChunkError(self.key, "its file was truncated while it was read")
                done += count
                self._offset += count
        moved("read", time.perf_counter() - start)


class ChunkStream(ABC):
    """The decoded bytes of the chunk ``key``; ``left`` counts those not yet read."""

    def __init__(self, key: str, size: int, space: Workspace) -> None:
        self.key = key
        self.left = size
        self._space = space

    def read_into(self, buffer: npt.NDArray) -> None:
        """Fill a contiguous buffer with the next bytes; the last ones verify the chunk."""
        memory = buffer.reshape(-1).view(np.uint8)
        with span("decode"):
            self._fill(memory)
            self._passed(len(memory))

    def take(self, count: int) -> Bytes:
        """Return the next ``count`` bytes, in memory that the next call may overwrite."""
        with span("decode"):
            memory = self._take(count)
            self._passed(count)
        return memory

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes; the last ones verify the chunk."""
        with span("decode"):
            self._skip(count)
            self._passed(count)

    def drain(self) -> None:
        """Skip the remaining bytes, which verifies the chunk."""
        self.skip(self.left)

    def _passed(self, count: int) -> None:
        self.left -= count
        if count and not self.left:
            self._finish()

    def _take(self, count: int) -> Bytes:
        memory = self._space.memory("taken", count)
        self._fill(memory)
        return memory

    def _skip(self, count: int) -> None:
        while count:
            memory = self._space.memory("skipped", min(count, PIECE_BYTES))
            self._fill(memory)
            count -= len(memory)

    @abstractmethod
    def _fill(self, memory: Bytes) -> None:
        """Decode the next bytes until ``memory`` is full."""

    def _finish(self) -> None:
        """Raise unless the chunk ends here."""
        return


class FillStream(ChunkStream):
    """A missing chunk, filled with the fill value."""

    def __init__(self, key: str, size: int, space: Workspace, fill: np.generic) -> None:
        super().__init__(key, size, space)
        self._value = fill

    def _fill(self, memory: Bytes) -> None:
        memory.view(self._value.dtype)[...] = self._value

    def _skip(self, count: int) -> None:
        return


class RawStream(ChunkStream):
    """An uncompressed chunk."""

    def __init__(self, stored: StoredBytes, size: int, space: Workspace) -> None:
        super().__init__(stored.key, size, space)
        if stored.left != size:
            raise CorruptChunkError(stored.key, f"it holds {stored.left} bytes instead of {size}")
        self._stored = stored

    def _fill(self, memory: Bytes) -> None:
        self._stored.read_into(memory)

    def _skip(self, count: int) -> None:
        if not self._stored.skip(count):
            super()._skip(count)


class _Pieces:
    """Input of the zstd decoder: pieces of the stored bytes, then the sentinel."""

    def __init__(self, stored: StoredBytes, memory: Bytes) -> None:
        self._stored = stored
        self._memory = memory
        self._last = SENTINEL_FRAME

    def read(self, _size: int) -> Bytes | bytes:
        count = self._stored.read_into(self._memory)
        if count:
            return self._memory[:count]
        last, self._last = self._last, b""
        return last


class ZstdStream(ChunkStream):
    """A chunk of zstd frames, decoded straight into the caller's memory."""

    def __init__(self, stored: StoredBytes, size: int, space: Workspace) -> None:
        super().__init__(stored.key, size, space)
        pieces = _Pieces(stored, space.memory("piece", PIECE_BYTES))
        self._reader = space.zstd.stream_reader(
            cast("IO[bytes]", pieces), read_size=PIECE_BYTES, read_across_frames=True
        )

    def _fill(self, memory: Bytes) -> None:
        done = 0
        with self._name_errors():
            while done < len(memory):
                count = self._reader.readinto(memory[done:])
                if not count:
                    raise CorruptChunkError(self.key, "it is truncated")
                done += count

    def _finish(self) -> None:
        with self._name_errors():
            behind = self._reader.read(len(SENTINEL) + 1)
        if behind != SENTINEL:
            raise CorruptChunkError(self.key, "it is truncated or of the wrong length")

    @contextmanager
    def _name_errors(self) -> Generator[None]:
        try:
            yield
        except zstandard.ZstdError as error:
            raise CorruptChunkError(self.key, str(error)) from error


class BloscStream(ChunkStream):
    """A blosc chunk, which can only be decoded in one piece."""

    def __init__(self, stored: StoredBytes, size: int, space: Workspace, codec: Blosc) -> None:
        super().__init__(stored.key, size, space)
        self._size = size
        self._codec = codec
        self._encoded = space.memory("encoded", stored.left)
        stored.read_into(self._encoded)
        if len(self._encoded) < BLOSC_HEADER:
            raise CorruptChunkError(stored.key, "it is truncated")
        # Version, flags and type size, then three lengths: decoded, of a block, and encoded.
        decoded, _, encoded = self._encoded[4:BLOSC_HEADER].view("<u4").tolist()
        if decoded != size:
            raise CorruptChunkError(stored.key, f"it holds {decoded} bytes instead of {size}")
        if encoded > len(self._encoded):
            raise CorruptChunkError(stored.key, "it is truncated")
        self._decoded: Bytes | None = None

    def _fill(self, memory: Bytes) -> None:
        if len(memory) == self._size:
            self._decode(memory)
        else:
            memory[...] = self._take(len(memory))

    def _take(self, count: int) -> Bytes:
        start = self._size - self.left
        return self._whole()[start : start + count]

    def _skip(self, count: int) -> None:
        if count:
            self._whole()

    def _whole(self) -> Bytes:
        if self._decoded is None:
            self._decoded = self._space.memory("decoded", self._size)
            self._decode(self._decoded)
        return self._decoded

    def _decode(self, memory: Bytes) -> None:
        try:
            self._codec.decode(self._encoded, memory)
        except (RuntimeError, ValueError) as error:
            raise CorruptChunkError(self.key, str(error)) from error


def decoded_stream(stored: StoredBytes, array: Array, space: Workspace) -> ChunkStream:
    """Choose the stream that decodes ``stored``."""
    match array.compressor:
        case None:
            return RawStream(stored, array.chunk_bytes, space)
        case Zstd():
            return ZstdStream(stored, array.chunk_bytes, space)
        case codec:
            return BloscStream(stored, array.chunk_bytes, space, codec)
