"""Plan of a subject's channels."""

import subprocess
from itertools import chain

import numpy as np
import pytest
from plans import content
from refusals import refused
from tile_writers import write_ome_tiff, write_tiff

from octane.core.errors import OctaneError
from octane.core.geometry import Grid, vector
from octane.processes.preflight.step import plan_of
from octane.store.writer import Level, create_image

NAMES = ("oct", "retardance", "slow axis", "488")


@pytest.fixture
def store(tmp_path):
    """A volume, or a mosaic of 2 x 2 tiles, of four channels."""

    def write(kind="volume", path="brain.ome.zarr", names=NAMES, **stated):
        attributes = {"kind": kind, **stated}
        level = Level(Grid((4, 20, 20), vector(4.0, 5.0, 5.0)), (4, 10, 10))
        made = create_image(
            tmp_path / path,
            [level],
            np.uint16,
            channels=names,
            attributes=attributes,
            overwrite=True,
        )
        with made as (writer,):
            for k in range(len(names)):
                writer[k : k + 1, 0:4, 0:20, 0:20] = np.full((1, 4, 20, 20), k + 1, np.uint16)
        return tmp_path / path

    return write


@pytest.fixture
def plan(tmp_path):
    def run(source, **given):
        asked = {"outdir": str(tmp_path / "results"), "subject": "brain", "section_thickness": 16}
        return plan_of(asked | given, source, {})

    return run


def flags_by_channel(made, step):
    return {own["id"]: own["flags"][step] for own in content(made)["channels"]}


def test_one_channel_is_planned_as_before(plan, store):
    read = content(plan(store(), channel="oct"))
    assert [(own["id"], own["written"]) for own in read["channels"]] == [("", True)]
    assert (read["joined"], read["lead"]) == (False, "")
    assert "--channel" not in read["flags"]["report"]
    again = content(plan(store(), channel="oct", channels="0"))
    assert read["channels"] == again["channels"]
    # Published by CHANNELS like every result of --channels, under the same name.
    assert (again["joined"], again["lead"], again["flags"]["report"]) == (
        *(True, "oct"), read["flags"]["report"],
    )  # fmt: skip


def test_every_channel_has_tasks_of_its_own_and_the_reference_keeps_its_own(plan, store):
    source = store("mosaic")
    alone = content(plan(source, channel="oct", overlap=0.1))
    made = plan(
        source, channel="oct", channels="all", overlap=0.1, channel_kind="slow axis=nearest"
    )
    read = content(made)
    # The third one has no name that could not be a number.
    assert [own["id"] for own in read["channels"]] == ["", "retardance", "slow-axis", "488"]
    assert read["channels"][0] == alone["channels"][0]
    assert (read["joined"], read["lead"]) == (True, "oct")
    assert read["flags"]["report"].endswith("--channel oct")
    first = flags_by_channel(made, "stitch")
    assert first["retardance"].startswith("--channel retardance")
    assert first["slow-axis"].startswith("--channel 'slow axis' --channel_kind 'slow axis=nearest'")
    assert first["488"].startswith("--channel 3 ")
    assert not any("--channel" in words for words in flags_by_channel(made, "stack").values())
    assert made.about().endswith(
        "Channels: 'oct' (measured), 'retardance', 'slow axis' (nearest), '488'."
    )


@pytest.mark.parametrize(
    ("given", "results"),
    [
        ({}, ["brain.ome.zarr"]),
        ({"skip_pyramid": True}, ["brain_n4.ome.zarr"]),
        ({"skip_pyramid": True, "skip_n4": True, "resolution": "10"}, ["other.ome.zarr"]),
        ({"skip_pyramid": True, "skip_n4": True}, []),
        ({"skip_pyramid": True, "channels": "all"}, ["brain.ome.zarr"]),
        (
            {"channels": "oct, slow axis, 488", "channel_kind": "slow axis=nearest"}
            | {"save_bias_field": True},
            ["brain.ome.zarr", "brain_bias.ome.zarr", "brain_488_bias.ome.zarr"],
        ),
        ({"save_bias_field": True, "skip_n4": True}, ["brain.ome.zarr"]),
    ],
)
def test_results_of_a_volume_are_planned_by_name(plan, store, given, results):
    made = plan(store(path="other.ome.zarr"), channel="oct", **given)
    assert made.results() == results


