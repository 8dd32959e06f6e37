"""Reading and writing OME-Zarr images, one of several channels, lost and damaged chunks."""

import errno
import io
import itertools
import json
import os
import re
import shutil

import numcodecs
import numpy as np
import pytest
from flipped_bits import refusals
from refusals import refused
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from octane.config.parameters import InputParameters
from octane.core.errors import (
    CorruptChunkError,
    InputError,
    MissingChunkError,
    UnreadableChunkError,
)
from octane.core.geometry import Grid
from octane.store.image import open_image, open_levels
from octane.store.volumes import open_volume
from octane.store.writer import Level, create_image

WHOLE = (slice(0, 20), slice(0, 30), slice(0, 25))


@pytest.fixture
def voxels(rng):
    return rng.random((20, 30, 25), np.float32)


@pytest.fixture
def chunked(write_image, voxels):
    """Chunks of 10 x 10 x 10, one file each."""
    return write_image("a.ome.zarr", voxels, chunks=(10, 10, 10))


OTHERS = {
    "gzip": {"version": "0.5", "compressors": GzipCodec()},
    "transposed": {"version": "0.5", "filters": TransposeCodec(order=(2, 1, 0))},
    "F order": {"version": "0.4", "order": "F"},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_zarr_reads_other_encodings_alike(write_foreign, voxels, others):
    region = (slice(3, 20), slice(5, 30), slice(7, 8))
    for chunks in ((10, 10, 10), (20, 30, 25)):
        image = open_image(write_foreign("a.zarr", voxels, chunks=chunks, **others))
        assert image.reader is None
        assert image.array.why_zarr
        np.testing.assert_array_equal(image.read(region), voxels[region])
        out = np.empty((17, 25, 1), np.float32)
        assert image.read(region, out) is out
        np.testing.assert_array_equal(out, voxels[region])


@pytest.mark.parametrize(
    "options",
    [{}, {"shards": (20, 20, 20)}, OTHERS["gzip"]],
    ids=["chunks", "shards", "through zarr"],
)
def test_tiles_that_were_not_imaged_read_as_the_fill_value(write_foreign, voxels, options):
    # One inner chunk of a shard, and a shard.
    lost = [(0, 0), (2, 2)]
    for row, column in lost:
        voxels[:, 10 * row : 10 * row + 10, 10 * column : 10 * column + 10] = 0
    own = {"version": "0.5", "chunks": (20, 10, 10), **options}
    # zarr does not store chunks of zeros.
    path = write_foreign("a.zarr", voxels, **own)
    with pytest.raises(MissingChunkError):
        open_image(path).read(WHOLE)
    described = json.loads((path / "zarr.json").read_text())
    noted = {"kind": "mosaic", "mosaic": {"not_imaged": lost}}
    described["attributes"]["octane"] = noted
    (path / "zarr.json").write_text(json.dumps(described))
    for image in (open_image(path), *open_levels(path)):
        assert image.missing_chunks() == []
        np.testing.assert_array_equal(image.read(WHOLE), voxels)
    noted["mosaic"]["not_imaged"] = lost[:1]
    (path / "zarr.json").write_text(json.dumps(described))
    assert len(open_image(path).missing_chunks()) == 1
    with pytest.raises(MissingChunkError):
        open_image(path).read(WHOLE)


def test_a_store_that_was_emptied_is_never_filled(write_foreign, voxels):
    path = write_foreign("a.zarr", voxels, version="0.5")
    (path / "0" / "zarr.json").rename(path / "0" / "emptied.json")
    with refused(path, "--keep_intermediates", "-resume", error=InputError):
        open_image(path, InputParameters(missing_chunks="fill"))


@pytest.mark.parametrize(
    ("version", "shards"), [("0.4", None), ("0.5", None), ("0.5", (20, 20, 20))]
)
@pytest.mark.parametrize("missing", ["error", "fill"])
def test_a_store_without_any_chunk_is_never_filled(write_foreign, voxels, version, shards, missing):
    more = {"version": version, "chunks": (10, 10, 10), "shards": shards}
    reading = InputParameters(missing_chunks=missing)
    blank = write_foreign("blank.zarr", np.zeros_like(voxels), **more)
    for image in (open_image(blank, reading), *open_levels(blank, reading)):
        with refused(blank, "chunk 0/", "--exclude_sections", error=InputError):
            image.read(WHOLE)
    # A mask may be.
    assert not open_image(blank, None).read(WHOLE).any()
    # One chunk is enough.
    voxels[...], voxels[19, 29, 24] = 0, 1
    sparse = open_image(
        write_foreign("sparse.zarr", voxels, **more), InputParameters(missing_chunks="fill")
    )
    np.testing.assert_array_equal(sparse.read(WHOLE), voxels)


@pytest.mark.parametrize("missing", ["error", "fill"])
@pytest.mark.parametrize("version", ["0.4", "0.5", "v2 names in 0.5"])
@pytest.mark.parametrize("written", "./")
def test_a_wrong_separator_is_named(write_foreign, voxels, missing, version, written):
    name = "default" if version == "0.5" else "v2"
    path = write_foreign(
        "a.zarr", voxels, version=version[-3:], chunks=(10, 10, 10),
        chunk_key_encoding={"name": name, "separator": written},
    )  # fmt: skip
    file = path / "0" / (".zarray" if version == "0.4" else "zarr.json")
    described = json.loads(file.read_text())
    if version == "0.4":
        # Not stated is a point.
        described.pop("dimension_separator")
        if written == ".":
            described["dimension_separator"] = "/"
    else:
        other = {".": "/", "/": "."}[written]
        described["chunk_key_encoding"]["configuration"]["separator"] = other
    file.write_text(json.dumps(described))
    reading = InputParameters(missing_chunks=missing)
    for image in (open_image(path, reading), open_image(path, None)):
        with refused(path, "dimension_separator", error=InputError) as caught:
            image.read(WHOLE)
        numbers = rf"\d[{written}]\d[{written}]\d"
        assert re.search(rf" 0/(c[{written}])?{numbers},", str(caught.value))


def test_a_coarser_level_may_be_blank(write_foreign, voxels):
    path = write_foreign("a.zarr", voxels, version="0.5", chunks=(10, 10, 10))
    described = json.loads((path / "zarr.json").read_text())
    multiscale = described["attributes"]["ome"]["multiscales"][0]
    multiscale["datasets"].append({**multiscale["datasets"][0], "path": "1"})
    (path / "zarr.json").write_text(json.dumps(described))
    (path / "1").mkdir()
    shutil.copy(path / "0/zarr.json", path / "1/zarr.json")
    _, blank = open_levels(path)
    assert not blank.read(WHOLE).any()


def test_broken_and_missing_chunks_are_named_if_zarr_reads(write_foreign, voxels, denied):
    path = write_foreign("a.zarr", voxels, chunks=(10, 10, 10), **OTHERS["gzip"])
    image = open_image(path)
    with (
        denied(io, "open", "c/1/2/0"),
        refused(path, "0/c/1/2/0", os.strerror(errno.EACCES), error=UnreadableChunkError),
    ):
        image.read(WHOLE)
    file = path / "0/c/1/2/0"
    for content in (file.read_bytes()[:-30], b"no gzip at all"):
        file.write_bytes(content)
        with refused(path, "0/c/1/2/0", error=CorruptChunkError):
            image.read(WHOLE)
    file.unlink()
    with refused(path, "0/c/1/2/0", error=MissingChunkError):
        image.read(WHOLE)
    expected = voxels.copy()
    expected[10:, 20:, :10] = 0
    np.testing.assert_array_equal(
        open_image(path, InputParameters(missing_chunks="fill")).read(WHOLE), expected
    )


def test_a_chunk_that_cannot_be_read_is_not_called_corrupt(chunked, tmp_path, denied):
    task = tmp_path / "work" / "ab" / "0123456789abcdef0123456789abcd"
    shutil.copytree(chunked, task / "a.ome.zarr")
    for path in (chunked, task / "a.ome.zarr"):
        image = open_image(path)
        with denied(os, "open", "c/0/0/1"), pytest.raises(UnreadableChunkError) as caught:
            image.read(WHOLE)
        assert str(caught.value) == (
            f"{path}: chunk 0/c/0/0/1 cannot be read (Permission denied); check permissions, "
            "disk and network, and run again (a workflow with -resume)."
        )


@pytest.mark.parametrize(("owner", "call"), [(os, "open"), (os, "stat")])
def test_an_unreadable_index_is_not_one_without_chunks(write_image, voxels, denied, owner, call):
    path = write_image("s.ome.zarr", voxels, chunks=(10, 10, 10), shards=(20, 20, 20))
    with (
        denied(owner, call, "c/0/0/0"),
        refused(path, "0/c/0/0/0", error=UnreadableChunkError),
    ):
        open_image(path).missing_chunks()


def chunked_as(*sizes):
    return lambda metadata: metadata["chunk_grid"]["configuration"].update(chunk_shape=sizes)


MILLIONS = "1000000 x 1000000 x 1000000"


@pytest.mark.parametrize("call", [open_image, open_levels])
@pytest.mark.parametrize(
    ("name", "more", "change", "sizes"),
    [
        ("zarr.json", {}, lambda metadata: metadata.update(shape=[10**6] * 3), MILLIONS),
        (".zarray", {}, lambda metadata: metadata.update(chunks=[0, 10, 10]), " 0 x 10 x 10"),
        ("zarr.json", {}, chunked_as(10, 0, 10), "10 x 0 x 10"),
        ("zarr.json", {}, chunked_as(*[10**9] * 3), "1000000000 x 1000000000"),
        ("zarr.json", {"shards": (20, 20, 20)}, chunked_as(0, 0, 0), " 0 x 0 x 0"),
    ],
)
def test_implausible_sizes_are_refused(write_foreign, voxels, call, name, more, change, sizes):
    version = "0.5" if name == "zarr.json" else "0.4"
    path = write_foreign("a.zarr", voxels, version=version, chunks=(10, 10, 10), **more)
    metadata = json.loads((path / "0" / name).read_text())
    change(metadata)
    (path / "0" / name).write_text(json.dumps(metadata))
    with refused(path, sizes, "dataset 0", error=InputError):
        call(path)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "FIFO"), (os.mkdir, "folder")])
