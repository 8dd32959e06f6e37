"""PREFLIGHT: every problem at once, one line each; else a plan."""

import json
import re
import shutil
import threading
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import SimpleITK as sitk
import tifffile
from archives import pack
from plans import content, launched
from refusals import refused
from tiles_left_out import leave_out

from octane.core import progress
from octane.core.errors import OctaneError
from octane.processes.preflight import step as preflight
from octane.processes.preflight.step import make_plans, name_subjects, plan_of

ONES = np.ones((4, 20, 30), np.float32)
TILE = (4, 10, 10)


@pytest.fixture
def plan(tmp_path):
    """Check a subject; returns its plan as the workflow reads it, with its settings."""

    def run(source, beside=None, **parameters):
        given = {"outdir": str(tmp_path / "results"), "subject": "brain", **parameters}
        made = plan_of(given, source, beside or {})
        said = {"about": made.layout.about(), "notes": made.layout.warnings()}
        read = content(made)
        (own,) = cast("list[dict[str, dict[str, str]]]", read["channels"])
        flags = cast("dict[str, str]", read["flags"]) | own["flags"]
        return {**read, **own, "flags": flags, "settings": made.layout.settings, **said}

    return run


@pytest.fixture
def problems(plan):
    """Problems of a run, by line."""

    def run(source, beside=None, **parameters):
        with pytest.raises(OctaneError) as caught:
            plan(source, beside, **parameters)
        return str(caught.value).splitlines()

    return run


@pytest.fixture
def write_sections(write_mosaic, tmp_path):
    """Write named mosaics of abutting tiles into a folder."""

    def write(*names, voxels=ONES, folder="mosaics", **given):
        given = {"pitch": (100.0, 100.0), **given}
        for name in names:
            write_mosaic(f"{folder}/{name}.ome.zarr", voxels, TILE, **given)
        return tmp_path / folder

    return write


@pytest.fixture
def mosaics(write_sections):
    """Two mosaics, 1 and 2."""
    return write_sections("section_01", "section_02")


@pytest.fixture
def volume(write_image):
    return write_image("brain.ome.zarr", ONES, attributes={"kind": "volume"})


def test_the_first_step_gets_the_voxel_size_of_a_tiff(plan, problems, tmp_path):
    path = tmp_path / "brain.ome.tif"
    tifffile.imwrite(path, ONES, metadata={"axes": "ZYX"})
    (line,) = problems(path, input_unit="micrometer")
    assert "give --voxel_size, in micrometres" in line
    made = plan(path, voxel_size="3 2 2", resolution=4)
    assert [step for step, flags in made["flags"].items() if "--voxel_size 3 2 2" in flags] == [
        "resample"
    ]
    assert made["items"] == [{"id": "brain", "file": ""}]


def test_each_step_gets_its_own_flags(plan, mosaics):
    made = plan(
        mosaics, resolution="25 20 20", overlap=0.1, stitch_refine=True, section_thickness=40,
        n4_strength=0.5, n4_iterations="30 20", save_bias_field=True, pyramid_resolutions="25 50",
        n4_mask="Tissue", input_unit="micrometer", missing_chunks="fill",
    )["flags"]  # fmt: skip
    fill, cpu = "--missing_chunks fill", "--backend cpu"
    assert made == {
        "resample": f"--input_unit micrometer {fill} --resolution 25 20 20",
        "stitch": f"{fill} {cpu} --overlap 0.1 0.1 --stitch_refine true --stitch_flat_field auto",
        "stack": f"{fill} {cpu} --stack_align auto --section_thickness 40 "
        "--section_surface auto --section_level auto --codec blosc-lz4",
        "n4": f"{fill} --n4_mask tissue --n4_shrink_factor auto --n4_iterations 30 20 "
        "--n4_strength 0.5 --save_bias_field brain_bias.ome.zarr",
        "pyramid": f"{fill} {cpu} --pyramid_resolutions 25 50",
        "report": cpu,
        "channels": cpu,
    }
    # PYRAMID links the chunks that it would write.
    assert "--codec" not in plan(mosaics, skip_n4=True)["flags"]["stack"]


def test_a_run_until_stitch_plans_the_same_tasks_up_to_there(plan, problems, mosaics, volume):
    given = {"overlap": 0.1, "resolution": 25, "save_bias_field": True, "channels": "all"}
    whole, part = (plan(mosaics, **given, **more) for more in ({}, {"until": "stitch"}))
    shared = ("resample", "stitch")
    assert part["flags"].keys() == {*shared, "report", "channels"}
    assert [part["flags"][step] for step in shared] == [whole["flags"][step] for step in shared]
    for source, kind in ((mosaics, "section"), (volume, "volume")):
        (line,) = problems(source, input_kind=kind, until="stitch")
        assert line.startswith("--until stitch ")
        assert str(source) in line


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"input_kind": "mosaic", "resolution": 25}, "resample"),
        ({"input_kind": "mosaic", "resolution": "none"}, "stitch"),
        ({"input_kind": "section"}, "stack"),
        ({"input_kind": "volume", "resolution": 25}, "resample"),
        ({"input_kind": "volume"}, "n4"),
        ({"input_kind": "volume", "skip_n4": True}, "pyramid"),
    ],
)
def test_the_step_that_reads_the_input_is_given_the_channel(
    plan, problems, write_foreign, given, first
):
    source = write_foreign("a.zarr", np.stack([ONES, ONES])[None], axes="tczyx", labels=["a", "b"])
    says = "has 2 channels, but not '2': 0 'a', 1 'b'; give one with --channel."
    assert problems(source, channel=2, **given) == [f"{source} {says}"]
    film = write_foreign("b.zarr", np.stack([[ONES, ONES]] * 3), axes="tczyx", labels=["a", "b"])
    says = "has 2 channels: 0 'a', 1 'b', and 3 timepoints: 0, 1, 2; give one of each with"
    assert problems(film, **given) == [f"{film} {says} --channel and --timepoint."]
    flags = plan(source, channel="b", timepoint=0, overlap=0, **given)["flags"]
    assert [step for step, words in flags.items() if "--channel" in words] == [first]
    assert "--channel b --timepoint 0" in flags[first]


