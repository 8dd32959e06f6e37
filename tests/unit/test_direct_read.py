"""Chunks read directly equal what zarr reads, bit for bit; what is broken is found and named."""

import shutil
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from octane.chunk_streams import SENTINEL
from octane.chunks import CorruptChunkError, MissingChunkError
from octane.direct_read import DirectReader
from octane.encoding import NotDirectError
from octane.shards import ShardLayout

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


@dataclass(frozen=True)
class Shards:
    """Inner chunks of a shard, and how its index is kept."""

    counts: tuple[int, int, int]
    location: str = "end"
    checked: bool = True


SHARDS = {
    "plain": None,
    "2x2": Shards((1, 2, 2)),
    "4x4 start": Shards((2, 4, 4), "start"),
    "4x4 unchecked": Shards((1, 4, 4), checked=False),
}


def create_v3(folder, codecs, shards=None, *, dtype="f4", shape=SHAPE, chunks=CHUNKS, **more):
    """An array 'a/0' of zarr v3, not yet written."""
    serializer = BytesCodec(endian="little")
    files = chunks
    codecs = [serializer, *codecs] if not codecs or codecs[0] is not None else codecs[1:]
    if shards is not None:
        files = tuple(c * n for c, n in zip(chunks, shards.counts, strict=True))
        index = [BytesCodec(), *([Crc32cCodec()] if shards.checked else [])]
        codecs = [
            ShardingCodec(
                chunk_shape=chunks,
                codecs=codecs,
                index_codecs=index,
                index_location=shards.location,
            )
        ]
    zarr.open_group(folder, mode="w", zarr_format=3)
    return zarr.create(
        store=folder,
        path="a/0",
        shape=shape,
        chunks=files,
        dtype=dtype,
        codecs=codecs,
        zarr_format=3,
        config={"write_empty_chunks": False},
        **more,
    )


def create_v2(folder, compressor, *, dtype="f4", shape=SHAPE, chunks=CHUNKS, **more):
    """An array 'a/0' of zarr v2, not yet written."""
    zarr.open_group(folder, mode="w", zarr_format=2)
    return zarr.create(
        store=folder,
        path="a/0",
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        compressor=compressor,
        zarr_format=2,
        config={"write_empty_chunks": False},
        **more,
    )


def voxels_of_type(dtype, shape=SHAPE, seed=0):
    """Any bits, NaN with every payload among them, and some blocks of zeros."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    # Coarse along x, so that there is something to compress.
    size = int(np.prod(shape)) * dtype.itemsize
    return (rng.integers(0, 256, size, np.uint8) & 0x3C).view(dtype).reshape(shape)


def same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()


def whole(shape):
    return tuple(slice(0, n) for n in shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
def test_version_3_is_read_as_by_zarr(tmp_path, codecs, shards, dtype):
    array = create_v3(tmp_path / "s.zarr", codecs, shards, dtype=dtype)
    array[:] = voxels_of_type(dtype)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize("dtype", [f"<{d}" if d[1] > "1" else f"|{d}" for d in DTYPES])
@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_version_2_is_read_as_by_zarr(tmp_path, compressor, separator, dtype):
    array = create_v2(tmp_path / "s.zarr", compressor, dtype=dtype, dimension_separator=separator)
    array[:] = voxels_of_type(dtype)
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize("name", ["default", "v2"])
@pytest.mark.parametrize("separator", ["/", "."])
def test_chunks_are_found_however_their_keys_are_encoded(tmp_path, name, separator):
    encoding = {"name": name, "separator": separator}
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], chunk_key_encoding=encoding)
    array[:] = voxels_of_type("f4")
    same(DirectReader(array).read(whole(SHAPE)), array[:])


def test_an_array_that_is_the_store_itself_is_read(tmp_path):
    array = zarr.create_array(tmp_path / "a.zarr", shape=SHAPE, chunks=CHUNKS, dtype="f4")
    array[:] = voxels_of_type("f4")
    same(DirectReader(array).read(whole(SHAPE)), array[:])


@pytest.mark.parametrize(("shape", "chunks"), [((50,), (8,)), ((9, 14), (4, 5))])
def test_any_number_of_axes_is_read(tmp_path, shape, chunks):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], shape=shape, chunks=chunks)
    array[:] = voxels_of_type("f4", shape)
    part = tuple(slice(1, n - 1) for n in shape)
    same(DirectReader(array).read(part), array[part])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One array of each kind, with chunks and inner chunks that are missing; read with filling."""
    folder = tmp_path_factory.mktemp("stores")
    arrays = []
    for index, (codecs, shards) in enumerate(
        (c, s) for c in ENCODINGS.values() for s in SHARDS.values()
    ):
        arrays.append(create_v3(folder / f"{index}.zarr", codecs, shards, fill_value=7))
    for index, compressor in enumerate(COMPRESSORS.values()):
        arrays.append(create_v2(folder / f"v2-{index}.zarr", compressor, fill_value=7))
    for seed, array in enumerate(arrays):
        voxels = voxels_of_type("f4", seed=seed)
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
def test_missing_chunks_are_filled_or_named(tmp_path, fill):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], fill_value=fill)
    array[:] = voxels_of_type("f4")
    (tmp_path / "s.zarr/a/0/c/1/2/0").unlink()
    same(DirectReader(array, fill_missing=True).read(whole(SHAPE)), array[:])
    with pytest.raises(MissingChunkError) as caught:
        DirectReader(array).read(whole(SHAPE))
    assert caught.value.key == "a/0/c/1/2/0"
    DirectReader(array).read((slice(0, 8), slice(0, 50), slice(0, 25)))


