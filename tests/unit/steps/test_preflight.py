"""PREFLIGHT: every problem at once, one line each; what passes becomes the plan."""

import os
import re

import numpy as np
import pytest
import SimpleITK as sitk

from octane.config.params import (
    N4Parameters,
    PyramidParameters,
    ReportParameters,
    ResampleParameters,
    StackParameters,
    StitchParameters,
)
from octane.core.errors import OctaneError
from octane.steps.preflight import check_places, plan_of


@pytest.fixture
def plan(tmp_path):
    """Check a subject; gives its plan."""

    def run(source, positions=None, **parameters):
        given = {"outdir": str(tmp_path / "results"), **parameters}
        made = plan_of(given, source, positions)
        space = check_places([made], tmp_path)
        return {**made.as_json(), "settings": made.settings, "space": space}

    return run


@pytest.fixture
def problems(plan):
    """The lines of what is wrong with a run."""

    def run(source, positions=None, **parameters):
        with pytest.raises(OctaneError) as caught:
            plan(source, positions, **parameters)
        return str(caught.value).splitlines()

    return run


@pytest.fixture
def mosaics(write_mosaic, tmp_path):
    """Two mosaics, 1 and 2, of tiles that abut."""
    for n in (1, 2):
        write_mosaic(
            f"mosaics/section_{n:02d}.ome.zarr",
            np.ones((4, 20, 30), np.float32),
            (4, 10, 10),
            pitch=(100.0, 100.0),
            section={"number": n, "thickness": 40.0},
        )
    return tmp_path / "mosaics"


@pytest.fixture
def volume(write_image):
    return write_image(
        "brain.ome.zarr", np.ones((12, 20, 30), np.float32), attributes={"kind": "volume"}
    )


def test_a_folder_of_mosaics_is_planned(plan, mosaics):
    made = plan(mosaics, resolution=25)
    assert made["kind"] == "mosaic"
    assert made["subject"] == "mosaics"
    assert made["items"] == [
        {"id": f"section_0{n}", "file": f"section_0{n}.ome.zarr"} for n in (1, 2)
    ]
    assert made["settings"]["resample"]["layout"] == "mosaic"


def test_a_volume_is_planned(plan, volume):
    made = plan(volume, subject="sub-01")
    assert made["kind"] == "volume"
    assert made["subject"] == "sub-01"
    assert made["items"] == [{"id": "brain", "file": ""}]
    assert made["settings"]["resample"]["layout"] == "volume"


def test_a_staged_link_is_named_after_what_it_links_to(plan, volume, tmp_path):
    link = tmp_path / "staged" / "input.1"
    link.parent.mkdir()
    link.symlink_to(volume)
    made = plan(link)
    assert made["subject"] == "brain"
    assert made["kind"] == "volume"


def test_each_step_gets_its_own_settings(plan, mosaics):
    made = plan(
        mosaics,
        resolution="25 20 20",
        overlap=0.1,
        stitch_refine=True,
        section_thickness=40,
        n4_strength=0.5,
        n4_iterations="30 20",
        pyramid_resolutions="25 50",
        backend="cpu",
        input_unit="micrometer",
        report_heading="Brain",
    )["settings"]
    assert made["resample"]["resolution"] == [25.0, 20.0, 20.0]
    assert made["stitch"]["overlap"] == [0.1, 0.1]
    assert made["stitch"]["refine"] is True
    assert made["stack"]["section_thickness"] == 40.0
    assert made["n4"]["strength"] == 0.5
    assert made["n4"]["iterations"] == [30, 20]
    assert made["n4"]["mask"] == "tissue"
    assert made["pyramid"]["resolutions"] == [25.0, 50.0]
    assert made["report"]["heading"] == "Brain"
    assert made["execution"]["backend"] == "cpu"
    assert made["input"]["input_unit"] == "micrometer"
    models = {
        "resample": ResampleParameters,
        "stitch": StitchParameters,
        "stack": StackParameters,
        "n4": N4Parameters,
        "pyramid": PyramidParameters,
        "report": ReportParameters,
    }
    for step, model in models.items():
        model.model_validate(made[step])


@pytest.mark.parametrize(
    ("chunks", "kind"), [((4, 10, 10), "mosaic"), ((4, 20, 30), "volume"), ((2, 10, 10), "volume")]
)
def test_what_a_store_of_others_is_shows_in_its_chunks(plan, write_foreign, chunks, kind):
    source = write_foreign("a.zarr", np.ones((4, 20, 30), np.float32), chunks=chunks)
    assert plan(source, overlap=0)["kind"] == kind


