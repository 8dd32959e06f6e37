"""Chunks read directly equal what zarr reads, bit for bit; what is missing is named."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane.store.chunks import CorruptChunkError, MissingChunkError, UnreadableChunkError
from octane.store.reader import DirectReader

SHAPE = (20, 50, 25)
CHUNKS = (8, 11, 10)
DTYPES = ["u1", "u2", "i2", "f4", "f8", "c8", "b1"]
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
def test_version_3_is_read_as_by_zarr(tmp_path, codecs, shards, dtype, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS, shards=shards, dtype=dtype)
    array[:] = any_bits(dtype, SHAPE)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize("dtype", [f"<{d}" if d[1] > "1" else f"|{d}" for d in DTYPES])
@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_version_2_is_read_as_by_zarr(tmp_path, compressor, dtype, create_v2, any_bits):
    array = create_v2(tmp_path / "s.zarr", compressor, SHAPE, CHUNKS, dtype=dtype)
    array[:] = any_bits(dtype, SHAPE)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


def test_chunks_of_version_2_in_folders_are_found(tmp_path, create_v2, any_bits):
    array = create_v2(tmp_path / "s.zarr", None, SHAPE, CHUNKS, dimension_separator="/")
    array[:] = any_bits("f4", SHAPE)
    assert (tmp_path / "s.zarr/a/0/1/2/0").is_file()
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize("name", ["default", "v2"])
@pytest.mark.parametrize("separator", ["/", "."])
def test_chunks_are_found_however_their_keys_are_encoded(
    tmp_path, name, separator, create_v3, any_bits
):
    encoding = {"name": name, "separator": separator}
    array = create_v3(
        tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS, chunk_key_encoding=encoding
    )
    array[:] = any_bits("f4", SHAPE)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


def test_an_array_that_is_the_store_itself_is_read(tmp_path, any_bits):
    array = zarr.create_array(tmp_path / "a.zarr", shape=SHAPE, chunks=CHUNKS, dtype="f4")
    array[:] = any_bits("f4", SHAPE)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize(("shape", "chunks"), [((50,), (8,)), ((9, 14), (4, 5))])
def test_any_number_of_axes_is_read(tmp_path, shape, chunks, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], shape, chunks)
    array[:] = any_bits("f4", shape)
    part = tuple(slice(1, n - 1) for n in shape)
    same(DirectReader(array).read(part), array[part])


@pytest.fixture(scope="module")
def stores(tmp_path_factory, create_v3, create_v2, any_bits):
    """One array of each kind, with chunks and inner chunks that are missing; read with filling."""
    folder = tmp_path_factory.mktemp("stores")
    arrays = []
    for index, (codecs, shards) in enumerate(
        (c, s) for c in ENCODINGS.values() for s in SHARDS.values()
    ):
        arrays.append(
            create_v3(folder / f"{index}.zarr", codecs, SHAPE, CHUNKS, shards=shards, fill_value=7)
        )
    for index, compressor in enumerate(COMPRESSORS.values()):
        arrays.append(
            create_v2(folder / f"v2-{index}.zarr", compressor, SHAPE, CHUNKS, fill_value=7)
        )
    for seed, array in enumerate(arrays):
        voxels = any_bits("f4", SHAPE, seed)
        voxels[:8, 33:55] = 7
        voxels[16:, :, 20:] = 7
        array[:] = voxels
    return [(array, array[:], DirectReader(array, fill_missing=True)) for array in arrays]


regions = st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in SHAPE)).map(
    lambda spans: tuple(slice(min(s), max(s)) for s in spans)
)


@settings(max_examples=300)
@given(data=st.data(), region=regions, spare=st.booleans())
def test_any_region_is_read_as_by_zarr(stores, data, region, spare):
    _, expected, reader = stores[data.draw(st.integers(0, len(stores) - 1))]
    shape = expected[region].shape
    # Memory within a larger array is not contiguous.
    around = np.full([n + 2 for n in shape], -1, np.float32)
    out = around[1:-1, 1:-1, 1:-1] if spare else None
    read = reader.read(region, out)
    same(np.ascontiguousarray(read), expected[region])
    if out is not None:
        assert read is out
        assert (around != -1).sum() == (out != -1).sum()


@pytest.mark.parametrize("fill", [0, 3])
def test_missing_chunks_are_filled_or_named(tmp_path, fill, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS, fill_value=fill)
    array[:] = any_bits("f4", SHAPE)
    (tmp_path / "s.zarr/a/0/c/1/2/0").unlink()
    same(DirectReader(array, fill_missing=True).read(whole(SHAPE)), array[:])
    with pytest.raises(MissingChunkError) as caught:
        DirectReader(array).read(whole(SHAPE))
    assert caught.value.key == "a/0/c/1/2/0"
    DirectReader(array).read((slice(0, 8), slice(0, 50), slice(0, 25)))


def test_a_fill_value_that_version_2_leaves_open_is_zarrs(tmp_path, create_v2):
    array = create_v2(tmp_path / "s.zarr", None, SHAPE, CHUNKS, fill_value=None)
    same(DirectReader(array, fill_missing=True).read(whole(SHAPE)), array[:])


def test_missing_inner_chunks_and_shards_are_filled_or_named(tmp_path, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS, shards=SHARDS["2x2"])
    voxels = any_bits("f4", SHAPE)
    voxels[8:16, 33:44, 0:10] = 0
    array[:] = voxels
    (tmp_path / "s.zarr/a/0/c/0/0/1").unlink()
    same(DirectReader(array, fill_missing=True).read(whole(SHAPE)), array[:])
    reader = DirectReader(array)
    for region, key in (
        ((slice(10, 11), slice(40, 41), slice(5, 6)), "a/0/c/1/1/0 (inner chunk 0/1/0)"),
        ((slice(0, 1), slice(0, 1), slice(20, 21)), "a/0/c/0/0/1"),
    ):
        with pytest.raises(MissingChunkError) as caught:
            reader.read(region)
        assert caught.value.key == key


def test_memory_that_does_not_fit_is_refused(tmp_path, create_v3):
    reader = DirectReader(create_v3(tmp_path / "s.zarr", [], SHAPE, CHUNKS), fill_missing=True)
    region = (slice(0, 4), slice(0, 5), slice(0, 6))
    for out in (np.empty((4, 5, 7), np.float32), np.empty((4, 5, 6), np.float64)):
        with pytest.raises(ValueError, match="memory"):
            reader.read(region, out)
    with pytest.raises(ValueError, match="steps"):
        reader.read((slice(0, 4, 2), slice(0, 5), slice(0, 6)))


def test_many_threads_may_read(stores):
    start = threading.Barrier(8)

    def read(seed):
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(30):
            _, expected, reader = stores[rng.integers(len(stores))]
            low = [int(rng.integers(n)) for n in SHAPE]
            region = tuple(slice(a, a + 20) for a in low)
            same(reader.read(region), expected[region])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


@pytest.mark.parametrize(
    ("call", "number", "shards"),
    [
        ("open", errno.EACCES, "plain"),
        ("open", errno.EACCES, "2x2"),
        ("fstat", errno.ESTALE, "plain"),
        ("fstat", errno.ESTALE, "2x2"),
        ("preadv", errno.EIO, "plain"),
        ("preadv", errno.EIO, "2x2"),
        # By which an index is read.
        ("pread", errno.EIO, "2x2"),
    ],
)
def test_what_the_system_does_not_give_is_not_called_corrupt(
    tmp_path, call, number, shards, create_v3, any_bits, monkeypatch
):
    codecs = [ZstdCodec()]
    array = create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS, shards=SHARDS[shards])
    array[:] = voxels = any_bits("f4", SHAPE)
    reader = DirectReader(array)

    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(UnreadableChunkError) as caught:
            reader.read(whole(SHAPE))
    assert caught.value.key.startswith("a/0/c/0/0/0")
    assert caught.value.reason == os.strerror(number)
    same(reader.read(whole(SHAPE)), voxels)


def test_a_folder_in_place_of_a_chunk_is_named(tmp_path, create_v3, any_bits):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHAPE, CHUNKS)
    array[:] = any_bits("f4", SHAPE)
    file = tmp_path / "s.zarr/a/0/c/0/0/0"
    file.unlink()
    file.mkdir()
    with pytest.raises(CorruptChunkError, match="a/0/c/0/0/0"):
        DirectReader(array).read(whole(SHAPE))
    shutil.rmtree(tmp_path / "s.zarr/a/0/c/0")
    (tmp_path / "s.zarr/a/0/c/0").write_text("")
    with pytest.raises(MissingChunkError):
        DirectReader(array).read(whole(SHAPE))
