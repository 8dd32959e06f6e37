"""Tiles of several channels: in files of their own, and together in files."""

from collections import Counter

import numpy as np
import pytest
from foreign_images import foreign_image
from place_tables import write_csv
from refusals import refused
from tile_writers import tiles_of, write_ome_tiff, write_set, write_tiff

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.processes.mosaic import survey as survey_module
from octane.processes.mosaic.checks_before import item_of, planned_mosaic
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.step import write_tile_list
from octane.processes.mosaic.survey import survey
from octane.store.image import open_image

SPACING = (5.0, 4.0, 4.0)
NAMES = ("DAPI", "GFP", "axis")
TILES = [(0, 0), (0, 1), (1, 0), (1, 1)]
VOXELS = np.random.default_rng(2).integers(1, 999, (3, 2, 2, 3, 20, 30), np.uint16)
"""Voxels (z, y, x) by channel, row and column of a tile."""
IN_NAMES = {"pattern": "r{row}_c{column}_{channel}.ome.tif"}
OF_EACH = {
    "names": IN_NAMES,
    "planes": {"pattern": "r{row}_c{column}_{channel}_z{plane}.tif"},
    "tiffs": {"pattern": "r{row}_c{column}.ome.tif"},
    "stores": {"pattern": "r{row}_c{column}.ome.zarr"},
}
SIZE = {"voxel_size": SPACING}


def write_folder(folder, form, names=NAMES):
    """Write the tiles of one section in a form of :data:`OF_EACH`, in this order of channels."""
    folder.mkdir()
    for row, column in TILES:
        name = folder / f"r{row}_c{column}"
        order = [NAMES.index(channel) for channel in names]
        own = VOXELS[order, row, column]
        if form == "tiffs":
            write_ome_tiff(name, own, SPACING, channels=names)
        elif form == "stores":
            transforms = [{"type": "scale", "scale": [1.0, *SPACING]}]
            path = name.with_name(f"{name.name}.ome.zarr")
            foreign_image(path, own, axes="czyx", transforms=transforms, labels=names)
        for k, channel in enumerate(names):
            base = name.with_name(f"{name.name}_{channel}")
            if form == "names":
                # Each channel has a stage position of its own, as after a change of filters.
                write_ome_tiff(base, own[k], SPACING, (70.0 * row + k, 100.0 * column - k))
            elif form == "planes":
                for z, plane in enumerate(own[k]):
                    write_tiff(base.with_name(f"{base.name}_z{z + 7}"), plane, SPACING)
    return folder


def look(folder, form, channels=None, **reading):
    reading = InputParameters.model_validate(SIZE | reading)
    return survey(
        folder, TileParameters.model_validate(OF_EACH[form]), reading, (0.1, 0.1), None, channels
    )


def run_task(found, task, folder, **reading):
    """Run a task on files that are staged as Nextflow does it; return its image and record."""
    for number, name in enumerate(task["tiles"], start=1):
        staged = folder / "tiles" / str(number) / name
        staged.parent.mkdir(parents=True)
        staged.symlink_to(found.folder / name)
    (folder / "list.csv").write_text(task["tile_list"], encoding="utf-8")
    reading = InputParameters.model_validate(SIZE | reading)
    given = TileParameters(rows=found.grid.rows, columns=found.grid.columns)
    made = write_tile_list(
        folder / "tiles", folder / "list.csv", folder, given, reading, ExecutionParameters()
    )
    return open_image(folder / f"{task['id']}.ome.zarr"), made


@pytest.mark.parametrize("form", OF_EACH)
@pytest.mark.parametrize("reference", ["GFP", "2"])
def test_the_reference_has_the_tasks_of_a_run_on_it_alone(tmp_path, form, reference):
    folder = write_folder(tmp_path / "tiles", form)
    (alone, every) = (look(folder, form, c, channel=reference) for c in (None, "all"))
    number = {"GFP": 1, "2": 2}[reference]
    assert [*every.channels] == [*alone.channels] == [*NAMES]
    own = every.of_channel(number)
    assert own.grid == alone.grid
    (section,), (other,) = own.sections, alone.sections
    assert item_of(section, own) == item_of(other, alone)
    assert (section.grid, section.positions) == (other.grid, other.positions)
    assert section.attributes == other.attributes
    assert section.attributes["channel"] == NAMES[number]