@pytest.mark.parametrize(
    "how", [{}, {"shards": (20, 20, 20)}, OTHERS["gzip"]], ids=["plain", "sharded", "by zarr"]
)
def test_a_chunk_that_is_not_a_regular_file_is_refused(write_foreign, voxels, how, make, what):
    path = write_foreign("a.zarr", voxels, chunks=(10, 10, 10), **{"version": "0.5", **how})
    key = "0/c/0/0/0"
    (path / key).unlink()
    make(path / key)
    image = open_image(path)
    for call in (lambda: image.read(WHOLE), image.missing_chunks):
        with refused(path, key, what, error=CorruptChunkError):
            call()


@pytest.mark.parametrize(("start", "stop"), [(10, 21), (10, 5)])
def test_sections_beyond_a_cropped_volume_are_refused(write_image, voxels, start, stop):
    noted = {"name": "b", "number": 2, "start": start, "stop": stop}
    whole = {"name": "a", "number": 1, "start": 0, "stop": 20}
    path = write_image("a.ome.zarr", voxels, attributes={"sections": [whole, noted]})
    with refused(path, "section 2", f"{start} to {stop}", "octane.sections", error=InputError):
        open_image(path)


@pytest.mark.parametrize(
    ("shape", "chunks", "shards"),
    [
        ((300, 300, 300), (128, 128, 128), (256, 256, 256)),
        ((300, 100, 300), (128, 100, 128), (256, 100, 256)),
        ((100, 90, 80), (100, 90, 80), None),
        ((128, 128, 128), (128, 128, 128), None),
    ],
)
def test_a_volume_is_cut_for_readers(shape, chunks, shards):
    level = Level.volume(Grid(shape, (1.0, 1.0, 1.0)))
    assert (level.chunks, level.shards) == (chunks, shards)
    assert level.object_shape == (shards or chunks)


