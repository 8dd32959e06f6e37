"""Links made real: complete copies replace them, once; nothing is half-made or lost."""

import errno
import fcntl
import os
import shutil
from platform import node

import numpy as np
import pytest
from refusals import refused
from runs import contents

from octane.core.errors import NoSpaceError, OctaneError
from octane.core.files import OLD, PARTIAL
from octane.core.geometry import Grid
from octane.store.writer import Level, create_image
from octane.tools.materialize.step import materialize, verify


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
    (task / "previews" / "b.png").symlink_to("a.png")
    folder = tmp_path / "out" / "s"
    (folder / "metrics").mkdir(parents=True)
    (folder / "s.ome.zarr").symlink_to(task / "s.ome.zarr")
    (folder / "metrics" / "metrics.json").symlink_to(
        os.path.relpath(task / "metrics.json", folder / "metrics")
    )
    (folder / "previews").symlink_to(task / "previews")
    (folder / "own.txt").write_text("a file of the run")
    return tmp_path / "out"


def links(folder):
    return [p for p in folder.rglob("*") if p.is_symlink()]


def test_links_become_files_that_need_no_work_directory(outdir, task, caplog):
    caplog.set_level("INFO")
    before, work = contents(outdir), contents(task)
    os.utime(task / "metrics.json", ns=(10**18, 10**18))
    assert materialize(outdir, dry_run=True) == 3
    assert "3 links to be made real" in caplog.messages[-1]
    assert len(links(outdir)) == 3
    assert materialize(outdir) == 3
    assert "3 links made real" in caplog.messages[-1]
    assert not links(outdir)
    assert contents(task) == work
    inodes = {p: p.stat().st_ino for p in outdir.rglob("*")}
    assert materialize(outdir) == 0
    assert {p: p.stat().st_ino for p in outdir.rglob("*")} == inodes
    assert (outdir / "s/metrics/metrics.json").stat().st_mtime_ns == 10**18
    shutil.rmtree(task)
    assert contents(outdir) == before
    assert verify(outdir) == 1


def test_links_elsewhere_stay(outdir, tmp_path):
    (tmp_path / "raw").mkdir()
    (outdir / "raw").symlink_to(tmp_path / "raw")
    (outdir / "lost").symlink_to(tmp_path / "nowhere")
    (outdir / "self").symlink_to("self")
    materialize(outdir)
    assert set(links(outdir)) == {outdir / "raw", outdir / "lost", outdir / "self"}


@pytest.mark.parametrize("place", ["out/s", "disk2/s"])
def test_what_a_killed_call_left_is_cleared_away(outdir, task, tmp_path, place):
    folder = tmp_path / place
    if place == "disk2/s":
        # The subject's folder is on another disk, behind a link.
        folder.parent.mkdir()
        (outdir / "s").rename(folder)
        (outdir / "s").symlink_to(folder)
        # A link is relative to where it is.
        (folder / "metrics/metrics.json").unlink()
        (folder / "metrics/metrics.json").symlink_to(task / "metrics.json")
        # A cycle, and a link upwards.
        (folder / "back").symlink_to(outdir)
        (folder / "up").symlink_to(tmp_path)
        # Other results, reached by the link upwards.
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "metrics.json").symlink_to(task / "metrics.json")
    kept = {path.name for path in folder.iterdir()}
    # Killed while it copied.
    partial = f"{PARTIAL}{node()}-99-"
    (folder / f"{partial}previews").mkdir()
    (folder / f"{partial}previews" / "a.png").write_bytes(b"a pic")
    # Killed between two renames, where the file system cannot exchange names.
    (folder / "s.ome.zarr").rename(folder / f"{OLD}{partial}s.ome.zarr")
    assert materialize(outdir) == 3
    assert {path.name for path in folder.iterdir()} == kept
    assert {path.name for path in links(folder)} <= {"back", "up"}
    assert all(path.is_symlink() for path in tmp_path.glob("other/*"))
    assert (folder / "previews/a.png").read_bytes() == b"a picture"
    assert verify(outdir) == 1


def test_a_folder_that_cannot_be_read_is_named(outdir, denied):
    (outdir / "closed").mkdir()
    for call in (materialize, verify):
        with (
            denied(os, "scandir", "closed"),
            refused(outdir / "closed", os.strerror(errno.EACCES)),
        ):
            call(outdir)
    assert len(links(outdir)) == 3


def test_links_that_lead_nowhere_are_named_and_the_others_made_real(outdir, task):
    shutil.rmtree(task / "s.ome.zarr")
    (outdir / "s/other.ome.zarr").symlink_to(task / "other.ome.zarr")
    lost = {outdir / "s/s.ome.zarr", outdir / "s/other.ome.zarr"}
    for call in (materialize, verify):
        with pytest.raises(OctaneError) as caught:
            call(outdir)
        assert all(str(path) in str(caught.value) for path in lost)
    assert set(links(outdir)) == lost
    assert (outdir / "s/metrics/metrics.json").read_text() == "{}"