def test_what_an_input_is_can_be_said(plan, write_foreign):
    source = write_foreign("a.zarr", np.ones((4, 20, 30), np.float32), chunks=(4, 10, 10))
    assert plan(source, input_kind="volume")["kind"] == "volume"


def test_sections_are_known_by_their_metadata(plan, write_image, tmp_path):
    for n in (1, 2):
        write_image(
            f"sections/s_{n}.ome.zarr",
            np.ones((4, 20, 30), np.float32),
            attributes={"kind": "section", "section": {"number": n}},
        )
    assert plan(tmp_path / "sections")["kind"] == "section"


def test_a_file_of_another_format_is_a_volume(plan, tmp_path):
    image = sitk.GetImageFromArray(np.ones((4, 5, 6), np.float32))
    image.SetSpacing((0.01, 0.01, 0.01))
    sitk.WriteImage(image, tmp_path / "t1.nii.gz")
    made = plan(tmp_path / "t1.nii.gz")
    assert made["kind"] == "volume"
    assert made["subject"] == "t1"


def test_every_problem_has_a_line_of_its_own_all_at_once(problems, write_mosaic, write_foreign):
    write_mosaic("in/section_01.ome.zarr", np.ones((4, 20, 20), np.float32), (4, 10, 10))
    write_foreign(
        "in/section_02.zarr", np.ones((4, 20, 20), np.float32), unit=None, chunks=(4, 10, 10)
    )
    write_foreign("in/section_03.zarr", np.ones((4, 20, 20), np.float32), axes="xyz")
    source = write_foreign(
        "in/section_06.zarr", np.ones((4, 20, 20), np.float32), chunks=(2, 10, 10)
    ).parent
    lines = problems(source)
    assert any("section_01" in line and "--overlap" in line for line in lines)
    assert any("section_02" in line and "--input_unit" in line for line in lines)
    assert any("section_03" in line and "axes" in line for line in lines)
    assert any("section_06" in line and "full Z" in line for line in lines)
    assert any("--allow_missing_sections" in line for line in lines)
    assert len(lines) == 5


def test_every_wrong_parameter_has_a_line_of_its_own(problems, mosaics):
    lines = problems(mosaics, resolution=0, n4_strength=2, blur=1, stitch_blend="soft")
    named = sorted(re.findall(r"--(\w+)", line)[0] for line in lines)
    assert named == ["blur", "n4_strength", "resolution", "stitch_blend"]


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("resolutoin", "resolution"),
        ("n4_strenght", "n4_strength"),
        ("n4_shrink", "n4_shrink_factor"),
        ("sectionThickness", "section_thickness"),
    ],
)
def test_a_misspelt_parameter_gets_a_suggestion(problems, mosaics, misspelt, meant):
    (line,) = problems(mosaics, **{misspelt: 1})
    assert f"--{misspelt}" in line
    assert f"did you mean --{meant}?" in line


def test_a_parameter_like_no_other_gets_none(problems, mosaics):
    (line,) = problems(mosaics, qqq=1)
    assert "--qqq" in line
    assert "did you mean" not in line


