"""A samplesheet runs subjects with every kind of input, each as if it were run separately."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from runs import checksums, last_words, voxels

from octane.processes.preflight.parameters import entries

# The tiles of one subject abut, and the test profile estimates the flat field from overlaps.
SKIPPED = ("--skip_report", "--skip_pyramid", "--stitch_flat_field", "none")

ROWS = {
    "01": ("01", "", "", "", "", ""),
    "two b": ("the second", "20", "0.2", "2", "positions.csv", ""),
    "whole": ("sections", "3.5 4 4", "", "", "", ""),
    "volume": ("truth/tissue.ome.zarr", "20", "", "", "", "none"),
    "nifti": ("brain.nii.gz", "", "", "", "", "its mask.nii.gz"),
}
"""Input, resolution, overlap, iterations, positions and mask of each subject."""

PLANES = {"01": 14, "two b": 7, "whole": 40, "volume": 7, "nifti": 16}


@pytest.fixture(scope="module")
def data(phantom, command, tmp_path_factory):
    """A folder with an input of every kind."""
    folder = tmp_path_factory.mktemp("cohort")
    for name in ("01", "the second"):
        shutil.copytree(phantom / "mosaics", folder / name)
    for name in ("truth", "positions.csv"):
        (folder / name).symlink_to(phantom / name)
    (folder / "sections").mkdir()
    for name in ("section_01.ome.zarr", "section_02.ome.zarr"):
        made = command("stitch", folder / "01" / name, folder / "sections" / name)
        assert made.returncode == 0, made.stderr
    values = np.random.default_rng(1).gamma(9.0, 10.0, (16, 20, 24)).astype(np.float32)
    inside = np.zeros(values.shape, np.uint8)
    inside[2:14, 2:18, 2:22] = 1
    for name, array in (("brain", values), ("its mask", inside)):
        image = sitk.GetImageFromArray(array)
        image.SetSpacing((0.01, 0.01, 0.01))
        sitk.WriteImage(image, str(folder / f"{name}.nii.gz"))
    return folder


@pytest.fixture(scope="module")
def sheet(data):
    """The samplesheet of that data, as a spreadsheet program with German settings writes it."""
    lines = [
        "\ufeffsubject;input;resolution;overlap;n4_iterations;positions;n4_mask",
        *(f'{name} ; "{cells[0]}";{";".join(cells[1:])} ' for name, cells in ROWS.items()),
    ]
    path = data / "cohort.csv"
    path.write_text("\r\n".join([lines[0], "", *lines[1:], ""]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cohort(succeeding, sheet, quick, tmp_path_factory):
    """All subjects in one run, launched elsewhere."""
    return succeeding(tmp_path_factory.mktemp("all"), *quick, *SKIPPED, "--samplesheet", sheet)


def work(run, status):
    """Tasks of a run except PREFLIGHT."""
    return [task for task in run.tasks(status) if not task.startswith("PREFLIGHT")]


def test_each_subject_runs_the_steps_that_its_input_needs(cohort):
    assert work(cohort, "COMPLETED") == sorted(
        [
            *(f"N4 ({name})" for name in ROWS),
            *(f"STACK ({name})" for name in ("01", "two b", "whole")),
            *(f"{step} ({name}:section_0{number})" for step in ("RESAMPLE", "STITCH")
              for name in ("01", "two b") for number in (1, 2)),
            "RESAMPLE (volume:tissue)",
            "RESAMPLE (nifti:brain)",
        ]
    )  # fmt: skip
    assert "PREFLIGHT (run)" in cohort.tasks("COMPLETED")
    assert "5 subjects will write " in cohort.output
    planes = {name: voxels(cohort.outdir / name / f"{name}_n4.ome.zarr").shape[0] for name in ROWS}
    assert planes == PLANES


def test_values_of_a_row_reach_its_tasks(cohort):
    def figures(name):
        path = cohort.outdir / name / "metrics" / "n4_metrics.json"
        return json.loads(path.read_text(encoding="utf-8"))["figures"]

    assert figures("nifti")["mask_fraction"] == pytest.approx(12 * 16 * 20 / 7680, rel=0.2)
    assert figures("volume")["mask_fraction"] == 1
    script = cohort.task_file("STITCH (two b:section_01)", ".command.sh").read_text("utf-8")
    assert "--positions" in script
    # PREFLIGHT has compared the row's overlap with the table, which rules.
    assert "--overlap" not in script


def text_of(value):
    """A value as on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@pytest.mark.soak
