"""A chunk comes in any batches, and is proven whole at its end; what is broken is found."""

import tracemalloc

import numcodecs
import numpy as np
import pytest
import zstandard
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane.store.chunks import CorruptChunkError
from octane.store.decode import SENTINEL
from octane.store.reader import DirectReader

SHAPE = (20, 50, 25)
CHUNKS = (8, 11, 10)
ENCODINGS = {
    "none": [],
    "none crc32c": [Crc32cCodec()],
    "zstd": [ZstdCodec()],
    "zstd checksum": [ZstdCodec(level=5, checksum=True)],
    "zstd crc32c": [ZstdCodec(), Crc32cCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4")],
    "blosc-zstd crc32c": [BloscCodec(cname="zstd", shuffle="bitshuffle"), Crc32cCodec()],
}
SHARDS = ((1, 2, 2), "end", True)


def same(ours, theirs):
    assert ours.tobytes() == theirs.tobytes()


def whole(shape):
    return tuple(slice(0, n) for n in shape)


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_chunk_is_streamed_in_batches(tmp_path, codecs, batch, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS, shards=SHARDS)
    voxels = any_bits("f4", SHAPE)
    array[:] = voxels
    buffer = np.empty((batch, *CHUNKS[1:]), np.float32)
    with DirectReader(array).stream((0, 3, 1)) as stream:
        for start in range(0, CHUNKS[0], batch):
            planes = buffer[: CHUNKS[0] - start]
            stream.read_into(planes)
            same(planes, voxels[start : start + batch, 33:44, 10:20][: CHUNKS[0] - start])
        assert stream.left == 0


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
def test_bytes_may_be_passed_over(tmp_path, codecs, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS)
    array[:] = voxels = any_bits("f4", SHAPE)
    plane = np.empty(CHUNKS[1:], np.float32)
    with DirectReader(array).stream((1, 0, 0)) as stream:
        stream.skip(3 * plane.nbytes)
        stream.read_into(plane)
        same(plane, voxels[11, :11, :10])
        stream.drain()


def test_a_buffer_that_is_not_contiguous_or_too_large_is_refused(tmp_path, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS)
    array[:] = any_bits("f4", SHAPE)
    with DirectReader(array).stream((0, 0, 0)) as stream:
        for buffer in (np.empty((8, 10, 11), np.float32).T, np.empty((9, 11, 10), np.float32)):
            with pytest.raises(ValueError, match="buffer"):
                stream.read_into(buffer)
        with pytest.raises(ValueError, match="left"):
            stream.skip(stream.left + 1)


def test_two_chunks_may_be_streamed_at_once(tmp_path, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS)
    array[:] = voxels = any_bits("f4", SHAPE)
    reader = DirectReader(array)
    first, second = (np.empty((4, *CHUNKS[1:]), np.float32) for _ in range(2))
    with reader.stream((0, 0, 0)) as one, reader.stream((0, 1, 0)) as other:
        for start in (0, 4):
            one.read_into(first)
            other.read_into(second)
            same(first, voxels[start : start + 4, :11, :10])
            same(second, voxels[start : start + 4, 11:22, :10])


@pytest.mark.parametrize("codecs", [[], [ZstdCodec()]], ids=["none", "zstd"])
def test_a_chunk_is_streamed_without_being_held(tmp_path, codecs, create_v3, any_bits):
    shape = (64, 256, 256)
    array = create_v3(tmp_path / "s.zarr", codecs, shape, shape)
    array[:] = any_bits("f4", shape)
    reader = DirectReader(array)
    plane = np.empty(shape[1:], np.float32)
    tracemalloc.start()
    try:
        with reader.stream((0, 0, 0)) as stream:
            for _ in range(shape[0]):
                stream.read_into(plane)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def broken(array, key, words, region=None):
    with pytest.raises(CorruptChunkError) as caught:
        DirectReader(array).read(region or whole(array.shape))
    assert caught.value.key == key
    assert words in caught.value.reason


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("cut", [1, 4, 100, 10_000])
def test_a_chunk_cut_short_is_found(tmp_path, codecs, cut, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS)
    array[:] = any_bits("f4", SHAPE)
    file = tmp_path / "s.zarr/a/0/c/1/2/0"
    file.write_bytes(file.read_bytes()[:-cut])
    broken(array, "a/0/c/1/2/0", "")


@pytest.mark.parametrize(
    "name", ["none crc32c", "zstd checksum", "zstd crc32c", "blosc-zstd crc32c"]
)
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8, 1])
def test_one_flipped_bit_is_found(tmp_path, name, at, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", ENCODINGS[name], SHAPE, CHUNKS)
    array[:] = any_bits("f4", SHAPE)
    file = tmp_path / "s.zarr/a/0/c/1/2/0"
    content = bytearray(file.read_bytes())
    content[int(at * (len(content) - 1))] ^= 4
    file.write_bytes(content)
    broken(array, "a/0/c/1/2/0", "")
    # Also when only planes before it are wanted.
    broken(array, "a/0/c/1/2/0", "", (slice(8, 9), slice(22, 23), slice(0, 1)))


@pytest.mark.parametrize("checksum", [False, True])
def test_frames_cut_anywhere_are_refused(tmp_path, checksum, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], (6, 6, 6), (6, 6, 6))
    array[:] = voxels = any_bits("f4", (6, 6, 6))
    compressor = zstandard.ZstdCompressor(write_checksum=checksum)
    raw = voxels.tobytes()
    pieces = [raw[:200], raw[200:200], raw[200:]]
    content = b"".join(compressor.compress(piece) for piece in pieces)
    # A frame whose last block is empty, as streaming writers end them.
    ending = compressor.compressobj()
    streamed = ending.compress(raw) + ending.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    streamed += ending.flush()
    file = tmp_path / "s.zarr/a/0/c/0/0/0"
    for stored in (content, streamed):
        file.write_bytes(stored)
        same(DirectReader(array).read(whole((6, 6, 6))), voxels)
        for length in range(len(stored)):
            file.write_bytes(stored[:length])
            broken(array, "a/0/c/0/0/0", "")