@pytest.mark.parametrize(
    ("chunks", "given", "kind"),
    [
        (TILE, {}, "mosaic"),
        (TILE, {"input_kind": "volume"}, "volume"),
        ((4, 20, 30), {}, "volume"),
        ((2, 10, 10), {"overlap": None}, "volume"),
        ((2, 10, 10), {"input_kind": "volume"}, "volume"),
    ],
)
def test_a_foreign_stores_kind_shows_in_its_chunks(plan, write_foreign, chunks, given, kind):
    source = write_foreign("a.zarr", ONES, chunks=chunks)
    assert plan(source, **{"overlap": 0, **given})["kind"] == kind


def test_chunks_cut_in_z_are_no_tiles_where_an_overlap_is_given(problems, write_foreign):
    (line,) = problems(write_foreign("a.zarr", ONES, chunks=(2, 10, 10)), overlap=0.1)
    assert all(name in line for name in ("a.zarr", "2 of 4 planes", "--input_kind"))


@pytest.mark.parametrize(
    ("voxels", "chunks", "overlap", "noted"),
    [
        (ONES, (8, 64, 64), 0, ["one chunk and therefore one tile"]),
        (ONES, (4, 20, 15), 0, []),
        (ONES, (4, 12, 16), 0, ["give --input_kind section"]),
        # Whoever gives an overlap knows that they are tiles.
        (ONES, (4, 12, 16), 0.1, []),
        (ONES.astype("complex64"), (4, 20, 15), 0, ["give the modulus"]),
    ],
)
def test_what_may_be_no_mosaic_or_no_intensity_is_noted(
    plan, write_foreign, voxels, chunks, overlap, noted
):
    path = write_foreign("a.zarr", voxels, chunks=chunks)
    kind = "mosaic" if chunks > ONES.shape else "auto"
    notes = plan(path, overlap=overlap, input_kind=kind, skip_n4=True)["notes"]
    assert [word in note for word, note in zip(noted, notes, strict=True)] == [True] * len(noted)