def test_a_fill_value_that_version_2_leaves_open_is_zarrs(tmp_path):
    array = create_v2(tmp_path / "s.zarr", None, fill_value=None)
    same(DirectReader(array, fill_missing=True).read(whole(SHAPE)), array[:])


def test_missing_inner_chunks_and_shards_are_filled_or_named(tmp_path):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], SHARDS["2x2"])
    voxels = voxels_of_type("f4")
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


UNKNOWN = {
    "transposed": lambda f: create_v3(f, [None, TransposeCodec(order=(2, 1, 0)), BytesCodec()]),
    "gzip": lambda f: create_v3(f, [GzipCodec()]),
    "two compressors": lambda f: create_v3(f, [BloscCodec(), ZstdCodec()]),
    "checksum before": lambda f: create_v3(f, [Crc32cCodec(), ZstdCodec()]),
    "big-endian": lambda f: create_v3(f, [None, BytesCodec(endian="big")]),
    "gzip in shards": lambda f: create_v3(f, [GzipCodec()], SHARDS["2x2"]),
    "shards in shards": lambda f: create_v3(
        f, [None, ShardingCodec(chunk_shape=(4, 11, 5))], SHARDS["2x2"]
    ),
    "shards with a checksum": lambda f: create_v3(
        f, [None, ShardingCodec(chunk_shape=(4, 11, 5)), Crc32cCodec()]
    ),
    "index compressed": lambda f: create_v3(
        f,
        [
            None,
            ShardingCodec(
                chunk_shape=(4, 11, 5),
                index_codecs=[BytesCodec(endian="big"), Crc32cCodec()],
            ),
        ],
    ),
    "v2 big-endian": lambda f: create_v2(f, None, dtype=">f4"),
    "v2 F order": lambda f: create_v2(f, None, order="F"),
    "v2 zlib": lambda f: create_v2(f, numcodecs.Zlib()),
    "v2 filter": lambda f: create_v2(f, None, filters=[numcodecs.Shuffle(4)]),
    "another type": lambda f: create_v2(f, None, dtype="M8[s]"),
}


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize("create", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_encoded_otherwise_is_left_to_zarr(tmp_path, create):
    with pytest.raises(NotDirectError, match=r"\w+ \w+"):
        DirectReader(create(tmp_path / "s.zarr"))


def test_a_store_that_is_no_folder_is_left_to_zarr():
    array = zarr.create_array({}, shape=SHAPE, dtype="f4")
    with pytest.raises(NotDirectError, match="folder"):
        DirectReader(array)


def test_memory_that_does_not_fit_is_refused(tmp_path):
    reader = DirectReader(create_v3(tmp_path / "s.zarr", []), fill_missing=True)
    region = (slice(0, 4), slice(0, 5), slice(0, 6))
    for out in (np.empty((4, 5, 7), np.float32), np.empty((4, 5, 6), np.float64)):
        with pytest.raises(ValueError, match="memory"):
            reader.read(region, out)
    with pytest.raises(ValueError, match="steps"):
        reader.read((slice(0, 4, 2), slice(0, 5), slice(0, 6)))


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_chunk_is_streamed_in_batches(tmp_path, codecs, batch):
    array = create_v3(tmp_path / "s.zarr", codecs, SHARDS["2x2"])
    voxels = voxels_of_type("f4")
    array[:] = voxels
    buffer = np.empty((batch, *CHUNKS[1:]), np.float32)
    with DirectReader(array).stream((0, 3, 1)) as stream:
        for start in range(0, CHUNKS[0], batch):
            planes = buffer[: CHUNKS[0] - start]
            stream.read_into(planes)
            same(planes, voxels[start : start + batch, 33:44, 10:20][: CHUNKS[0] - start])
        assert stream.left == 0


@pytest.mark.parametrize("codecs", ENCODINGS.values(), ids=ENCODINGS)
def test_bytes_may_be_passed_over(tmp_path, codecs):
    array = create_v3(tmp_path / "s.zarr", codecs)
    array[:] = voxels = voxels_of_type("f4")
    plane = np.empty(CHUNKS[1:], np.float32)
    with DirectReader(array).stream((1, 0, 0)) as stream:
        stream.skip(3 * plane.nbytes)
        stream.read_into(plane)
        same(plane, voxels[11, :11, :10])
        stream.drain()


def test_a_buffer_that_is_not_contiguous_or_too_large_is_refused(tmp_path):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()])
    array[:] = voxels_of_type("f4")
    with DirectReader(array).stream((0, 0, 0)) as stream:
        for buffer in (np.empty((8, 10, 11), np.float32).T, np.empty((9, 11, 10), np.float32)):
            with pytest.raises(ValueError, match="buffer"):
                stream.read_into(buffer)
        with pytest.raises(ValueError, match="left"):
            stream.skip(stream.left + 1)


