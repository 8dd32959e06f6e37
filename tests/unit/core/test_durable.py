"""Results are brought to the disk with all that is in them."""

import errno
import os

import pytest

from octane.core.durable import bring_to_disk
from octane.core.errors import OctaneError


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "a.ome.zarr"
    (folder / "0" / "c").mkdir(parents=True)
    (folder / "zarr.json").write_text("{}")
    (folder / "0" / "c" / "0").write_bytes(b"chunk")
    return folder


def test_every_file_and_folder_and_the_name_itself(store, monkeypatch):
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    bring_to_disk(store)
    there = [store, store.parent, *store.rglob("*")]
    assert synced == {path.stat().st_ino for path in there}


def test_a_disk_that_cannot_take_it_is_named(store, monkeypatch):
    def refuse(_fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OctaneError, match=r"a\.ome\.zarr.* could not be brought to the disk"):
        bring_to_disk(store)


def test_a_file_system_that_knows_no_such_thing_is_let_be(store, monkeypatch):
    def unknown(_fd):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", unknown)
    bring_to_disk(store)