def test_moving_results_is_refused(problems, mosaics):
    (line,) = problems(mosaics, publish_dir_mode="move")
    assert "--publish_dir_mode is 'move': input should be 'symlink'" in line


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"resolution": 0}, "resolution"),
        ({"resolution": -5}, "resolution"),
        ({"resolution": "10 10"}, "resolution"),
        ({"resolution": "ten"}, "resolution"),
        ({"overlap": 1}, "overlap"),
        ({"overlap": -0.1}, "overlap"),
        ({"n4_shrink_factor": 0}, "n4_shrink_factor"),
        ({"n4_control_points": 3}, "n4_control_points"),
        ({"n4_iterations": "many"}, "n4_iterations"),
        ({"backend": "tpu"}, "backend"),
        ({"input_unit": "furlong"}, "input_unit"),
        ({"gpu_slots": 0}, "gpu_slots"),
        ({"allow_missing_sections": -1}, "allow_missing_sections"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_parameter(problems, mosaics, parameters, named):
    (line,) = problems(mosaics, **parameters)
    assert line.startswith(f"--{named} ")


def test_a_target_finer_than_the_source_is_refused_unless_allowed(problems, plan, mosaics):
    lines = problems(mosaics, resolution=5)
    assert len(lines) == 2
    assert all("--allow_upsampling" in line and "section_0" in line for line in lines)
    plan(mosaics, resolution=5, allow_upsampling=True)


def test_a_finer_target_does_not_matter_where_nothing_is_resampled(plan, mosaics):
    plan(mosaics, resolution=5, skip_resample=True)


def test_an_unknown_overlap_is_asked_for(problems, plan, write_foreign, tmp_path):
    source = write_foreign("a_1.zarr", np.ones((4, 20, 30), np.float32), chunks=(4, 10, 10))
    (line,) = problems(source)
    assert "--overlap" in line
    plan(source, overlap=0.2)
    plan(source, skip_stitch=True)


def test_a_table_without_a_tile_is_refused(problems, mosaics, tmp_path):
    table = tmp_path / "positions.csv"
    table.write_text("section,row,column,y,x\n1,0,0,0,0\n")
    lines = problems(mosaics, positions=table)
    assert [("section 1" in line, "section 2" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


def test_a_gap_is_refused_unless_allowed(problems, plan, write_mosaic, tmp_path):
    for n in (1, 4):
        write_mosaic(
            f"gap/section_{n}.ome.zarr",
            np.ones((4, 8, 8), np.float32),
            (4, 8, 8),
            pitch=(80.0, 80.0),
        )
    (line,) = problems(tmp_path / "gap")
    assert "2, 3" in line
    assert "--allow_missing_sections 2" in line
    (line,) = problems(tmp_path / "gap", allow_missing_sections=1)
    plan(tmp_path / "gap", allow_missing_sections=2)


def test_a_number_may_stand_in_the_name_of_a_link(plan, problems, write_mosaic, tmp_path):
    # As Nextflow stages it: a link to a folder, in which the links have the numbers.
    (tmp_path / "mosaics").mkdir()
    for number, name in ((1, "scan_0931"), (3, "scan_0940")):
        store = write_mosaic(
            f"scans/{name}.ome.zarr",
            np.ones((4, 20, 30), np.float32),
            (4, 10, 10),
            pitch=(100, 100),
        )
        (tmp_path / "mosaics" / f"section_0{number}.ome.zarr").symlink_to(store)
    (tmp_path / "task").mkdir()
    staged = tmp_path / "task" / "mosaics"
    staged.symlink_to(tmp_path / "mosaics")
    made = plan(staged, resolution=25, allow_missing_sections=1)
    assert [item["id"] for item in made["items"]] == ["section_01", "section_03"]
    (line,) = problems(staged, resolution=25)
    assert line.startswith(f"{tmp_path}/mosaics lacks section 2 of 1 to 3")


def test_sections_that_cannot_be_stacked_are_refused_at_once(
    problems, plan, write_mosaic, tmp_path
):
    for number, kind in ((1, np.float32), (2, np.uint16)):
        write_mosaic(
            f"mosaics/section_0{number}.ome.zarr",
            np.ones((4, 20, 30), kind),
            (4, 10, 10),
            pitch=(100, 100),
        )
    (line,) = problems(tmp_path / "mosaics", resolution=25)
    assert "section_02.ome.zarr is uint16 and" in line
    assert line.endswith("or resample all to one type (--resample_dtype).")
    assert plan(tmp_path / "mosaics", resolution=25, resample_dtype="float32")["kind"] == "mosaic"


def test_sections_of_two_voxel_sizes_are_refused_unless_resampled(
    problems, plan, write_mosaic, tmp_path
):
    for number, size in ((1, 10.0), (2, 12.0)):
        write_mosaic(
            f"mosaics/section_0{number}.ome.zarr",
            np.ones((4, 20, 30), np.float32),
            (4, 10, 10),
            pitch=(100, 100),
            spacing=(size, size, size),
        )
    (line,) = problems(tmp_path / "mosaics")
    assert "section_02.ome.zarr has another voxel size than" in line
    assert plan(tmp_path / "mosaics", resolution=25)["kind"] == "mosaic"


def test_two_sections_of_one_number_are_refused(problems, write_mosaic, tmp_path):
    for name in ("a_1", "b_1"):
        write_mosaic(
            f"twice/{name}.ome.zarr", np.ones((4, 8, 8), np.float32), (4, 8, 8), pitch=(80.0, 80.0)
        )
    (line,) = problems(tmp_path / "twice")
    assert "both section 1" in line


def test_sections_without_numbers_are_refused(problems, write_mosaic, tmp_path):
    for name in ("left", "right"):
        write_mosaic(
            f"named/{name}.ome.zarr", np.ones((4, 8, 8), np.float32), (4, 8, 8), pitch=(80.0, 80.0)
        )
    lines = problems(tmp_path / "named")
    assert len(lines) == 2
    assert all("number" in line for line in lines)


def test_stores_of_two_kinds_are_refused(problems, mosaics, write_image):
    write_image(
        "mosaics/section_03.ome.zarr",
        np.ones((4, 8, 8), np.float32),
        attributes={"kind": "section", "section": {"number": 3}},
    )
    (line,) = problems(mosaics)
    assert "mosaic" in line
    assert "section" in line


def test_two_volumes_are_refused(problems, write_image, tmp_path):
    for n in (1, 2):
        write_image(
            f"many/v{n}.ome.zarr", np.ones((4, 8, 8), np.float32), attributes={"kind": "volume"}
        )
    (line,) = problems(tmp_path / "many")
    assert "2 volumes" in line


def test_a_missing_chunk_is_named_unless_it_is_filled(problems, plan, mosaics):
    (mosaics / "section_02.ome.zarr/0/c/0/1/2").unlink()
    (line,) = problems(mosaics)
    assert "section_02.ome.zarr: chunk 0/c/0/1/2" in line
    assert "--missing_chunks fill" in line
    plan(mosaics, missing_chunks="fill")


def test_complex_voxels_and_n4_do_not_go_together(problems, plan, write_mosaic):
    source = write_mosaic(
        "s_1.ome.zarr", np.ones((4, 8, 8), np.complex64), (4, 8, 8), pitch=(80.0, 80.0)
    )
    (line,) = problems(source)
    assert "--skip_n4" in line
    plan(source, skip_n4=True)


def test_levels_finer_than_the_volume_are_refused(problems, plan, volume):
    (line,) = problems(volume, pyramid_resolutions="5 25")
    assert "5" in line
    plan(volume, pyramid_resolutions="5 25", skip_pyramid=True)


@pytest.mark.parametrize("name", ["none", "none.ome.zarr", "none.nii.gz"])
def test_an_input_that_is_not_there_is_refused(problems, tmp_path, name):
    (line,) = problems(tmp_path / name)
    assert name in line
    assert "does not exist" in line


def test_an_empty_folder_is_refused(problems, tmp_path):
    (tmp_path / "empty").mkdir()
    (line,) = problems(tmp_path / "empty")
    assert "holds no OME-Zarr" in line


def test_a_broken_store_is_refused(problems, tmp_path):
    (tmp_path / "broken.ome.zarr").mkdir()
    (line,) = problems(tmp_path / "broken.ome.zarr")
    assert "broken.ome.zarr" in line


def test_an_output_folder_that_cannot_be_written_is_refused(
    problems, volume, tmp_path, monkeypatch
):
    # Root, as which containers run, may write to any folder whatever its rights.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (line,) = problems(volume, outdir=str(tmp_path / "locked" / "results"))
    assert "--outdir" in line
    assert "cannot be written" in line


def test_an_output_folder_below_a_file_is_refused(problems, volume, tmp_path):
    (tmp_path / "file").write_text("")
    (line,) = problems(volume, outdir=str(tmp_path / "file" / "results"))
    assert "--outdir" in line


@pytest.mark.parametrize("scratch", ["relative/folder", "/nowhere/at/all"])
def test_a_scratch_folder_that_is_not_there_is_refused(problems, volume, scratch):
    (line,) = problems(volume, scratch_dir=scratch)
    assert f"--scratch_dir {scratch}" in line


def test_a_scratch_folder_or_a_switch_is_taken(plan, volume, tmp_path):
    for scratch in (True, False, "true", str(tmp_path)):
        plan(volume, scratch_dir=scratch)


@pytest.mark.parametrize("name", ["sub'01", "a b; rm", "sub/01", "$(id)"])
def test_a_name_that_a_shell_would_read_is_refused(problems, volume, name):
    (line,) = problems(volume, subject=name)
    assert name in line
    assert "--subject" in line