TABLES = ("_displacements.csv", "_positions.csv", "_gains.csv")


@pytest.mark.parametrize(
    ("kind", "given", "results"),
    [
        ("mosaic", {}, ["brain.ome.zarr", "brain_displacements.csv", "brain_positions.csv"]),
        (
            "mosaic",
            {"stitch_gain": "estimate", "skip_n4": True, "skip_pyramid": True},
            [f"brain{end}" for end in ("_stack.ome.zarr", *TABLES)],
        ),
        ("mosaic", {"skip_report": True}, ["brain.ome.zarr", "brain_displacements.csv"]),
        (
            "section",
            {"skip_n4": True, "skip_pyramid": True},
            ["brain_stack.ome.zarr", "brain_displacements.csv"],
        ),
    ],
)
def test_tables_of_sections_are_planned_by_name(plan, store, kind, given, results):
    made = plan(store(kind), channel="oct", overlap=0.5, **given)
    assert made.results() == results


@pytest.mark.parametrize("step", ["resample", "stitch", "report"])
def test_flags_hold_no_signs_of_html_and_the_command_gets_what_was_named(plan, store, step):
    names = ("<script>alert(1)</script>", "R&D's $HOME", 'a\\"&amp;"', "'<>'")
    source = store("mosaic", names=names)
    given = {"channel": "2", "channels": "all", "overlap": 0.1, "allow_upsampling": True}
    made = content(plan(source, resolution=4, **given))
    flags = [made["flags"]["report"]]
    if step != "report":
        flags = [own["flags"][step] for own in made["channels"] if own["id"]]
        assert len(flags) == 3
    for text in flags:
        assert not set("<>&") & set(text)
        printed = ["bash", "-ue", "-c", f"printf '%s\\0' {text}"]
        words = subprocess.run(printed, capture_output=True, check=True).stdout.decode().split("\0")
        assert step == "stitch" or words[words.index("--channel") + 1] in names


def test_a_tiff_is_planned_as_a_store_of_the_same_channels(plan, store, tmp_path):
    given = {"channel": "oct", "channels": "all", "channel_kind": "slow axis=nearest"}
    voxels = np.ones((4, 4, 20, 20), np.uint16)
    path = write_ome_tiff(tmp_path / "brain", voxels, (4.0, 5.0, 5.0), channels=NAMES)
    one, other = (content(plan(source, **given))["channels"] for source in (path, store()))
    assert [own["flags"] for own in one] == [own["flags"] for own in other]
    assert [own["id"] for own in one] == ["", "retardance", "slow-axis", "488"]


def test_a_channel_keeps_its_tasks_when_others_are_added(plan, store):
    source = store("mosaic")
    given = {"channel": "oct", "overlap": 0.1}
    some = content(plan(source, channels="oct retardance", **given))
    every = content(plan(source, channels="all", **given))
    assert every["channels"][:2] == some["channels"]


def test_bias_fields_are_named_by_channel_and_none_is_fitted_to_angles(plan, store):
    made = plan(
        store(), channel="oct", channels="all", save_bias_field=True,
        channel_kind="slow axis=nearest",
    )  # fmt: skip
    own = flags_by_channel(made, "n4")
    assert "--save_bias_field brain_bias.ome.zarr" in own[""]
    assert "--save_bias_field brain_retardance_bias.ome.zarr" in own["retardance"]
    assert "--save_bias_field" not in own["slow-axis"]
    # N4 is the first step: the volume that it reads holds the reference channel too.
    assert "--reference_channel oct" in own["retardance"]
    assert "--reference_channel" not in own[""]
    assert content(made)["tissue"]


def test_kinds_that_a_store_states_need_not_be_given_again(plan, store):
    kinds = [{"kind": "nearest"} if "axis" in name else {} for name in NAMES]
    stated = [{"name": name, **kind} for name, kind in zip(NAMES, kinds, strict=True)]
    made = plan(store(channels=stated), channel="oct", channels="all", save_bias_field=True)
    assert "'slow axis' (nearest)" in made.about()
    assert "--save_bias_field" not in flags_by_channel(made, "n4")["slow-axis"]


