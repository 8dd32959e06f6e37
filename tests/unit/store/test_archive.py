"""Stores in one zip archive: read as in a folder, or refused in one sentence."""

import os
import shutil
from collections.abc import Hashable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import ngff_zarr
import numcodecs
import numpy as np
import pytest
from archives import pack
from google_crc32c import value

from octane.config.params import InputParameters
from octane.core.errors import ChunkError, OctaneError
from octane.store.chunks import is_store
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


def refused(path, words):
    with pytest.raises(OctaneError, match=words) as caught:
        open_image(path).read(WHOLE)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_missing_chunks_are_found_and_filled(write):
    voxels = VOXELS.copy()
    # zarr does not write a chunk of the fill value.
    voxels[6:, :10, 14:] = 0
    _, path = write(voxels)
    lost = "0/c/1/0/1"
    assert open_image(path).missing_chunks() == [lost]
    refused(path, f"chunk {lost} is missing; restore it, or give --missing_chunks fill")
    filled = open_image(path, InputParameters(missing_chunks="fill"))
    np.testing.assert_array_equal(filled.read(WHOLE), voxels)


@pytest.mark.parametrize("how", [EACH["plain"], EACH["shards"]], ids=["chunk", "shard"])
def test_a_damaged_entry_is_named(write, how):
    _, path = write(**how)
    with ZipFile(path) as archive:
        start = archive.getinfo("0/c/1/1/1").header_offset
    content = bytearray(path.read_bytes())
    content[start : start + 2] = b"no"
    path.write_bytes(content)
    refused(path, r"chunk 0/c/1/1/1 cannot be decoded \(its entry in the zip archive is damaged\)")
    with pytest.raises(ChunkError):
        open_image(path).missing_chunks()


def test_a_damaged_chunk_that_only_zarr_reads_is_named(write):
    _, path = write(**EACH["delta"], compressors=None)
    with ZipFile(path) as archive:
        start = archive.getinfo("0/1.0.0").header_offset
    content = bytearray(path.read_bytes())
    content[start + 200] ^= 1
    path.write_bytes(content)
    refused(path, r"chunk 0/1\.0\.0 cannot be decoded \(BadZipFile\)")


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
    refused(path, r"inner chunk 0/0/0\) cannot be decoded \(it extends beyond the end of its shard")


def test_an_archive_that_cannot_be_read_in_parts_is_refused(write):
    folder, path = write()
    # Larger than the archive.
    (folder / "0" / "zeros").write_bytes(bytes(10**6))
    pack(folder, compression=ZIP_DEFLATED)
    refused(path, r"compresses or encrypts its entries \(zarr\.json\), .*; extract it, or write it")


def test_an_incomplete_archive_is_refused(write, tmp_path):
    _, path = write()
    content = path.read_bytes()
    for cut in (content[: len(content) // 2], content[1000:], content[:900] + content[1900:], b""):
        path.write_bytes(cut)
        refused(path, r"is not a complete zip archive \(.+\); copy it again, or write it again")
    refused(tmp_path / "none.ozx", "does not exist")
    with ZipFile(path, "w") as archive:
        archive.writestr("brain.ome.zarr/zarr.json", "{}")
    refused(path, r"is not an OME-Zarr image \(not a zarr group at the root of the archive\)")
    with ZipFile(path, "w") as archive:
        archive.writestr("zarr.json", '{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    refused(path, "lacks OME-Zarr metadata .* extract it and give one, such as ")


@pytest.mark.timeout(30)
def test_a_fifo_in_place_of_an_archive_does_not_block(tmp_path):
    path = tmp_path / "brain.ozx"
    os.mkfifo(path)
    refused(path, "a FIFO or device is in its place")


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
