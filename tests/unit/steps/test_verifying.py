"""Stores verified in full, and changes that are accepted."""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.core.manifests import PLACE
from octane.steps.verifying import accept, noted, verify_stores
from octane.store.image import open_image


@pytest.fixture
def store(write_image):
    """A store of eight chunks."""
    voxels = np.random.default_rng(1).random((8, 8, 8), np.float32)
    return write_image("a.ome.zarr", voxels, chunks=(4, 4, 4))


def test_all_stores_below_a_folder_are_verified_in_full(write_image, write_foreign, tmp_path):
    voxels = np.ones((4, 4, 4), np.float32)
    for name in ("s/a.ome.zarr", "s/b.ome.zarr"):
        write_image(name, voxels)
    write_foreign("s/c.zarr", voxels, version="0.5")
    found = verify_stores(tmp_path)
    assert (found.stores, found.files, found.unlisted) == (2, 6, 1)
    for name in "ab":
        file = tmp_path / f"s/{name}.ome.zarr/0/c/0/0/0"
        content = bytearray(file.read_bytes())
        content[5] ^= 1
        file.write_bytes(content)
    with pytest.raises(OctaneError) as caught:
        verify_stores(tmp_path)
    first, second = str(caught.value).splitlines()
    assert "a.ome.zarr: chunk 0/c/0/0/0 was changed since" in first
    assert "b.ome.zarr: chunk 0/c/0/0/0 was changed since" in second


def test_changes_on_purpose_are_accepted(store):
    (store / "0/c/0/0/0").write_bytes(b"other")
    (store / "0/c/0/0/1").unlink()
    assert accept(store) == 9
    assert verify_stores(store).files == 9
    assert open_image(store, missing="fill").missing_chunks() == ["0/c/0/0/1"]
    (store / PLACE).unlink()
    accept(store)
    assert open_image(store).manifest is not None


def test_what_is_not_octanes_is_not_accepted(write_foreign, tmp_path):
    path = write_foreign("a.zarr", np.ones((4, 4, 4), np.float32), version="0.5")
    with pytest.raises(OctaneError, match="not of octane's making"):
        accept(path)
    with pytest.raises(OctaneError, match="cannot be read as JSON"):
        accept(tmp_path)
    assert not (path / PLACE).exists()


def test_an_accepted_list_is_a_new_file_and_not_that_of_a_hard_linked_copy(store, tmp_path):
    shutil.copytree(store, tmp_path / "b.ome.zarr", copy_function=os.link)
    before = (store / PLACE).read_bytes()
    (tmp_path / "b.ome.zarr/0/c/0/0/0").unlink()
    accept(tmp_path / "b.ome.zarr")
    assert (store / PLACE).read_bytes() == before


def test_a_link_whose_store_is_gone_is_named(store, tmp_path):
    gone = tmp_path / "work" / "ab" / "0123456789abcdef0123456789abcd" / "b.ome.zarr"
    (tmp_path / "b.ome.zarr").symlink_to(gone)
    with pytest.raises(OctaneError, match=f"{tmp_path / 'b.ome.zarr'} led to files"):
        verify_stores(tmp_path)


def test_stores_in_a_folder_that_is_itself_a_link_are_verified_once(write_image, tmp_path):
    voxels = np.ones((4, 4, 4), np.float32)
    store = write_image("disk2/s/b.ome.zarr", voxels)
    (tmp_path / "out").mkdir()
    for name in ("s", "t"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "disk2" / "s")
    (tmp_path / "disk2/s/back").symlink_to(tmp_path / "out")
    assert verify_stores(tmp_path / "out").stores == 1
    (store / "0/c/0/0/0").unlink()
    with pytest.raises(OctaneError, match=r"out/s/b.ome.zarr: chunk 0/c/0/0/0 is missing"):
        verify_stores(tmp_path / "out")


