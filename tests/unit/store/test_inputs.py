"""What an input stands for, and by which names."""

import pytest

from octane.store.inputs import as_given, find_inputs

STORES = ["section_01.ome.zarr", "section_02.ome.zarr"]


@pytest.fixture
def mosaics(tmp_path):
    """A folder of two stores, as far as names tell."""
    for name in STORES:
        (tmp_path / "mosaics" / name).mkdir(parents=True)
    return tmp_path / "mosaics"


def test_stores_in_a_folder_are_found_in_order(mosaics):
    (mosaics / "notes.txt").write_text("")
    (mosaics / "other").mkdir()
    assert [p.name for p in find_inputs(mosaics)] == STORES
    assert find_inputs(mosaics / STORES[0]) == [mosaics / STORES[0]]


def test_leftovers_of_a_killed_run_are_no_input(mosaics):
    (mosaics / ".partial-99-section_02.ome.zarr").mkdir()
    assert [p.name for p in find_inputs(mosaics)] == STORES


def test_a_staged_link_is_followed_and_an_owners_is_not(mosaics, tmp_path):
    (mosaics / STORES[1]).rmdir()
    (tmp_path / "scan_7.ome.zarr").mkdir()
    (mosaics / STORES[1]).symlink_to(tmp_path / "scan_7.ome.zarr")
    (tmp_path / "task").mkdir()
    staged = tmp_path / "task" / "mosaics"
    staged.symlink_to(mosaics)
    assert [as_given(staged, path) for path in find_inputs(staged)] == [mosaics / n for n in STORES]
    one = tmp_path / "task" / STORES[1]
    one.symlink_to(mosaics / STORES[1])
    assert as_given(one, one) == mosaics / STORES[1]
    # A link of the owner's own, as in a call by hand, gives the section its number.
    assert as_given(mosaics / STORES[1], mosaics / STORES[1]) == mosaics / STORES[1]