def test_a_chunk_that_was_not_written_is_found_and_nothing_is_left(tmp_path):
    level = Level(Grid((4, 4, 8), (1.0, 1.0, 1.0)), (4, 4, 4))
    with (
        refused("a.zarr", "1 chunks", "0/c/0/0/1", error=InputError),
        create_image(tmp_path / "a.zarr", [level], "f4") as (writer,),
    ):
        writer[(slice(0, 4),) * 3] = np.ones((4, 4, 4), np.float32)
    assert list(tmp_path.iterdir()) == []


def test_an_image_must_be_named_as_one(tmp_path):
    level = Level.volume(Grid((2, 3, 4), (1.0, 1.0, 1.0)))
    with (
        refused("out.nii.gz", ".ome.zarr", error=InputError),
        create_image(tmp_path / "out.nii.gz", [level], "f4"),
    ):
        pytest.fail("the block was entered")


# One of several channels and time points

SHAPE = (6, 10, 9)
ALL = tuple(slice(0, n) for n in SHAPE)
PART = (slice(1, 6), slice(3, 9), slice(4, 5))
LABELS = ["DAPI", "GFP", "488"]

STORES = {
    "0.4 .": {"version": "0.4", "chunks": (1, 1, 4, 4, 4)},
    "0.4 /": {"version": "0.4", "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "0.4 uncompressed": {"version": "0.4", "chunks": (2, 2, 4, 4, 4), "compressors": None},
    "0.5": {"chunks": (1, 1, 6, 5, 5)},
    "0.5 v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "channels together": {"chunks": (2, 3, 4, 4, 4)},
    "shards": {"chunks": (1, 1, 3, 4, 4), "shards": (1, 2, 6, 8, 8)},
    "channels together in shards": {"chunks": (1, 2, 3, 4, 4), "shards": (2, 4, 6, 8, 8)},
    "by zarr": {"chunks": (2, 2, 4, 4, 4), "compressors": GzipCodec()},
}
"""Layouts of a store with two time points of three channels."""


@pytest.fixture
def several(write_foreign, rng):
    """Write an image with two time points of three channels; return its path and voxels."""

    def write(**options):
        voxels = rng.random((2, 3, *SHAPE), np.float32)
        given = {"version": "0.5", "axes": "tczyx", "labels": LABELS, "chunks": (1, 1, 4, 4, 4)}
        return write_foreign("a.zarr", voxels, **{**given, **options}), voxels

    return write


def opened(path, channel=None, timepoint=None, missing="error"):
    reading = InputParameters(channel=channel, timepoint=timepoint, missing_chunks=missing)
    return open_volume(path, reading)


@pytest.mark.parametrize("options", STORES.values(), ids=STORES)
def test_each_channel_and_time_point_is_read_however_it_is_stored(several, options):
    path, voxels = several(**options)
    for t, c in itertools.product(range(2), range(3)):
        image = opened(path, str(c), t)
        assert image.grid.shape == SHAPE
        assert image.grid.spacing == (10.0, 10.0, 10.0)
        assert image.missing_chunks() == []
        np.testing.assert_array_equal(image.read(ALL), voxels[t, c])
        out = np.empty((5, 6, 1), np.float32)
        np.testing.assert_array_equal(image.read(PART, out), voxels[t, c][PART])


@pytest.mark.parametrize("name", ["0.5", "shards"])
def test_only_chunks_that_are_read_must_exist(several, name):
    # It holds voxels of channel 1; in a shard, of channel 0 too.
    chunk = "0/c/1/1/0/0/0" if name == "0.5" else "0/c/1/0/0/0/0"
    path, voxels = several(**STORES[name])
    (path / chunk).unlink()
    for channel, t in (("1", 0), ("2", 1)):
        assert opened(path, channel, t).missing_chunks() == []
        np.testing.assert_array_equal(opened(path, channel, t).read(ALL), voxels[t, int(channel)])
    assert opened(path, "1", 1).missing_chunks() == [chunk]
    with refused(path, chunk, error=MissingChunkError):
        opened(path, "1", 1).read(ALL)
    rest = (ALL[0], slice(8, 10), ALL[2])
    np.testing.assert_array_equal(opened(path, "1", 1).read(rest), voxels[1, 1][rest])
    filled = opened(path, "1", 1, missing="fill").read(ALL)
    assert not filled[:4, :4, :4].any()
    assert filled[:, 8:, 8:].all()


@pytest.mark.parametrize("axes", ["tczyx", "TCZYX", "czyx", "tzyx", "qczyx"])
@pytest.mark.parametrize("reading", [None, InputParameters(), InputParameters(channel="0")])
def test_axes_of_one_place_are_left_out(write_foreign, voxels, axes, reading):
    shape = (1, 1, *voxels.shape)[-len(axes) :]
    path = write_foreign("a.zarr", voxels.reshape(shape), axes=axes)
    np.testing.assert_array_equal(open_image(path, reading).read(WHOLE), voxels)


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ("czyx", ("300 channels", "0, 1, 2", "284", "--channel")),
        ("qzyx", ("300 qs", "0, 1, 2", "284")),
        *((axes, (f" {' '.join(axes)};",)) for axes in ("tcyx", "cczyx", "qtczyx", "zyxc")),
    ],
)
def test_other_axes_are_refused(write_foreign, axes, names):
    path = write_foreign("a.zarr", np.zeros((300, *[1] * (len(axes) - 1)), "u1"), axes=axes)
    with refused(path, *names, error=InputError):
        opened(path)


