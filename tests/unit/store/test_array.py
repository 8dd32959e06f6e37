"""Arrays match what zarr opens, and images match the specification."""

import json
from math import prod

import numpy as np
import pytest
import zarr
from own_arrays import own
from yaozarrs import v05

from octane.core.geometry import Grid
from octane.store.encoding import VOXEL_TYPES
from octane.store.writer import Level, create_image

SHAPE, CHUNKS, SHARDS = (20, 30, 25), (5, 6, 10), (10, 12, 20)
KEYS = {"name": "default", "configuration": {"separator": "/"}}
LITTLE, CRC = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}


def blosc(size):
    shuffle = "shuffle" if size > 1 else "bitshuffle"
    sizes = {"typesize": size, "cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    return {"name": "blosc", "configuration": sizes}


@pytest.mark.parametrize(
    ("codec", "codecs"),
    [
        ("zstd", lambda _: [ZSTD]),
        ("blosc-lz4", lambda size: [blosc(size), CRC]),
        ("none", lambda _: [CRC]),
    ],
)
@pytest.mark.parametrize("shards", [None, SHARDS])
def test_metadata_of_written_arrays(tmp_path, codec, codecs, shards):
    grid = Grid(SHAPE, (10.0, 10.0, 10.0), (0.0, 0.0, 0.0))
    for dtype in VOXEL_TYPES:
        size = dtype.itemsize
        path = tmp_path / f"{dtype.name}.ome.zarr"
        with create_image(path, [Level(grid, CHUNKS, shards)], dtype, codec=codec) as (writer,):
            writer[tuple(slice(0, n) for n in SHAPE)] = np.ones(SHAPE, dtype)
        chain = [LITTLE if size > 1 else {"name": "bytes"}, *codecs(size)]
        if shards is not None:
            index = {"index_codecs": [LITTLE, CRC], "index_location": "end"}
            sharding = {"chunk_shape": [*CHUNKS], "codecs": chain, **index}
            chain = [{"name": "sharding_indexed", "configuration": sharding}]
        grid_of_chunks = {"chunk_shape": [*(shards or CHUNKS)]}
        assert json.loads((path / "0/zarr.json").read_text()) == {
            "shape": [*SHAPE],
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": grid_of_chunks},
            "chunk_key_encoding": KEYS,
            "fill_value": [0, 0] if dtype.kind == "c" else 0,
            "codecs": chain,
            "attributes": {},
            "dimension_names": ["z", "y", "x"],
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


@pytest.mark.parametrize("dtype", ["f4", "u1", "i2", "c8", "b1"])
@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("version", [2, 3])
def test_keys_and_fill_values_are_those_of_zarr(tmp_path, dtype, separator, version):
    keys = {"name": "default" if version == 3 else "v2", "separator": separator}
    made = zarr.create_array(
        tmp_path / "a.zarr", name="0", shape=SHAPE, chunks=CHUNKS, dtype=dtype, zarr_format=version,
        fill_value=1, chunk_key_encoding=keys,
    )  # fmt: skip
    array = own(made)
    assert not array.why_zarr
    assert array.fill == made.fill_value == 1
    assert array.fill.dtype == made.dtype
    made[5:10, 6:12, 10:20] = 0
    assert (tmp_path / "a.zarr" / array.key((1, 1, 1))).exists()
    assert array.path == "0"


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("kind", ["mosaic", "volume"])
def test_metadata_of_images_are_those_of_the_specification(tmp_path, levels, kind):
    shape = (4, 6, 8)
    sizes = [Level(Grid(shape, (10.0, 2.5, 3.0), (0.0, -1.5, 7.0)), shape)] * levels
    path = tmp_path / "brain.a.ome.zarr"
    noted = {"kind": kind, "channel": "488 µm", "missing": None}
    with create_image(path, sizes, "u2", attributes=noted) as writers:
        for writer in writers:
            writer[tuple(slice(0, n) for n in shape)] = np.arange(192, dtype="u2").reshape(shape)
    content = (path / "zarr.json").read_text()
    group = zarr.open_group(path, mode="r")
    attributes = dict(group.attrs)
    model = v05.Image.model_validate(attributes["ome"])
    ome = model.model_dump(mode="json", exclude_none=True)
    assert json.dumps(ome) == json.dumps(attributes["ome"])
    assert attributes["octane"] == noted
    assert json.dumps(group.metadata.to_dict(), indent=2) == content


def test_chunks_larger_than_blosc_compresses_have_zstd(tmp_path, monkeypatch):
    grid, size = Grid(SHAPE, (10.0, 10.0, 10.0), (0.0, 0.0, 0.0)), 4 * prod(CHUNKS)
    for limit, codec in ((size, "blosc-lz4"), (size - 1, "zstd")):
        monkeypatch.setattr("octane.store.writer.BLOSC_BYTES", limit)
        path = tmp_path / f"{codec}.ome.zarr"
        with create_image(path, [Level(grid, CHUNKS)], "f4", codec="blosc-lz4") as (writer,):
            writer[tuple(slice(0, n) for n in SHAPE)] = np.ones(SHAPE, np.float32)
        _, compressor, *_ = json.loads((path / "0/zarr.json").read_text())["codecs"]
        assert compressor["name"] == codec.partition("-")[0]
