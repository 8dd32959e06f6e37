"""Chunks read directly equal zarr's bit for bit; missing and broken ones are named."""

import errno
import itertools
import os
import tracemalloc

import numcodecs
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from own_arrays import any_bits, create_v2, create_v3, own
from refusals import refused
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane.core.errors import CorruptChunkError, MissingChunkError, UnreadableChunkError
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
COMPRESSORS = {
    "none": None,
    "zstd": numcodecs.Zstd(level=1),
    "zstd checksum": numcodecs.Zstd(checksum=True),
    "blosc-lz4": numcodecs.Blosc("lz4"),
    "blosc-zstd": numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
}
SHARDS = {
    "plain": None,
    "2x2": ((1, 2, 2), "end", True),
    "4x4 start": ((2, 4, 4), "start", True),
    "4x4 unchecked": ((1, 4, 4), "end", False),
}


def same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()


def whole(shape):
    return tuple(slice(0, n) for n in shape)


WHOLE = whole(SHAPE)
SIZE = (SHAPE, CHUNKS)


@pytest.fixture
def cube(tmp_path):
    """An array of one zstd chunk, its voxels and the chunk's file."""
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], (6, 6, 6), (6, 6, 6))
    array[:] = voxels = any_bits("f4", (6, 6, 6))
    return array, voxels, tmp_path / "s.zarr/a/0/c/0/0/0"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One array of each kind, with missing chunks and inner chunks, which are filled."""
    folder = tmp_path_factory.mktemp("stores")
    arrays = [
        create_v3(folder / f"{c} {s}", ENCODINGS[c], *SIZE, shards=SHARDS[s], fill_value=7)
        for c, s in itertools.product(ENCODINGS, SHARDS)
    ]
    arrays += [create_v2(folder / c, COMPRESSORS[c], *SIZE, fill_value=7) for c in COMPRESSORS]
    for seed, array in enumerate(arrays):
        voxels = any_bits("f4", SHAPE, seed)
        voxels[:8, 33:55] = 7
        voxels[16:, :, 20:] = 7
        array[:] = voxels
    return [(array, array[:], DirectReader(own(array), fill_missing=True)) for array in arrays]


regions = st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in SHAPE)).map(
    lambda spans: tuple(slice(min(s), max(s)) for s in spans)
)


@settings(max_examples=100)
@given(data=st.data(), region=regions, spare=st.booleans())
def test_any_region_is_read_as_by_zarr(stores, data, region, spare):
    _, expected, reader = data.draw(st.sampled_from(stores))
    shape = expected[region].shape
    # Memory within a larger array is not contiguous.
    around = np.full([n + 2 for n in shape], -1, np.float32)
    out = around[1:-1, 1:-1, 1:-1] if spare else None
    read = reader.read(region, out)
    same(np.ascontiguousarray(read), expected[region])
    if out is not None:
        assert read is out
        assert (around != -1).sum() == (out != -1).sum()


@pytest.mark.parametrize("kind", ["f4", "u2"])
def test_missing_inner_chunks_and_shards_are_filled_or_named(tmp_path, kind):
    layout = {"shards": SHARDS["2x2"], "dtype": kind, "fill_value": 7}
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], *SIZE, **layout)
    voxels = any_bits(kind, SHAPE)
    voxels[8:16, 33:44, 0:10] = 7
    array[:] = voxels
    (tmp_path / "s.zarr/a/0/c/0/0/1").unlink()
    same(DirectReader(own(array), fill_missing=True).read(WHOLE), array[:])
    reader = DirectReader(own(array))
    for region, key in (
        ((slice(10, 11), slice(40, 41), slice(5, 6)), "a/0/c/1/1/0 (inner chunk 0/1/0)"),
        ((slice(0, 1), slice(0, 1), slice(20, 21)), "a/0/c/0/0/1"),
    ):
        with pytest.raises(MissingChunkError) as caught:
            reader.read(region)
        assert caught.value.key == key


def test_memory_that_does_not_fit_is_refused(tmp_path):
    reader = DirectReader(own(create_v3(tmp_path / "s.zarr", [], SHAPE, CHUNKS)), fill_missing=True)
    region = (slice(0, 4), slice(0, 5), slice(0, 6))
    for out in (np.empty((4, 5, 7), np.float32), np.empty((4, 5, 6), np.float64)):
        with refused(error=ValueError):
            reader.read(region, out)


@pytest.mark.parametrize(
    ("call", "number"),
    [("open", errno.EACCES), ("fstat", errno.ESTALE), ("preadv", errno.EIO), ("pread", errno.EIO)],
)
def test_an_unreadable_chunk_is_not_called_corrupt(tmp_path, call, number, monkeypatch):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS, shards=SHARDS["2x2"])
    array[:] = voxels = any_bits("f4", SHAPE)
    reader = DirectReader(own(array))

    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(UnreadableChunkError) as caught:
            reader.read(WHOLE)
    assert caught.value.key.startswith("a/0/c/0/0/0")
    assert caught.value.reason == os.strerror(number)
    same(reader.read(WHOLE), voxels)


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("batch", [3, 8])
def test_a_chunk_is_streamed_in_batches(tmp_path, codecs, batch):
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS, shards=SHARDS["2x2"])
    array[:] = voxels = any_bits("f4", SHAPE)
    buffer = np.empty((batch, *CHUNKS[1:]), np.float32)
    with DirectReader(own(array)).stream((0, 3, 1)) as stream:
        for start in range(0, CHUNKS[0], batch):
            planes = buffer[: CHUNKS[0] - start]
            stream.read_into(planes)
            same(planes, voxels[start : start + batch, 33:44, 10:20][: CHUNKS[0] - start])
        assert stream.left == 0


@pytest.mark.parametrize("codecs", [[], [ZstdCodec()]], ids=["none", "zstd"])
def test_a_chunk_is_streamed_without_being_held(tmp_path, codecs):
    shape = (64, 256, 256)
    array = create_v3(tmp_path / "s.zarr", codecs, shape, shape)
    array[:] = any_bits("f4", shape)
    reader = DirectReader(own(array))
    plane = np.empty(shape[1:], np.float32)
    tracemalloc.start()
    try:
        with reader.stream((0, 0, 0)) as stream:
            for _ in range(shape[0]):
                stream.read_into(plane)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def broken(array, key, region=None):
    with pytest.raises(CorruptChunkError) as caught:
        DirectReader(own(array)).read(region or whole(array.shape))
    assert caught.value.key == key


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_truncated_chunk_or_a_flipped_bit_is_found(tmp_path, name):
    array = create_v3(tmp_path / "s.zarr", ENCODINGS[name], SHAPE, CHUNKS)
    array[:] = any_bits("f4", SHAPE)
    file = tmp_path / "s.zarr/a/0/c/1/2/0"
    written = file.read_bytes()
    for cut in (1, 100):
        file.write_bytes(written[:-cut])
        broken(array, "a/0/c/1/2/0")
    for at in (0.2, 1) if name.endswith(("crc32c", "checksum")) else ():
        content = bytearray(written)
        content[int(at * (len(content) - 1))] ^= 4
        file.write_bytes(content)
        broken(array, "a/0/c/1/2/0")
        # Even if only planes before it are read.
        broken(array, "a/0/c/1/2/0", (slice(8, 9), slice(22, 23), slice(0, 1)))


@pytest.mark.parametrize("checksum", [False, True])
def test_frames_cut_anywhere_are_refused(cube, checksum):
    array, voxels, file = cube
    compressor = zstandard.ZstdCompressor(write_checksum=checksum)
    raw = voxels.tobytes()
    pieces = [raw[:200], raw[200:200], raw[200:]]
    content = b"".join(compressor.compress(piece) for piece in pieces)
    # A frame with an empty last block, as streaming writers end frames.
    ending = compressor.compressobj()
    streamed = ending.compress(raw) + ending.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    streamed += ending.flush()
    for stored in (content, streamed):
        file.write_bytes(stored)
        same(DirectReader(own(array)).read(whole((6, 6, 6))), voxels)
        for length in range(len(stored)):
            file.write_bytes(stored[:length])
            broken(array, "a/0/c/0/0/0")


@pytest.mark.parametrize("change", [-17, -16, -1, 1, 16, 17])
@pytest.mark.parametrize("codec", ["none", "zstd", "blosc"])
def test_a_chunk_of_another_length_is_refused(tmp_path, codec, change):
    codecs, encode = {
        "none": ([], lambda raw: raw),
        "zstd": ([ZstdCodec()], numcodecs.Zstd().encode),
        "blosc": ([BloscCodec()], numcodecs.Blosc().encode),
    }[codec]
    array = create_v3(tmp_path / "s.zarr", codecs, (6, 6, 6), (6, 6, 6), dtype="u1")
    array[:] = 1
    content = (bytes(200) + SENTINEL * (3 if change > 0 else 1))[: 216 + change]
    (tmp_path / "s.zarr/a/0/c/0/0/0").write_bytes(encode(content))
    broken(array, "a/0/c/0/0/0")


def test_a_frame_with_a_large_window_is_read(cube):
    array, voxels, file = cube
    parameters = zstandard.ZstdCompressionParameters(
        window_log=28, hash_log=10, chain_log=10, strategy=zstandard.STRATEGY_FAST
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressor.compress(voxels.tobytes()) + compressor.flush()
    assert zstandard.get_frame_parameters(content).window_size == 2**28
    file.write_bytes(content)
    same(DirectReader(own(array)).read(whole((6, 6, 6))), voxels)
