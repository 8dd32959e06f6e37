"""Stores in one zip archive: read as in a folder, or refused in one sentence."""

import os
import shutil
import zlib
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import ngff_zarr
import numcodecs
import numpy as np
import pytest
from archives import pack
from flipped_bits import refusals
from google_crc32c import value
from refusals import refused
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

from octane.config.parameters import InputParameters
from octane.core.errors import ChunkError, CorruptChunkError, InputError, MissingChunkError
from octane.store.chunks import is_store
from octane.store.formats import archive
from octane.store.image import open_image, open_levels
from octane.store.volumes import open_volume

VOXELS = np.arange(12 * 20 * 28, dtype=np.uint16).reshape(12, 20, 28)
WHOLE = tuple(slice(0, n) for n in VOXELS.shape)
EACH = {
    "plain": {"version": "0.5", "chunks": (6, 10, 14)},
    "shards": {"version": "0.5", "chunks": (3, 5, 7), "shards": (6, 10, 14)},
    "uncompressed": {"version": "0.5", "chunks": (3, 5, 7), "shards": (6, 10, 14),
                     "compressors": None},
    "version 2": {"version": "0.4", "chunks": (6, 10, 14)},
    # Only zarr reads it.
    "delta": {"version": "0.4", "chunks": (6, 10, 14), "filters": [numcodecs.Delta("u2")]},
}  # fmt: skip


@pytest.fixture
def write(write_foreign):
    """Write an image into a folder, and pack it."""

    def written(voxels=VOXELS, **how):
        how = {"version": "0.5", "chunks": (6, 10, 14)} | how
        folder = write_foreign("brain.ome.zarr", voxels, **how)
        return folder, pack(folder)

    return written


def refusal_of(path, *names, error=InputError):
    with refused(path, *names, error=error):
        open_image(path).read(WHOLE)


def change(path, old, new):
    """Replace bytes of a file that occur in it once."""
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


@pytest.mark.parametrize("how", EACH.values(), ids=EACH.keys())
def test_an_archive_is_read_as_a_folder_is(write, how):
    folder, path = write(**how)
    expected = open_image(folder)
    shutil.rmtree(folder)
    image = open_image(path)
    assert (image.grid, image.dtype) == (expected.grid, VOXELS.dtype)
    assert bool(image.array.why_zarr) == ("filters" in how)
    np.testing.assert_array_equal(image.read(WHOLE), VOXELS)
    part = (slice(5, 9), slice(9, 20), slice(1, 27))
    np.testing.assert_array_equal(image.read(part), VOXELS[part])
    assert image.missing_chunks() == []
    (level,) = open_levels(path)
    assert level.grid == expected.grid


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_an_archive_of_another_writer_is_read(tmp_path, version):
    units = dict.fromkeys("zyx", "micrometer")
    scale: dict[Hashable, float] = {"z": 3.0, "y": 2.0, "x": 1.0}
    image = ngff_zarr.to_ngff_image(VOXELS, dims="zyx", scale=scale, axes_units=units)
    method = ngff_zarr.Methods.DASK_BIN_SHRINK
    pyramid = ngff_zarr.to_multiscales(image, scale_factors=[2], chunks=8, method=method)
    path = tmp_path / "brain.ozx"
    ngff_zarr.to_ngff_zarr(str(path), pyramid, version=version)
    fine, coarse = open_levels(path)
    assert (fine.grid.spacing, coarse.grid.spacing) == ((3, 2, 1), (6, 4, 2))
    np.testing.assert_array_equal(fine.read(WHOLE), VOXELS)


def test_the_names_of_archives_are_those_of_stores(write, tmp_path):
    folder, path = write()
    zipped = pack(folder, ".ome.zarr.zip")
    np.testing.assert_array_equal(open_volume(zipped).read(WHOLE), VOXELS)
    assert is_store(path)
    assert is_store(zipped)
    # A folder may have any name.
    folder.rename(tmp_path / "folder.ozx")
    np.testing.assert_array_equal(open_volume(tmp_path / "folder.ozx").read(WHOLE), VOXELS)


