"""A new subject's config: what data and machine determine is stated, the rest is asked for."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.gpu.inventory import Gpu
from octane.steps.machine import Machine, Place
from octane.steps.new_subject import (
    PROJECT,
    Wishes,
    next_call,
    results_folder,
    settings_of,
    write_subject,
)
from octane.steps.survey import survey

VOXELS = np.ones((4, 20, 30), np.float32)
LOCAL = Place(Path("/tmp"), 1, "ext4", 10**12)
MACHINE = Machine(8, 100 * 10**9, (), "there is no GPU", LOCAL)


@pytest.fixture
def data(write_mosaic, tmp_path):
    """Mosaics that state nothing about themselves, 1 and 3."""
    for number in (1, 3):
        write_mosaic(f"data/section_{number:02d}.ome.zarr", VOXELS, (4, 10, 10), (3.5, 4.0, 4.0))
    return tmp_path / "data"


@pytest.fixture
def known(write_mosaic, tmp_path):
    """Mosaics that state overlap and thickness."""
    for number in (1, 2):
        write_mosaic(
            f"known/section_{number:02d}.ome.zarr",
            VOXELS,
            (4, 10, 10),
            pitch=(80.0, 80.0),
            section={"number": number, "thickness": 40.0},
        )
    return tmp_path / "known"


def settings(source, machine=MACHINE, outdir=Path("/results"), **wishes):
    return settings_of("sub", source, outdir, survey(source), machine, Wishes(**wishes))


def test_what_the_data_do_not_tell_is_asked_for(data):
    found = settings(data)
    for name in ("overlap", "section_thickness", "allow_missing_sections"):
        assert not found[name].stated, name
    assert "TO BE DECIDED" in found["overlap"].found[0]
    assert "MISSING: section 2." in found["allow_missing_sections"].found[0]
    assert found["allow_missing_sections"].value == 1
    assert "14 micrometre" in found["section_thickness"].found[0]
    assert (found["resolution"].value, found["resolution"].stated) == (10, True)


def test_what_the_data_tell_is_stated(known):
    found = settings(known)
    assert (found["overlap"].value, found["overlap"].stated) == ("0.2 0.2", False)
    assert "own metadata" in found["overlap"].found[0]
    assert (found["section_thickness"].value, found["section_thickness"].stated) == (40.0, True)
    assert not found["allow_missing_sections"].stated


def test_a_table_of_positions_takes_the_place_of_the_overlap(known):
    table = known / "positions.csv"
    table.write_text("section,row,column,y,x\n", encoding="utf-8")
    found = settings(known)
    assert found["positions"].value == str(table)
    assert not found["overlap"].stated


def test_a_persons_word_counts(data):
    found = settings(data, resolution="12", overlap="0.1", section_thickness=90.0)
    assert [found[n].value for n in ("resolution", "overlap", "section_thickness")] == [
        "12",
        "0.1",
        90.0,
    ]
    assert found["overlap"].stated


def test_a_volume_keeps_its_voxels(write_image):
    found = settings(write_image("brain.ome.zarr", VOXELS, attributes={"kind": "volume"}))
    assert not found["resolution"].stated
    assert "overlap" not in found
    assert "section_thickness" not in found


def test_the_machine(data):
    cards = tuple(Gpu(k, f"GPU-{k}", "A40", 48 * 10**9, 0) for k in range(2))
    found = settings(data, replace(MACHINE, gpus=cards, no_gpu=""))
    assert (found["max_cpus"].value, found["max_memory"].value) == (8, "80 GB")
    assert (found["gpu_count"].value, found["gpu_slots"].value) == (2, 1)
    assert "A40 (48 GB)" in found["gpu_count"].found[0]
    none = settings(data)["gpu_count"]
    assert not none.stated
    assert "there is no GPU" in none.found[0]


@pytest.mark.parametrize(
    ("work", "temporary", "chosen"),
    [
        ("ext4", ("xfs", 2, 10**12), False),
        ("nfs4", ("xfs", 2, 10**12), True),
        ("nfs4", ("xfs", 2, 10), False),
        ("nfs4", ("tmpfs", 2, 10**12), False),
        ("nfs4", ("nfs4", 2, 10**12), False),
        ("nfs4", ("nfs4", 1, 10**12), False),
    ],
)
def test_tasks_work_on_the_node_only_where_that_spares_the_network(
    data, monkeypatch, work, temporary, chosen
):
    monkeypatch.setattr(Place, "of", classmethod(lambda cls, folder: cls(folder, 1, work, 10**12)))
    kind, device, free = temporary
    machine = replace(MACHINE, temporary=Place(Path("/tmp"), device, kind, free))
    assert settings(data, machine)["scratch_dir"].value is chosen


@pytest.fixture
def made(tmp_path):
    """A project of its own."""
    (tmp_path / "project" / "conf" / "subjects").mkdir(parents=True)
    return tmp_path / "project"


def test_paths_are_written_absolute_and_the_file_is_found_by_its_name(
    known, made, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = write_subject(Path("known"), "01", project=made)
    assert path == made / "conf" / "subjects" / "01.config"
    text = path.read_text(encoding="utf-8")
    assert f"\n    input = '{tmp_path}/known'\n" in text
    assert f"\n    outdir = '{tmp_path}/results'\n" in text
    assert "\n    subject = '01'\n" in text
    # The name of the data, where none is given.
    assert write_subject(Path("known"), project=made).name == "known.config"


@pytest.mark.parametrize("inside", [".", "section_01.ome.zarr", "section_01.ome.zarr/0"])
def test_results_are_never_below_the_data_they_are_made_of(
    known, made, tmp_path, monkeypatch, inside
):
    monkeypatch.chdir(known / inside)
    text = write_subject(known, "sub", project=made).read_text(encoding="utf-8")
    assert f"\n    outdir = '{tmp_path}/results'\n" in text
    # By a link as well.
    (tmp_path / "link").symlink_to(known)
    assert results_folder(tmp_path / "link") == tmp_path / "results"
    # What a person says is a person's.
    assert results_folder(known, Path("out")) == known / inside / "out"


def test_results_beside_a_store_that_the_command_is_called_in(write_image, tmp_path, monkeypatch):
    store = write_image("brain.ome.zarr", VOXELS)
    monkeypatch.chdir(store)
    assert results_folder(Path()) == tmp_path / "results"
    # And where the data have that name themselves.
    store.rename(tmp_path / "results")
    assert results_folder(tmp_path / "results") == tmp_path / "octane"


def test_a_config_is_not_overwritten_unless_asked(known, made):
    path = write_subject(known, "sub", project=made)
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(OctaneError, match=r"sub.config exists already; give --overwrite"):
        write_subject(known, "sub", project=made)
    assert path.read_text(encoding="utf-8") == "mine"
    write_subject(known, "sub", project=made, overwrite=True)
    assert "input = " in path.read_text(encoding="utf-8")


def test_a_config_is_written_where_it_is_asked_for(known, made, tmp_path):
    place = tmp_path / "my configs" / "one.config"
    assert write_subject(known, "sub", config=place, project=made) == place
    text = place.read_text(encoding="utf-8").replace("\n// ", " ")
    assert "\n    subject = 'sub'\n" in text
    assert f"nextflow run {made}/main.nf -c '{place}'" in text
    assert not list((made / "conf/subjects").iterdir())
    with pytest.raises(OctaneError, match=r"one.config exists already; give --overwrite"):
        write_subject(known, "sub", config=place, project=made)
    with pytest.raises(OctaneError, match="exclude each other; give one"):
        write_subject(known, "sub", config=place, samplesheet=tmp_path / "c.csv", project=made)


def test_where_configs_cannot_be_written_another_place_can_be_given(known, made):
    (made / "conf/subjects").rmdir()
    # A folder's rights would not hold root back.
    (made / "conf/subjects").write_text("")
    with pytest.raises(OctaneError, match=r"conf/subjects cannot be written \(.*--config FILE"):
        write_subject(known, "sub", project=made)


def test_what_to_do_with_what_was_written_is_a_line_for_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = shlex.quote(str(PROJECT / "main.nf"))
    assert next_call(Path("my sub.config")) == f"nextflow run {main} -c 'my sub.config'"
    assert next_call(tmp_path / "a/b.config") == f"nextflow run {main} -c a/b.config"
    assert next_call(Path("c.csv"), tmp_path / "results") == (
        f"nextflow run {main} --samplesheet c.csv --outdir results"
    )


@pytest.mark.parametrize("name", ["../x", "a'b", ".x", "template"])
def test_a_name_that_is_none_is_refused(known, made, name):
    with pytest.raises(OctaneError, match=re.escape(f"'{name}' is no name for a subject")):
        write_subject(known, name, project=made)


def test_data_that_cannot_be_used_leave_nothing(made, tmp_path):
    with pytest.raises(OctaneError, match="in its path, which Nextflow cannot hand to tasks"):
        write_subject(tmp_path / "a $b", "sub", project=made)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OctaneError, match="holds no OME-Zarr store"):
        write_subject(tmp_path / "empty", "sub", project=made)
    with pytest.raises(OctaneError, match="does not exist"):
        write_subject(tmp_path / "nowhere", "sub", project=made)
    assert list((made / "conf" / "subjects").iterdir()) == []
