"""Fingerprints of files, by which a run knows what changed."""

import os

import pytest

from octane.core.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path):
    """A folder with a store of two chunks and a file."""
    root = tmp_path / "data"
    (root / "a.zarr" / "c" / "0").mkdir(parents=True)
    for name in ("a.zarr/.zarray", "a.zarr/c/0/0", "a.zarr/c/0/1", "b.tif"):
        (root / name).write_text(name)
    return root


PARTS = ["a.zarr", "b.tif"]


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        *[(name, True) for name in ("a.zarr/.zarray", "a.zarr/c/0/1", "b.tif", "a.zarr/c/0/2")],
        *[(name, False) for name in ("a.zarr/c/.DS_Store", "a.zarr/Thumbs.db", "a.zarr/._0")],
        # Not a part.
        ("c.tif", False),
    ],
)
def test_a_file_that_is_read_is_seen_when_it_changes(folder, name, is_seen):
    before = fingerprint(folder, PARTS)
    (folder / name).write_text("other, and longer")
    assert (fingerprint(folder, PARTS) != before) == is_seen


def test_a_time_alone_is_seen(folder):
    before = fingerprint(folder, PARTS)
    os.utime(folder / "b.tif", (1, 1))
    assert fingerprint(folder, PARTS) != before


def test_data_that_were_moved_are_the_same(folder, tmp_path):
    before = fingerprint(folder, PARTS)
    raw = tmp_path / "brain.raw"
    raw.write_text("x")
    with_raw = fingerprint(folder / "b.tif", ["", str(raw)])
    moved = tmp_path / "moved"
    folder.rename(moved)
    (tmp_path / "elsewhere").mkdir()
    assert fingerprint(moved, PARTS) == before
    other = raw.rename(tmp_path / "elsewhere" / "brain.raw")
    assert fingerprint(moved / "b.tif", ["", str(other)]) == with_raw


def test_links_are_followed_and_rings_end(folder, tmp_path):
    before = fingerprint(folder, ["a.zarr"])
    (folder / "a.zarr" / "c").rename(tmp_path / "c")
    (folder / "a.zarr" / "c").symlink_to(tmp_path / "c")
    assert fingerprint(folder, ["a.zarr"]) == before
    (tmp_path / "c" / "ring").symlink_to(folder)
    assert fingerprint(folder, ["a.zarr"]) != before


def test_a_link_to_nothing_is_an_error_that_names_it(folder):
    link = folder / "a.zarr" / "c" / "0" / "3"
    link.symlink_to("gone")
    with pytest.raises(FileNotFoundError) as caught:
        fingerprint(folder, PARTS)
    assert caught.value.filename == str(link)
