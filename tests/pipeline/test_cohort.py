"""A samplesheet runs many subjects in one go, each as if it were run alone."""

import hashlib
import shutil

import numpy as np
import pytest
import zarr

SKIPPED = ("--skip_report", "--skip_pyramid")


def voxels_of(path):
    """All voxels of a store's finest level."""
    return np.asarray(zarr.open_array(path, path="0", mode="r")[:])


def digest_of(path):
    """One sum over a store's files."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return [(str(p.relative_to(path)), hashlib.sha256(p.read_bytes()).digest()) for p in files]


def last_words(run):
    """The lines that a stopped run ends with."""
    marker = "octane stopped: "
    assert marker in run.output, run.output
    return run.output[run.output.rindex(marker) + len(marker) :].split("\n\n")[0].splitlines()


@pytest.fixture(scope="module")
def data(phantom, tmp_path_factory):
    """A folder with the mosaics of two subjects: a name of digits, and one with a blank."""
    folder = tmp_path_factory.mktemp("cohort")
    for name in ("01", "the second"):
        shutil.copytree(phantom / "mosaics", folder / name)
    shutil.copy(phantom / "positions.csv", folder)
    return folder


@pytest.fixture(scope="module")
def sheet(data):
    """Its samplesheet, as a spreadsheet in German writes it."""
    path = data / "cohort.csv"
    path.write_text(
        "\ufeffsubject;input;resolution;overlap;n4_iterations;positions\r\n"
        "01;01;;;;\r\n"
        "\r\n"
        'two b ; "the second";20;0.25;2;positions.csv \r\n',
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def cohort(nextflow, sheet, quick, tmp_path_factory):
    """Both subjects in one run, launched elsewhere."""
    folder = tmp_path_factory.mktemp("both")
    run = nextflow(folder, *quick, *SKIPPED, "--samplesheet", sheet)
    assert run.code == 0, run.output
    return run


@pytest.mark.slow
def test_a_cohort_equals_its_subjects_run_alone(nextflow, cohort, data, quick, tmp_path):
    own = {
        "01": ["--input", data / "01", "--subject", "01"],
        "two b": [
            *("--input", data / "the second", "--subject", "two b", "--resolution", "20"),
            *("--overlap", "0.25", "--n4_iterations", "2", "--positions", data / "positions.csv"),
        ],
    }
    for name, arguments in own.items():
        (tmp_path / name).mkdir()
        alone = nextflow(tmp_path / name, *quick, *SKIPPED, *arguments)
        assert alone.code == 0, alone.output
        stores = [run.outdir / name / f"{name}_n4.ome.zarr" for run in (cohort, alone)]
        np.testing.assert_array_equal(*map(voxels_of, stores))
    assert voxels_of(cohort.outdir / "01" / "01_n4.ome.zarr").shape[0] == 14
    assert voxels_of(cohort.outdir / "two b" / "two b_n4.ome.zarr").shape[0] == 7


@pytest.mark.slow
def test_one_task_of_preflight_for_all_and_the_results_of_each_are_named(cohort):
    assert cohort.tasks("COMPLETED") == sorted(
        [
            *("COHORT (samplesheet)", "PREFLIGHT (2 subjects)"),
            *(f"{step} ({name})" for step in ("N4", "STACK") for name in ("01", "two b")),
            *(
                f"{step} ({name}:section_{number:02d})"
                for step in ("RESAMPLE", "STITCH")
                for name in ("01", "two b")
                for number in (1, 2)
            ),
        ]
    )
    for name in ("01", "two b"):
        assert f"{cohort.outdir}/{name}/{name}_n4.ome.zarr" in cohort.output


@pytest.mark.slow
def test_a_changed_cell_runs_its_subjects_changed_steps_alone(nextflow, cohort, sheet, quick):
    text = sheet.read_bytes()
    before = digest_of(cohort.outdir / "01" / "01_n4.ome.zarr")
    try:
        sheet.write_bytes(text.replace(b";2;", b";3;"))
        again = nextflow(cohort.folder, *quick, *SKIPPED, "--samplesheet", sheet, "-resume")
    finally:
        sheet.write_bytes(text)
    assert again.code == 0, again.output
    changed = ["COHORT (samplesheet)", "N4 (two b)", "PREFLIGHT (2 subjects)"]
    assert again.tasks("COMPLETED") == changed
    assert len(again.tasks("CACHED")) == 11
    assert digest_of(again.outdir / "01" / "01_n4.ome.zarr") == before


@pytest.mark.slow
def test_a_subject_more_leaves_the_others_cached(nextflow, cohort, sheet, data, quick):
    text = sheet.read_bytes()
    try:
        sheet.write_bytes(text + b"third;01;20;;2;\r\n")
        again = nextflow(cohort.folder, *quick, *SKIPPED, "--samplesheet", sheet, "-resume")
    finally:
        sheet.write_bytes(text)
    assert again.code == 0, again.output
    assert all(
        "third" in task or task.startswith(("COHORT", "PREFLIGHT"))
        for task in again.tasks("COMPLETED")
    )


def test_a_yaml_sheet_and_stubs(nextflow, data, tmp_path):
    (tmp_path / "cohort.yaml").write_text(
        f"- subject: 01\n  input: {data}/01\n  resolution: [10, 20, 20]\n"
        f"- subject: two b\n  input: {data}/the second\n",
        encoding="utf-8",
    )
    run = nextflow(tmp_path, "-stub", "--samplesheet", "cohort.yaml")
    assert run.code == 0, run.output
    assert (run.outdir / "01" / "01.ome.zarr").is_dir()
    assert (run.outdir / "two b" / "two b.ome.zarr").is_dir()
    assert f"  {run.outdir / 'cohort_report.html'}\n" in run.output
    # Only one of them has a resolution.
    resampled = [task for task in run.tasks() if task.startswith("RESAMPLE")]
    assert resampled == ["RESAMPLE (01:section_01)", "RESAMPLE (01:section_02)"]


def test_results_come_into_the_launch_folder_where_no_other_is_given(nextflow, data, tmp_path):
    sheet = tmp_path / "cohort.csv"
    sheet.write_text(f"subject,input\n01,{data}/01\n", encoding="utf-8")
    run = nextflow(tmp_path, "-stub", "--samplesheet", "cohort.csv", give_outdir=False)
    assert run.code == 0, run.output
    assert (tmp_path / "results" / "01" / "01.ome.zarr").is_dir()
    assert (tmp_path / "results" / "pipeline_info" / "trace.txt").exists()


def test_every_problem_of_a_sheet_is_named_before_any_other_task(nextflow, data, tmp_path):
    sheet = data / "bad.csv"
    sheet.write_text(
        "subject,input,overlap,n4_strenght,outdir\n01,01,1.5,,\na/b,nowhere,,,\n01,01,,,\n,01,,,\n",
        encoding="utf-8",
    )
    run = nextflow(tmp_path, "--samplesheet", sheet)
    sheet.unlink()
    assert run.code == 1
    assert last_words(run) == [
        f"{sheet}, line 1: there is no parameter n4_strenght; did you mean n4_strength?",
        f"{sheet}, line 1: outdir is one for the whole run and no column; leave it out, and give "
        "--outdir to the run.",
        f"{sheet}, line 3: 'a/b' is no name for a subject; use letters, digits, blanks and "
        "._()-, with no . or - first.",
        f"{sheet}, line 4: the subject 01 is there already, in line 2; give each subject one row "
        "and a name of its own.",
        f"{sheet}, line 5: the row has no subject; add it.",
        f"{sheet}, line 2: overlap is '1.5': input should be less than 1.",
        f"{sheet}, line 3: input {data}/nowhere does not exist; check the path.",
    ]
    assert run.tasks() == ["COHORT (samplesheet)"]


def test_bad_data_of_any_subject_stops_all_before_work_begins(nextflow, data, phantom, tmp_path):
    # Of a hundred subjects two have bad data: both are named, and none is worked on.
    (tmp_path / "empty").mkdir()
    gap = tmp_path / "gap"
    gap.mkdir()
    for number in (1, 3):
        (gap / f"section_{number:02d}.ome.zarr").symlink_to(
            phantom / "mosaics" / "section_01.ome.zarr"
        )
    rows = [f"sub-{n:03d},{data}/01" for n in range(98)]
    sheet = tmp_path / "cohort.csv"
    rows[50:50] = ["bad 1,empty", "bad 2,gap"]
    sheet.write_text("subject,input\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run = nextflow(tmp_path, "--samplesheet", sheet)
    assert run.code == 1
    words = last_words(run)
    assert len(words) == 2
    assert words[0].startswith(f"bad 1 ({sheet}, line 52): {tmp_path}/empty holds no OME-Zarr")
    assert words[1].startswith(f"bad 2 ({sheet}, line 53): ")
    assert run.tasks() == ["COHORT (samplesheet)", "PREFLIGHT (100 subjects)"]


@pytest.mark.parametrize("arguments", [["--input", "x"], ["--subject", "x"], ["-profile", "test"]])
def test_a_sheet_stands_alone(nextflow, sheet, arguments, tmp_path):
    run = nextflow(tmp_path, "--samplesheet", sheet, *arguments)
    assert run.code == 1
    assert "--samplesheet names the subjects and their inputs; leave out" in run.output
    assert not run.trace


def test_a_folder_of_digits_is_a_subject_of_that_name(nextflow, data):
    run = nextflow(data, "-stub", "--input", "01")
    assert run.code == 0, run.output
    assert (run.outdir / "01" / "01.ome.zarr").is_dir()


def test_a_path_that_a_shell_would_read_is_refused(nextflow, data, tmp_path):
    (tmp_path / "a $(date) b").symlink_to(data / "01")
    run = nextflow(tmp_path, "-stub", "--input", "a $(date) b", "--subject", "x")
    assert run.code == 1
    assert "a $(date) b has a $ in its path, which Nextflow cannot" in run.output
    assert not run.trace


def test_the_truth_has_the_runs_resolution(nextflow, tmp_path):
    run = nextflow(tmp_path, "-profile", "test", "--resolution", "20", "--n4_strenght", "0.5")
    assert last_words(run) == ["Unknown parameter --n4_strenght; did you mean --n4_strength?"]
    assert run.processes() == {"PHANTOM", "PREFLIGHT"}
    script = run.task_file("PHANTOM", ".command.sh").read_text(encoding="utf-8")
    assert "phantom.py subject --seed 1 --truth-resolution 20 " in script
