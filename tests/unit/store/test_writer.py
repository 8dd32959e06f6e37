"""Arrays written directly match zarr's; one owner writes an entire shard."""

import resource

import numpy as np
import pytest
import zarr
from own_arrays import create_v3, own
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from octane.store.chunks import missing_keys
from octane.store.reader import DirectReader
from octane.store.writer import DirectWriter

SHAPE = (20, 50, 25)
CHUNKS = (8, 11, 10)
WHOLE = tuple(slice(0, n) for n in SHAPE)
CODECS = {
    "none": [],
    "zstd": [ZstdCodec(level=5, checksum=True)],
    "zstd crc32c": [ZstdCodec(), Crc32cCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4")],
    "blosc-zstd": [BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle")],
}
SHARDS = {"plain": None, "2x2": ((1, 2, 2), "end", True), "4x4": ((2, 4, 4), "end", True)}


@pytest.fixture
def create(tmp_path):
    """Create an empty array with the given codecs."""
    return lambda name="a.zarr", codecs=(), **more: create_v3(
        tmp_path / name, codecs, SHAPE, CHUNKS, **more
    )


@pytest.fixture
def voxels(rng):
    return rng.integers(0, 60, SHAPE).astype(np.float32)


def files(array):
    folder = array.store_path.store.root / "a/0/c"
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
    ("codecs", "shards", "dtype"),
    [
        *((codecs, shards, "f4") for codecs in CODECS for shards in SHARDS),
        *(("zstd", "2x2", dtype) for dtype in ("u1", "u2", "c8", "b1")),
    ],
)
def test_zarr_reads_written_arrays(create, voxels, codecs, shards, dtype):
    array = create(codecs=CODECS[codecs], shards=SHARDS[shards], dtype=dtype, fill_value=1)
    values = voxels.astype(dtype)
    DirectWriter(own(array))[WHOLE] = values
    again = zarr.open_array(array.store_path.store.root / "a/0", mode="r")
    np.testing.assert_array_equal(again[:], values)
    np.testing.assert_array_equal(DirectReader(own(again)).read(WHOLE), values)
    assert not list(missing_keys(own(array), WHOLE))


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_chunk_files_are_those_of_zarr(create, voxels, codecs):
    theirs = create("theirs.zarr", codecs)
    theirs[:] = voxels
    ours = create("ours.zarr", codecs)
    DirectWriter(own(ours))[WHOLE] = voxels
    assert files(ours) == files(theirs)


@pytest.mark.parametrize(
    "region",
    [
        ((0, 8), (0, 11), (0, 10)),
        ((0, 8), (0, 22), (0, 10)),
        ((8, 16), (22, 44), (10, 20)),
        ((0, 8), (22, 49), (0, 20)),
        ((8, 8), (0, 22), (0, 20)),
        ((0, 20), (0, 50), (0, 24)),
    ],
)
def test_a_part_of_a_shard_is_refused(create, region):
    array = create(shards=SHARDS["2x2"])
    part = tuple(slice(a, b) for a, b in region)
    with pytest.raises(ValueError, match="entire objects"):
        DirectWriter(own(array))[part] = np.zeros([b - a for a, b in region], np.float32)
    assert not (array.store_path.store.root / "a/0/c").exists()


def test_blocks_of_another_shape_or_type_are_refused(create, voxels):
    writer = DirectWriter(own(create()))
    with pytest.raises(ValueError, match="does not fill"):
        writer[WHOLE] = voxels[:-1]
    with pytest.raises(ValueError, match="float64"):
        writer[WHOLE] = voxels.astype(np.float64)


def test_a_full_disk_is_an_oserror_and_leaves_the_old_shard(create, voxels):
    array = create(shards=SHARDS["2x2"])
    writer = DirectWriter(own(array))
    writer[WHOLE] = voxels
    before = files(array)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            writer[WHOLE] = voxels + 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(array) == before