@pytest.mark.parametrize(
    ("voxels", "spacing", "moved", "noted"),
    [
        (ONES[:, :10], 10.0, {}, "has 1 x 3 tiles of 40 x 100 x 100 .* most mosaics have 2 x 3"),
        (ONES, 8.0, {}, "has 2 x 3 tiles of 40 x 80 x 80 micrometre .* of 40 x 100 x 100: check"),
        (ONES, 10.0, {4: -99}, r"4.ome.zarr, row 1, column 1 \(and 1 more\) does not touch"),
        (
            ONES,
            10.0,
            dict.fromkeys(range(6), 900),
            "^Section 4 does not overlap the section before it in y and x",
        ),
    ],
)
def test_mosaics_and_tiles_that_lie_otherwise_than_others_are_noted(
    plan, write_sections, tmp_path, voxels, spacing, moved, noted
):
    write_sections("section_1", "section_2", "section_3")
    source = write_sections("section_4", voxels=voxels, spacing=(10.0, spacing, spacing))
    rows = [(k, n // 3, n % 3, moved.get(n, 0) * (k == 4)) for k in range(1, 5) for n in range(6)]
    table = tmp_path / "positions.csv"
    lines = [f"{k},{r},{c},{99 * r},{99 * c + x}\n" for k, r, c, x in rows]
    table.write_text("section,row,column,y,x\n" + "".join(lines), encoding="utf-8")
    beside = {"positions": table} if moved else None
    (note,) = plan(source, beside, resolution=20, section_thickness=40)["notes"]
    assert re.search(noted, note)


def test_inputs_in_one_file_are_planned_as_folders_are(plan, mosaics, write_image):
    folders = plan(mosaics)
    for path in [*mosaics.iterdir()]:
        pack(path)
        shutil.rmtree(path)
    files = plan(mosaics)
    assert [item["id"] for item in files["items"]] == ["section_01", "section_02"]
    assert [item["file"] for item in files["items"]] == ["section_01.ozx", "section_02.ozx"]
    for item in (*files["items"], *folders["items"]):
        item.pop("file")
    assert files == folders
    volume = pack(write_image("brain.ome.zarr", ONES, attributes={"kind": "volume"}))
    mask = pack(write_image("mask.ome.zarr", ONES.astype(np.uint8)))
    assert plan(volume, {"n4_mask": mask}, n4_mask=str(mask))["kind"] == "volume"


@pytest.mark.parametrize(("unit", "doubted"), [(1, False), (0.001, True)])
def test_positions_in_millimetres_are_doubted(plan, mosaics, tmp_path, unit, doubted):
    table = tmp_path / "positions.csv"
    rows = [(k, n // 3, n % 3) for k in (1, 2) for n in range(6)]
    lines = [f"{k},{r},{c},{80 * r * unit},{80 * c * unit}\n" for k, r, c in rows]
    table.write_text("section,row,column,y,x\n" + "".join(lines), encoding="utf-8")
    notes = plan(mosaics, beside={"positions": table})["notes"]
    words = "Neighbouring tiles of section_01.ome.zarr (and 1 more) are at most 0.0008 of a tile"
    assert [note.startswith(words) for note in notes] == [True] * doubted


def test_rows_of_sections_that_are_not_there_are_refused(plan, problems, mosaics, tmp_path):
    table, moves = tmp_path / "positions.csv", tmp_path / "moves.csv"
    rows = [f"{k},{r},{c},{80 * r},{80 * c}" for k in (2, 1) for r in (0, 1) for c in range(3)]
    table.write_text("\n".join(["section,row,column,y,x", *rows]), encoding="utf-8")
    moves.write_text("section,y,x,rotation\n1,10,0,0\n2,,,\n", encoding="utf-8")
    beside = {"positions": table, "displacements": moves}
    plan(mosaics, beside)
    # Those of sections that are left out are passed over.
    plan(mosaics, beside, only_sections=2)
    shutil.rmtree(mosaics / "section_01.ome.zarr")
    (line,) = problems(mosaics, beside)
    assert line.startswith(f"{table}, line 8: the input has no section 1; remove the row")
    (line,) = problems(mosaics, {"displacements": moves})
    assert line.startswith(f"{moves}, line 2: the input has no section 1; remove the row")


def test_flips_are_of_sections(plan, problems, volume, write_sections):
    source = write_sections("a_1", "a_2", "a_3")
    made = plan(source, flip_sections="3:XY")
    assert "--flip_sections '3: yx'" in made["flags"]["stack"]
    assert "flip" not in made["flags"]["stitch"]
    # A section that is left out for a trial stays in the table.
    plan(source, flip_sections="3: x", only_sections="1-2")
    (line,) = problems(source, flip_sections="2-4: x")
    assert line.startswith("--flip_sections '2-4: x' names section 4")
    (line,) = problems(volume, flip_sections="1: x")
    assert line == f"--flip_sections flips sections, and {volume} is one volume; omit it."


def test_displacements_are_of_sections(plan, problems, volume, mosaics, tmp_path):
    table = tmp_path / "moves.csv"
    table.write_text("section,y,x,rotation\n1,10,0,0\n", encoding="utf-8")
    (line,) = problems(volume, {"displacements": table})
    assert line == f"--displacements moves sections, and {volume} is one volume; omit it."
    (line,) = problems(mosaics, {"displacements": table, "truth": tmp_path})
    assert "--displacements moves them; omit one" in line


def test_only_the_sections_that_are_chosen_are_opened(plan, problems, write_sections):
    source = write_sections("a_1", "a_2", "a_3", "a_5", "a_6")
    (source / "a_2.ome.zarr" / "zarr.json").write_text("damaged")
    # Section 4 is missing, but beyond the last one.
    made = plan(source, only_sections="1 3")
    assert [item["id"] for item in made["items"]] == ["a_1", "a_3"]
    assert "--excluded_sections '2 5-6'" in made["flags"]["stack"]
    assert "sections" not in made["flags"]["stitch"]
    assert made["about"].endswith("Excluded sections: 2 5-6.")
    (line,) = problems(source, exclude_sections="2")
    assert re.search("lacks section 4 of 1 to 6; .* give --allow_missing_sections 1", line)
    (line,) = problems(source, exclude_sections="3", allow_missing_sections=1)
    assert "a_2.ome.zarr" in line


def test_a_section_is_chosen_by_the_name_that_its_metadata_repeat(problems, write_image, tmp_path):
    noted = {"kind": "section", "section": {"number": 3}}
    for number in (1, 2):
        attributes = noted if number == 2 else {"kind": "section"}
        write_image(f"sections/a_{number}.ome.zarr", ONES, attributes=attributes)
    (line,) = problems(tmp_path / "sections", only_sections=2)
    assert "a_2.ome.zarr is section 2 by its name, by which sections are chosen, but 3 by" in line


def test_a_flat_field_is_estimated_from_the_overlaps_that_stitch_gets(problems, plan, write_mosaic):
    source = write_mosaic("a_1.ome.zarr", np.ones((4, 80, 80), np.float32), (4, 40, 40))
    given = {"overlap": 0.2, "stitch_flat_field": "estimate"}
    plan(source, **given)
    # An overlap of 8 pixels becomes one of 2.
    (line,) = problems(source, resolution=40, **given)
    assert "its tiles overlap by less than 4 pixels, too little to estimate a flat field" in line
    (line,) = problems(source, resolution=40, overlap=0.2, stitch_gain="estimate")
    assert "too little to estimate gains; give --stitch_gain FILE" in line


def test_a_flat_field_is_measured_in_pixels_of_the_source(problems, write_mosaic, tmp_path):
    source = write_mosaic("a_1.ome.zarr", np.ones((4, 80, 80), np.float32), (4, 40, 40))
    np.save(tmp_path / "wide.npy", np.ones((20, 40)))
    beside = {"stitch_flat_field": tmp_path / "wide.npy"}
    (line,) = problems(source, beside, overlap=0.2, resolution=40)
    assert "wide.npy has 20 x 40 pixels and a tile 40 x 40; give" in line


def test_gains_are_refused_before_any_work(problems, plan, mosaics, tmp_path):
    table = tmp_path / "gains.csv"
    beside, given = {"stitch_gain": table}, {"overlap": 0.2, "stitch_gain": str(table)}
    rows = [f"{k},{n // 3},{n % 3},1.1" for k in (2, 1) for n in range(6)]

    def write(lines):
        table.write_text("\n".join(["section,row,column,gain", *lines]), encoding="utf-8")

    write(rows)
    made = plan(mosaics, beside, **given)
    flags = [text for channel in made["channels"] for text in channel["flags"].values()]
    # The workflow stages each section's rows, and adds the flag.
    assert "stitch_gain" not in " ".join(flags).replace("--stitch_gain none", "")
    write(rows[:-1])
    (line,) = problems(mosaics, beside, **given)
    assert line.startswith(f"{table} lacks the gains of 1 tiles, the first at row 1, column 2 of")
    write([*rows, "3,0,0,1"])
    (line,) = problems(mosaics, beside, **given)
    assert line.startswith(f"{table}, line 14: the input has no section 3; remove the row")


def test_attenuation_is_refused_before_any_work(problems, plan, write_mosaic):
    source = write_mosaic("a_1.ome.zarr", np.ones((8, 80, 80), np.uint16), (8, 40, 40))
    given = {"overlap": 0.2, "stitch_attenuation": "compensate"}
    (line,) = problems(source, **given)
    assert "a_1.ome.zarr holds uint16 voxels, but --stitch_attenuation needs floating" in line
    plan(source, **given, resolution=10, resample_dtype="float32")
    asked = {"overlap": 0.2, "resolution": 10, "resample_dtype": "float32"}
    (line,) = problems(source, **asked, stitch_attenuation="coefficient")
    assert "makes a volume in 1/mm, whose values N4 would change; give --skip_n4" in line
    plan(source, **asked, stitch_attenuation="coefficient", skip_n4=True)
    (line,) = problems(source, **asked, stitch_attenuation="compensate", section_thickness="auto")
    assert line.startswith("--section_thickness auto compares the light of deep planes, which")
    # As RESAMPLE makes it.
    (line,) = problems(source, **given, resolution=20, resample_dtype="float32")
    assert "a_1.ome.zarr has 4 planes, but --stitch_attenuation needs at least 6" in line


def test_angles_are_not_refined(problems, plan, write_mosaic):
    source = write_mosaic("a_1.ome.zarr", np.ones((8, 80, 80), np.uint16), (8, 40, 40))
    # What needs intensities does not concern them.
    given = {"overlap": 0.2, "channel_kind": "0=nearest", "stitch_flat_field": "estimate"}
    plan(source, **given, stitch_attenuation="compensate", skip_n4=True)
    (line,) = problems(source, **given, stitch_refine=True)
    assert "a_1.ome.zarr: --stitch_refine cannot compare tiles whose values must not be" in line


def test_inputs_are_looked_at_side_by_side_with_a_line_on_how_far(
    plan, mosaics, caplog, monkeypatch
):
    caplog.set_level("INFO")
    together = threading.Barrier(2, timeout=20)
    alone = preflight.open_volume

    def open_volume(*arguments):
        together.wait()
        return alone(*arguments)

    monkeypatch.setattr(preflight, "open_volume", open_volume)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0)
    plan(mosaics, section_thickness=40)
    for label in ("opening", "checking"):
        lines = [text for text in caplog.messages if f"PREFLIGHT: {label}: " in text]
        assert [line.split(" inputs")[0][-6:] for line in lines] == ["1 of 2", "2 of 2"]


def test_depths_beyond_a_section_are_refused(problems, mosaics, tmp_path):
    tiles = [(k, r, c) for k in (1, 2) for r in (0, 1) for c in range(3)]
    rows = [f"{k},{r},{c},{100 * r},{100 * c},{1e4 * (r == k == 1)}\n" for k, r, c in tiles]
    table = tmp_path / "positions.csv"
    table.write_text("section,row,column,y,x,z\n" + "".join(rows), encoding="utf-8")
    (line,) = problems(mosaics, {"positions": table}, section_thickness=40)
    assert str(table) in line


def test_positions_in_another_unit_are_refused_once(problems, mosaics, tmp_path):
    rows = [f"{k},{r},{c},{1e5 * r},{1e5 * c}\n" for k in (1, 2) for r in (0, 1) for c in range(3)]
    table = tmp_path / "positions.csv"
    table.write_text("section,row,column,y,x\n" + "".join(rows), encoding="utf-8")
    (line,) = problems(mosaics, {"positions": table}, section_thickness=40)
    first = re.escape(str(mosaics / "section_01.ome.zarr"))
    words = rf"positions.csv spreads the tiles of {first} \(and 1 more\) over 200000 micrometre, .*"
    assert re.search(words + "side by side they cover 300: give positions in micrometres", line)


def test_axes_that_are_oblique_and_voxels_of_no_size_are_noted_and_no_voxel_is_read(
    plan, tmp_path, files_read_once, monkeypatch
):
    monkeypatch.setattr(sitk, "ReadImage", lambda *_: pytest.fail("voxels were read"))
    image = sitk.GetImageFromArray(ONES)
    sitk.WriteImage(image, tmp_path / "bare.mha")
    image.SetSpacing((10.0, 10.0, 3.5))
    sitk.WriteImage(image, tmp_path / "linumpy.nii")
    for name, size in (("bare.mha", "1 x 1 x 1"), ("linumpy.nii", "3.5 x 10 x 10")):
        (note,) = plan(tmp_path / name)["notes"]
        assert f"in voxels of {size} mm. Check its header" in note
    image.SetSpacing((0.01, 0.01, 0.01))
    paths = [tmp_path / "straight.nrrd", tmp_path / "oblique.mha"]
    for path in paths:
        sitk.WriteImage(image, path)
        image.SetDirection((0.8, -0.6, 0, 0.6, 0.8, 0, 0, 0, 1))
    straight, oblique = (plan(path)["notes"] for path in paths)
    assert not straight
    assert "oblique.mha" in oblique[0]
    assert files_read_once == []


@pytest.mark.parametrize(
    ("unit", "given", "size", "doubted"),
    [
        ("micrometer", None, "40 x 200 x 300 µm (z y x) in voxels of 10 x 10 x 10 µm", False),
        ("millimeter", None, "40 x 200 x 300 mm (z y x) in voxels of 10 x 10 x 10 mm", True),
        ("nanometer", None, "40 x 200 x 300 nm (z y x) in voxels of 10 x 10 x 10 nm", True),
        ("millimeter", "micrometer", "200 x 300 µm", False),
    ],
)
def test_sizes_are_said_in_words_and_doubted_where_a_unit_is_likely_wrong(
    plan, write_foreign, unit, given, size, doubted
):
    source = write_foreign("a.zarr", ONES, unit=unit)
    notes = plan(source, input_unit=given, input_kind="volume")
    assert notes["about"].startswith("1 volume, ")
    assert notes["about"].endswith(", 9.6 kB decoded.")
    assert size in notes["about"]
    says = [note for note in notes["notes"] if "give --input_unit" in note]
    assert [note.startswith(f"a.zarr is {size}. Check") for note in says] == [True] * doubted
    # The step that reads a unit records that it is overruled.
    overruled = [note for note in notes["notes"] if note not in says]
    if given is None:
        assert overruled == []
    else:
        words = "The store states lengths in millimeter; they are read in micrometer, as"
        assert overruled == [f"{words} --input_unit says."]
        assert "--input_unit micrometer" in notes["flags"]["n4"]


def test_mosaics_and_their_tiles_are_described(plan, mosaics):
    assert plan(mosaics, as_stated=True)["about"] == (
        "2 mosaics of 2 x 3 tiles of 100 x 100 µm (y x), up to 40 x 200 x 300 µm (z y x) in voxels "
        "of 10 x 10 x 10 µm, 19.2 kB decoded."
    )


def test_every_problem_has_a_line_of_its_own_all_at_once(problems, write_mosaic, write_foreign):
    write_mosaic("in/section_01.ome.zarr", ONES, TILE)
    write_foreign("in/section_02.zarr", ONES, unit=None, chunks=TILE)
    write_foreign("in/section_03.zarr", ONES, axes="xyz")
    source = write_foreign("in/section_06.zarr", ONES, chunks=(2, 10, 10)).parent
    expected = [
        ("section_02", "--input_unit"),
        ("section_03", "axes"),
        ("section_01", "--overlap"),
        ("section_06", "full Z"),
        ("lacks section 4, 5 of", "--allow_missing_sections 2"),
    ]
    lines = problems(source)
    assert len(lines) == 5
    for words in expected:
        assert any(all(word in line for word in words) for line in lines), words


def test_every_wrong_parameter_has_a_line_of_its_own(problems, mosaics):
    wrong = {"resolution": -5, "overlap": 1, "n4_iterations": "-1 -1", "input_unit": "furlong"}
    more = {"gpu_slots": 0, "publish_dir_mode": "move", "blur": 1, "stitch_check_overlap": "soft"}
    named = [re.findall(r"--(\w+)", line)[0] for line in problems(mosaics, **wrong, **more)]
    assert sorted(named) == sorted([*wrong, *more])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"resolution": 500},
            "100 x 100 µm (y x), which voxels of 500 x 500 x 500 µm (z y x) reduce to one voxel;",
        ),
        ({"section_thickness": 41}, "section_01.ome.zarr, 40 micrometre; give at most that"),
    ],
)
def test_what_leaves_nothing_of_a_section_is_refused_once(problems, plan, mosaics, settings, words):
    (line,) = problems(mosaics, **settings)
    assert words in line
    assert not set(map(str, settings.values())) & set(line.rpartition(";")[2].split())
    # A thin section may need only one plane.
    plan(mosaics, resolution=50, section_thickness=40)


