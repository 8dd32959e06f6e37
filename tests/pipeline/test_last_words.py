"""What a run that ended well says of what is not as it should be: a gap, and a second try."""

import json
import shutil

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def with_a_gap(command, tmp_path_factory):
    """Mosaics of the first and the third of three sections."""
    folder = tmp_path_factory.mktemp("gap") / "subject"
    made = command(
        *("phantom", folder, "--sections", "3", "--tiles", "2", "2", "--tile-shape", "24"),
        *("64", "64", "--section-thickness", "70"),
    )
    assert made.returncode == 0, made.stderr
    shutil.rmtree(folder / "mosaics" / "section_02.ome.zarr")
    return folder / "mosaics"


@pytest.fixture(scope="module")
def failing_once(copy_project):
    """Code whose STITCH of the third section is ended from outside at its first attempt."""
    code = copy_project("failing")
    stitch = code / "bin" / "stitch.py"
    real = stitch.rename(stitch.with_name("real_stitch.py"))
    stitch.write_text(
        "#!/bin/bash\n"
        '[[ "$OCTANE_ATTEMPT $1" != "1 "*section_03* ]] || exit 143\n'
        f'exec {real} "$@"\n',
        encoding="utf-8",
    )
    stitch.chmod(real.stat().st_mode)
    return code


@pytest.fixture(scope="module")
def run(nextflow, quick, with_a_gap, failing_once, tmp_path_factory):
    """The run of those mosaics with that code."""
    ended = nextflow(
        *(tmp_path_factory.mktemp("run"), *quick, "--input", with_a_gap),
        *("--allow_missing_sections", "1"),
        code=failing_once,
    )
    assert ended.code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def report(run):
    """The report as JSON."""
    path = run.outdir / "mosaics" / "mosaics_report.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(run):
    """The report's text."""
    return (run.outdir / "mosaics" / "mosaics_report.html").read_text(encoding="utf-8")


def test_a_missing_section_is_named_at_the_end(run):
    words = "mosaics lacks section 2: blank slabs stand there, as --allow_missing_sections permits."
    assert words in run.output.partition("Results:\n")[2]


def test_a_missing_section_is_named_in_the_report(report, page):
    (stack,) = (record for record in report["records"] if record["step"] == "stack")
    assert stack["figures"]["missing_sections"] == [2]
    assert "2 of 3" in page
    assert "1 missing" in page


def test_a_second_try_is_named_at_the_end(run):
    assert run.tasks("FAILED") == ["STITCH (mosaics:section_03)"]
    assert "terminated with an error exit status (143) -- Execution is retried (1)" in run.output


def test_a_second_try_is_named_in_the_report(report, page):
    attempts = [(r["step"], r["attempt"]) for r in report["records"] if r["attempt"] != 1]
    assert attempts == [("stitch", 2)]
    assert page.count("done at attempt 2; ") == 1
    assert "(attempt 2)" in page