def test_an_archive_without_any_chunk_by_its_names_is_never_filled(write_foreign):
    store = write_foreign("a.zarr", VOXELS, version="0.4", chunks=(6, 10, 14))
    change(store / "0/.zarray", b'"dimension_separator": "."', b'"dimension_separator": "/"')
    path = pack(store, ".zarr.zip")
    with refused("a.zarr.zip", " 0/0.", " 0/0/0/0,", ".zarray", error=InputError):
        open_image(path, InputParameters(missing_chunks="fill")).read(WHOLE)


def test_missing_chunks_are_found_and_filled(write):
    voxels = VOXELS.copy()
    # zarr does not write a chunk of the fill value.
    voxels[6:, :10, 14:] = 0
    _, path = write(voxels)
    lost = "0/c/1/0/1"
    assert open_image(path).missing_chunks() == [lost]
    refusal_of(path, lost, "--missing_chunks", error=MissingChunkError)
    filled = open_image(path, InputParameters(missing_chunks="fill"))
    np.testing.assert_array_equal(filled.read(WHOLE), voxels)


@pytest.mark.parametrize("how", [EACH["plain"], EACH["shards"]], ids=["chunk", "shard"])
def test_a_damaged_entry_is_named(write, how):
    _, path = write(**how)
    with ZipFile(path) as packed:
        start = packed.getinfo("0/c/1/1/1").header_offset
    content = bytearray(path.read_bytes())
    content[start : start + 2] = b"no"
    path.write_bytes(content)
    refusal_of(path, "0/c/1/1/1", "zip", error=CorruptChunkError)
    with pytest.raises(ChunkError):
        open_image(path).missing_chunks()


def test_a_damaged_chunk_that_only_zarr_reads_is_named(write):
    _, path = write(**EACH["delta"], compressors=None)
    with ZipFile(path) as packed:
        start = packed.getinfo("0/1.0.0").header_offset
    content = bytearray(path.read_bytes())
    content[start + 200] ^= 1
    path.write_bytes(content)
    refusal_of(path, "0/1.0.0", "BadZipFile", error=CorruptChunkError)


BIG_ENDIAN = {"serializer": BytesCodec(endian="big")}
SHARDS = {"version": "0.5", "chunks": (3, 5, 7), "shards": (6, 10, 14)}
CODECS = {
    "blosc": {"compressors": BloscCodec()},
    "gzip": {"compressors": GzipCodec()},
    "zstd": {"compressors": ZstdCodec(checksum=False)},
    "raw": {"compressors": None},
    "shards, blosc": {**SHARDS, "compressors": BloscCodec()},
    "shards, zstd": {**SHARDS, "compressors": ZstdCodec(checksum=False)},
    "shards, raw": {**SHARDS, "compressors": None},
    "shards, raw, only zarr": {**SHARDS, "compressors": None, **BIG_ENDIAN},
    "version 2, blosc": {"version": "0.4"},
    "version 2, raw": {"version": "0.4", "compressors": None},
    "version 2, zlib": {"version": "0.4", "compressors": numcodecs.Zlib()},
}


QUICK = {("gzip", False), ("shards, blosc", True), ("shards, raw, only zarr", True)}


@pytest.mark.parametrize(
    ("name", "partly"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.soak)
        for case in product(CODECS, [False, True])
    ],
)
def test_a_flipped_bit_of_an_entry_never_becomes_a_value(write, rng, name, partly):
    voxels = rng.integers(0, 1000, VOXELS.shape, np.uint16)
    _, path = write(voxels, **CODECS[name])
    key = "0/1.1.1" if "version 2" in name else "0/c/1/1/1"
    with ZipFile(path) as packed:
        entry = packed.getinfo(key)
    region = (slice(7, 8), slice(12, 13), slice(15, 16)) if partly else WHOLE
    start = entry.header_offset + 30 + len(key) + 20
    messages = refusals(
        path, lambda: open_image(path).read(region), voxels[region], start, start + entry.file_size
    )
    assert len(messages) == 32
    assert all(f"{path}: chunk {key}" in message for message in messages)