def test_the_reference_need_not_be_among_the_results(plan, store):
    made = plan(store("mosaic"), channel="oct", channels="1 3", overlap=0.1)
    assert [(o["id"], o["written"]) for o in content(made)["channels"]] == [
        *(("", False), ("retardance", True), ("488", True))
    ]
    # Nothing of a volume is measured.
    made = plan(store(), channel="oct", channels="1 3", n4_mask="none")
    assert [own["id"] for own in content(made)["channels"]] == ["retardance", "488"]
    made = plan(store(), channel="oct", channels="1 3")
    assert [own["id"] for own in content(made)["channels"]] == ["", "retardance", "488"]


def test_a_single_channel_that_is_not_the_reference_is_the_result(plan, store):
    read = content(plan(store("mosaic"), channel="oct", channels="retardance", overlap=0.1))
    assert read["joined"]
    assert [own["written"] for own in read["channels"]] == [False, True]


def test_a_name_that_looks_like_a_flag_is_replaced_by_the_number(plan, store):
    source = store("mosaic", names=("-GFP", "--x", "DAPI"))
    made = plan(source, channel="-GFP", channels="all", channel_kind="--x=nearest", overlap=0.1)
    own = flags_by_channel(made, "stitch")
    assert own[""].startswith("--channel 0 --")
    assert own["x"].startswith("--channel 1 --channel_kind 1=nearest")


def test_a_reference_whose_values_are_angles_is_doubted(plan, store):
    given = {"channel": "slow axis", "channel_kind": "slow axis=nearest", "overlap": 0.1}
    made = plan(store("mosaic"), channels="all", stack_align="rigid", **given)
    (text,) = made.remarks
    assert "'slow axis' are never averaged" in text
    assert "sections are aligned and tissue is found by them" in text
    assert plan(store("mosaic"), **given).remarks == []


def test_bytes_are_those_of_all_channels(plan, store):
    source = store("mosaic")
    (one,) = plan(source, channel="oct", overlap=0.1).bytes()
    every = [*chain(*plan(source, channel="oct", channels="all", overlap=0.1).bytes())]
    assert sum(step.voxels for step in every) == 4 * sum(step.voxels for step in one)
    assert sum(step.published for step in every) == 4 * sum(step.published for step in one)
    # The chunks of the last volumes are linked.
    assert every[-1].name == "CHANNELS"
    assert every[-1].linked == 4 * (one[-1].voxels + one[-1].linked)
    assert every[-1].voxels == 0
    others = plan(source, channel="oct", channels="1", overlap=0.1).bytes()
    made = [[step.name for step in steps] for steps in others]
    assert made == [["STITCH", "STACK", "N4", "PYRAMID"], ["STITCH", "STACK"], ["CHANNELS"]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"channels": "all", "as_stated": True},
            r"has 4 channels: 0 'oct', .*give one with --channel",
        ),
        ({"channel": "oct", "channels": "0 GFP"}, r"4 channels, but not 'GFP'"),
        ({"channel": "oct", "channel_kind": "axis=nearest"}, r"lacks the channel 'axis'"),
        ({"channel": "oct", "channel_kind": "axis"}, r"give NAME=nearest"),
    ],
)
def test_channels_that_do_not_exist_are_refused(plan, store, given, sentence):
    with pytest.raises(OctaneError, match=sentence):
        plan(store(), **given)


def test_channels_of_steps_that_are_all_skipped_are_refused(plan, store):
    with refused("--skip_pyramid"):
        plan(store(), channel="oct", channels="all", skip_n4=True, skip_pyramid=True)


def test_inputs_with_different_channels_are_refused(plan, store):
    store("mosaic", "subject/section_01.ome.zarr")
    other = store("mosaic", "subject/section_02.ome.zarr", ("oct", "axis"))
    with refused("section_02", "_01"):
        plan(other.parent, channel="oct", channels="all", overlap=0.1)


def test_a_missing_chunk_of_another_channel_is_found_before_any_work(plan, store):
    source = store("mosaic")
    (source / "0/c/2/0/1/1").unlink()
    plan(source, channel="oct", channels="0 1", overlap=0.1)
    with refused("0/c/2/0/1/1"):
        plan(source, channel="oct", channels="all", overlap=0.1)


