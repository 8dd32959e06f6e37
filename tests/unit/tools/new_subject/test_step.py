"""Config of a new subject: it states what the data determine and asks for the rest."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_faults import PHANTOM, unstate
from tile_writers import write_ome_tiff
from tiles_left_out import leave_out

from octane.core.errors import OctaneError
from octane.layout.mosaic import MosaicGrid
from octane.pictures import tile_map
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.phantom.parameters import PhantomParameters
from octane.processes.phantom.step import Subject, make_phantom
from octane.store.image import open_image
from octane.tools.new_subject import step as new_subject
from octane.tools.new_subject.parameters import SubjectOverrides
from octane.tools.new_subject.step import results_folder, subject_settings, survey, write_subject

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


def settings(source, **given):
    overrides = SubjectOverrides.model_validate(given)
    return subject_settings("sub", source, *survey(source, overrides), overrides)


def test_what_the_data_do_not_tell_is_asked_for(data, write_mosaic):
    found = settings(data)
    names = ("overlap", "section_thickness", "allow_missing_sections")
    assert not any(found[name].stated for name in names)
    assert "never guessed" in found["overlap"].found[0]
    assert "Not among the data: section 2." in found["allow_missing_sections"].found[0]
    assert found["allow_missing_sections"].value == 1
    assert "14 micrometre" in found["section_thickness"].found[0]
    assert (found["resolution"].value, found["resolution"].stated) == (10, True)
    # Missing sections are named, up to a number.
    for last, words in ((6, "section 2, 4, 5. As"), (40, ", 18, 19 and 20 more. As")):
        write_mosaic(f"data/section_{last:02d}.ome.zarr", VOXELS, TILE, (3.5, 4.0, 4.0))
        assert words in settings(data)["allow_missing_sections"].found[0]


def test_what_the_data_tell_is_stated(known):
    found = settings(known)
    assert (found["overlap"].value, found["overlap"].stated) == ((0.2, 0.2), False)
    assert "own metadata" in found["overlap"].found[0]
    assert (found["section_thickness"].value, found["section_thickness"].stated) == (40.0, True)
    assert not found["allow_missing_sections"].stated


@pytest.mark.parametrize(
    ("places", "value", "words"),
    [
        ((0, 30, 60), 30.0, "from their translations along z"),
        ((0, 30, 90), None, "are 30 to 60 micrometre apart"),
        ((0, 50, 100), None, "are 50 micrometre apart"),
        ((0, 3, 1), None, "The data do not say; without it, the full imaged depth"),
    ],
)
def test_the_distance_along_z_is_the_thickness_or_to_be_decided(
    write_image, tmp_path, places, value, words
):
    for number, z in enumerate(places, start=1):
        name = f"data/section_{number}.ome.zarr"
        write_image(name, VOXELS, edge=(z, 0, 0), attributes={"kind": "section"})
    found = settings(tmp_path / "data")["section_thickness"]
    assert (found.value, found.stated) == (value or 40.0, value is not None)
    assert words in found.found[0]


def test_a_channel_is_chosen_and_stated(write_foreign):
    source = write_foreign("a.zarr", np.stack([VOXELS, VOXELS]), axes="czyx", labels=["a", "b"])
    with pytest.raises(OctaneError, match="2 channels: 0 'a', 1 'b'; give one with --channel"):
        settings(source)
    found = settings(source, channel="b", timepoint=0)
    assert (found["channel"].value, found["timepoint"].value) == ("b", 0)
    assert "channel_kind" not in found


def test_other_channels_are_named_and_angles_asked_about(write_foreign, tmp_path, made):
    four = np.stack([VOXELS] * 4)
    labels = ["oct", "slow axis", "", "Orientation"]
    source = write_foreign("a.zarr", four, axes="czyx", labels=labels)
    found = settings(source, channel="oct")
    assert (found["channels"].value, found["channels"].stated) == ("all", False)
    assert "channels 0 'oct', 1 'slow axis', 2 '2', 3 'Orientation'." in found["channels"].found[0]
    assert not found["channel_kind"].stated
    assert "'slow axis' and 'Orientation' may hold angles" in found["channel_kind"].found[0]
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
    with pytest.raises(OctaneError, match="has 2 channels: 0 'DAPI', 1 'GFP'; give one with --ch"):
        write_subject(tmp_path / "tiles", "sub", tiles=given, project=made)
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
    assert not found["overlap"].stated
    table.write_text("x_mm;y_mm\n1;2\n", encoding="utf-8")
    words = f"{re.escape(str(table))} must have the columns section, row, column, y, x; correct"
    with pytest.raises(OctaneError, match=words):
        settings(known)
    assert "positions" not in settings(known, overlap="0.1")


def test_flags_on_tiles_that_are_none_are_refused(write_image, tmp_path):
    path = write_image("brain.ome.zarr", np.ones((4, 20, 20)), attributes={"kind": "volume"})
    config, given = tmp_path / "brain.config", SubjectOverrides(overlap=(0.1, 0.1))
    with pytest.raises(OctaneError, match=rf"^--overlap .*{re.escape(str(path))}"):
        write_subject(path, overrides=given, config=config)
    with pytest.raises(OctaneError, match=r"^--tile_rows "):
        write_subject(path, tiles=TileParameters(rows=2), config=config)
    assert not config.exists()


def test_a_persons_word_counts(data):
    found = settings(data, resolution="12", overlap="0.1", section_thickness=90.0)
    names = ("resolution", "overlap", "section_thickness")
    assert [found[n].value for n in names] == [(12.0,) * 3, (0.1, 0.1), 90.0]
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
    with pytest.raises(OctaneError, match=rf"{path.name} exists already; give --overwrite"):
        write_subject(known, "sub", config=config, project=made)
    assert path.read_text(encoding="utf-8") == "mine"
    write_subject(known, "sub", config=config, project=made, overwrite=True)
    assert "input = " in path.read_text(encoding="utf-8")


def test_where_configs_cannot_be_written_another_place_can_be_given(known, made, tmp_path):
    (made / "conf/subjects").rmdir()
    # A folder's permissions would not stop root.
    (made / "conf/subjects").write_text("")
    with pytest.raises(OctaneError, match=r"conf/subjects cannot be written \(.*--config FILE"):
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
    with pytest.raises(OctaneError, match=re.escape(words)):
        write_subject(tmp_path / source, name, project=made)
    assert list((made / "conf" / "subjects").iterdir()) == []


def test_mosaics_are_described(data, caplog, made):
    caplog.set_level("INFO")
    write_subject(data, "sub", project=made)
    assert "Found: 2 mosaic grid(s), numbered 1 to 3; 19.2 kB decoded." in caplog.messages
    assert "Voxels: 3.5 x 4 x 4 micrometre (z y x), float32." in caplog.messages
    tiles = "Tiles, rows x columns: 2 x 3; each 40 x 40 µm (y x), side by side 14 x 80 x 120 µm"
    assert f"{tiles} (z y x)." in caplog.messages
    # What the user must decide is logged as well, with its parameter.
    said = "\n".join(caplog.messages)
    assert "\nallow_missing_sections: Not among the data: section 2." in said
    assert "\noverlap: The data do not say" in said
    assert "\nresolution:" not in said


def test_a_volume_keeps_its_voxels(write_file):
    found = settings(write_file("brain.nii", VOXELS))
    assert (found["resolution"].value, found["resolution"].stated) == (50, False)
    assert "The voxels are 40 x 30 x 25 micrometre." in found["resolution"].found[0]
    assert not found.keys() & {"overlap", "section_thickness", "allow_missing_sections"}


def test_sizes_that_no_microscope_gives_are_doubted(write_foreign, caplog, made, tmp_path):
    caplog.set_level("INFO")
    write_foreign("brain.zarr", VOXELS, unit="nanometer")
    path, _ = write_subject(tmp_path / "brain.zarr", "sub", project=made)
    (line,) = (line for line in caplog.messages if "may be wrong by a factor of 1000" in line)
    assert "in voxels of 10 x 10 x 10 nm. Its unit may be wrong by a factor of 1000" in line
    text = path.read_text(encoding="utf-8").replace("\n// ", " ")
    assert "Its unit may be wrong by a factor of 1000" in text


def test_every_store_that_cannot_be_used_is_named(write_foreign, tmp_path):
    for number in (1, 2):
        write_foreign(f"data/section_{number}.zarr", VOXELS, chunks=TILE, unit=None)
    with pytest.raises(OctaneError) as caught:
        survey(tmp_path / "data", SubjectOverrides())
    lines = str(caught.value).splitlines()
    assert ["section_1.zarr does not state a unit" in lines[0], "section_2.zarr" in lines[1]] == [
        True
    ] * 2
    first = survey(tmp_path / "data", SubjectOverrides(input_unit="millimeter"))[1][0]
    assert first.grid.spacing == (1e4, 1e4, 1e4)


@pytest.mark.parametrize(("shading", "recommended"), [(0.3, True), (0.0, False)])
def test_a_flat_field_is_recommended_where_tiles_are_shaded(write_phantom, shading, recommended):
    tiles = {"tiles": (4, 4), "tile_shape": (8, 96, 96), "speckle_looks": 4}
    folder, _ = write_phantom(shading=shading, **tiles)
    found = settings(folder / "mosaics")
    assert ("stitch_flat_field" in found) == recommended
    if recommended:
        own = found["stitch_flat_field"]
        assert (own.value, own.stated) == ("estimate", False)
        assert re.search(
            r"on 9 tiles of section_01.*, brightness varies by (28|29|30) %", own.found[0]
        )


WET = {
    "sections": 3,
    "tiles": (3, 3),
    "tile_shape": (24, 48, 48),
    "voxel_size": (10.0, 10.0, 10.0),
    "section_thickness": 120.0,
    "speckle_looks": 4,
}


@pytest.mark.parametrize(
    ("given", "value", "words"),
    [
        (
            {"surface": 60},
            60,
            r"is (59|60|61) µm deep in section_01\.ome\.zarr, (59|60|61) µm deep in",
        ),
        ({"surface": 60, "surface_jitter": 20}, "auto", "'auto' measures every section"),
        ({"surface": 60, "tilt": 2}, "auto", "rises by up to"),
        ({}, None, ""),
    ],
)
def test_the_surface_is_recommended_where_water_lies_above(write_phantom, given, value, words):
    folder, _ = write_phantom(**WET, **given)
    found = settings(folder / "mosaics").get("section_surface")
    if value is None:
        assert found is None
        return
    assert not found.stated
    assert found.value == (value if value == "auto" else pytest.approx(value, abs=1))
    assert re.search(words, found.found[0])
    # Without an overlap nothing is known about the tiles' places, which PREFLIGHT asks for.
    (folder / "positions.csv").unlink()
    for store in (folder / "mosaics").iterdir():
        attributes = store / "zarr.json"
        text = attributes.read_text(encoding="utf-8")
        attributes.write_text(text.replace('"pitch"', '"other"'), encoding="utf-8")
    assert "section_surface" not in settings(folder / "mosaics")
    assert "section_surface" in settings(folder / "mosaics", overlap=(0.25, 0.25))


def test_the_surface_is_measured_in_files_of_tiles(write_phantom, tmp_path, made):
    folder, p = write_phantom(**WET, surface=60)
    pitch = Subject.of(p).pitch
    (tmp_path / "tiles").mkdir()
    for number in (1, 2, 3):
        image = open_image(folder / "mosaics" / f"section_{number:02d}.ome.zarr")
        tiling = MosaicGrid.of(image)
        for (row, column), place in tiling.positions(pitch).items():
            name = tmp_path / "tiles" / f"slice_{number}_row_{row}_col_{column}"
            write_ome_tiff(name, image.read(tiling.region((row, column))), p.voxel_size, place)
    path, _ = write_subject(tmp_path / "tiles", project=made)
    text = path.read_text(encoding="utf-8").replace("\n    // ", " ")
    sentence = r"tissue: remove the slashes to leave it out\. section_surface = (59|60)\.\d\n"
    assert re.search(sentence, text)


def test_the_preview_shows_the_tiles_of_the_middle_mosaic(known, tmp_path, caplog):
    leave_out(known / "section_02.ome.zarr", [(0, 2)])
    preview = tmp_path / "tiles.svg"
    config = tmp_path / "a.config"
    with caplog.at_level("INFO"):
        write_subject(known, config=config, preview=preview)
    drawn = preview.read_text(encoding="utf-8")
    assert "not imaged: 1 of 6 tiles" in drawn
    assert "<image " in drawn
    assert "1 of 12 were not imaged" in caplog.text
    assert config.exists()
    with pytest.raises(OctaneError, match=r"tiles\.svg exists already; give --overwrite"):
        write_subject(known, config=tmp_path / "b.config", preview=preview)
    assert not (tmp_path / "b.config").exists()


def test_a_preview_of_a_large_mosaic_reads_no_voxel(known, tmp_path, monkeypatch):
    monkeypatch.setattr(tile_map, "PREVIEWED_BYTES", 100)
    monkeypatch.setattr(new_subject, "MEASURED_BYTES", 100)
    shutil.rmtree(known / "section_02.ome.zarr/0/c")
    write_subject(known, config=tmp_path / "a.config", preview=tmp_path / "tiles.svg")
    drawn = (tmp_path / "tiles.svg").read_text(encoding="utf-8")
    assert ("<image " in drawn, "1,2" in drawn) == (False, True)


@pytest.mark.parametrize(
    ("source", "preview", "sentence"),
    [
        ("known", "tiles.png", r"tiles\.png does not end in \.svg"),
        ("data", "tiles.svg", "does not state how its tiles overlap; give --overlap"),
        ("volume", "tiles.svg", "--preview shows the tiles of mosaics, but .* is a volume"),
    ],
)
def test_a_preview_that_cannot_be_drawn_leaves_nothing(
    request, write_image, tmp_path, source, preview, sentence
):
    if source == "volume":
        given = write_image("brain.ome.zarr", VOXELS, attributes={"kind": "volume"})
    else:
        given = request.getfixturevalue(source)
    before = {*tmp_path.iterdir()}
    with pytest.raises(OctaneError, match=sentence):
        write_subject(given, "sub", config=tmp_path / "a.config", preview=tmp_path / preview)
    assert {*tmp_path.iterdir()} == before


def test_tiles_in_files_are_described_without_mosaics(tmp_path, made):
    voxels = np.arange(2 * 3 * 4 * 20 * 30, dtype=np.uint16).reshape(2, 3, 4, 20, 30)
    (tmp_path / "tiles").mkdir()
    for row, column in np.ndindex(2, 3):
        name = tmp_path / "tiles" / f"slice_4_row_{row}_col_{column}"
        place = (20.0 * row, 55.0 * column)
        write_ome_tiff(name, voxels[row, column], (4.0, 2.0, 2.0), place)
    picture = tmp_path / "preview.svg"
    path, _ = write_subject(tmp_path / "tiles", project=made, preview=picture)
    config = path.read_text(encoding="utf-8")
    assert "tile_pattern = 'slice_{section}_row_{row}_col_{column}.ome.tif'" in config
    assert "// Not needed: OME-XML states the places of the tiles." in config
    assert "// Found: 1 mosaic grid(s); 28.8 kB decoded." in config
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    name.with_name(f"{name.name}.ome.tif").unlink()
    write_subject(tmp_path / "tiles", project=made, preview=picture, overwrite=True)
    assert "not imaged: 1 of 6 tiles" in picture.read_text(encoding="utf-8")
    given = TileParameters(pattern="slice_{section}_row_{row}_col_{column}*", flip="y")
    write_subject(tmp_path / "tiles", tiles=given, project=made, overwrite=True)
    config = path.read_text(encoding="utf-8")
    assert "tile_pattern = 'slice_{section}_row_{row}_col_{column}*'" in config
    assert "tile_flip = 'y'" in config


def test_the_preview_of_tiles_without_places_asks_for_them(tmp_path):
    (tmp_path / "tiles").mkdir()
    for column in range(2):
        voxels = np.zeros((2, 8, 8), np.uint16)
        write_ome_tiff(tmp_path / "tiles" / f"r0_c{column}", voxels, (4.0, 2.0, 2.0))
    given = {"config": tmp_path / "a.config", "preview": tmp_path / "tiles.svg"}
    with pytest.raises(OctaneError, match=f"The tiles in {tmp_path}/tiles do not state how they"):
        write_subject(tmp_path / "tiles", **given)
    assert not (tmp_path / "a.config").exists()
    write_subject(tmp_path / "tiles", overrides=SubjectOverrides(overlap=(0.1, 0.1)), **given)
    assert "<image " in (tmp_path / "tiles.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("thickness", "is_repeated"),
    [(185.0, True), pytest.param(240.0, False, marks=pytest.mark.soak)],
)
def test_depth_that_sections_share_is_noticed(tmp_path, execution, thickness, is_repeated):
    options = {**PHANTOM, "tile_shape": (24, 100, 100), "section_thickness": thickness}
    make_phantom(tmp_path / "made", PhantomParameters.model_validate(options), execution)
    mosaics = sorted((tmp_path / "made" / "mosaics").iterdir())
    unstate(mosaics)
    own = settings(mosaics[0].parent)["section_thickness"]
    assert (own.value == "auto") == is_repeated
    assert not own.stated
    if is_repeated:
        (apart,) = re.findall(r"same tissue ([\d.]+) micrometre", " ".join(own.found))
        assert float(apart) == pytest.approx(thickness, abs=4)