def test_a_flipped_bit_of_metadata_is_refused(write):
    _, path = write()
    with ZipFile(path) as packed:
        entries = [packed.getinfo(name) for name in ("zarr.json", "0/zarr.json")]
    for entry in entries:
        start = entry.header_offset + 30 + len(entry.filename) + 20
        end = start + entry.file_size
        messages = refusals(path, lambda: open_image(path).read(WHOLE), VOXELS, start, end)
        assert len(messages) == 32
        assert all(f"{path / entry.filename} cannot be read" in message for message in messages)


def test_an_entry_is_verified_once_and_not_where_chunks_have_checksums(write, monkeypatch):
    crc32, sizes = zlib.crc32, []
    monkeypatch.setattr(
        archive.zlib, "crc32", lambda piece, *more: sizes.append(len(piece)) or crc32(piece, *more)
    )
    monkeypatch.setattr(archive, "PIECE_BYTES", 500)
    for codec, is_verified in ((BloscCodec(), True), (ZstdCodec(checksum=True), False)):
        _, path = write(**{**SHARDS, "compressors": codec})
        image = open_image(path)
        sizes.clear()
        for _ in range(2):
            with ThreadPoolExecutor(4) as pool:
                parts = [*pool.map(image.read, [WHOLE] * 4)]
        np.testing.assert_array_equal(parts[0], VOXELS)
        with ZipFile(path) as packed:
            shards = sum(e.file_size for e in packed.infolist() if e.filename.startswith("0/c"))
        assert sum(sizes) == (shards if is_verified else 0)
        assert max(sizes, default=0) <= 500


def test_a_shard_does_not_reach_into_the_next_entry(write):
    folder, path = write(**EACH["uncompressed"])
    shard = folder / "0/c/0/0/0"
    content = bytearray(shard.read_bytes())
    count = 8 * 16
    index = np.frombuffer(content[-count - 4 : -4], "<u8").copy()
    index[0] = len(content) - 100
    content[-count - 4 :] = index.tobytes() + value(index.tobytes()).to_bytes(4, "little")
    shard.write_bytes(content)
    pack(folder)
    refusal_of(path, "0/c/0/0/0", "chunk 0/0/0", "shard", error=CorruptChunkError)


def test_an_archive_that_cannot_be_read_in_parts_is_refused(write):
    folder, path = write()
    # Larger than the archive.
    (folder / "0" / "zeros").write_bytes(bytes(10**6))
    pack(folder, compression=ZIP_DEFLATED)
    refusal_of(path, "(zarr.json)")


def test_an_incomplete_archive_is_refused(write, tmp_path):
    _, path = write()
    content = path.read_bytes()
    for cut in (content[: len(content) // 2], content[1000:], content[:900] + content[1900:], b""):
        path.write_bytes(cut)
        refusal_of(path, "zip archive (")
    refusal_of(tmp_path / "none.ozx")
    with ZipFile(path, "w") as packed:
        packed.writestr("brain.ome.zarr/zarr.json", "{}")
    refusal_of(path, "zarr group")
    with ZipFile(path, "w") as packed:
        packed.writestr("zarr.json", '{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    refusal_of(path, "multiscales", path / "0")


@pytest.mark.timeout(30)
def test_a_fifo_in_place_of_an_archive_does_not_block(tmp_path):
    path = tmp_path / "brain.ozx"
    os.mkfifo(path)
    refusal_of(path, "FIFO")


def test_an_archive_that_was_replaced_is_read_anew(write, write_foreign):
    folder, path = write()
    np.testing.assert_array_equal(open_image(path).read(WHOLE), VOXELS)
    shutil.rmtree(folder)
    write(VOXELS + 1)
    np.testing.assert_array_equal(open_image(path).read(WHOLE), VOXELS + 1)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed on Linux")
def test_opened_archives_are_not_open_files(write):
    _, path = write()
    before = len([*Path("/proc/self/fd").iterdir()])
    opened = [open_image(path) for _ in range(20)]
    for image in opened:
        image.read(WHOLE)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64 - 1])
def test_an_archive_that_states_impossible_sizes_is_refused(write, size):
    _, path = write()
    with ZipFile(path, "a") as made:
        # The directory is written again, with these sizes.
        made.writestr("more", b"")
        for entry in made.filelist:
            entry.file_size = size
    with refused(path, "zip archive (", error=InputError):
        open_image(path)
