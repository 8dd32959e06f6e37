"""Config of a new subject: it states what the data determine and asks for the rest."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from tile_writers import write_ome_tiff

from octane.core.errors import OctaneError
from octane.processes.mosaic.parameters import TileParameters
from octane.tools.new_subject.parameters import SubjectOverrides
from octane.tools.new_subject.step import describe_subject, results_folder, write_subject

VOXELS, TILE = np.ones((4, 20, 30), np.float32), (4, 10, 10)


@pytest.fixture
def data(write_mosaic, tmp_path):
    """Mosaics that state nothing about themselves, 1 and 3."""
    for number in (1, 3):
        write_mosaic(f"data/section_{number:02d}.ome.zarr", VOXELS, TILE, (3.5, 4.0, 4.0))
    return tmp_path / "data"


@pytest.fixture
def known(write_mosaic, tmp_path):
    """Mosaics that state overlap and thickness."""
    for number in (1, 2):
        section = {"number": number, "thickness": 40.0}
        name = f"known/section_{number:02d}.ome.zarr"
        write_mosaic(name, VOXELS, TILE, pitch=(80.0, 80.0), section=section)
    return tmp_path / "known"


def described(source, **given):
    overrides = SubjectOverrides.model_validate(given)
    about, settings = describe_subject("sub", source, overrides, TileParameters())
    return "\n".join(about), settings


def settings(source, **given):
    return described(source, **given)[1]


def test_what_the_data_do_not_tell_is_asked_for(data, write_mosaic):
    about, found = described(data)
    assert "2 mosaics of 2 x 3 tiles of 40 x 40 µm (y x)" in about
    undecided = [line for line in about.splitlines() if line.startswith("To decide")]
    assert any("--overlap" in line for line in undecided)
    assert any("--allow_missing_sections 1" in line for line in undecided)
    assert not found.keys() & {"overlap", "allow_missing_sections"}
    assert not found["section_thickness"].stated
    assert "14 micrometre, the imaged depth" in found["section_thickness"].origin[0]
    assert (found["resolution"].value, found["resolution"].stated) == (10, True)
    # Nothing is left to decide once the user says it.
    write_mosaic("data/section_02.ome.zarr", VOXELS, TILE, (3.5, 4.0, 4.0))
    assert "To decide" not in described(data, overlap="0.2")[0]


def test_what_the_data_tell_is_left_to_them(known):
    about, found = described(known)
    assert "To decide" not in about
    assert not found.keys() & {"overlap", "allow_missing_sections", "section_thickness"}


def test_mosaics_of_different_voxels_are_resampled_to_one_size(write_mosaic, tmp_path):
    for number, voxel in ((1, 4.0), (2, 5.0)):
        name = f"data/section_{number:02d}.ome.zarr"
        write_mosaic(name, VOXELS, TILE, (3.5, voxel, voxel))
    about, found = described(tmp_path / "data", overlap="0.2")
    assert "To decide" not in about
    assert "3.5 x 4 x 4 or 3.5 x 5 x 5 micrometre" in found["resolution"].origin[0]


@pytest.mark.parametrize(
    ("places", "size", "is_known"),
    [((0, 30, 60), "30 micrometre", True), ((0, 30, 90), "40 micrometre", False)],
)
def test_a_thickness_that_the_data_do_not_tell_is_asked_for(
    write_image, tmp_path, places, size, is_known
):
    for number, z in enumerate(places, start=1):
        name = f"data/section_{number}.ome.zarr"
        write_image(name, VOXELS, edge=(z, 0, 0), attributes={"kind": "section"})
    about, found = described(tmp_path / "data")
    assert ("section_thickness" in found) != is_known
    assert size in (about if is_known else found["section_thickness"].origin[0])


def test_a_channel_is_chosen_and_stated(write_foreign):
    source = write_foreign("a.zarr", np.stack([VOXELS, VOXELS]), axes="czyx", labels=["a", "b"])
    assert settings(source)["channel"].value == "a"
    found = settings(source, channel="b", timepoint=0)
    assert (found["channel"].value, found["timepoint"].value) == ("b", 0)
    assert "channel_kind" not in found


def test_other_channels_are_named_and_angles_asked_about(write_foreign, tmp_path, made):
    four = np.stack([VOXELS] * 4)
    labels = ["oct", "slow axis", "", "Orientation"]
    source = write_foreign("a.zarr", four, axes="czyx", labels=labels)
    found = settings(source, channel="oct")
    assert (found["channels"].value, found["channels"].stated) == ("all", False)
    assert "channels 0 'oct', 1 'slow axis', 2 '2', 3 'Orientation'." in found["channels"].origin[0]
    assert not found["channel_kind"].stated
    assert "'slow axis' and 'Orientation' may hold angles" in found["channel_kind"].origin[0]
    reading = SubjectOverrides.model_validate({"channel_kind": found["channel_kind"].value})
    assert reading.kinds == {"slow axis": "nearest", "Orientation": "nearest"}
    # What the user states counts.
    kinds = settings(source, channel="oct", channel_kind="2=nearest")["channel_kind"]
    assert (kinds.value, kinds.stated) == (("2=nearest",), True)
    path, _ = write_subject(source, "sub", SubjectOverrides(channel="oct"), project=made)
    text = path.read_text(encoding="utf-8")
    assert "// channels = 'all'" in text
    assert "    channel = 'oct'" in text
    assert "// channel_kind = 'slow axis=nearest Orientation=nearest'" in text


@pytest.mark.parametrize("in_names", [False, True])
def test_channels_of_tiles_are_named(tmp_path, made, in_names):
    (tmp_path / "tiles").mkdir()
    names = ["DAPI", "GFP"]
    for tile in range(2):
        base, two = tmp_path / "tiles" / f"r0_c{tile}", np.stack([VOXELS] * 2)
        if in_names:
            for k, name in enumerate(names):
                write_ome_tiff(base.with_name(f"{base.name}_{name}"), two[k], (4.0, 4.0, 4.0))
        else:
            write_ome_tiff(base, two, (4.0, 4.0, 4.0), channels=names)
    pattern = "r{row}_c{column}_{channel}.ome.tif" if in_names else None
    given = TileParameters(pattern=pattern)
    reading = SubjectOverrides(channel="GFP")
    path, _ = write_subject(tmp_path / "tiles", "sub", reading, given, project=made)
    text = path.read_text(encoding="utf-8")
    assert "channels 0 'DAPI', 1 'GFP'." in text
    assert "// channels = 'all'" in text


@pytest.mark.parametrize("beside", [False, True])
def test_a_table_of_positions_takes_the_place_of_the_overlap(known, beside):
    table = (known.parent if beside else known) / "positions.csv"
    table.write_text("\ufeffsection,row,column,y,x\n1,0,0,0,0\n", encoding="utf-8")
    found = settings(known)
    assert found["positions"].value == str(table)
    table.write_text("x_mm;y_mm\n1;2\n", encoding="utf-8")
    with refused(table, "section, row, column, y, x"):
        settings(known)
    assert "positions" not in settings(known, overlap="0.1")


def test_flags_on_tiles_that_are_none_are_refused(write_image, tmp_path):
    path = write_image("brain.ome.zarr", np.ones((4, 20, 20)), attributes={"kind": "volume"})
    config, given = tmp_path / "brain.config", SubjectOverrides(overlap=(0.1, 0.1))
    with refused("--overlap", str(path)):
        write_subject(path, overrides=given, config=config)
    with refused("--tile_rows"):
        write_subject(path, tiles=TileParameters(rows=2), config=config)
    assert not config.exists()


def test_a_persons_word_counts(data):
    found = settings(data, resolution="12", overlap="0.1", section_thickness=12.0)
    names = ("resolution", "overlap", "section_thickness")
    assert [found[n].value for n in names] == [(12.0,) * 3, (0.1, 0.1), 12.0]
    assert found["overlap"].stated


@pytest.fixture
def made(tmp_path):
    """A separate project."""
    (tmp_path / "project" / "conf" / "subjects").mkdir(parents=True)
    return tmp_path / "project"


def test_paths_are_written_absolute_and_the_file_is_found_by_its_name(
    known, made, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path, call = write_subject(Path("known"), "01", project=made)
    assert call == f"nextflow run {made}/main.nf -c {path}"
    assert path == made / "conf" / "subjects" / "01.config"
    text = path.read_text(encoding="utf-8")
    assert f"\n    input = '{tmp_path}/known'\n" in text
    assert f"\n    outdir = '{tmp_path}/results'\n" in text
    assert "\n    subject = '01'\n" in text
    # The name of the data, if none is given.
    assert write_subject(Path("known"), project=made)[0].name == "known.config"


@pytest.mark.parametrize("inside", [".", "section_01.ome.zarr/0"])
def test_results_are_never_below_the_data_they_are_made_of(known, tmp_path, monkeypatch, inside):
    monkeypatch.chdir(known / inside)
    (tmp_path / "link").symlink_to(known)
    for data in (known, tmp_path / "link"):
        assert results_folder(data) == tmp_path / "results"
    # A folder that the user names is used as it is.
    assert results_folder(known, Path("out")) == known / inside / "out"
    known.rename(tmp_path / "results")
    assert results_folder(tmp_path / "results") == tmp_path / "octane"


@pytest.mark.parametrize("place", [None, "my configs/one.config"])
def test_a_config_is_written_where_it_is_asked_for_and_not_replaced(known, made, tmp_path, place):
    config = tmp_path / place if place else None
    path, _ = write_subject(known, "sub", config=config, project=made)
    assert path == (config or made / "conf/subjects/sub.config")
    text = path.read_text(encoding="utf-8").replace("\n// ", " ")
    assert f"nextflow run {made}/main.nf -c {shlex.quote(str(path))}" in text
    path.write_text("mine", encoding="utf-8")
    with refused(path.name, "--overwrite"):
        write_subject(known, "sub", config=config, project=made)
    assert path.read_text(encoding="utf-8") == "mine"
    write_subject(known, "sub", config=config, project=made, overwrite=True)
    assert "input = " in path.read_text(encoding="utf-8")


def test_where_configs_cannot_be_written_another_place_can_be_given(known, made, tmp_path):
    (made / "conf/subjects").rmdir()
    # A folder's permissions would not stop root.
    (made / "conf/subjects").write_text("")
    with refused("conf/subjects", "--config", "FILE"):
        write_subject(known, "sub", project=made)


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        *(("known", name, f"'{name}' is not a subject name") for name in ("../x", "a'b", ".x")),
        ("a $b", "sub", "in its path, which Nextflow cannot hand to tasks"),
        ("empty", "sub", "holds no OME-Zarr store"),
        ("nowhere", "sub", "does not exist"),
    ],
)
def test_what_cannot_be_used_is_refused_and_leaves_nothing(
    known, made, tmp_path, source, name, words
):
    (tmp_path / "empty").mkdir()
    with refused(words):
        write_subject(tmp_path / source, name, project=made)
    assert list((made / "conf" / "subjects").iterdir()) == []


def test_data_that_no_setting_makes_usable_are_refused(write_image, made, tmp_path):
    for name in ("section_1", "other_1"):
        write_image(f"data/{name}.ome.zarr", VOXELS, attributes={"kind": "section"})
    with refused("other_1.ome.zarr", "1"):
        write_subject(tmp_path / "data", "sub", project=made)
    with refused("--section_thickness", "90"):
        settings(tmp_path / "data" / "section_1.ome.zarr", section_thickness=90.0)
    assert list((made / "conf" / "subjects").iterdir()) == []


def test_what_is_to_be_decided_is_logged_and_stands_in_the_config(data, caplog, made):
    caplog.set_level("INFO")
    path, _ = write_subject(data, "sub", project=made)
    text = path.read_text(encoding="utf-8").replace("\n// ", " ")
    undecided = [line for line in caplog.messages if line.startswith("To decide")]
    assert len(undecided) == 2
    assert all(line in text for line in undecided)
    said = "\n".join(caplog.messages)
    assert "\nsection_thickness: " in said
    assert "\nresolution:" not in said


def test_a_volume_keeps_its_voxels(write_file):
    found = settings(write_file("brain.nii", VOXELS))
    assert (found["resolution"].value, found["resolution"].stated) == (50, False)
    assert "The voxels are 40 x 30 x 25 micrometre." in found["resolution"].origin[0]
    assert not found.keys() & {"overlap", "section_thickness", "allow_missing_sections"}


def test_sizes_that_no_microscope_gives_are_doubted(write_foreign, caplog, made, tmp_path):
    caplog.set_level("INFO")
    write_foreign("brain.zarr", VOXELS, unit="nanometer")
    path, _ = write_subject(tmp_path / "brain.zarr", "sub", project=made)
    (line,) = (line for line in caplog.messages if "--input_unit" in line)
    assert "in voxels of 10 x 10 x 10 nm. Check the unit" in line
    text = path.read_text(encoding="utf-8").replace("\n// ", " ")
    assert "Check the unit" in text


def test_stores_that_cannot_be_used_are_named_in_a_line(write_foreign, tmp_path):
    for number in (1, 2):
        write_foreign(f"data/section_{number}.zarr", VOXELS, chunks=TILE, unit=None)
    with pytest.raises(OctaneError) as caught:
        settings(tmp_path / "data")
    (line,) = str(caught.value).splitlines()
    assert "section_1.zarr (and 1 more)" in line
    assert "--input_unit" in line
    given = settings(tmp_path / "data", input_unit="millimeter")
    assert "10000 x 10000 x 10000 micrometre" in given["resolution"].origin[0]


def test_tiles_in_files_are_described_without_mosaics(tmp_path, made):
    voxels = np.arange(2 * 3 * 4 * 20 * 30, dtype=np.uint16).reshape(2, 3, 4, 20, 30)
    (tmp_path / "tiles").mkdir()
    for row, column in np.ndindex(2, 3):
        name = tmp_path / "tiles" / f"slice_4_row_{row}_col_{column}"
        place = (20.0 * row, 55.0 * column)
        write_ome_tiff(name, voxels[row, column], (4.0, 2.0, 2.0), place)
    path, _ = write_subject(tmp_path / "tiles", project=made)
    config = path.read_text(encoding="utf-8")
    assert "tile_pattern = 'slice_{section}_row_{row}_col_{column}.ome.tif'" in config
    assert "places from OME-XML" in config
    assert "To decide" not in config
    given = TileParameters(pattern="slice_{section}_row_{row}_col_{column}*", flip="y")
    write_subject(tmp_path / "tiles", tiles=given, project=made, overwrite=True)
    config = path.read_text(encoding="utf-8")
    assert "tile_pattern = 'slice_{section}_row_{row}_col_{column}*'" in config
    assert "tile_flip = 'y'" in config
