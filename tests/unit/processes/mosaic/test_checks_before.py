"""Folders of tiles as PREFLIGHT plans them, and the tasks that write their mosaics."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from place_tables import write_csv
from plans import content
from refusals import refused
from runs import contents
from tile_writers import (
    tiles_of,
    write_archive,
    write_ome_tiff,
    write_planes,
    write_set,
    write_store,
)

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import OctaneError
from octane.layout.mosaic import split_sections
from octane.processes.mosaic.checks_before import holds_tiles
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.step import write_mosaics, write_tile_list
from octane.processes.preflight.step import plan_of
from octane.processes.stitch.parameters import OverlapParameters
from octane.store.image import open_image

SPACING = (5.0, 4.0, 4.0)
SECTIONS, ROWS, COLUMNS = (2, 7), 2, 3
VOXELS = np.random.default_rng(1).integers(1, 999, (8, ROWS, COLUMNS, 3, 20, 30), np.uint16)
"""Tiles by section, row and column."""
PATTERN = "section_{section}_r{row}_c{column}*"


@pytest.fixture
def write_tiles(tmp_path):
    """Write the tiles of both sections with a writer, but for those in ``lost``."""

    def run(write, lost=(), *, placed=False):
        folder = tmp_path / "tiles"
        folder.mkdir()
        for section in SECTIONS:
            for row, column in np.ndindex(ROWS, COLUMNS):
                if (section, row, column) not in lost:
                    name = folder / f"section_{section}_r{row}_c{column}"
                    place = [(70.0 * row + column, 100.0 * column)] if placed else []
                    write(name, VOXELS[section, row, column], SPACING, *place)
        return folder

    return run


@pytest.fixture
def plan(tmp_path):
    """Plan a run on a folder."""

    def run(source, beside=None, **given):
        own = {"outdir": str(tmp_path / "results"), "subject": "brain", "resolution": "10"}
        return plan_of(own | given, source, beside or {})

    return run


def items_of(made):
    """Tasks of the only channel."""
    ((_, items),) = made.channels
    return items


def flags_of(made):
    """Flags of the only channel's commands."""
    (own,) = content(made)["channels"]
    return own["flags"]


def flagged(text, model):
    """Parameters of a model in the flags of a task, which have no blanks."""
    words = iter(text.split())
    names = {f"--{model.prefix}{field}": field for field in model.model_fields}
    return model.model_validate({names[w]: next(words) for w in words if w in names})


def run_task(item, flags, source, folder):
    """Run a task of a plan on files that are staged as Nextflow does it."""
    for number, name in enumerate(item["tiles"], start=1):
        staged = folder / "tiles" / str(number) / Path(name).name
        staged.parent.mkdir(parents=True)
        staged.symlink_to(source / name)
    listed = folder / "list.csv"
    listed.write_text(item["tile_list"], encoding="utf-8")
    reading = InputParameters(voxel_size=SPACING)
    own = flagged(flags, TileParameters)
    return write_tile_list(folder / "tiles", listed, folder, own, reading, ExecutionParameters())


