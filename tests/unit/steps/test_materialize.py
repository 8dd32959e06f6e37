"""Links made real: whole copies in their place, once, with nothing half-made and nothing lost."""

import fcntl
import json
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from octane.core.errors import NoSpaceError, OctaneError
from octane.core.manifests import PLACE
from octane.steps import materialize as module
from octane.steps.materialize import materialize
from octane.steps.verifying import verify_stores


@pytest.fixture(autouse=True)
def log(caplog):
    """What is told."""
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture
def task(tmp_path):
    """The folder of a task."""
    folder = tmp_path / "work" / "ab" / "0123456789abcdef0123456789abcd"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def outdir(tmp_path, task, write_image):
    """A store, a folder with a link in it and a file, published as links."""
    voxels = np.random.default_rng(1).random((8, 8, 8), np.float32)
    write_image("s.ome.zarr", voxels, chunks=(4, 4, 4)).rename(task / "s.ome.zarr")
    (task / "metrics.json").write_text("{}")
    (task / "previews").mkdir()
    (task / "previews" / "a.png").write_bytes(b"a picture")
    (task / "previews" / "b.png").symlink_to(task / "metrics.json")
    folder = tmp_path / "out" / "s"
    (folder / "metrics").mkdir(parents=True)
    (folder / "s.ome.zarr").symlink_to(task / "s.ome.zarr")
    (folder / "metrics" / "metrics.json").symlink_to(
        os.path.relpath(task / "metrics.json", folder / "metrics")
    )
    (folder / "previews").symlink_to(task / "previews")
    (folder / "own.txt").write_text("a file of the run")
    return tmp_path / "out"


