"""Stored objects of a region, and which of them or of their inner chunks are missing."""

import numpy as np
import pytest
from own_arrays import create_v3, own

from octane.store.chunks import missing_keys, stored_objects

SHAPE = (20, 30, 25)
WHOLE = tuple(slice(0, n) for n in SHAPE)


def region(*spans):
    return tuple(slice(a, b) for a, b in spans)


@pytest.fixture
def create(tmp_path):
    """An array in chunks of 10 x 10 x 10, not yet written, and its store."""
    store = tmp_path / "s.zarr"
    return lambda shards=None: (create_v3(store, [], SHAPE, (10, 10, 10), shards=shards), store)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("checked", [False, True])
def test_shards_and_inner_chunks_are_looked_up_wherever_the_index_is(create, location, checked):
    array, store = create(((2, 2, 2), location, checked))
    assert own(array).object_shape == (20, 20, 20)
    keys = [s.key for s in stored_objects(own(array), WHOLE)]
    assert keys == [f"a/0/c/0/{y}/{x}" for y in range(2) for x in range(2)]
    assert not list(stored_objects(own(array), region((5, 5), (0, 9), (0, 9))))
    (last,) = stored_objects(own(array), region((5, 10), (9, 11), (20, 25)))
    assert last.region == region((0, 20), (0, 20), (20, 25))
    assert own(array).locate(last.key) == (store / keys[1], 0, None)
    assert list(missing_keys(own(array), WHOLE)) == keys
    voxels = np.ones(SHAPE, np.float32)
    voxels[0:10, 10:20, 0:10] = 0
    array[:] = voxels
    missing = ["a/0/c/0/0/0 (inner chunk 0/1/0)"]
    assert list(missing_keys(own(array), WHOLE)) == missing
    assert list(missing_keys(own(array), region((9, 10), (19, 21), (9, 10)))) == missing
    assert not list(missing_keys(own(array), region((10, 20), (10, 20), (0, 10))))
    (store / keys[2]).write_bytes(b"short")
    missing.append("a/0/c/0/1/0 (inner chunk index)")
    assert list(missing_keys(own(array), WHOLE)) == missing