@pytest.mark.parametrize("form", OF_EACH)
def test_each_channel_has_a_task_that_writes_its_voxels(tmp_path, form):
    folder = write_folder(tmp_path / "tiles", form)
    kinds = {"channel": "GFP", "channel_kind": "axis=nearest"}
    found = look(folder, form, "0 axis", **kinds)
    first = found.of_channel(1).sections[0]
    for number, name in enumerate(NAMES):
        own = found.of_channel(number)
        (section,) = own.sections
        # All lie where the measured one does.
        assert (section.grid, section.positions) == (first.grid, first.positions)
        kind = {"channel_kind": f"{number}=nearest"} if name == "axis" else {}
        task = item_of(section, own)
        image, made = run_task(own, task, tmp_path / name, channel=str(number), **kind)
        assert len(image.array.shape) == 3
        assert image.attributes == {**section.attributes, "mosaic": image.attributes["mosaic"]}
        planned = planned_mosaic(section, own.folder, InputParameters())
        assert planned.attributes == section.attributes
        # Its chunks are yet to be written.
        planned.require_any_chunk()
        assert image.attributes["channel"] == made.channel == name
        assert image.attributes.get("channel_kind") == ("nearest" if kind else None)
        for tile, voxels in tiles_of(image).items():
            np.testing.assert_array_equal(voxels, VOXELS[(number, *tile)])
        if form in ("names", "planes"):
            assert all(name in file for file in task["tiles"])


@pytest.mark.parametrize("form", OF_EACH)
def test_only_files_of_chosen_channels_are_opened_and_once(tmp_path, form, monkeypatch):
    folder = write_folder(tmp_path / "tiles", form)
    opened = Counter()
    once = survey_module.open_tile

    def counting(path, *rest):
        opened[path.name] += 1
        return once(path, *rest)

    monkeypatch.setattr(survey_module, "open_tile", counting)
    look(folder, form, "GFP", channel="DAPI")
    assert set(opened.values()) == {1}
    assert len(opened) == {"names": 8, "planes": 24}.get(form, 4)
    assert not any("axis" in name for name in opened)


def test_a_table_places_all_channels_by_the_files_of_one(tmp_path):
    folder = write_folder(tmp_path / "tiles", "names")
    rows = [
        {"file": f"r{r}_c{c}_{name}.ome.tif", "y": 60 * r + k, "x": 90 * c}
        for r, c in TILES
        for k, name in enumerate(NAMES)
    ]
    write_csv(folder / "stage.csv", rows)
    found = look(folder, "names", "all", channel="GFP")
    assert found.source.endswith("stage.csv")
    assert [row[3:] for row in found.sections[0].position_rows] == [
        (60.0 * r + 1, 90.0 * c) for r, c in TILES
    ]


def test_a_table_that_names_another_channel_places_the_tiles(tmp_path):
    folder = write_folder(tmp_path / "tiles", "names")
    rows = [{"file": f"r{r}_c{c}_DAPI", "y": 60 * r, "x": 90 * c} for r, c in TILES]
    write_csv(folder / "stage.csv", rows)
    wanted = {(r, c): (60.0 * r, 90.0 * c) for r, c in TILES}
    for channels in (None, "all"):
        found = look(folder, "names", channels, channel="GFP")
        assert found.sections[0].positions == wanted
        assert found.remarks == []