def test_sections_thicker_than_deep_by_their_metadata_are_named_once_before_the_work(
    write_image, tmp_path
):
    for number in (1, 2, 3):
        noted = {
            "kind": "section",
            "section": {"number": number, "thickness": 40 + 5 * (number > 1)},
        }
        write_image(f"sections/section_{number}.ome.zarr", ONES, attributes=noted)
    given = {"outdir": "results", "subject": "brain"}
    (note,) = plan_of(given, tmp_path / "sections", {}).layout.warnings()
    assert note.startswith("section_2.ome.zarr (and 1 more) is 45 micrometre thick by its metadata")
    (note,) = plan_of({**given, "section_surface": 5}, tmp_path / "sections", {}).layout.warnings()
    assert "(and 2 more) is 40 micrometre thick by its metadata but only 35 deep" in note
    assert (
        plan_of({**given, "section_thickness": 40}, tmp_path / "sections", {}).layout.warnings()
        == []
    )


def test_surfaces_are_those_that_stitch_measured(problems, plan, mosaics, write_image, tmp_path):
    auto = {"section_surface": "auto"}
    (line,) = problems(mosaics, section_level=True, section_surface=0)
    assert line.endswith("give --section_surface auto as well.")
    assert (
        "--section_surface auto --section_level true"
        in plan(mosaics, section_level=True, overlap=0.1, **auto)["flags"]["stack"]
    )
    for number, surface in enumerate([{"depth": 5.0, "tilt": [0.0, 0.0]}, {"reason": "a"}, None]):
        noted = {} if surface is None else {"surface": surface}
        attributes = {"kind": "section", "section": {"number": number, **noted}}
        write_image(f"sections/section_{number}.ome.zarr", ONES, attributes=attributes)
    assert "become thinner" not in plan(tmp_path / "sections", **auto)["about"]


