import re

import pytest

from octane.core.errors import OctaneError
from octane.report.cohort import write_cohort_report

SUMMARY = {
    "sections": 4,
    "seam_median": 0.02,
    "cv_before": 0.3,
    "cv_after": 0.1,
    "seconds": 3600.0,
    "peak_memory_bytes": 2_000_000_000,
    "devices": ["CPU"],
}


@pytest.fixture
def twin(write_json):
    """Write the twin of a subject's report."""

    def write(subject, warnings=(), state="good", verdict="Good.", **figures):
        content = {"subject": subject, "state": state, "verdict": verdict, "records": []}
        content |= {"warnings": list(warnings), "summary": SUMMARY | figures}
        return write_json(f"{subject}_report.json", content)

    return write


def text_of(page):
    """The page without its tags."""
    body = page.read_text(encoding="utf-8").partition("<body>")[2]
    return " ".join(re.sub("<[^>]+>", " ", body).replace("&nbsp;", " ").split())


def test_a_subject_without_a_report_is_incomplete(twin, tmp_path):
    page = tmp_path / "cohort.html"
    write_cohort_report([twin("a")], page, subjects=["a", "b"])
    text = text_of(page)
    assert "2 subjects" in text
    assert "Incomplete: REPORT failed" in text


def test_every_subject_is_a_row_with_a_link_to_its_report(twin, tmp_path, write_json):
    page, bare = tmp_path / "cohort.html", {"subject": "a", "state": "incomplete"}
    bare = write_json("a_report.json", bare | {"verdict": "Incomplete: STITCH failed."})
    write_cohort_report([twin("sub 02"), twin("sub-01", missing=1), bare], page)
    html, text = page.read_text(encoding="utf-8"), text_of(page)
    assert re.findall('<th scope="row"><a href="([^"]*)"', html) == [
        "a/a_report.html",
        "sub%2002/sub%2002_report.html",
        "sub-01/sub-01_report.html",
    ]
    assert text.startswith("3 subjects")
    # Figures that are not there are dashes.
    assert "None" not in text
    assert "3 of 4 ▲ 1 missing" in text
    assert "✓ No report gave a warning." in text


def test_a_subject_unlike_the_others_is_marked_and_its_warning_shown(twin, tmp_path):
    twins = [twin(f"sub-{k}", cv_after=0.1 + 0.001 * k) for k in range(5)]
    odd = twin("sub-9", warnings=["<b>odd</b>"], cv_after=0.3)
    write_cohort_report([*twins, odd], tmp_path / "cohort.html")
    text = text_of(tmp_path / "cohort.html")
    assert text.count("▲ outlier") == 1
    assert "30.0 % → 30.0 % ▲ outlier" in text
    assert "sub-9 variation after N4 above median" in text
    # Its warning is shown, and not run.
    assert "&lt;b&gt;odd&lt;/b&gt;" in text
    assert "No report gave a warning" not in text


@pytest.mark.parametrize("content", ["{", '{"subject": "a"}', None])
def test_what_is_no_twin_is_named(tmp_path, content):
    path = tmp_path / "a_report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OctaneError, match=f"{path} is no JSON twin"):
        write_cohort_report([path], tmp_path / "cohort.html")
    assert not (tmp_path / "cohort.html").exists()


def test_a_subject_is_given_once(twin, tmp_path):
    path = twin("a")
    with pytest.raises(OctaneError, match="give each one once"):
        write_cohort_report([path, path], tmp_path / "cohort.html")
    write_cohort_report([path], tmp_path / "cohort.html")
    with pytest.raises(OctaneError, match="exists already"):
        write_cohort_report([path], tmp_path / "cohort.html")