@pytest.mark.parametrize("change", [-17, -16, -1, 1, 16, 17])
@pytest.mark.parametrize("codec", ["none", "zstd", "blosc"])
def test_a_chunk_of_another_length_is_refused(tmp_path, codec, change, create_v3):
    codecs = {"none": [], "zstd": [ZstdCodec()], "blosc": [BloscCodec()]}[codec]
    array = create_v3(tmp_path / "s.zarr", codecs, (6, 6, 6), (6, 6, 6), dtype="u1")
    array[:] = 1
    content = bytes(200) + SENTINEL
    content = content + SENTINEL * 2 if change > 0 else content
    content = content[: 216 + change]
    encode = {
        "none": lambda raw: raw,
        "zstd": numcodecs.Zstd().encode,
        "blosc": numcodecs.Blosc().encode,
    }[codec]
    (tmp_path / "s.zarr/a/0/c/0/0/0").write_bytes(encode(content))
    broken(array, "a/0/c/0/0/0", "")


def test_a_frame_with_a_large_window_is_read(tmp_path, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], (6, 6, 6), (6, 6, 6))
    array[:] = voxels = any_bits("f4", (6, 6, 6))
    parameters = zstandard.ZstdCompressionParameters(
        window_log=28, hash_log=10, chain_log=10, strategy=zstandard.STRATEGY_FAST
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressor.compress(voxels.tobytes()) + compressor.flush()
    assert zstandard.get_frame_parameters(content).window_size == 2**28
    (tmp_path / "s.zarr/a/0/c/0/0/0").write_bytes(content)
    same(DirectReader(array).read(whole((6, 6, 6))), voxels)