def test_sections_count_fully_until_their_surface_is_measured(plan, mosaics):
    about = plan(mosaics, section_surface="auto")["about"]
    assert about.count("Sections are counted with all that was imaged") == 1
    assert plan(mosaics, section_surface="auto", section_thickness=40)
    for given in ({"section_thickness": 30, "section_surface": "auto"}, {"section_surface": 10}):
        assert "counted with" not in plan(mosaics, **given)["about"]


def test_sections_that_share_less_than_is_to_be_blended_are_named_before_the_work(
    write_image, tmp_path
):
    for number in (1, 2, 3):
        noted = {"kind": "section", "section": {"number": number, "thickness": 30}}
        write_image(f"sections/section_{number}.ome.zarr", ONES, attributes=noted)
    given = {"outdir": "results", "subject": "brain"}
    for blend, expected in ((0, []), (10, []), (20, ["--stack_blend 20 exceeds the 10 micro"])):
        layout = plan_of({**given, "stack_blend": blend}, tmp_path / "sections", {}).layout
        assert [note[:37] for note in layout.warnings()] == expected
    with refused("--stack_blend", "5"):
        plan_of({**given, "stack_blend": 5}, tmp_path / "sections", {})


@pytest.mark.parametrize(
    ("edges", "stated", "taken"),
    [
        ((5, 205, 405), "200", None),
        ((0, 20, 50), "20 to 30", None),
        ((90, 60, 30), None, 30),
        ((0, 40, 80), None, 40),
        ((5, 205, 180), None, None),
    ],
)
def test_translations_along_z_are_taken_or_noted(write_image, tmp_path, edges, stated, taken):
    noted = {"kind": "section"}
    for number, edge in enumerate(edges, start=8):
        name = f"sections/section_{number}.ome.zarr"
        write_image(name, ONES, edge=(edge, 0, 0), attributes=noted)
    given = {"outdir": "results", "subject": "brain"}
    layout = plan_of(given, tmp_path / "sections", {}).layout
    words = f"section_8.ome.zarr and the following .* {stated} micrometre apart .* 40 is used"
    found = [bool(re.match(words, text)) for text in layout.warnings()]
    assert found == [True] * (stated is not None)
    thick = f"Section thickness: {taken} micrometre, from the translations along z."
    assert layout.about().endswith(f" decoded. {thick}" if taken else " decoded.")
    (planes,) = {step.voxels for step in layout.bytes() if step.name == "STACK"}
    assert planes == 4 * 20 * 30 * 3 * (taken or 40) / 10
    layout = plan_of({**given, "section_thickness": 40}, tmp_path / "sections", {}).layout
    assert layout.warnings() == []
    assert layout.about().endswith(" decoded.")


