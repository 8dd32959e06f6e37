"""Arrays written directly match zarr's; one owner writes an entire shard."""

import resource
from dataclasses import replace

import numpy as np
import pytest
import zarr
from numcodecs import Zstd
from own_arrays import create_v3, own
from refusals import refused
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)

from octane.core.geometry import Grid
from octane.store.chunks import missing_keys
from octane.store.reader import DirectReader
from octane.store.writer import DirectWriter, Level, create_image

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
    with refused(error=ValueError):
        DirectWriter(own(array))[part] = np.zeros([b - a for a, b in region], np.float32)
    assert not (array.store_path.store.root / "a/0/c").exists()


def test_blocks_of_another_shape_or_type_are_refused(create, voxels):
    writer = DirectWriter(own(create()))
    with refused(error=ValueError):
        writer[WHOLE] = voxels[:-1]
    with refused(error=ValueError):
        writer[WHOLE] = voxels.astype(np.float64)


def test_a_full_disk_is_an_oserror_and_leaves_the_old_shard(create, voxels):
    array = create(shards=SHARDS["2x2"])
    writer = DirectWriter(own(array))
    writer[WHOLE] = voxels
    before = files(array)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with refused(error=OSError):
            writer[WHOLE] = voxels + 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(array) == before


@pytest.mark.parametrize(
    ("codecs", "more"),
    [
        ([GzipCodec()], {}),
        ([BytesCodec(endian="big")], {}),
        ([TransposeCodec(order=(2, 1, 0)), BytesCodec()], {}),
        ([ZstdCodec()], {"shards": ((1, 2, 2), "start", True)}),
    ],
)
def test_an_array_that_cannot_be_written_as_its_metadata_say_is_refused(create, codecs, more):
    array = own(create(codecs=codecs, **more))
    with refused("a.zarr"):
        DirectWriter(array)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("codec", ["zstd", "blosc-lz4", "none"])
@pytest.mark.parametrize("shards", [None, (8, 22, 20)])
def test_a_chunk_that_zarr_reads_otherwise_is_an_error(tmp_path, voxels, version, codec, shards):
    levels = [Level(Grid(SHAPE, (1.0, 1.0, 1.0)), CHUNKS, shards)]
    path = tmp_path / "a.ome.zarr"

    def write(values, **fault):
        with create_image(path, levels, "f4", codec=codec, version=version) as [writer]:
            writer.array = replace(writer.array, **fault)
            writer[WHOLE] = values

    for compressor, checked in ((None, False), (Zstd(), True)):
        with refused("/a.ome.zarr"):
            write(voxels, compressor=compressor, checked=checked)
        assert not path.exists()
    values = voxels.copy()
    values[0, 0, :5] = np.nan, -np.nan, np.inf, -0.0, 1e-45
    write(values)
    np.testing.assert_array_equal(zarr.open_array(path / "0", mode="r")[:], values)
