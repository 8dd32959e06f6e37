"""Folders that results lie in: each once, links followed, and no task's."""

import os

import pytest

from octane.steps.walking import walk

TASK = "work/ab/0123456789abcdef0123456789abcd"


@pytest.fixture
def out(tmp_path):
    """A folder with one of its own, and a task's beside it."""
    (tmp_path / "out" / "s1").mkdir(parents=True)
    (tmp_path / TASK / "previews").mkdir(parents=True)
    return tmp_path / "out"


def entered(top, **options):
    unread = []
    found = [folder.relative_to(top).as_posix() for folder, *_ in walk(top, unread, **options)]
    assert not unread
    return found


def test_links_out_of_work_directories_are_followed_and_keep_their_names(out, tmp_path):
    (tmp_path / "disk2/s2/metrics").mkdir(parents=True)
    (out / "s2").symlink_to(tmp_path / "disk2/s2")
    (out / "previews").symlink_to(tmp_path / TASK / "previews")
    assert entered(out) == [".", "s1", "s2", "s2/metrics"]
    assert set(entered(out, tasks=True)) == {".", "s1", "s2", "s2/metrics", "previews"}


def test_a_folder_is_entered_once_however_many_links_lead_to_it(out, tmp_path):
    (tmp_path / "disk2/s2").mkdir(parents=True)
    for name in ("a", "b"):
        (out / name).symlink_to(tmp_path / "disk2/s2")
    (out / "all").symlink_to(tmp_path / "disk2")
    (out / "again").symlink_to(out / "s1")
    assert entered(out) == [".", "s1", "a", "all"]


def test_links_in_a_circle_and_up_end(out, tmp_path):
    (tmp_path / "disk2").mkdir()
    (out / "s2").symlink_to(tmp_path / "disk2")
    (tmp_path / "disk2/back").symlink_to(out)
    (out / "s1/up").symlink_to(tmp_path)
    (out / "self").symlink_to("self")
    assert entered(out) == [".", "s1", "s2"]


def test_the_folders_of_tasks_are_not_entered_by_whatever_way(out, tmp_path):
    (tmp_path / "work/cd").mkdir()
    (out / "work").symlink_to(tmp_path / "work")
    (out / "some").symlink_to(tmp_path / "work/ab")
    assert entered(out) == [".", "s1", "some", "work", "work/cd"]
    assert entered(tmp_path) == [".", "out", "out/s1", "work", "work/ab", "work/cd"]


def test_what_is_taken_out_of_the_names_is_not_entered(out, tmp_path):
    (tmp_path / "disk2").mkdir()
    (out / "s2").symlink_to(tmp_path / "disk2")
    found = []
    for folder, folders, _ in walk(out, []):
        found.append(folder)
        folders.clear()
    assert found == [out]


def test_a_folder_that_cannot_be_read_is_told(out, denied):
    unread = []
    with denied(os, "scandir", "s1"):
        assert [folder for folder, *_ in walk(out, unread)] == [out]
    assert [error.filename for error in unread] == [str(out / "s1")]