@pytest.mark.parametrize(
    "settings", [{"n4_mode": "two_pass"}, {"n4_histogram_matching": "section"}]
)
def test_a_volume_without_sections_is_not_corrected_section_by_section(
    problems, plan, volume, write_image, settings
):
    (line,) = problems(volume, **settings)
    ((name, value),) = settings.items()
    assert line.startswith(
        f"{volume} does not state where its sections begin, which --{name} {value}"
    )
    assert line.endswith("give --n4_section_starts, such as '0 30 60'.")
    plan(volume, n4_section_starts="0 2", **settings)
    # Planes of the volume that is corrected.
    (line,) = problems(volume, n4_section_starts="0 2", resolution=20, **settings)
    assert line == "--n4_section_starts is 0 2; give ascending planes from 0 to 1."
    noted = [{"name": "a", "number": 1, "start": 0, "stop": 4}]
    attributes = {"kind": "volume", "sections": noted}
    plan(write_image("stack.ome.zarr", ONES, attributes=attributes), **settings)


def test_a_number_may_stand_in_the_name_of_a_link(plan, problems, write_mosaic, tmp_path):
    # A link to a folder, in which the links have the numbers.
    (tmp_path / "mosaics").mkdir()
    for number, name in ((1, "scan_0931"), (3, "scan_0940")):
        store = write_mosaic(f"scans/{name}.ome.zarr", ONES, TILE, pitch=(100, 100))
        (tmp_path / "mosaics" / f"section_0{number}.ome.zarr").symlink_to(store)
    (tmp_path / "task").mkdir()
    staged = tmp_path / "task" / "mosaics"
    staged.symlink_to(tmp_path / "mosaics")
    made = plan(staged, resolution=25, allow_missing_sections=1)
    assert [item["id"] for item in made["items"]] == ["section_01", "section_03"]
    (line,) = problems(staged, resolution=25)
    assert line.startswith(f"{staged} lacks section 2 of 1 to 3")


def test_sections_must_be_alike_by_the_time_they_are_stacked(problems, plan, write_sections):
    write_sections("section_01")
    source = write_sections("section_02", voxels=ONES.astype(np.uint16))
    (line,) = problems(source, resolution=25)
    assert "section_02.ome.zarr is uint16 and" in line
    assert line.endswith("or resample all to one type (--resample_dtype).")
    plan(source, resolution=25, resample_dtype="float32")
    # Rounding does not make another size.
    for name, size in (("section_01", 10.0), ("section_02", 10.000001), ("section_03", 12.0)):
        source = write_sections(name, folder="sizes", spacing=(size,) * 3)
    (line,) = problems(source)
    assert re.search("section_03.ome.zarr and .*section_01.ome.zarr differ in voxel size", line)
    plan(source, resolution=25)


@pytest.mark.parametrize(
    ("names", "words", "count"),
    [
        (("a_1", "b_1"), "both section 1", 1),
        (("left", "right"), "left.ome.zarr (and 1 more) lacks a number in its name", 1),
        *(((f"o{s}brien_1",), f"has a {s} in its name; rename it.", 1) for s in "'\"\\<>&"),
        (("s{a,b}_1",), "has a { in its path, which Nextflow cannot hand to tasks", 1),
    ],
)
def test_names_of_sections_are_checked(problems, write_sections, names, words, count):
    lines = problems(write_sections(*names))
    assert [words in line for line in lines] == [True] * count


def test_stores_of_two_kinds_and_two_volumes_are_refused(problems, mosaics, write_image, tmp_path):
    attributes = {"kind": "section", "section": {"number": 3}}
    write_image("mosaics/section_03.ome.zarr", ONES, attributes=attributes)
    (line,) = problems(mosaics)
    assert "mixes mosaic and section stores" in line
    for n in (1, 2):
        write_image(f"many/v{n}.ome.zarr", ONES, attributes={"kind": "volume"})
    (line,) = problems(tmp_path / "many")
    assert line.startswith(f"{tmp_path}/many holds 2 volumes; give one")


def test_a_missing_chunk_is_named_unless_it_is_filled(problems, plan, mosaics):
    (mosaics / "section_02.ome.zarr/0/c/0/1/2").unlink()
    (line,) = problems(mosaics)
    assert "section_02.ome.zarr: chunk 0/c/0/1/2" in line
    assert "--missing_chunks fill" in line
    plan(mosaics, missing_chunks="fill")
    # As left by a crash.
    (mosaics / "section_02.ome.zarr/0/c/0/1/2").touch()
    (line,) = problems(mosaics, missing_chunks="fill")
    assert "chunk 0/c/0/1/2 cannot be decoded (empty file); write it again" in line


def test_a_section_without_any_chunk_is_never_filled(problems, mosaics):
    shutil.rmtree(mosaics / "section_02.ome.zarr/0/c")
    for given in ({}, {"missing_chunks": "fill"}):
        (line,) = problems(mosaics, **given)
        assert "section_02.ome.zarr: chunk 0/c/0/0/0 is missing" in line
        assert "--missing_chunks" not in line


def test_tiles_that_were_not_imaged_need_neither_chunks_nor_space(mosaics, tmp_path):
    given = {"outdir": str(tmp_path), "subject": "brain", "resolution": 20}
    before = plan_of(given, mosaics, {}).layout.bytes()[0]
    leave_out(mosaics / "section_02.ome.zarr", [(1, 2), (0, 0)])
    after = plan_of(given, mosaics, {}).layout.bytes()[0]
    assert (before.name, after.name) == ("RESAMPLE", "RESAMPLE")
    # Two of the twelve tiles, all of one size.
    assert after.voxels * 12 == before.voxels * 10


def test_a_truth_is_not_compared_with_sections_that_are_moved(problems, plan, mosaics, tmp_path):
    moving = (
        *(("stack_align", "rigid"), ("section_surface", 5)),
        *(("section_thickness", "auto"), ("flip_sections", "1: x")),
    )
    for name, value in moving:
        (line,) = problems(mosaics, {"truth": tmp_path}, **{name: value})
        assert line.startswith("--phantom")
        assert f"--{name} moves them" in line
    plan(mosaics, {"truth": tmp_path}, stack_align="rigid", skip_n4=True)


