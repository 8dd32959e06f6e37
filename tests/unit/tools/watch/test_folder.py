"""What is seen of a folder, and what is asked of its disk."""

import os
from pathlib import Path

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.processes.mosaic.names import NamePattern
from octane.tools.watch.folder import Folder, fingerprint_of


@pytest.fixture
def write(tmp_path):
    def write(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("voxels", encoding="utf-8")
        return tmp_path

    return write


def test_tiles_by_section(write):
    folder = Folder(
        write(
            "s01/r0_c0.tif", "s01/r0_c1.tif", "s02/r0_c0.tif", "s02/.tmp.tif", "s02/r0_c1.tif.part"
        ),
        NamePattern.of("s{section}/r{row}_c{column}.tif"),
    )
    seen = folder.look()
    assert seen.names == {1: ["s01/r0_c0.tif", "s01/r0_c1.tif"], 2: ["s02/r0_c0.tif"]}
    keys = {number: {*map(folder.key_of, names)} for number, names in seen.names.items()}
    assert keys[2] < keys[1]
    assert folder.name_of(2, seen.names[2]) == "section_02"


def test_finished_sections_are_neither_listed_nor_asked_for_their_files(write, monkeypatch):
    names = [f"section_{n:02d}/y{y}_x0.tif" for n in range(1, 5) for y in (0, 1)]
    folder = Folder(write(*names))
    first = folder.look()
    assert [*first.names] == [*first.states] == [1, 2, 3, 4]
    listed, real = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or real(path))
    seen = folder.look([1, 2, 3], [2])
    assert [*seen.states] == [2, 4]
    assert {Path(path).name for path in listed[1:]} == {"section_02", "section_04"}
    assert seen.names == first.names


def test_mosaics_are_sections_that_grow(write):
    root = write("section_07.ome.zarr/zarr.json", "section_07.ome.zarr/0/c/0/0/0", "notes.tif")
    folder = Folder(root)
    first = folder.look()
    write("section_07.ome.zarr/0/c/0/0/1")
    second = folder.look()
    assert [*first.states] == [7]
    assert second.states[7]["section_07.ome.zarr"].files == 3
    assert fingerprint_of(first.states[7]) != fingerprint_of(second.states[7])
    assert folder.name_of(7, second.names[7]) == "section_07"


def test_results_in_the_folder_are_no_tiles(write):
    root = write(
        "section_1_y0_x0.tif", "section_1_y0_x1.tif", "out/x/section_02.ome.zarr/zarr.json"
    )
    seen = Folder(root, outdir=root / "out").look()
    assert [*seen.names] == [1]


def test_names_that_say_nothing_are_refused_until_they_do(write):
    root = write("section_1_y0_x0.tif", "section_1_y0_x1.tif", "odd.tif")
    folder = Folder(root)
    with refused("odd.tif", error=InputError):
        folder.look()
    (root / "odd.tif").unlink()
    assert [*folder.look().names] == [1]


def test_a_folder_that_is_away_is_an_error(tmp_path):
    with pytest.raises(OSError):  # noqa: PT011 - any
        Folder(tmp_path / "gone").look()
