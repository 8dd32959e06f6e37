"""An output with its final name is complete, whatever happens while it is made."""

import errno
import os
import sys
from pathlib import Path

import pytest
from refusals import refused

from octane.core import files
from octane.core.errors import NoSpaceError
from octane.core.files import (
    PARTIAL,
    IrregularFileError,
    bring_to_disk,
    open_regular,
    read_regular,
    writing,
)

OWN = '{"attributes": {"octane": {}}}'
"""Metadata of a store that octane wrote."""


def replace(folder):
    with writing(folder, overwrite=True) as partial:
        partial.mkdir()
        (partial / "new").touch()


@pytest.mark.parametrize("name", ["a.txt", "b/c/a.ome.zarr", "a.nii.gz"])
def test_an_output_has_its_name_once_it_is_whole(tmp_path, name):
    with writing(tmp_path / name) as partial:
        partial.write_text("half")
        assert not (tmp_path / name).exists()
        # File writers choose their format by the suffix.
        assert partial.name.endswith(Path(name).name)
    assert (tmp_path / name).read_text() == "half"
    assert [p.name for p in (tmp_path / name).parent.iterdir()] == [Path(name).name]


@pytest.fixture
def fail(tmp_path):
    """Begin to replace ``a`` by a folder, and raise."""

    def run(error):
        with writing(tmp_path / "a", overwrite=True) as partial:
            (partial / "inner").mkdir(parents=True)
            (partial / "inner" / "file").touch()
            raise error

    return run


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_words(fail, tmp_path, code):
    with pytest.raises(NoSpaceError) as caught:
        fail(OSError(code, os.strerror(code)))
    assert caught.value.code == 28
    assert f"{tmp_path / 'a'}: {os.strerror(code)}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_a_disk_that_fails_is_named(tmp_path):
    def write():
        with writing(tmp_path / "a") as partial:
            # Its first page is not mapped, for which the kernel's error is that of a broken disk.
            partial.symlink_to("/proc/self/mem")
            partial.write_bytes(b"x")

    with pytest.raises(OSError, match=rf"\[Errno {errno.EIO}\].*/a'$") as caught:
        write()
    assert caught.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_what_exists_is_replaced_when_asked(tmp_path, monkeypatch, folder, swap):
    def vanish(*_):
        pytest.fail("the result lost its name")

    if swap:
        # It has its old or its new name at all times.
        monkeypatch.setattr(Path, "rename", vanish)
    else:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    if folder:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "zarr.json").write_text(OWN)
    else:
        (tmp_path / "a").write_text("old")
    replace(tmp_path / "a")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("real", [False, True])
def test_a_link_is_replaced_and_not_followed(tmp_path, real):
    if real:
        (tmp_path / "real").write_text("keep")
    (tmp_path / "a").symlink_to(tmp_path / "real")
    with refused("--overwrite"), writing(tmp_path / "a"):
        pytest.fail("a link was about to be replaced")
    replace(tmp_path / "a")
    assert not (tmp_path / "a").is_symlink()
    assert not real or (tmp_path / "real").read_text() == "keep"


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path, run_python
):
    program = (
        "import os, sys; from pathlib import Path\n"
        "from octane.core.files import writing\n"
        "with writing(Path(sys.argv[1])) as partial:\n"
        "    partial.mkdir(); (partial / 'half').touch(); os.kill(os.getpid(), 9)\n"
    )
    run_python(program, tmp_path / "a", check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(PARTIAL)
    # A running process, and one of another machine.
    living = [left.with_name(left.name.replace(left.name.split("-")[-2], str(os.getppid())))]
    living.append(tmp_path / f"{PARTIAL}other-machine-1-a")
    for path in living:
        path.touch()
    with writing(tmp_path / "a") as partial:
        partial.touch()
    assert sorted(tmp_path.iterdir()) == sorted([*living, tmp_path / "a"])


def test_a_result_that_lost_its_name_gets_it_again(store, monkeypatch):
    # A file system that cannot exchange names, and a kill between the two renames.
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *names: rename(*names) and sys.exit())
        patch.setattr(files, "remove", lambda _: None)
        with pytest.raises(SystemExit):
            replace(store)
    assert not store.exists()
    with refused(store, "--overwrite"), writing(store):
        pytest.fail("the result was not there")
    assert (store / "0" / "c" / "0").read_bytes() == b"chunk"
    replace(store)
    assert [p.name for p in store.parent.iterdir()] == [store.name]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with refused(f"{tmp_path / 'file'} "), writing(tmp_path / "file" / "a"):
        pytest.fail("work was begun")