def test_a_number_goes_before_a_name_of_digits(several):
    path, voxels = several(labels=["1", "0", "c"])
    np.testing.assert_array_equal(opened(path, "0", 0).read(ALL), voxels[0, 0])


VERIFIED = {
    "zlib": ("0.4", numcodecs.Zlib()),
    "gzip": ("0.4", numcodecs.GZip()),
    "bz2": ("0.4", numcodecs.BZ2()),
    "lzma": ("0.4", numcodecs.LZMA()),
    "zstd": ("0.4", numcodecs.Zstd(checksum=True)),
    "gzip, version 3": ("0.5", [GzipCodec()]),
    "crc32c": ("0.5", [Crc32cCodec()]),
    "blosc, crc32c": ("0.5", [BloscCodec(), Crc32cCodec()]),
    "zstd, version 3": ("0.5", [ZstdCodec(checksum=True)]),
}


@pytest.mark.parametrize(("version", "codecs"), VERIFIED.values(), ids=VERIFIED.keys())
def test_a_flipped_bit_of_a_chunk_with_a_checksum_never_becomes_a_value(
    write_foreign, rng, version, codecs
):
    voxels = rng.normal(500, 30, (8, 20, 25)).astype(np.uint16)
    how = {"version": version, "chunks": (8, 20, 25), "compressors": codecs}
    path = write_foreign("a.ome.zarr", voxels, **how)
    key = "0/0.0.0" if version == "0.4" else "0/c/0/0/0"
    whole = tuple(slice(0, n) for n in voxels.shape)
    messages = refusals(path / key, lambda: open_image(path).read(whole), voxels)
    # A few bits, as in the header of gzip, mean nothing.
    assert len(messages) > 28
    assert all(f"{path}: chunk {key} cannot be decoded" in message for message in messages)