def test_a_subject_alone_with_every_value_as_text_is_the_same(succeeding, cohort, data, tmp_path):
    # Nextflow 26.04 passes all command-line values as text; a params file does so on any version.
    given = {
        entry.name: entry.default
        for entry in entries()
        if entry.default is not None and entry.name not in ("outdir", "scratch_dir")
    }
    given |= {"resolution": 10, "n4_iterations": 3, "n4_shrink_factor": 2}
    given |= {"phantom": False, "skip_report": True, "skip_pyramid": True, "gpu_slots": 2}
    # As in the test profile.
    given |= {"n4_z_profile_gain": True}
    lines = [f'{name}: "{text_of(value)}"\n' for name, value in given.items()]
    (tmp_path / "text.yml").write_text("".join(lines), encoding="utf-8")
    alone = succeeding(
        *(tmp_path, "-profile", "test", "-params-file", "text.yml"),
        *("--input", data / "01", "--subject", "01"),
    )
    assert work(alone, None) == [task for task in work(cohort, None) if "(01" in task]
    assert {row["cpus"] for row in alone.trace} == {row["cpus"] for row in cohort.trace}
    assert checksums(alone.outdir) == checksums(cohort.outdir, "01")


@pytest.mark.soak
def test_a_changed_cell_and_a_new_row_run_no_more_than_they_must(succeeding, cohort, sheet, quick):
    text = sheet.read_bytes()
    before = checksums(cohort.outdir, "01")
    try:
        sheet.write_bytes(text.replace(b";2;", b";3;") + b"third;01;20;;2;;\r\n")
        again = succeeding(cohort.folder, *quick, *SKIPPED, "--samplesheet", sheet, "-resume")
    finally:
        sheet.write_bytes(text)
    ran = [task for task in work(again, "COMPLETED") if "(third" not in task]
    assert ran == ["N4 (two b)"]
    assert checksums(again.outdir, "01") == before


@pytest.mark.soak
def test_a_sheet_of_tabs_and_stubs(succeeding, data, tmp_path):
    (tmp_path / "cohort.tsv").write_text(
        f"subject\tinput\tresolution\n01\t{data}/01\t10 20 20\ntwo b\t{data}/the second\t\n",
        encoding="utf-8",
    )
    # Without --outdir, results are written to the launch folder.
    run = succeeding(
        *(tmp_path, "-stub", "--samplesheet", "cohort.tsv"),
        outdir=tmp_path / "results",
        give_outdir=False,
    )
    assert (run.outdir / "01" / "01.ome.zarr").is_dir()
    assert (run.outdir / "two b" / "two b.ome.zarr").is_dir()
    assert f"  {run.outdir / 'cohort_report.html'}\n" in run.output
    # Only one subject has a resolution.
    resampled = [task for task in run.tasks() if task.startswith("RESAMPLE")]
    assert resampled == ["RESAMPLE (01:section_01)", "RESAMPLE (01:section_02)"]


@pytest.mark.soak
def test_the_problems_of_a_sheet_are_named_before_any_work(nextflow, data, tmp_path):
    sheet = tmp_path / "bad.csv"
    sheet.write_text(
        f"subject,input,n4_strenght\n01,{data}/01,\na/b,nowhere,\n01,{data}/01,\n", encoding="utf-8"
    )
    run = nextflow(tmp_path, "--samplesheet", sheet)
    assert run.code == 1
    words = last_words(run.output)
    for sentence in (
        f"{sheet}, line 1: Unknown parameter n4_strenght; did you mean n4_strength?",
        f"{sheet}, line 3: 'a/b' is not a subject name",
        f"{sheet}, line 4: the subject 01 is already in line 2",
    ):
        assert sentence in words
    assert work(run, None) == []


@pytest.mark.soak
def test_bad_data_of_any_subject_stops_all_before_work_begins(nextflow, data, tmp_path):
    (tmp_path / "empty").mkdir()
    sheet = tmp_path / "cohort.csv"
    sheet.write_text(f"subject,input\n01,{data}/01\nbad,empty\n", encoding="utf-8")
    run = nextflow(tmp_path, "--samplesheet", sheet)
    assert run.code == 1
    words = last_words(run.output)
    assert words.startswith(f"bad ({sheet}, line 3): {tmp_path}/empty holds no OME-Zarr")
    assert work(run, None) == []


@pytest.mark.soak
def test_a_folder_of_mosaics_may_be_the_place_of_everything(succeeding, phantom, tmp_path):
    # Results, work directory and Nextflow's logs are written to the input's folder while it is
    # read. Nextflow would read the subject's name as a number.
    folder = tmp_path / "data (1)"
    shutil.copytree(phantom / "mosaics", folder)
    given = ("--input", ".", "--subject", "01", *SKIPPED, "--resolution", "none", "--skip_n4")
    run = succeeding(folder, *given)
    assert Path(run.outdir / "01" / "01_stack.ome.zarr" / "zarr.json").is_file()
    again = succeeding(folder, *given, "-resume")
    # PREFLIGHT's input is the folder itself, whose time has changed.
    assert again.processes("COMPLETED") == {"PREFLIGHT"}