def test_two_chunks_may_be_streamed_at_once(tmp_path):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()])
    array[:] = voxels = voxels_of_type("f4")
    reader = DirectReader(array)
    first, second = (np.empty((4, *CHUNKS[1:]), np.float32) for _ in range(2))
    with reader.stream((0, 0, 0)) as one, reader.stream((0, 1, 0)) as other:
        for start in (0, 4):
            one.read_into(first)
            other.read_into(second)
            same(first, voxels[start : start + 4, :11, :10])
            same(second, voxels[start : start + 4, 11:22, :10])


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


@pytest.mark.parametrize("codecs", [[], [ZstdCodec()]], ids=["none", "zstd"])
def test_a_chunk_is_streamed_without_being_held(tmp_path, codecs):
    shape = (64, 256, 256)
    array = create_v3(tmp_path / "s.zarr", codecs, shape=shape, chunks=shape)
    array[:] = voxels_of_type("f4", shape)
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
def test_a_chunk_cut_short_is_found(tmp_path, codecs, cut):
    array = create_v3(tmp_path / "s.zarr", codecs)
    array[:] = voxels_of_type("f4")
    file = tmp_path / "s.zarr/a/0/c/1/2/0"
    file.write_bytes(file.read_bytes()[:-cut])
    broken(array, "a/0/c/1/2/0", "")


@pytest.mark.parametrize(
    "name", ["none crc32c", "zstd checksum", "zstd crc32c", "blosc-zstd crc32c"]
)
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8, 1])
def test_one_flipped_bit_is_found(tmp_path, name, at):
    array = create_v3(tmp_path / "s.zarr", ENCODINGS[name])
    array[:] = voxels_of_type("f4")
    file = tmp_path / "s.zarr/a/0/c/1/2/0"
    content = bytearray(file.read_bytes())
    content[int(at * (len(content) - 1))] ^= 4
    file.write_bytes(content)
    broken(array, "a/0/c/1/2/0", "")
    # Also when only planes before it are wanted.
    broken(array, "a/0/c/1/2/0", "", (slice(8, 9), slice(22, 23), slice(0, 1)))


