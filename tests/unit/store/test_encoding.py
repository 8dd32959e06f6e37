"""Encodings that octane reads itself, and the reason why zarr reads the others."""

import numcodecs
import pytest
from own_arrays import any_bits, create_v2, create_v3, own
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from octane.core.errors import CorruptChunkError
from octane.store.reader import DirectReader

SHAPE = (16, 16, 16)
CHUNKS = (8, 8, 8)
INNER = (4, 4, 4)


def refused(array, words):
    assert words in own(array).why_zarr


@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        ([TransposeCodec(order=(2, 1, 0)), BytesCodec()], "transpose"),
        ([GzipCodec()], "gzip"),
        ([BloscCodec(), ZstdCodec()], "blosc, zstd"),
        ([Crc32cCodec(), ZstdCodec()], "crc32c, zstd"),
        ([BytesCodec(endian="big")], "big-endian"),
        ([ShardingCodec(chunk_shape=INNER, codecs=[BytesCodec(), GzipCodec()])], "gzip"),
        (
            [ShardingCodec(chunk_shape=INNER, codecs=[ShardingCodec(chunk_shape=(2, 2, 2))])],
            "the codec sharding",
        ),
        ([ShardingCodec(chunk_shape=INNER), Crc32cCodec()], "the codec sharding"),
        (
            [ShardingCodec(chunk_shape=INNER, index_codecs=[BytesCodec(endian="big")])],
            "its shard indices",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_other_codecs_of_version_3_are_left_to_zarr(tmp_path, codecs, words):
    refused(create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS), words)


@pytest.mark.parametrize(
    ("compressor", "more", "words"),
    [
        (None, {"dtype": ">f4"}, "big-endian"),
        (None, {"order": "F"}, "F order"),
        (numcodecs.Zlib(), {}, "zlib"),
        (None, {"filters": [numcodecs.Shuffle(4)]}, "filters"),
        (None, {"dtype": "M8[s]"}, "datetime64"),
    ],
)
def test_other_encodings_of_version_2_are_left_to_zarr(tmp_path, compressor, more, words):
    refused(create_v2(tmp_path / "s.zarr", compressor, SHAPE, CHUNKS, **more), words)


def unreadable(array, key, words):
    with pytest.raises(CorruptChunkError) as caught:
        DirectReader(own(array)).read(tuple(slice(0, n) for n in array.shape))
    assert caught.value.key == key
    assert words in caught.value.reason


@pytest.fixture(params=["end", "start"])
def sharded(tmp_path, request):
    """An array of two shards of 2 x 2 chunks, and the first shard's file."""
    array = create_v3(
        tmp_path / "s.zarr", [], (4, 8, 16), (4, 4, 4), shards=((1, 2, 2), request.param, True)
    )
    array[:] = any_bits("f4", (4, 8, 16))
    return array, tmp_path / "s.zarr/a/0/c/0/0/0", request.param


def test_a_damaged_index_is_found(sharded):
    array, file, location = sharded
    content = bytearray(file.read_bytes())
    file.write_bytes(content[:67])
    unreadable(array, "a/0/c/0/0/0", "too short")
    content[9 if location == "start" else -60] ^= 1
    file.write_bytes(content)
    unreadable(array, "a/0/c/0/0/0", "index does not match its checksum")


@pytest.mark.parametrize("entry", [(10**6, 256), (0, 10**6), (2**63, 256), (2**64 - 1, 256)])
def test_an_inner_chunk_beyond_the_files_end_is_found(sharded, entry):
    array, file, location = sharded
    layout = own(array).layout
    assert layout is not None
    with file.open("rb") as stream:
        index = layout.read_index(stream.fileno()).copy()
    index[0, 1, 0] = entry
    content, size = bytearray(file.read_bytes()), layout.index_bytes
    place = slice(size) if location == "start" else slice(-size, None)
    content[place] = layout.encoded_index(index)
    file.write_bytes(content)
    unreadable(array, "a/0/c/0/0/0 (inner chunk 0/1/0)", "beyond the end of the file")
    # The other chunks are intact.
    DirectReader(own(array)).read((slice(0, 4), slice(0, 4), slice(0, 16)))