@pytest.mark.parametrize(
    ("write", "given"),
    [
        (write_ome_tiff, {"tile_flip": "x"}),
        (write_planes, {"tile_pattern": "section_{section}_r{row}_c{column}_z{plane}.tif"}),
        (write_store, {"tile_pattern": f"{PATTERN}.ome.zarr"}),
        (write_archive, {"tile_pattern": f"{PATTERN}.ozx"}),
    ],
    ids=["files", "planes", "stores", "archives"],
)
def test_the_tasks_write_what_the_command_writes(write_tiles, plan, tmp_path, write, given):
    source = write_tiles(write, lost=[(7, 1, 1)])
    made = plan(source, overlap="0.1", voxel_size="5 4 4", section_thickness=10, **given,
                allow_missing_sections=4)  # fmt: skip
    own = TileParameters.model_validate({k.removeprefix("tile_"): v for k, v in given.items()})
    reading, overlap = InputParameters(voxel_size=SPACING), OverlapParameters(overlap=(0.1, 0.1))
    whole = tmp_path / "whole"
    write_mosaics(source, whole, own, reading, overlap, ExecutionParameters())
    flags = flags_of(made)["mosaic"]
    noted = []
    for item in items_of(made):
        folder = tmp_path / item["id"]
        noted.append(run_task(item, flags, source, folder))
        one, other = (contents(p / f"{item['id']}.ome.zarr") for p in (folder, whole))
        # STITCH gets the overlap from its own flags, and the pitch in the metadata follows it.
        assert one.pop("zarr.json") != other.pop("zarr.json")
        assert one == other
    files = 6 * (3 if write is write_planes else 1)
    assert [metrics.figures["files"] for metrics in noted] == [files, files * 5 // 6]
    assert [metrics.inputs for metrics in noted] == [{"tiles": {"path": str(source)}}] * 2
    assert [metrics.figures["not_imaged"] for metrics in noted] == [0, 1]
    # Neither the grid nor how it was found is a setting of the task.
    assert noted[0].settings.keys().isdisjoint(TileParameters.searching)
    (line,) = noted[1].warnings
    assert line == "Section 7 has no file for row 1, column 1: declared as not imaged."
    assert line in made.remarks
    first, second = made.layout.bytes()[:2]
    assert (first.name, second.name) == ("MOSAIC", "RESAMPLE")
    assert first.voxels == 11 * 3 * 20 * 30 * 2


def test_places_that_files_state_become_positions(write_tiles, plan, tmp_path):
    source = write_tiles(write_ome_tiff, placed=True)
    given = {"section_thickness": 10, "allow_missing_sections": 4}
    made = plan(source, **given, overlap="0.12 0.1667")
    assert not made.idle_flags
    other = plan(source, **given, overlap="0.5")
    assert [*other.idle_flags] == ["overlap"]
    assert "OME-XML" in other.idle_flags["overlap"]
    assert "with rows and columns from the names and places from OME-XML." in made.tiles_sentence
    first = items_of(made)[0]["tables"]["positions"].splitlines()
    assert first[:2] == ["section,row,column,y,x", "2,0,0,0.0,0.0"]
    assert first[-1] == "2,1,2,72.0,200.0"
    assert "--voxel_size" not in flags_of(made)["resample"]
    # What the user gives counts.
    rows = [f"{s},{r},{c},{r * 60},{c * 80}" for s in SECTIONS for r, c in np.ndindex(2, 3)]
    table = tmp_path / "positions.csv"
    table.write_text("\n".join(["section,row,column,y,x", *rows]), encoding="utf-8")
    moved = plan(source, {"positions": table}, **given)
    assert items_of(moved)[0]["tables"]["positions"] == split_sections(table)[2]
    assert f"places from {table}." in moved.tiles_sentence
    # Neither changes a task of MOSAIC.
    assert [i["tile_list"] for i in items_of(moved)] == [i["tile_list"] for i in items_of(made)]
    assert flags_of(moved)["mosaic"] == flags_of(made)["mosaic"]


@pytest.mark.parametrize("ending", ["_r0_c0.ome.tif", ".companion.ome"])
def test_the_file_that_describes_a_set_is_in_each_of_its_tasks(plan, tmp_path, ending):
    source = tmp_path / "tiles"
    places = {at: (70.0 * at[0], 100.0 * at[1]) for at in np.ndindex(ROWS, COLUMNS)}
    for section in SECTIONS:
        name, tiles = f"section_{section}", {at: VOXELS[section, *at] for at in places}
        pattern = f"{name}_r{{row}}_c{{column}}"
        write_set(source, tiles, SPACING, places, pattern=pattern, described=f"{name}{ending}")
    for item in items_of(plan(source, section_thickness=10, allow_missing_sections=4)):
        assert f"{item['id'].replace('_0', '_')}{ending}" in item["tiles"]
        run_task(item, "", source, tmp_path / item["id"])
        own = open_image(tmp_path / item["id"] / f"{item['id']}.ome.zarr")
        section = int(item["id"].rpartition("_")[2])
        for at, voxels in tiles_of(own).items():
            np.testing.assert_array_equal(voxels, VOXELS[section, *at])


def test_the_measured_channel_is_compared_as_it_is_placed(write_tiles, plan, tmp_path):
    source = write_tiles(write_ome_tiff, placed=True)
    given = {"section_thickness": 10, "allow_missing_sections": 4, "tile_flip": "transpose"}
    made = plan(source, **given, stitch_check_overlap="warning")
    words = flags_of(made)["mosaic"].split()
    assert "--compare" in words
    assert words[words.index("--stitch_check_overlap") + 1] == "warning"
    assert words[words.index("--tile_flip") + 1] == "transpose"
    header, first = items_of(made)[0]["tile_list"].splitlines()[:2]
    assert header.endswith(",y,x")
    assert first.split(",")[-2:] == ["0.0", "0.0"]
    # A table that orders the tiles otherwise is all that tells where they lie.
    rows = [f"{s},{c},{r},{-c * 60},{r * 80}" for s in SECTIONS for r, c in np.ndindex(2, 3)]
    table = tmp_path / "positions.csv"
    table.write_text("\n".join(["section,row,column,y,x", *rows]), encoding="utf-8")
    assert "--compare" not in flags_of(plan(source, {"positions": table}, **given))["mosaic"]


def test_other_channels_than_the_measured_one_are_not_compared(plan, tmp_path):
    for row, column in np.ndindex(ROWS, COLUMNS):
        own = np.stack([VOXELS[2, row, column]] * 2)
        (tmp_path / "tiles").mkdir(exist_ok=True)
        name = tmp_path / "tiles" / f"section_2_r{row}_c{column}"
        write_ome_tiff(name, own, SPACING, channels=("GFP", "red"))
    given = {"channel": "red", "channels": "all", "overlap": "0.1", "section_thickness": 10}
    made = content(plan(tmp_path / "tiles", **given))
    words = {own["id"]: own["flags"]["mosaic"] for own in made["channels"]}
    assert {name: "--compare" in own for name, own in words.items()} == {"": True, "GFP": False}


def test_a_table_of_places_is_an_input_of_the_run(write_tiles, plan, tmp_path):
    source = write_tiles(write_ome_tiff, placed=True)
    rows = [{"r": r, "c": c, "y": 60 * r, "x": 80 * c} for r, c in np.ndindex(2, 3)]
    table = write_csv(tmp_path / "stage.csv", rows)
    made = plan(source, {"tile_table": table}, section_thickness=10, allow_missing_sections=4,
                tile_table=str(table))  # fmt: skip
    assert f"places from {table}." in made.tiles_sentence
    assert items_of(made)[1]["tables"]["positions"].splitlines()[-1] == "7,1,2,60.0,160.0"
    assert "table" not in flags_of(made)["mosaic"]


def test_tiles_without_places_are_named_by_their_folder_with_all_other_problems(write_tiles, plan):
    source = write_tiles(write_ome_tiff)
    with pytest.raises(OctaneError) as caught:
        plan(source)
    first, second = str(caught.value).splitlines()
    assert str(source) in first
    assert "give --overlap" in first
    assert second.endswith("or give --allow_missing_sections 4.")
    plan(source, allow_missing_sections=4, section_thickness=10, overlap=0)


def test_a_table_may_place_tiles_of_excluded_sections(write_tiles, plan):
    source = write_tiles(write_ome_tiff)
    rows = [
        {"file": f"section_{s}_r{r}_c{c}", "y_mm": 0.06 * r, "x_mm": 0.08 * c}
        for s in SECTIONS
        for r, c in np.ndindex(ROWS, COLUMNS)
    ]
    table = write_csv(source / "stage.csv", rows)
    made = plan(source, section_thickness=10, exclude_sections="7")
    assert made.tiles_sentence.endswith(f"places from {table}.")
    assert made.remarks == []
    assert [item["id"] for item in items_of(made)] == ["section_02"]
    assert items_of(made)[0]["tables"]["positions"].splitlines()[-1] == "2,1,2,60.0,160.0"


def test_one_channel_is_chosen_by_its_name(write_tiles, plan, tmp_path):
    source = write_tiles(write_ome_tiff)
    for file in [*source.iterdir()]:
        shutil.copy(file, file.with_name(file.name.replace(".ome", "_GFP.ome")))
        file.rename(file.with_name(file.name.replace(".ome", "_DAPI.ome")))
    pattern = "section_{section}_r{row}_c{column}_{channel}.ome.tif"
    given = {"overlap": "0.1", "section_thickness": 10, "allow_missing_sections": 4,
             "tile_pattern": pattern}  # fmt: skip
    with refused("2", "0", "'DAPI'", "1", "'GFP'", "--ch"):
        plan(source, **given, as_stated=True)
    made = plan(source, **given, channel="GFP")
    assert all("_GFP" in name for item in items_of(made) for name in item["tiles"])
    flags = flags_of(made)
    assert "--channel GFP" in flags["mosaic"]
    assert "--channel" not in flags["resample"]
    run_task(items_of(made)[0], flags["mosaic"], source, tmp_path / "task")


def test_files_of_sections_that_are_left_out_are_not_opened(write_tiles, plan):
    source = write_tiles(write_ome_tiff)
    (source / "section_7_r0_c0.ome.tif").write_bytes(b"damaged")
    given = {"overlap": "0.1", "section_thickness": 10}
    with refused("section_7_r0_c0.ome.tif"):
        plan(source, **given)
    made = plan(source, **given, only_sections="2")
    assert [item["id"] for item in items_of(made)] == ["section_02"]
    with refused("section 3", "2 7"):
        plan(source, **given, only_sections="3")


def test_a_section_without_a_full_tile_is_refused_or_left_out(write_tiles, plan, tmp_path):
    def write(path, voxels, spacing):
        last = path.name.endswith("c2")
        write_ome_tiff(path, voxels[..., :11] if last else voxels, spacing)

    lost = [(7, row, column) for row in (0, 1) for column in (0, 1)]
    source = write_tiles(write, lost)
    given = {"overlap": "0.1", "section_thickness": 10, "allow_missing_sections": 4}
    with refused("7", "--exclude_sections"):
        plan(source, **given)
    made = plan(source, **given, exclude_sections="7")
    flags = flags_of(made)["mosaic"]
    run_task(items_of(made)[0], flags, source, tmp_path / "task")
    image = open_image(tmp_path / "task" / "section_02.ome.zarr")
    assert image.grid.shape == (3, 40, 71)


def test_a_problem_of_all_files_is_told_once(write_tiles, plan):
    source = write_tiles(write_planes)
    with pytest.raises(OctaneError) as caught:
        plan(source, overlap="0.1")
    (line,) = str(caught.value).splitlines()
    assert f"{source}/section_2_r0_c0_z001.tif (and 35 more) is a TIFF that does not sta" in line


def test_a_name_that_nextflow_cannot_link_is_refused(write_tiles, plan):
    source = write_tiles(write_ome_tiff)
    for file in [*source.iterdir()]:
        file.rename(file.with_name(f"[a]{file.name}"))
    with refused("c0.ome.tif"):
        plan(source, overlap="0.1", section_thickness=10, allow_missing_sections=4)


def test_places_out_of_reach_name_their_source(write_tiles, plan):
    def write(path, voxels, spacing, place):
        write_ome_tiff(path, voxels, spacing, (1e3 * place[0], 1e3 * place[1]))

    source = write_tiles(write, placed=True)
    with refused("OME-XML", source):
        plan(source, section_thickness=10, allow_missing_sections=4, tile_pattern=f"{PATTERN}.tif")


@pytest.mark.parametrize(
    ("names", "pattern", "expected"),
    [
        (["a_1.tif", "notes.txt"], None, True),
        (["section_1/a_1.tif"], None, True),
        (["section_1/a_1.tif", "out/brain/brain.ome.zarr/"], None, True),
        (["a_1.ome.zarr/", "notes.txt", "overview.tif"], None, False),
        (["a_1.ozx", "notes.txt", "overview.tif"], None, False),
        (["sub/a_1.ome.zarr/"], None, False),
        (["a_1.ome.zarr/"], "a_{tile}.ome.zarr", True),
        (["sub/a_1.ozx"], None, False),
        (["notes.txt"], None, False),
        ([], None, False),
    ],
)
def test_a_folder_of_files_holds_tiles(tmp_path, names, pattern, expected):
    for name in names:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    assert holds_tiles(tmp_path, TileParameters(pattern=pattern)) == expected