def test_tiles_of_an_added_channel_leave_the_other_tasks_as_they_were(plan, tmp_path):
    folder = tmp_path / "tiles"
    folder.mkdir()

    def write(channel):
        for row, column in np.ndindex(2, 2):
            voxels = np.full((4, 20, 20), 1 + row + column, np.uint16)
            write_tiff(folder / f"section_1_r{row}_c{column}_{channel}", voxels, (4.0, 5.0, 5.0))

    write("DAPI")
    write("GFP")
    given = {
        **{"channel": "DAPI", "overlap": 0.1, "voxel_size": "4 5 5"},
        "tile_pattern": "section_{section}_r{row}_c{column}_{channel}.tif",
    }
    alone = content(plan(folder, **given))["channels"]
    both = content(plan(folder, channels="all", **given))["channels"]
    # It comes between the two in any order of names.
    write("FITC")
    every = content(plan(folder, channels="all", **given))["channels"]
    assert alone == both[:1] == every[:1]
    assert [own["id"] for own in every] == ["", "FITC", "GFP"]
    assert both[1] == every[2]
    ((item,),) = [own["items"] for own in every[1:2]]
    assert all(name.endswith("_FITC.tif") for name in item["tiles"])
    # Its files alone are staged, and not chosen again by a number that may change.
    assert every[1]["flags"]["mosaic"].startswith("--voxel_size 4 5 5 --channel FITC")


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"overlap": 0.2}, ["overlap"]),
        ({"overlap": 0}, ["overlap"]),
        ({"tile_flip": "y", "tile_rows": 2}, ["tile_rows", "tile_flip"]),
        # These are as good for other subjects, or change nothing.
        ({"stitch_refine": True, "stitch_flat_field": "estimate", "tile_flip": ""}, []),
    ],
)
def test_flags_on_tiles_are_idle_where_one_file_of_them_is_given(plan, tmp_path, given, flags):
    path = tmp_path / "section_01_tile_Y00_X01.tif"
    write_tiff(path.with_suffix(""), np.ones((4, 20, 20), np.uint16), (5.0, 4.0, 4.0))
    made = plan(path, voxel_size="5 4 4", **given)
    assert [*made.idle_flags] == flags
    for flag, text in made.idle_flags.items():
        assert text.startswith(f"--{flag} ")
        assert str(path) in text
        assert "the folder of the tiles" in text


@pytest.mark.parametrize(
    ("kind", "given", "flags"),
    [
        ("section", {"overlap": 0.2}, ["overlap"]),
        ("section", {}, []),
        ("section", {"stitch_gain": "gains.csv"}, ["stitch_gain"]),
        ("section", {"stitch_gain": "estimate"}, []),
        ("mosaic", {"overlap": 0.2}, []),
        ("mosaic", {"overlap": 0.2, "tile_order": "rows-snake-top-left"}, ["tile_order"]),
    ],
)
def test_flags_on_tiles_are_idle_where_there_are_none(plan, store, kind, given, flags):
    made = plan(store(kind), channel="oct", **given)
    assert [*made.idle_flags] == flags


@pytest.mark.parametrize(("overlap", "flags"), [("0.2 0.3", []), (0.2, ["overlap"])])
def test_an_overlap_is_idle_where_a_table_says_another(store, tmp_path, overlap, flags):
    rows = ("section,row,column,y,x", "1,0,0,0,0", "1,0,1,0.1,35.2", "1,1,0,40,0", "1,1,1,40,35")
    (table := tmp_path / "positions.csv").write_text("\n".join(rows), encoding="utf-8")
    asked = {"outdir": str(tmp_path / "results"), "subject": "brain", "section_thickness": 16}
    asked |= {"channel": "oct", "overlap": overlap}
    source = store("mosaic", section={"number": 1})
    made = plan_of(asked, source, {"positions": table})
    assert [*made.idle_flags] == flags
    # STITCH, which would refuse it, never gets it.
    assert "--overlap" not in str(content(made))
    assert all(str(table) in text and "0.30 along x" in text for text in made.idle_flags.values())
    # A volume is not placed at all.
    volume = store("volume", "volume.ome.zarr")
    assert [*plan_of(asked, volume, {"positions": table}).idle_flags] == ["overlap", "positions"]