def test_what_a_step_cannot_do_is_refused_unless_it_is_skipped(
    problems, plan, write_sections, write_foreign, volume
):
    source = write_sections("section_1", voxels=ONES.astype(np.complex64))
    (line,) = problems(source)
    assert "--skip_n4" in line
    plan(source, skip_n4=True)
    (line,) = problems(volume, pyramid_resolutions="5 25")
    assert "5" in line
    plan(volume, pyramid_resolutions="5 25", skip_pyramid=True)
    source = write_foreign("a_1.zarr", ONES, chunks=TILE)
    assert "--overlap" in problems(source)[0]
    plan(source, input_kind="section")


def test_a_scratch_folder_must_be_there(problems, plan, volume, tmp_path):
    for scratch in ("relative/folder", "/nowhere/at/all"):
        (line,) = problems(volume, scratch_dir=scratch)
        assert f"--scratch_dir {scratch}" in line
    for scratch in (True, False, "true", str(tmp_path)):
        plan(volume, scratch_dir=scratch)


def test_a_name_that_can_be_no_folder_is_refused(problems, volume):
    (line,) = problems(volume, subject="../sub 01")
    assert line.startswith("'../sub 01' is not a subject name; use letters")


@pytest.fixture
def plans(tmp_path, write_mosaic):
    """Plan two subjects of one mosaic each; returns the output."""
    for number in (1, 2):
        write_mosaic(f"input/{number}/brain/section_01.ome.zarr", ONES, TILE)

    def run(first, second, rows=("", ""), **parameters):
        inputs = [*tmp_path.glob("input/1/*"), *tmp_path.glob("input/2/*")]
        asked = [
            {"id": name, "input": str(path), "given": given, "row": row}
            for name, path, given, row in zip("ab", inputs, (first, second), rows, strict=True)
        ]
        return make_plans(launched(tmp_path, *asked, parameters=parameters))

    return run


def test_problems_name_their_subject_and_what_all_have_is_said_once(plans):
    with pytest.raises(OctaneError) as caught:
        plans({"n4_strength": "2"}, {"overlap": "x"})
    first, second = str(caught.value).splitlines()
    assert first.startswith("a: --n4_strength is '2'")
    assert second.startswith("b: --overlap is 'x'")
    with pytest.raises(OctaneError) as caught:
        plans({"n4_strength": "2"}, {"n4_strength": "2"}, overlap="0")
    assert [line[:2] for line in str(caught.value).splitlines()] == ["a:", "b:"]
    with pytest.raises(OctaneError) as caught:
        plans({}, {}, overlap=0, n4_strenght=1)
    assert str(caught.value) == "Unknown parameter --n4_strenght; did you mean --n4_strength?"


def test_one_fault_of_many_is_shown_ten_times_and_counted(plans, write_mosaic):
    for number in range(2, 15):
        write_mosaic(f"input/1/brain/section'{number:02d}.ome.zarr", ONES, TILE)
    with pytest.raises(OctaneError) as caught:
        plans({}, {}, overlap=0)
    wrong = str(caught.value).splitlines()
    start = "a: 'section'"
    names = [f"{start}{n:02d}.ome.zarr' has a ' in its name; rename it." for n in range(2, 12)]
    assert wrong == [*names, "(3 more like the last one)"]


def test_a_file_that_is_not_there_is_named_with_all_else(plans, tmp_path):
    with pytest.raises(OctaneError) as caught:
        plans({"overlap": "1"}, {"overlap": "x", "n4_mask": "/x"})
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("a: --overlap is '1'")
    assert second.startswith("b: /x does not exist; check --n4_mask")
    assert third.startswith("b: --overlap is 'x'")


def test_problems_of_the_data_name_the_row_of_the_sheet(plans, tmp_path):
    shutil.rmtree(tmp_path / "input" / "2" / "brain" / "section_01.ome.zarr")
    with pytest.raises(OctaneError) as caught:
        plans({}, {"overlap": "0"}, rows=("/d/c.csv, line 2", "/d/c.csv, line 3"))
    assert str(caught.value).splitlines()[-1].startswith("b (/d/c.csv, line 3): ")


def test_a_flag_that_cannot_act_is_refused_where_it_is_given_in_vain(plans, write_image, tmp_path):
    shutil.rmtree(tmp_path / "input" / "2")
    write_image("input/2/brain.ome.zarr", ONES, attributes={"kind": "volume"})
    # One of the two subjects has tiles.
    plans({}, {}, overlap=0.1)
    plans({"overlap": 0.1}, {})
    with refused("--overlap", "brain.ome.zarr"):
        plans({}, {"overlap": 0.1}, overlap=0.2)
    with pytest.raises(OctaneError) as caught:
        plans({}, {}, overlap=0.1, tile_rows=2)
    first, second = str(caught.value).splitlines()
    assert first.startswith("a: --tile_rows ")
    assert second.startswith("b: --tile_rows ")
    shutil.rmtree(tmp_path / "input" / "1")
    write_image("input/1/brain.ome.zarr", ONES, attributes={"kind": "volume"})
    with pytest.raises(OctaneError) as caught:
        plans({}, {}, overlap=0.1)
    assert [line[:13] for line in str(caught.value).splitlines()] == [
        "a: --overlap ",
        "b: --overlap ",
    ]
    plans({}, {}, stitch_refine=True)


def test_parameters_of_a_phantom_are_checked_before_it_is_made(tmp_path):
    def check(**parameters):
        return name_subjects(launched(tmp_path, parameters={"phantom": True, **parameters}))

    assert check() == {"subjects": [{"id": "phantom"}], "notes": []}
    assert check(subject="one")["subjects"] == [{"id": "one"}]
    wrong = [{"n4_shrink_facto": 4}, {"n4_shrink_factor": "x"}, {"scratch_dir": "/nowhere"}]
    for given in wrong:
        with refused(f"--{next(iter(given))}"):
            check(**given)
    with refused("'<b>'"):
        check(subject="<b>")


def test_a_header_is_planned_by_itself_and_watched_with_its_voxels(plans, write_file, tmp_path):
    header = write_file("brain.mhd", ONES)
    shutil.rmtree(tmp_path / "input" / "1" / "brain")
    link = tmp_path / "input" / "1" / "brain.mhd"
    link.symlink_to(header)
    made = plans({}, {"overlap": 0})["plans"][0]
    # The header is before the file of its voxels, which is staged beside it.
    paths = [str(link), str(tmp_path / "brain.raw")]
    assert made["data"] == {"a/input/brain": paths, "a/input": paths}
    (state,) = made["states"]
    assert (state["path"], state["parts"]) == (str(link), ["", str(tmp_path / "brain.raw")])


