"""The stores and files at a path, and those chosen by number."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.processes.preflight.inputs import choose_sections, find_inputs, kind_of
from octane.processes.preflight.parameters import WorkflowParameters
from octane.store.volumes import open_volume

FOLDER = Path("mosaics")
SECTIONS = [FOLDER / f"section_{number:02d}.ome.zarr" for number in (1, 2, 3, 5, 6)]


def test_stores_in_a_folder_are_found_in_order(tmp_path):
    stores = ["section_01.ome.zarr", "section_02.ome.zarr"]
    # The last is a leftover of a killed run.
    for name in (*stores, "other", ".partial-99-section_02.ome.zarr"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [p.name for p in find_inputs(tmp_path)] == stores
    assert find_inputs(tmp_path / stores[0]) == [tmp_path / stores[0]]


@pytest.mark.parametrize("place", ["{}", "{}/mosaics", "{}/images"])
def test_a_folder_of_subjects_names_those_with_data(tmp_path, place):
    names = [f"sub-{number:02d}" for number in range(1, 13)]
    for name in names:
        folder = tmp_path / place.format(name)
        folder.mkdir(parents=True)
        if "images" in place:
            (folder / "brain.nii.gz").write_text("")
        else:
            (folder / "section_01.ome.zarr").mkdir()
    (tmp_path / "notes" / "deeper").mkdir(parents=True)
    (tmp_path / ".hidden" / "a.ome.zarr").mkdir(parents=True)
    shown = ", ".join(place.format(name) for name in names[:10])
    with refused(str(tmp_path), shown):
        find_inputs(tmp_path)


@pytest.mark.parametrize(
    ("only", "exclude", "used"),
    [
        (None, None, [1, 2, 3, 5, 6]),
        ("none", 2, [1, 3, 5, 6]),
        (None, "1 5-6", [2, 3]),
        # A range may span a gap.
        ("3-5,1", None, [1, 3, 5]),
        ("3-6", "1-2", [3, 5, 6]),
        ("2-6", "3", [2, 5, 6]),
    ],
)
def test_sections_are_chosen_by_number(only, exclude, used):
    parameters = WorkflowParameters(only_sections=only, exclude_sections=exclude)
    chosen, left_out = choose_sections(FOLDER, SECTIONS, parameters)
    assert chosen == [path for path in SECTIONS if int(path.name[8:10]) in used]
    assert left_out == sorted({1, 2, 3, 5, 6} - {*used} if (only, exclude) != (None, None) else [])


@pytest.mark.parametrize(
    ("paths", "given", "words"),
    [
        (SECTIONS, {"exclude_sections": "4"}, "names section 4, which the input lacks: it has 1-3"),
        (SECTIONS, {"only_sections": "3-9"}, "^--only_sections 3-9 names section 9, .* 1-3 5-6;"),
        (SECTIONS, {"exclude_sections": "1-6"}, "leaves no section"),
        (SECTIONS, {"only_sections": "3", "exclude_sections": "2-3"}, "2-3 leaves no section"),
        ([FOLDER], {"only_sections": "1"}, "the input is one image; omit it"),
        ([*SECTIONS, FOLDER / "x.zarr"], {"only_sections": "1"}, "x.zarr lacks; name sections"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(paths, given, words):
    with pytest.raises(InputError, match=words):
        choose_sections(FOLDER, paths, WorkflowParameters(**given))


@pytest.mark.parametrize("kind", ["mosaic", "section"])
def test_a_file_that_is_no_store_is_a_volume_alone(write_file, kind):
    volume = open_volume(write_file("a_1.nii", np.ones((4, 8, 8), np.float32)))
    assert kind_of([volume], "auto") == "volume"
    with refused("a_1.nii", "--input_kind"):
        kind_of([volume], kind)