@pytest.mark.parametrize("checksum", [False, True])
def test_frames_cut_anywhere_are_refused(tmp_path, checksum):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], shape=(6, 6, 6), chunks=(6, 6, 6))
    array[:] = voxels = voxels_of_type("f4", (6, 6, 6))
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
def test_a_chunk_of_another_length_is_refused(tmp_path, codec, change):
    codecs = {"none": [], "zstd": [ZstdCodec()], "blosc": [BloscCodec()]}[codec]
    array = create_v3(tmp_path / "s.zarr", codecs, dtype="u1", shape=(6, 6, 6), chunks=(6, 6, 6))
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


def test_a_frame_with_a_large_window_is_read(tmp_path):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()], shape=(6, 6, 6), chunks=(6, 6, 6))
    array[:] = voxels = voxels_of_type("f4", (6, 6, 6))
    parameters = zstandard.ZstdCompressionParameters(
        window_log=28, hash_log=10, chain_log=10, strategy=zstandard.STRATEGY_FAST
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressor.compress(voxels.tobytes()) + compressor.flush()
    assert zstandard.get_frame_parameters(content).window_size == 2**28
    (tmp_path / "s.zarr/a/0/c/0/0/0").write_bytes(content)
    same(DirectReader(array).read(whole((6, 6, 6))), voxels)


@pytest.fixture(params=["end", "start"])
def sharded(tmp_path, request):
    """An array of two shards of 2 x 2 chunks, and the first shard's file."""
    array = create_v3(
        tmp_path / "s.zarr",
        [],
        Shards((1, 2, 2), request.param),
        shape=(4, 8, 16),
        chunks=(4, 4, 4),
    )
    array[:] = voxels_of_type("f4", (4, 8, 16))
    return array, tmp_path / "s.zarr/a/0/c/0/0/0", request.param


def test_a_shard_too_short_for_its_index_is_found(sharded):
    array, file, _ = sharded
    file.write_bytes(file.read_bytes()[:67])
    broken(array, "a/0/c/0/0/0", "too short")


def test_an_index_that_does_not_match_its_checksum_is_found(sharded):
    array, file, location = sharded
    content = bytearray(file.read_bytes())
    content[9 if location == "start" else -60] ^= 1
    file.write_bytes(content)
    broken(array, "a/0/c/0/0/0", "index does not match its checksum")


@pytest.mark.parametrize("entry", [(10**6, 256), (0, 10**6), (2**63, 256), (2**64 - 1, 256)])
def test_an_inner_chunk_beyond_the_files_end_is_found(sharded, entry):
    array, file, _ = sharded
    layout = ShardLayout.of(array)
    assert layout is not None
    with file.open("rb") as stream:
        index = layout.read_index(stream.fileno()).copy()
    index[0, 1, 0] = entry
    content = file.read_bytes()
    encoded = layout.encoded_index(index)
    if layout.at_end:
        content = content[: -len(encoded)] + encoded
    else:
        content = encoded + content[len(encoded) :]
    file.write_bytes(content)
    broken(array, "a/0/c/0/0/0 (inner chunk 0/1/0)", "not all in the file")
    # The others are as they were.
    DirectReader(array).read((slice(0, 4), slice(0, 4), slice(0, 16)))


def test_the_index_of_a_shard_is_read_once(sharded):
    array, file, _ = sharded
    reader = DirectReader(array)
    expected = array[:, :, :8]
    reader.read((slice(0, 1), slice(0, 1), slice(0, 1)))
    content = bytearray(file.read_bytes())
    layout = ShardLayout.of(array)
    assert layout is not None
    size = layout.index_bytes
    start = len(content) - size if layout.at_end else 0
    content[start : start + size] = bytes(size)
    file.write_bytes(content)
    same(reader.read((slice(0, 4), slice(0, 8), slice(0, 8))), expected)


def test_a_folder_in_place_of_a_chunk_is_named(tmp_path):
    array = create_v3(tmp_path / "s.zarr", [ZstdCodec()])
    array[:] = voxels_of_type("f4")
    file = tmp_path / "s.zarr/a/0/c/0/0/0"
    file.unlink()
    file.mkdir()
    broken(array, "a/0/c/0/0/0", "")
    shutil.rmtree(tmp_path / "s.zarr/a/0/c/0")
    (tmp_path / "s.zarr/a/0/c/0").write_text("")
    with pytest.raises(MissingChunkError):
        DirectReader(array).read(whole(SHAPE))
