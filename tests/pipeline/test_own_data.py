"""Results of two inputs never mix, and inputs are never overwritten."""

import json
import re
import shlex
import shutil

import pytest
from runs import contents

READ = "which the run reads; give another --outdir or --subject."
STUB = ("-stub", "--skip_n4", "--skip_pyramid")


@pytest.fixture
def brains(phantom, tmp_path):
    """Two subjects whose input folders have the same name, as microscopes often choose."""
    for name in ("first", "second"):
        shutil.copytree(phantom / "mosaics", tmp_path / name / "mosaics")
    # File times are the only sign that the same sections have other voxels: another brain.
    for path in (tmp_path / "second").rglob("zarr.json"):
        path.touch()
    return tmp_path


@pytest.mark.soak
def test_a_second_subject_under_the_name_of_the_first_is_refused(
    nextflow, succeeding, brains, tmp_path
):
    first = succeeding(tmp_path, *STUB, "--input", "first/mosaics")
    stack = first.outdir / "mosaics" / "mosaics_stack.ome.zarr"
    made = stack.resolve()

    second = nextflow(tmp_path, *STUB, "--input", "second/mosaics")
    assert second.code == 1
    assert (
        f"{first.outdir}/mosaics has the results of another input, {brains}/first/mosaics; give "
        "this one its own name with --subject" in second.output
    )
    assert second.tasks("COMPLETED") == ["PREFLIGHT (run)"]
    assert stack.resolve() == made

    # With other steps than before, results of the first would otherwise remain.
    steps = ("-stub", "--skip_n4", "--skip_report", "--overwrite_subject", "true")
    for name in ("thesis.pdf", "metrics/thesis.pdf", "raw/0"):
        (first.outdir / "mosaics" / name).parent.mkdir(exist_ok=True)
        (first.outdir / "mosaics" / name).write_text("years of work")
    kept = nextflow(tmp_path, *steps, "--input", "second/mosaics")
    assert kept.code == 1
    assert re.search(r"(thesis\.pdf|raw) is not a result of octane", kept.output)
    assert stack.resolve() == made
    for name in ("thesis.pdf", "metrics/thesis.pdf", "raw/0"):
        assert (first.outdir / "mosaics" / name).read_text() == "years of work"
        (first.outdir / "mosaics" / name).unlink()
    (first.outdir / "mosaics/raw").rmdir()
    again = succeeding(tmp_path, *steps, "--input", "second/mosaics")
    assert f"{first.outdir}/mosaics is emptied: it has the results of another" in again.output
    folder = again.outdir / "mosaics"
    names = {"input.json", "metrics", "mosaics.ome.zarr", "mosaics_displacements.csv"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "input.json").read_text())["input"] == f"{brains}/second/mosaics"
    # Targets of links are the first run's cache.
    assert made.is_dir()


@pytest.mark.parametrize(
    ("outdir", "given", "sentence"),
    [
        pytest.param(".", ("--input", "mosaics"), READ, id="the-folder-itself"),
        pytest.param(
            "mosaics/section_01.ome.zarr/out",
            ("--input", "mosaics/section_01.ome.zarr"),
            READ,
            id="around-it",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ".",
            (
                *("--input", "mosaics", "--subject", "other", "--overwrite_subject", "true"),
                *("--positions", "other/positions.csv"),
            ),
            READ,
            id="emptied",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ".",
            ("--input", "mosaics", "--subject", "other"),
            "other has results, which -stub-run would replace by empty files;",
            id="stubs",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_inputs_and_results_of_others_are_never_replaced(
    nextflow, phantom, tmp_path, outdir, given, sentence
):
    shutil.copytree(phantom / "mosaics", tmp_path / "mosaics")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy2(phantom / "positions.csv", other)
    (other / "input.json").write_text('{"input": "/another", "fingerprint": ""}', encoding="utf-8")
    run = nextflow(tmp_path, *STUB, *given, outdir=tmp_path / outdir)
    assert run.code == 1
    assert sentence in run.output
    assert run.processes("COMPLETED") == {"PREFLIGHT"}
    assert (other / "positions.csv").exists()
    assert contents(phantom / "mosaics").items() <= contents(tmp_path / "mosaics").items()


@pytest.mark.soak
def test_a_subject_that_was_moved_or_corrected_is_the_same(succeeding, brains, tmp_path):
    succeeding(tmp_path, *STUB, "--input", "first/mosaics")
    (brains / "first").rename(brains / "moved")
    succeeding(tmp_path, *STUB, "--input", "moved/mosaics")
    (brains / "moved" / "mosaics" / "section_01.ome.zarr" / "zarr.json").touch()
    succeeding(tmp_path, *STUB, "--input", "moved/mosaics")


@pytest.mark.soak
def test_results_of_an_earlier_run_are_not_listed(succeeding, project, phantom, tmp_path):
    given = ("-stub", "--input", phantom / "mosaics")
    outdir = tmp_path / "brain's"
    listed = succeeding(tmp_path, *given, outdir=outdir).output.split("Results:\n")[1]
    assert "/mosaics.ome.zarr\n" in listed
    assert "/mosaics_report.html\n" in listed
    # The command below can be pasted into a shell.
    words = shlex.split(listed.split("real files:\n")[1].splitlines()[0])
    assert words == [f"{project}/bin/materialize.py", str(outdir)]
    second = succeeding(tmp_path, *given, "--skip_pyramid", "--skip_report", outdir=outdir)
    listed = second.output.split("Results:\n")[1].split("They are links")[0].split()
    assert listed == [f"{second.outdir}/mosaics/mosaics_n4.ome.zarr"]
    assert (second.outdir / "mosaics" / "mosaics.ome.zarr").exists()
    assert "Results:" not in succeeding(tmp_path, *given, "-preview", outdir=outdir).output