def test_a_folder_of_others_is_never_replaced(tmp_path):
    (tmp_path / "a" / "sub").mkdir(parents=True)
    with refused(tmp_path / "a"):
        replace(tmp_path / "a")
    assert (tmp_path / "a" / "sub").exists()


FOREIGN = {
    "a thesis beside the metadata": ("thesis.pdf", "thesis.pdf"),
    "a thesis beside the chunks": ("0/c/thesis.pdf", "0/c/thesis.pdf"),
    "a folder": ("labels/nuclei/zarr.json", "labels"),
    "a hidden file": (".git/config", ".git"),
}


@pytest.mark.parametrize(("file", "named"), FOREIGN.values(), ids=FOREIGN)
def test_a_store_with_a_file_of_others_is_not_replaced(store, file, named):
    (store / file).parent.mkdir(parents=True, exist_ok=True)
    (store / file).write_text("years of work")
    with refused(store / named):
        replace(store)
    assert (store / file).read_text() == "years of work"
    # Once it is gone, the store is.
    (store / file).unlink()
    for folder in (store / file).parents:
        if not any(folder.iterdir()):
            folder.rmdir()
    replace(store)


@pytest.mark.parametrize("name", ["0/c/1", "0/1", "1"])
@pytest.mark.parametrize("target", ["elsewhere", "gone"])
def test_a_store_with_a_link_is_not_replaced(store, name, target):
    (store.parent / "elsewhere").mkdir()
    (store / name).symlink_to(store.parent / target)
    with refused(store / name):
        replace(store)
    assert (store / name).is_symlink()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"attributes": {"ome": {}}}', "\xff"])
def test_a_store_of_others_is_not_replaced(store, content):
    (store / "zarr.json").write_bytes(content.encode("latin-1"))
    with refused(store):
        replace(store)
    assert (store / "0" / "c" / "0").read_bytes() == b"chunk"


def test_pictures_of_others_are_not_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    # Nothing is lost with an empty folder.
    replace(tmp_path / "a")
    (tmp_path / "a" / "new").unlink()
    (tmp_path / "a" / "holiday.png").write_bytes(b"\x89PNG\r\n...")
    with refused("a/holiday.png"):
        replace(tmp_path / "a")
    (tmp_path / "a" / "holiday.png").write_bytes(b"\x89PNG\r\n... Software\0octane")
    replace(tmp_path / "a")


def write_twice(path):
    """Write a name that another process creates in the meantime."""
    with writing(path) as partial:
        partial.write_text("mine")
        path.write_text("theirs")


def test_what_was_made_meanwhile_is_kept(tmp_path):
    with refused(tmp_path / "a"):
        write_twice(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "a.ome.zarr"
    (folder / "0" / "c").mkdir(parents=True)
    (folder / "zarr.json").write_text(OWN)
    (folder / "0" / "c" / "0").write_bytes(b"chunk")
    return folder


def test_every_file_and_folder_and_the_name_itself(store, monkeypatch):
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    bring_to_disk(store)
    there = [store, store.parent, *store.rglob("*")]
    assert synced == {path.stat().st_ino for path in there}


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_a_disk_that_cannot_take_it_is_named(store, monkeypatch, code):
    def refuse(_fd):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if code == errno.EINVAL:
        # A file system that does not support it.
        bring_to_disk(store)
        return
    with refused("a.ome.zarr"):
        bring_to_disk(store)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("make", "what"), [(os.mkfifo, "a FIFO or device"), (os.mkdir, "a folder")]
)
def test_what_is_no_regular_file_is_not_opened(tmp_path, make, what):
    make(tmp_path / "a")
    # A link is followed.
    (tmp_path / "b").symlink_to("a")
    before = len([*Path("/proc/self/fd").iterdir()])
    for call in (open_regular, read_regular):
        with refused(what, error=IrregularFileError):
            call(tmp_path / "b")
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_device_or_a_fifo_is_not_replaced(tmp_path):
    os.mkfifo(fifo := tmp_path / "fifo")
    for place in (fifo, Path("/dev/null")):
        with (
            refused(place),
            writing(place, overwrite=True),
        ):
            pass
    assert fifo.is_fifo()
