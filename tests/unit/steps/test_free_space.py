"""What is to be written beside what is free."""

import os

import pytest

from octane.core.errors import OctaneError
from octane.core.units import shown
from octane.steps import free_space
from octane.steps.free_space import Places, check_space, require_links
from octane.steps.space import Step

STEPS = [
    Step("RESAMPLE", 4, 4_000_000),
    Step("N4", 1, 3_000_000, published=500_000),
    Step("PYRAMID", 1, 1_000_000, linked=2_000_000, published=3_000_000),
]


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Folders that stand for file systems of their own, with so much free."""
    free = {}

    def disk(name, size):
        folder = tmp_path / name
        folder.mkdir()
        free[folder] = size
        return folder

    def own(folder):
        existing = folder
        while existing not in free:
            existing = existing.parent
        return existing

    monkeypatch.setattr(free_space, "_device", lambda folder: hash(own(folder)))
    monkeypatch.setattr(free_space, "_free", lambda folder: free[own(folder)])
    return disk


def test_links_are_not_counted_on_one_file_system(disks):
    made = check_space(STEPS, Places(disks("w", 10**9), disks("o", 10**9), recorded=False), "a")
    assert made["need_bytes"] == {"work": 8_000_000, "output": 0}
    assert made["warnings"] == []


def test_copied_results_are_counted_in_the_output(disks):
    places = Places(disks("w", 10**9), disks("o", 10**9), copied=True, recorded=False)
    assert check_space(STEPS, places, "a")["need_bytes"]["output"] == 3_500_000


def test_records_are_counted_where_they_are_wanted(disks):
    made = check_space(STEPS, Places(disks("w", 10**9), disks("o", 10**9)), "a")
    assert made["need_bytes"]["output"] > 3_000_000


def test_out_of_a_scratch_folder_links_are_copied(disks):
    scratch = disks("s", 10**9)
    places = Places(disks("w", 10**9), disks("o", 10**9), str(scratch), recorded=False)
    made = check_space(STEPS, places, "a")
    # One task at a time: PYRAMID, which cannot link to another file system.
    assert made["need_bytes"] == {"work": 10_000_000, "output": 0, "scratch": 3_000_000}


def test_scratch_on_the_disk_of_the_work_directory_warns_with_the_figures(disks):
    work = disks("w", 10**9)
    (work / "scratch").mkdir()
    places = Places(work, disks("o", 10**9), str(work / "scratch"), recorded=False)
    made = check_space(STEPS, places, "a")
    (warning,) = made["warnings"]
    assert "20 MB in place of 8 MB" in warning
    assert "--scratch_dir false" in warning
    assert made["need_bytes"]["scratch"] == 3_000_000


def test_what_is_on_one_file_system_is_added_up(disks):
    disk = disks("w", 11_000_000)
    (disk / "out").mkdir()
    places = Places(disk, disk / "out" / "not" / "yet", copied=True, recorded=False)
    with pytest.raises(OctaneError) as caught:
        check_space(STEPS, places, "sub-01")
    (line,) = str(caught.value).splitlines()
    assert "sub-01 does not fit: work (8 MB) and output (3.5 MB) take about 11.5 MB" in line
    assert f"{disk}, which has 11 MB free" in line
    assert "RESAMPLE 4 MB, N4 3 MB, PYRAMID 1 MB" in line
    assert "-work-dir" in line
    assert "--publish_dir_mode symlink" in line
    assert "--check_space false" in line


def test_each_file_system_that_is_too_small_has_a_line(disks):
    places = Places(
        disks("w", 10), disks("o", 10), str(disks("s", 10)), copied=True, recorded=False
    )
    with pytest.raises(OctaneError) as caught:
        check_space(STEPS, places, "a")
    assert len(str(caught.value).splitlines()) == 3
    assert "give --scratch_dir false" in str(caught.value)


def test_it_can_be_made_a_warning(disks):
    made = check_space(STEPS, Places(disks("w", 10), disks("o", 10**9)), "a", stop=False)
    (warning,) = made["warnings"]
    assert "does not fit" in warning


def test_tasks_at_once_that_may_not_fit_are_told(disks, monkeypatch):
    monkeypatch.setattr(free_space, "cores", lambda: 4)
    places = Places(disks("w", 10**9), disks("o", 10**9), str(disks("s", 3_500_000)))
    (warning,) = check_space(STEPS, places, "a")["warnings"]
    assert "tried again in the work directory" in warning


def test_a_scratch_folder_that_only_nodes_know_is_not_looked_at(disks, monkeypatch):
    monkeypatch.delenv("NODE_DISK", raising=False)
    places = Places(disks("w", 10**9), disks("o", 10**9), "$NODE_DISK", recorded=False)
    made = check_space(STEPS, places, "a")
    assert made["need_bytes"]["scratch"] == 3_000_000
    assert [s["places"] for s in made["file_systems"]] == [["work"], ["output"]]
    assert made["warnings"] == []


def test_the_figures_of_a_real_file_system_are_those_that_statvfs_gives(tmp_path):
    made = check_space(STEPS, Places(tmp_path, tmp_path / "out"), "a")
    (system,) = made["file_systems"]
    found = os.statvfs(tmp_path)
    assert 0 < system["free_bytes"] <= found.f_blocks * found.f_frsize
    assert system["places"] == ["work", "output"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 kB"), (999, "0.999 kB"), (1000, "1 kB"), (8_123_456, "8.12 MB"), (5e12, "5 TB")],
)
def test_sizes_are_spelled_as_people_do(size, text):
    assert shown(size) == text


def test_hard_links_are_tried_and_leave_nothing(tmp_path):
    (tmp_path / "work").mkdir()
    require_links(Places(tmp_path / "work", tmp_path / "out" / "sub"))
    assert [p.name for p in tmp_path.rglob("*")] == ["work"]


def test_hard_links_to_another_file_system_are_refused(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / "work").mkdir()
    with pytest.raises(OctaneError, match=r"link: no hard link can lead from .*cross-device"):
        require_links(Places(tmp_path / "work", tmp_path / "out"))
    assert [p.name for p in tmp_path.rglob("*")] == ["work"]