def content(folder):
    """All files below a folder, links followed."""
    return {
        Path(root, name).relative_to(folder).as_posix(): Path(root, name).read_bytes()
        for root, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


def links(folder):
    return [p for p in folder.rglob("*") if p.is_symlink()]


def test_links_become_files_that_need_no_work_directory(outdir, task, log):
    before, work = content(outdir), content(task)
    made = materialize(outdir)
    assert (made.links, made.files) == (3, 14)
    assert made.bytes == sum(map(len, before.values())) - len("a file of the run")
    assert "3 links made real, 14 files" in log.messages[-1]
    assert not links(outdir)
    assert content(task) == work
    shutil.rmtree(task)
    assert content(outdir) == before
    assert verify_stores(outdir).stores == 1


def test_a_second_call_finds_nothing_to_do(outdir, log):
    materialize(outdir)
    before = {p: p.stat().st_ino for p in outdir.rglob("*")}
    assert materialize(outdir) == module.Made(0, 0, 0, 0)
    assert "nothing is to do" in log.messages[-1]
    assert {p: p.stat().st_ino for p in outdir.rglob("*")} == before


def test_a_dry_run_says_how_much_and_does_nothing(outdir, log):
    made = materialize(outdir, dry_run=True)
    assert (made.links, made.files) == (3, 14)
    assert "3 links, 14 files of " in log.messages[-1]
    assert len(links(outdir)) == 3


def test_times_stay(outdir, task):
    os.utime(task / "metrics.json", ns=(10**18, 10**18))
    materialize(outdir)
    assert (outdir / "s/metrics/metrics.json").stat().st_mtime_ns == 10**18


def test_links_elsewhere_are_let_be(outdir, tmp_path, log):
    (tmp_path / "raw").mkdir()
    (outdir / "raw").symlink_to(tmp_path / "raw")
    (outdir / "lost").symlink_to(tmp_path / "nowhere")
    materialize(outdir)
    assert set(links(outdir)) == {outdir / "raw", outdir / "lost"}
    assert "2 links lead elsewhere" in log.text
    assert f"{outdir / 'lost'} leads to nothing that is there" in log.text


@pytest.fixture
def moved(outdir, tmp_path):
    """The subject's folder lies on another disk, and a link leads there."""
    (tmp_path / "disk2").mkdir()
    (outdir / "s").rename(tmp_path / "disk2" / "s")
    # A link is relative to where it is.
    link = tmp_path / "disk2/s/metrics/metrics.json"
    target = outdir.parent / "work/ab/0123456789abcdef0123456789abcd/metrics.json"
    link.unlink()
    link.symlink_to(target)
    (outdir / "s").symlink_to(tmp_path / "disk2" / "s")
    return tmp_path / "disk2" / "s"


def test_links_in_a_folder_that_is_itself_a_link_are_made_real_as_well(outdir, moved, task, log):
    before = content(outdir)
    assert materialize(outdir, dry_run=True).links == 3
    assert materialize(outdir).links == 3
    assert f"{outdir / 's'} leads to {moved}: what lies there is looked at as well" in log.text
    assert links(outdir) == [outdir / "s"]
    assert not links(moved)
    shutil.rmtree(task)
    assert content(outdir) == before
    assert verify_stores(outdir).stores == 1
    materialize(outdir)
    assert "nothing is to do" in log.messages[-1]


def test_what_a_killed_call_left_in_a_linked_folder_is_cleared_away(outdir, moved):
    (moved / "s.ome.zarr").rename(moved / ".replaced-99-s.ome.zarr")
    shutil.copytree(moved / ".replaced-99-s.ome.zarr", moved / ".partial-99-s.ome.zarr")
    materialize(outdir)
    names = {path.name for path in moved.iterdir()}
    assert names == {"metrics", "own.txt", "previews", "s.ome.zarr"}


def test_space_is_looked_for_on_the_disk_that_a_link_lies_on(outdir, moved, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path.resolve())
        return SimpleNamespace(free=1000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(NoSpaceError, match=r"0\.000 GB are free"):
        materialize(outdir)
    assert asked
    assert all(path.is_relative_to(moved) for path in asked)


def test_a_folder_that_cannot_be_written_is_named_when_the_others_are_done(
    outdir, task, tmp_path, monkeypatch
):
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/a.json").symlink_to(task / "metrics.json")
    (outdir / "archive").symlink_to(tmp_path / "archive")
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "archive" not in str(path) and allowed(path, mode)
    )
    with pytest.raises(OctaneError, match=f"{outdir / 'archive'} cannot be written, and holds"):
        materialize(outdir)
    assert not links(outdir / "s")
    assert links(tmp_path / "archive")


def test_a_folder_that_cannot_be_read_is_named_when_the_others_are_done(outdir, denied):
    (outdir / "closed").mkdir()
    with (
        denied(os, "scandir", "closed"),
        pytest.raises(OctaneError, match=r"closed cannot be read \(Permission denied\)"),
    ):
        materialize(outdir)
    assert not links(outdir)


def test_links_that_lead_nowhere_are_named_and_the_others_made_real(outdir, task):
    shutil.rmtree(task / "s.ome.zarr")
    (outdir / "s/other.ome.zarr").symlink_to(task / "other.ome.zarr")
    with pytest.raises(OctaneError, match="are gone; run the workflow") as caught:
        materialize(outdir)
    lost = {outdir / "s/s.ome.zarr", outdir / "s/other.ome.zarr"}
    assert all(str(path) in str(caught.value) for path in lost)
    assert set(links(outdir)) == lost
    assert (outdir / "s/metrics/metrics.json").read_text() == "{}"


def test_a_store_that_is_not_whole_is_not_copied(outdir, task):
    (task / "s.ome.zarr/0/c/0/0/0").unlink()
    with pytest.raises(OctaneError, match=f"0/c/0/0/0 is missing.* remove {task}"):
        materialize(outdir)
    assert (outdir / "s/s.ome.zarr").is_symlink()
    assert not list(outdir.rglob(".partial-*"))


def test_a_store_whose_chunk_is_another_is_not_copied(outdir, task):
    chunk = task / "s.ome.zarr/0/c/0/0/0"
    chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(OctaneError, match=r"0/c/0/0/0 is not what was written"):
        materialize(outdir)
    assert (outdir / "s/s.ome.zarr").is_symlink()
    assert not list(outdir.rglob(".partial-*"))


def test_a_copy_that_is_not_what_was_read_is_an_error(outdir, monkeypatch):
    monkeypatch.setattr(module, "measured", lambda path: module.Stamp(0, 0))
    with pytest.raises(OSError, match="the copy differs"):
        materialize(outdir)
    assert len(links(outdir)) == 3


def test_without_space_nothing_is_begun(outdir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(NoSpaceError, match=r"0\.000 GB are free"):
        materialize(outdir)
    assert len(links(outdir)) == 3


def test_a_file_system_that_shares_blocks_needs_no_space(outdir, monkeypatch):
    def share(target, request, source):
        assert request == module.FICLONE
        os.lseek(source, 0, os.SEEK_SET)
        os.pwrite(target, os.pread(source, 10**6, 0), 0)

    monkeypatch.setattr(fcntl, "ioctl", share)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    before = content(outdir)
    made = materialize(outdir)
    assert made.shared == made.bytes > 0
    assert content(outdir) == before
    assert not links(outdir)


def test_what_a_killed_call_left_is_cleared_away(outdir):
    place = outdir / "s"
    # Killed while it copied, and while the link stepped aside.
    (place / ".partial-99-previews").mkdir()
    (place / ".partial-99-previews" / "a.png").write_bytes(b"a pic")
    (place / "s.ome.zarr").rename(place / ".replaced-99-s.ome.zarr")
    shutil.copytree(place / ".replaced-99-s.ome.zarr", place / ".partial-99-s.ome.zarr")
    materialize(outdir)
    names = {path.name for path in place.iterdir()}
    assert names == {"metrics", "own.txt", "previews", "s.ome.zarr"}
    assert not links(outdir)


def test_what_others_are_writing_is_let_be(outdir):
    (outdir / ".partial-99-other.ome.zarr").mkdir()
    materialize(outdir)
    assert (outdir / ".partial-99-other.ome.zarr").is_dir()


def test_two_calls_do_not_meet(outdir):
    descriptor = os.open(outdir, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(OctaneError, match="another process"):
            materialize(outdir)
    finally:
        os.close(descriptor)
    assert materialize(outdir).links == 3


def test_a_link_to_a_folder_that_it_lies_in_is_refused(outdir, task):
    (task / "previews/again").symlink_to(task / "previews")
    with pytest.raises(OctaneError, match="link to a folder that it lies in"):
        materialize(outdir)


def test_a_store_that_lost_its_list_of_files_is_not_copied(outdir, task):
    (task / "s.ome.zarr" / PLACE).unlink()
    with pytest.raises(OctaneError, match="has lost"):
        materialize(outdir)
    assert (outdir / "s/s.ome.zarr").is_symlink()


def test_a_store_of_an_earlier_version_which_has_no_list_is_copied_as_it_is(outdir, task):
    store = task / "s.ome.zarr"
    (store / PLACE).unlink()
    root = json.loads((store / "zarr.json").read_text())
    del root["attributes"]["octane"]["manifest"]
    (store / "zarr.json").write_text(json.dumps(root))
    materialize(outdir)
    assert not links(outdir)
    assert verify_stores(outdir).unlisted == 1


def test_a_work_directory_is_not_touched_wherever_it_lies(outdir, task, tmp_path, log):
    (task / "input").symlink_to(task / "previews")
    assert materialize(tmp_path).links == 3
    assert set(links(tmp_path / "work")) == {task / "input", task / "previews" / "b.png"}
    assert verify_stores(tmp_path).stores == 1
    for folder in (task, task / "s.ome.zarr"):
        with pytest.raises(OctaneError, match="lies in a work directory"):
            materialize(folder)


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(OctaneError, match="is no folder"):
        materialize(tmp_path / "nothing")