@pytest.mark.timeout(30)
def test_what_leads_out_of_a_result_is_named_and_nothing_copied(outdir, task, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").touch()
    store = outdir / "s/s.ome.zarr"
    (store / "0/c/0/0/9").symlink_to(tmp_path / "secret" / "key")
    (store / "more").symlink_to(tmp_path / "secret")
    (store / "back").symlink_to("..")
    (store / "self").symlink_to("self")
    os.mkfifo(outdir / "s/previews/c.png")
    for dry_run in (True, False):
        with pytest.raises(OctaneError) as caught:
            materialize(outdir, dry_run=dry_run)
        remedy = f"; remove {task} and run again with -resume."
        assert sorted(str(caught.value).splitlines()) == [
            f"{outdir}/s/previews/c.png is not a regular file of its result{remedy}",
            f"{store}/0/c/0/0/9 leads out of its result, to {tmp_path}/secret/key{remedy}",
            f"{store}/back leads out of its result, to {task}{remedy}",
            f"{store}/more leads out of its result, to {tmp_path}/secret{remedy}",
            f"{store}/self is not a regular file of its result{remedy}",
        ]
        assert len([p for p in outdir.rglob("*") if p.is_symlink()]) == 3


@pytest.mark.timeout(30)
def test_links_that_lead_round_in_a_result_are_named(outdir, odd_entry):
    folder = odd_entry(outdir / "s/s.ome.zarr", "loops")
    with pytest.raises(OctaneError, match=f"^{folder}.*-resume"):
        materialize(outdir)
    assert len([p for p in outdir.rglob("*") if p.is_symlink()]) == 3


def full(_, target):
    raise OSError(errno.ENOSPC, "No space left on device", target)


def deny(_, target):
    raise PermissionError(errno.EACCES, "Permission denied", target)


def cut_short(_, target):
    target.write_bytes(b"a")


@pytest.mark.parametrize(
    ("copy", "error", "names"),
    [
        (full, NoSpaceError, ("s/previews:", os.strerror(errno.ENOSPC))),
        (deny, PermissionError, ("previews/a.png", "Permission denied")),
        (cut_short, OctaneError, ("s/previews:", "size")),
    ],
)
def test_a_copy_that_fails_leaves_the_link(outdir, monkeypatch, copy, error, names):
    def no_reflink(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    (outdir / "s/metrics/metrics.json").unlink()
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    monkeypatch.setattr(shutil, "copyfile", copy)
    before = contents(outdir)
    with refused(*names, error=error):
        materialize(outdir)
    assert contents(outdir) == before
    assert len(links(outdir)) == 2


def test_a_work_directory_is_not_touched_wherever_it_lies(outdir, task, tmp_path):
    (task / "input").symlink_to(task / "previews")
    assert materialize(tmp_path) == 3
    assert set(links(tmp_path / "work")) == {task / "input", task / "previews" / "b.png"}
    assert verify(tmp_path) == 1
    for folder in (task, task / "s.ome.zarr"):
        with refused(task, "--outdir"):
            materialize(folder)


def test_what_is_no_folder_or_holds_no_store_is_refused(tmp_path):
    for call in (materialize, verify):
        with refused(tmp_path / "nothing", "--outdir"):
            call(tmp_path / "nothing")
    with refused(tmp_path, "--outdir", "store"):
        verify(tmp_path)


def test_every_chunk_of_every_level_is_decoded(write_image, write_foreign, tmp_path, rng):
    voxels = rng.random((8, 8, 8), np.float32)
    write_image("s/a.ome.zarr", voxels, chunks=(4, 4, 4))
    levels = [Level.volume(Grid((n, n, n), (10.0, 10.0, 10.0))) for n in (8, 4)]
    with create_image(tmp_path / "s/b.ome.zarr", levels, "f4") as writers:
        for writer in writers:
            part = tuple(slice(0, n) for n in writer.array.shape)
            writer[part] = voxels[part]
    # Stores of others may leave out empty chunks.
    foreign = write_foreign("s/c.zarr", voxels, chunks=(4, 4, 4))
    (foreign / "0/0.0.0").unlink()
    assert verify(tmp_path) == 3
    altered = bytearray((tmp_path / "s/a.ome.zarr/0/c/0/1/1").read_bytes())
    altered[-9] ^= 1
    (tmp_path / "s/a.ome.zarr/0/c/0/1/1").write_bytes(altered)
    (tmp_path / "s/b.ome.zarr/1/c/0/0/0").unlink()
    with pytest.raises(OctaneError) as caught:
        verify(tmp_path)
    first, second = str(caught.value).splitlines()
    assert "a.ome.zarr: chunk 0/c/0/1/1 cannot be decoded" in first
    assert "b.ome.zarr: chunk 1/c/0/0/0 is missing" in second


@pytest.mark.parametrize("arrived", [(), ("0/c",), ("0/c", "0/zarr.json"), ("zarr.json",)])
def test_a_copy_that_was_cut_short_is_no_whole_one(write_image, tmp_path, arrived):
    voxels = np.ones((4, 4, 4), np.float32)
    write_image("out/a.ome.zarr", voxels)
    whole = write_image("whole/b.ome.zarr", voxels)
    copy = tmp_path / "out/s/b.ome.zarr"
    copy.mkdir(parents=True)
    for key in arrived:
        (copy / key).parent.mkdir(exist_ok=True)
        (shutil.copytree if (whole / key).is_dir() else shutil.copy)(whole / key, copy / key)
    with refused(copy):
        verify(tmp_path / "out")
    # A path named as unfinished is not a result.
    copy.rename(copy.with_name(".partial-99-b.ome.zarr"))
    assert verify(tmp_path / "out") == 1


def test_a_copy_is_on_the_disk_before_it_takes_the_links_place(outdir, monkeypatch):
    brought = []
    monkeypatch.setattr("octane.tools.materialize.step.bring_to_disk", brought.append)
    assert materialize(outdir) == len(brought) == 3
    assert all(path.name.startswith(PARTIAL) for path in brought)