def test_channels_with_other_tiles_are_refused(tmp_path):
    folder = write_folder(tmp_path / "tiles", "names")
    lost = folder / "r0_c1_DAPI.ome.tif"
    lost.rename(tmp_path / "lost")
    with refused("row 0", "column 1", "section 1", "channel DAPI"):
        look(folder, "names", "all", channel="GFP")
    message = (
        f"{folder}/r0_c1_GFP.ome.tif",
        "channel DAPI",
    )
    with refused(*message):
        look(folder, "names", "all", channel="DAPI")
    assert look(folder, "names", "axis", channel="GFP").channels == [*NAMES]


def test_a_plane_that_a_channel_lacks_has_its_number_in_the_name(tmp_path):
    folder = write_folder(tmp_path / "tiles", "planes")
    (folder / "r1_c0_GFP_z8.tif").unlink()
    with refused("row 1", "column 0", "plane 8", "channel GFP"):
        look(folder, "planes", "all", channel="axis")
    with refused("row 1", "column 0", "plane 8", "channel GFP"):
        look(folder, "planes", channel="GFP")


def test_channels_of_another_type_or_size_are_refused(tmp_path):
    folder = write_folder(tmp_path / "tiles", "names")
    for row, column in TILES:
        own = VOXELS[1, row, column].astype(np.float32)
        write_ome_tiff(folder / f"r{row}_c{column}_GFP", own, SPACING)
    with refused("GFP.ome.tif", "float32"):
        look(folder, "names", "all", channel="DAPI")
    look(folder, "names", "axis", channel="DAPI")
    for row, column in TILES:
        write_ome_tiff(folder / f"r{row}_c{column}_GFP", VOXELS[1, row, column], (5.0, 4.0, 8.0))
    with refused("GFP.ome.tif", "5 x 4 x 8"):
        look(folder, "names", "all", channel="DAPI", voxel_size=None)


@pytest.mark.parametrize("form", ["tiffs", "stores"])
def test_files_with_channels_in_another_order_are_refused(tmp_path, form):
    folder = write_folder(tmp_path / "tiles", form)
    other = write_folder(tmp_path / "other", form, NAMES[::-1])
    (path,) = other.glob("r1_c0*")
    path.rename(folder / f"r1_c9{path.name[5:]}")
    message = (
        "r1_c9",
        "axis",
        "'GFP'",
        "r0_c0",
    )
    with refused(*message):
        look(folder, form, "0 1")
    # By its name, one channel is found in any order.
    found = look(folder, form, channel="axis")
    np.testing.assert_array_equal(found.sections[0].read((1, 9), 2), VOXELS[2, 1, 0])


def test_a_file_of_several_channels_named_by_one_is_refused(tmp_path):
    folder = tmp_path / "tiles"
    folder.mkdir()
    for row, column in TILES:
        name = folder / f"r{row}_c{column}_a"
        write_ome_tiff(name, VOXELS[:, row, column], SPACING, channels=NAMES)
    message = ("c0_a.ome.tif",)
    with refused(*message):
        look(folder, "names", channel="a")


def test_a_kind_of_a_channel_that_does_not_exist_is_refused(tmp_path):
    folder = write_folder(tmp_path / "tiles", "names")
    with refused("phase", "--channel_kind"):
        look(folder, "names", channel="GFP", channel_kind="phase=nearest")


def test_files_of_a_set_hold_a_tile_and_channel_each(tmp_path):
    tiles = {tile: VOXELS[(slice(None), *tile)] for tile in TILES}
    places = {(row, column): (70.0 * row, 100.0 * column) for row, column in TILES}
    folder = write_set(tmp_path / "set", tiles, SPACING, places, NAMES)
    given = TileParameters(pattern="set_s{tile}_{channel}.ome.tif")
    found = survey(folder, given, InputParameters(channel="GFP"), None, channels="all")
    (section,) = found.sections
    assert found.source == "OME-XML"
    assert section.positions == places
    for number, tile in np.ndindex(3, 4):
        own = section.read(TILES[tile], number)
        np.testing.assert_array_equal(own, VOXELS[(number, *TILES[tile])])
