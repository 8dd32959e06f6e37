"""Which encodings octane reads and writes by itself; the others are told apart, with the reason."""

import numcodecs
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from octane.store.encoding import Encoding, NotDirectError
from octane.store.shards import ShardLayout

SHAPE = (16, 16, 16)
CHUNKS = (8, 8, 8)
INNER = (4, 4, 4)


def refused(array, words):
    with pytest.raises(NotDirectError, match=words):
        Encoding.of(array)


@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        ([TransposeCodec(order=(2, 1, 0)), BytesCodec()], "TransposeCodec"),
        ([GzipCodec()], "GzipCodec"),
        ([BloscCodec(), ZstdCodec()], "BloscCodec, ZstdCodec"),
        ([Crc32cCodec(), ZstdCodec()], "Crc32cCodec, ZstdCodec"),
        ([BytesCodec(endian="big")], "big-endian"),
        ([ShardingCodec(chunk_shape=INNER, codecs=[BytesCodec(), GzipCodec()])], "GzipCodec"),
        (
            [ShardingCodec(chunk_shape=INNER, codecs=[ShardingCodec(chunk_shape=(2, 2, 2))])],
            "ShardingCodec",
        ),
        ([ShardingCodec(chunk_shape=INNER), Crc32cCodec()], "its shards"),
        ([ShardingCodec(chunk_shape=INNER, index_codecs=[BytesCodec(endian="big")])], "its shards"),
    ],
)
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_other_codecs_of_version_3_are_left_to_zarr(tmp_path, create_v3, codecs, words):
    refused(create_v3(tmp_path / "s.zarr", codecs, SHAPE, CHUNKS), words)


@pytest.mark.parametrize(
    ("compressor", "more", "words"),
    [
        (None, {"dtype": ">f4"}, "big-endian"),
        (None, {"order": "F"}, "F order"),
        (numcodecs.Zlib(), {}, "Zlib"),
        (None, {"filters": [numcodecs.Shuffle(4)]}, "filters"),
        (None, {"dtype": "M8[s]"}, "datetime64"),
    ],
)
def test_other_encodings_of_version_2_are_left_to_zarr(
    tmp_path, create_v2, compressor, more, words
):
    refused(create_v2(tmp_path / "s.zarr", compressor, SHAPE, CHUNKS, **more), words)


def test_a_store_that_is_no_folder_is_left_to_zarr():
    refused(zarr.create_array({}, shape=SHAPE, dtype="f4"), "folder")


def test_one_byte_has_no_order(tmp_path, create_v3):
    array = create_v3(tmp_path / "s.zarr", [BytesCodec(endian="big")], SHAPE, CHUNKS, dtype="u1")
    assert Encoding.of(array).chunk_bytes == 512


def test_what_the_metadata_says_is_known(tmp_path, create_v3):
    codecs = [BloscCodec(cname="zlib", clevel=3, shuffle="bitshuffle"), Crc32cCodec()]
    shards = ((1, 2, 3), "start", False)
    encoding = Encoding.of(
        create_v3(
            tmp_path / "s.zarr", codecs, SHAPE, INNER, shards=shards, dtype="u2", fill_value=9
        )
    )
    assert (encoding.chunks, encoding.chunk_bytes, encoding.checked) == (INNER, 128, True)
    assert encoding.folder == tmp_path / "s.zarr"
    assert encoding.fill == 9
    assert encoding.fill.dtype == "<u2"
    assert encoding.compressor is not None
    assert encoding.compressor.get_config() == {
        "id": "blosc",
        "cname": "zlib",
        "clevel": 3,
        "shuffle": numcodecs.Blosc.BITSHUFFLE,
        "blocksize": 0,
    }
    assert encoding.shard == ShardLayout((1, 2, 3), at_end=False, checked=False)