def test_a_link_within_a_work_directory_that_leads_up_ends(write_image, tmp_path):
    task = tmp_path / "work" / "ab" / "0123456789abcdef0123456789abcd"
    write_image("a.ome.zarr", np.ones((4, 4, 4), np.float32))
    (task / "all" / "more").mkdir(parents=True)
    (tmp_path / "a.ome.zarr").rename(task / "all" / "a.ome.zarr")
    (task / "all" / "more" / "up").symlink_to(task / "all")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "all").symlink_to(task / "all")
    assert verify_stores(tmp_path / "out").stores == 1


@pytest.mark.parametrize("name", ["b.ome.zarr", "s2"])
def test_a_link_to_a_disk_that_is_not_there_is_named(store, tmp_path, name, caplog):
    link = tmp_path / name
    link.symlink_to(tmp_path / "disk2" / name)
    if name.endswith(".zarr"):
        with pytest.raises(OctaneError, match=f"{link} leads to nothing that is there"):
            verify_stores(tmp_path)
    else:
        verify_stores(tmp_path)
        assert f"{link} leads to nothing that is there" in caplog.text


def test_a_folder_that_cannot_be_read_is_wrong(store, tmp_path, denied):
    (tmp_path / "closed").mkdir()
    with (
        denied(os, "scandir", "closed"),
        pytest.raises(OctaneError, match=r"closed cannot be read \(Permission denied\)"),
    ):
        verify_stores(tmp_path)


def test_metadata_that_cannot_be_read_is_not_called_broken(store, denied):
    with (
        denied(Path, "read_text", "zarr.json"),
        pytest.raises(OctaneError, match=r"zarr.json cannot be read \(Permission denied\)"),
    ):
        noted(store)


@pytest.mark.parametrize(
    "arrived", [(), ("0/c",), ("0/c", "0/zarr.json"), ("0/octane-manifest.tsv",)]
)
def test_a_copy_that_was_cut_short_before_its_metadata_is_no_whole_one(
    write_image, tmp_path, arrived
):
    voxels = np.ones((4, 4, 4), np.float32)
    write_image("out/a.ome.zarr", voxels)
    whole = write_image("whole/b.ome.zarr", voxels)
    copy = tmp_path / "out/s/b.ome.zarr"
    copy.mkdir(parents=True)
    for key in arrived:
        file = whole / key
        if file.is_dir():
            shutil.copytree(file, copy / key)
        else:
            (copy / key).parent.mkdir(exist_ok=True)
            shutil.copy(file, copy / key)
    with pytest.raises(OctaneError, match=f"^{copy}.*; copy .* again") as caught:
        verify_stores(tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
    # From within it has no name of its own.
    with contextlib.chdir(copy), pytest.raises(OctaneError, match=r"; copy .* again"):
        verify_stores(Path())


def test_a_store_of_octanes_that_lost_its_list_is_refused(store, tmp_path):
    (store / PLACE).unlink()
    with pytest.raises(OctaneError, match=f"{store} has lost {PLACE}"):
        verify_stores(tmp_path)


@pytest.mark.parametrize("name", ["c.zarr", "whatever"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_stores_of_others_are_counted_each_once(write_foreign, tmp_path, name, version):
    write_foreign(f"out/{name}", np.ones((4, 4, 4), np.float32), version=version)
    found = verify_stores(tmp_path / "out")
    assert (found.stores, found.unlisted) == (0, 1)


def test_what_a_killed_call_left_is_named_and_no_result(store, tmp_path, caplog):
    left = tmp_path / ".partial-99-b.ome.zarr"
    (left / "0" / "c").mkdir(parents=True)
    assert verify_stores(tmp_path).stores == 1
    assert f"{left} is not verified" in caplog.text


def test_where_there_is_no_store_nothing_is_verified(tmp_path):
    with pytest.raises(OctaneError, match="holds no store"):
        verify_stores(tmp_path)
    with pytest.raises(OctaneError, match="is no folder"):
        verify_stores(tmp_path / "nothing")
