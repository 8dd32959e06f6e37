"""Which stored objects hold a region, and which of them, or of their inner chunks, are missing."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from octane.store.chunks import missing_keys, owned_shape, stored_objects

WHOLE = (slice(0, 20), slice(0, 30), slice(0, 25))


def region(*spans):
    return tuple(slice(a, b) for a, b in spans)


@pytest.fixture
def create(tmp_path):
    """An array of 20 x 30 x 25 voxels in chunks of 10 x 10 x 10, not yet written."""

    def make(**options):
        group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
        return group.create_array(
            "0", shape=(20, 30, 25), dtype="f4", chunks=(10, 10, 10), **options
        )

    return make


def test_a_region_is_held_by_the_chunks_that_it_touches(create, tmp_path):
    stored = list(stored_objects(create(), tmp_path / "a.zarr", region((5, 10), (9, 11), (20, 25))))
    assert [s.key for s in stored] == ["0/c/0/0/2", "0/c/0/1/2"]
    assert stored[0].region == region((0, 10), (0, 10), (20, 25))
    assert stored[1].file == tmp_path / "a.zarr/0/c/0/1/2"


def test_a_shard_is_one_stored_object(create, tmp_path):
    array = create(shards=(20, 20, 20))
    assert owned_shape(array) == (20, 20, 20)
    keys = [s.key for s in stored_objects(array, tmp_path / "a.zarr", WHOLE)]
    assert keys == ["0/c/0/0/0", "0/c/0/0/1", "0/c/0/1/0", "0/c/0/1/1"]
    # It was never written.
    assert list(missing_keys(array, tmp_path / "a.zarr", WHOLE)) == keys
    assert not list(stored_objects(array, tmp_path / "a.zarr", region((5, 5), (0, 9), (0, 9))))


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("checked", [False, True])
def test_inner_chunks_are_looked_up_wherever_the_index_is(tmp_path, location, checked):
    codec = ShardingCodec(
        chunk_shape=(10, 10, 10),
        codecs=[BytesCodec()],
        index_codecs=[BytesCodec(), *([Crc32cCodec()] if checked else [])],
        index_location=location,
    )
    zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    array = zarr.create(
        store=tmp_path / "a.zarr",
        path="0",
        shape=(20, 30, 25),
        chunks=(20, 20, 20),
        dtype="f4",
        codecs=[codec],
        zarr_format=3,
        config={"write_empty_chunks": False},
    )
    voxels = np.ones((20, 30, 25), np.float32)
    voxels[0:10, 10:20, 0:10] = 0
    array[:] = voxels
    store = tmp_path / "a.zarr"
    missing = ["0/c/0/0/0 (inner chunk 0/1/0)"]
    assert list(missing_keys(array, store, WHOLE)) == missing
    assert list(missing_keys(array, store, region((9, 10), (19, 21), (9, 10)))) == missing
    assert not list(missing_keys(array, store, region((10, 20), (10, 20), (0, 10))))


def test_a_shard_too_short_for_its_index_is_missing_that(create, tmp_path):
    array = create(shards=(20, 20, 20))
    array[:] = 1
    (tmp_path / "a.zarr/0/c/0/1/0").write_bytes(b"short")
    assert list(missing_keys(array, tmp_path / "a.zarr", WHOLE)) == [
        "0/c/0/1/0 (inner chunk index)"
    ]
