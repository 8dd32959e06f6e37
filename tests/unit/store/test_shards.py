"""The index of a shard: found, checked, and read once; what it says is not believed blindly."""

import pytest

from octane.store.chunks import CorruptChunkError
from octane.store.reader import DirectReader
from octane.store.shards import ShardLayout


def refused(array, key, words):
    with pytest.raises(CorruptChunkError) as caught:
        DirectReader(array).read(tuple(slice(0, n) for n in array.shape))
    assert caught.value.key == key
    assert words in caught.value.reason


@pytest.fixture(params=["end", "start"])
def sharded(tmp_path, request, create_v3, any_bits):
    """An array of two shards of 2 x 2 chunks, and the first shard's file."""
    array = create_v3(
        tmp_path / "s.zarr", [], (4, 8, 16), (4, 4, 4), shards=((1, 2, 2), request.param, True)
    )
    array[:] = any_bits("f4", (4, 8, 16))
    return array, tmp_path / "s.zarr/a/0/c/0/0/0", request.param


def test_a_shard_too_short_for_its_index_is_found(sharded):
    array, file, _ = sharded
    file.write_bytes(file.read_bytes()[:67])
    refused(array, "a/0/c/0/0/0", "too short")


def test_an_index_that_does_not_match_its_checksum_is_found(sharded):
    array, file, location = sharded
    content = bytearray(file.read_bytes())
    content[9 if location == "start" else -60] ^= 1
    file.write_bytes(content)
    refused(array, "a/0/c/0/0/0", "index does not match its checksum")


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
    refused(array, "a/0/c/0/0/0 (inner chunk 0/1/0)", "not all in the file")
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
    read = reader.read((slice(0, 4), slice(0, 8), slice(0, 8)))
    assert read.tobytes() == expected.tobytes()