@pytest.mark.parametrize("name", ["positions", "stitch_gain"])
def test_a_table_is_written_for_each_section_and_keeps_its_time(plans, tmp_path, name):
    table = tmp_path / "table.csv"
    table.write_text(
        "section,row,column,y,x,gain\n"
        + "".join(f"1,{r},{c},{100 * r},{100 * c},1\n" for r in range(2) for c in range(3))
    )
    given = {name: str(table), "overlap": None if name == "positions" else 0}

    def tables():
        made = plans(given, {"overlap": 0})["plans"][0]
        return made["data"][f"a/{name}/section_01"]

    (path,) = tables()
    before = Path(path).stat()
    assert Path(path).read_text(encoding="utf-8").startswith("section,row,column")
    assert tables() == [path]
    assert Path(path).stat().st_mtime_ns == before.st_mtime_ns


def test_no_folder_is_claimed_until_every_subject_is_right(plans, tmp_path):
    folders = [tmp_path / "results" / name for name in "ab"]
    inputs = [str(tmp_path / "input" / number / "brain") for number in "12"]

    def claim(**given):
        asked = [
            {"id": name, "input": path, "given": given if name == "b" else {}}
            for name, path in zip("ab", inputs, strict=True)
        ]
        run = launched(tmp_path, *asked, parameters={"overlap": 0}, is_published=True)
        return make_plans(run)

    with pytest.raises(OctaneError):
        claim(n4_strength="2")
    assert not any(folder.exists() for folder in folders)
    claim()
    noted = [json.loads((folder / "input.json").read_text())["input"] for folder in folders]
    assert noted == inputs


def test_tasks_see_a_change_of_the_store_that_they_read(plans, tmp_path):
    def seen():
        made = plans({}, {}, overlap=0)["plans"]
        return [{task["name"]: task["meta"].get("seen") for task in one["tasks"]} for one in made]

    before = seen()
    chunk = tmp_path / "input" / "2" / "brain" / "section_01.ome.zarr" / "0" / "c" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes() + b"x")
    after = seen()
    assert before[0] == after[0]
    assert [name for name in after[1] if after[1][name] != before[1][name]] == ["section_01_stitch"]
    assert after[1]["stack"] is None


@pytest.mark.parametrize("inner", ["section_01.ome.zarr/0/c/0/0/9", "section_01.ome.zarr/0/notes"])
def test_a_link_to_nothing_in_the_input_is_named(plans, tmp_path, inner):
    link = tmp_path / "input" / "1" / "brain" / inner
    link.symlink_to(tmp_path / "gone")
    with refused(link):
        plans({}, {}, overlap=0)


@pytest.mark.parametrize(
    ("name", "spacing", "given", "words"),
    [
        ("n4_mask", 10, {}, ""),
        ("n4_mask", 20, {}, "of 20 x 20 x 20 um .* and 4 x 20 x 30 voxels of 10 x 10 x 10 um"),
        ("n4_mask", 20, {"skip_n4": True}, ""),
        (
            "n4_mask",
            10,
            {"resolution": 20},
            "a different grid than .* after RESAMPLE: .*of 20 x 20 x 20",
        ),
        ("n4_mask", 10, {"resolution": "none"}, ""),
        ("truth", 20, {}, "of 20 x 20 x 20 um .*; make the phantom with --truth_resolution"),
    ],
)
def test_a_mask_and_a_truth_lie_on_the_grid_that_n4_gets(
    plan, problems, volume, write_image, tmp_path, name, spacing, given, words
):
    own = write_image("m.ome.zarr", ONES, (spacing,) * 3)
    if name == "truth":
        (tmp_path / "truth").mkdir()
        own = own.rename(tmp_path / "truth" / "tissue.ome.zarr")
    given_file = own.parent if name == "truth" else own
    if not words:
        plan(volume, beside={name: given_file}, **given)
        return
    (line,) = problems(volume, beside={name: given_file}, **given)
    assert re.search(words, line)
    assert line.startswith(f"{own} is on a different grid than {volume}")


@pytest.mark.parametrize(
    ("planes", "spacing", "given", "words"),
    [
        (8, 10, {}, ""),
        (4, 10, {}, "4 x 20 x 30 voxels of 10 x 10 x 10 um .* and 8 x 20 x 30"),
        (4, 10, {"section_thickness": 20}, ""),
        (8, 10, {"resolution": 20}, "and 4 x 10 x 15 voxels of 20 x 20 x 20 um"),
        (8, 10, {"resolution": 20, "skip_n4": True}, ""),
        # Positions and thickness of sections are not known yet, those of tiles only roughly.
        (8, 10, {"wider": 2, "stitch_refine": "false", "stack_align": "rigid"}, ""),
        (4, 10, {"stack_align": "rigid"}, "4 x 20 x 30 voxels .* and 8 x 20 x 30"),
        (8, 10, {"wider": 2}, ""),
        (4, 10, {"section_thickness": None}, ""),
        (
            8,
            10,
            {"wider": 2, "section_thickness": None, "as_stated": True},
            "8 x 22 x 30 voxels .* and 8 x 20 x 30",
        ),
        (
            8,
            10,
            {"wider": 2, "stitch_refine": "false", "stack_align": "none"},
            "8 x 22 x 30 voxels .* and 8 x 20 x 30",
        ),
    ],
)
def test_a_mask_lies_on_the_grid_that_the_sections_will_have(
    plan, problems, mosaics, write_image, planes, spacing, given, words
):
    given = {"section_thickness": 40} | given
    shape = (planes, 20 + given.pop("wider", 0), 30)
    own = write_image("m.ome.zarr", np.ones(shape, np.uint8), (spacing,) * 3)
    if not words:
        plan(mosaics, beside={"n4_mask": own}, **given)
        return
    (line,) = problems(mosaics, beside={"n4_mask": own}, **given)
    assert line.startswith(f"{own} is on a different grid than the volume that STACK makes")
    assert re.search(words, line)
    assert "--skip_n4" in line
