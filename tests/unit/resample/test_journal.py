"""The journal of finished objects: what is believed of it, what is made anew, who may write."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from octane.core.errors import OctaneError
from octane.core.manifests import stamped
from octane.resample import journal as journal_module
from octane.resample.journal import fingerprint, journal


@pytest.fixture
def place(tmp_path):
    """Where stores are made."""
    return tmp_path / "kept"


@pytest.fixture
def begin(place, tmp_path):
    """Open the journal of ``a.zarr``."""

    def opened(key="k1", source=tmp_path / "source.zarr", name="a.zarr"):
        return journal(place, name, key, source)

    return opened


class Stopped(Exception):
    """What ends a run before its time."""


def interrupted(begin, files, **given):
    """A run that writes some objects and is stopped."""
    with suppress(Stopped), begin(**given) as record:
        for key, content in files.items():
            path = record.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            record.add(key, "s", stamped([content]))
        raise Stopped
    return record.folder


def test_finished_objects_are_known_after_an_interruption(begin):
    interrupted(begin, {"0/c/0/0/0": b"one", "0/c/0/0/1": b""})
    with begin() as record:
        assert len(record) == 2
        assert record.finished("0/c/0/0/0", "s")
        assert record.finished("0/c/0/0/1", "s")
        assert not record.finished("0/c/0/1/0", "s")


def test_nothing_of_it_stays_after_a_run_that_ended_well(begin, place):
    with begin() as record:
        record.folder.mkdir()
        record.folder.rename(place / "a.zarr")
    assert [p.name for p in place.iterdir()] == ["a.zarr"]


def test_nothing_stays_of_a_run_that_failed_before_it_wrote(begin, place):
    with pytest.raises(Stopped), begin():
        raise Stopped
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("content", [b"on", b"onE", b"one more", None], ids=repr)
def test_an_object_that_is_not_as_it_was_written_is_made_again(begin, content):
    folder = interrupted(begin, {"c": b"one"})
    (folder / "c").unlink()
    if content is not None:
        (folder / "c").write_bytes(content)
    with begin() as record:
        assert not record.finished("c", "s")


def test_an_object_of_another_source_is_made_again(begin):
    interrupted(begin, {"c": b"one"})
    with begin() as record:
        assert not record.finished("c", "changed")


def test_the_last_word_on_an_object_counts(begin):
    interrupted(begin, {"c": b"one"})
    interrupted(begin, {"c": b"other"})
    with begin() as record:
        assert record.finished("c", "s")


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_a_kill_cut_short_is_left_out(begin, cut):
    folder = interrupted(begin, {"a": b"one", "b": b"two"})
    file = folder.with_name(folder.name + ".journal")
    file.write_bytes(file.read_bytes()[:-cut])
    interrupted(begin, {"d": b"three"})
    with begin() as record:
        assert record.finished("a", "s")
        assert record.finished("d", "s")
        assert (record.finished("b", "s") is not None) == (cut == 1)


def test_a_journal_cut_within_its_first_line_begins_anew(begin):
    folder = interrupted(begin, {"a": b"one"})
    folder.with_name(folder.name + ".journal").write_text('{"sour')
    with begin() as record:
        assert len(record) == 0
        assert not record.folder.exists()
        record.folder.mkdir()


def test_other_settings_begin_anew_and_remove_what_was_there(begin, place):
    before = interrupted(begin, {"a": b"one"})
    after = interrupted(begin, {"b": b"two"}, key="k2")
    assert not before.exists()
    assert sorted(p.name for p in place.iterdir()) == [after.name, after.name + ".journal"]


def test_what_was_made_of_another_source_stays(begin, tmp_path):
    first = interrupted(begin, {"a": b"one"})
    second = interrupted(begin, {"a": b"two"}, key="k2", source=tmp_path / "other.zarr")
    assert first.exists()
    assert second.exists()


def test_a_second_run_of_the_same_keeps_nothing_and_says_so(begin, caplog):
    with begin() as record:
        record.folder.mkdir()
        with begin() as other:
            assert other is None
        assert record.folder.exists()
    assert "another process" in caplog.text


def test_a_journal_that_its_owner_removes_meanwhile_is_not_locked(begin, monkeypatch):
    # The owner ends between the opening and the lock of the next.
    locked, files = journal_module.locked, []

    def slowly(descriptor, path):
        if not files:
            files.append(path)
            path.unlink()
        return locked(descriptor, path)

    monkeypatch.setattr(journal_module, "locked", slowly)
    with begin() as record:
        assert files[0].exists()
        record.folder.mkdir()


def test_other_stores_of_the_place_are_let_be(begin, tmp_path):
    kept = [
        interrupted(begin, {"a": b"1"}, name="b-a.zarr"),
        interrupted(begin, {"a": b"1"}, source=tmp_path / "other.zarr", key="k9"),
    ]
    interrupted(begin, {"a": b"1"}, key="k2")
    assert all(folder.exists() for folder in kept)


def test_names_with_brackets_are_found_again(begin):
    before = interrupted(begin, {"a": b"1"}, name="s[1].zarr")
    interrupted(begin, {"a": b"1"}, name="s[1].zarr", key="k2")
    assert not before.exists()


def test_metadata_and_unfinished_files_are_swept(begin):
    folder = interrupted(begin, {"0/c/0": b"one"})
    for name in ("zarr.json", "0/zarr.json", "0/zarr.0f.partial", "0/c/.partial-1-2-3"):
        (folder / name).write_text("torn")
    with begin() as record:
        left = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        assert left == ["0/c/0"]
        assert record.finished("0/c/0", "s")


def test_other_settings_leave_alone_what_is_being_written(begin):
    with begin() as record:
        record.folder.mkdir()
        with begin(key="k2") as other:
            other.folder.mkdir()
        assert record.folder.exists()


def test_a_killed_process_keeps_no_lock(begin, place, tmp_path, project):
    script = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(project / "bin")!r})
from octane.resample.journal import journal
from octane.core.manifests import stamped
source = Path({str(tmp_path / "source.zarr")!r})
with journal(Path({str(place)!r}), "a.zarr", "k1", source) as record:
    record.folder.mkdir()
    (record.folder / "c").write_bytes(b"one")
    record.add("c", "s", stamped([b"one"]))
    print("ready", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    with begin() as record:
        assert record.finished("c", "s")


def test_a_place_that_cannot_be_written_is_named(begin, place):
    place.write_text("a file")
    with pytest.raises(OctaneError, match="--resume-dir"), begin():
        pytest.fail("written")


def test_a_fingerprint_changes_with_what_it_is_of():
    one = fingerprint({"resolution": [10.0, 10.0, 10.0]})
    assert one == fingerprint({"resolution": [10.0, 10.0, 10.0]})
    assert one != fingerprint({"resolution": [10.0, 10.0, 10.1]})
