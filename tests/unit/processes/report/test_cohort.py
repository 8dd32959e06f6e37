import re

import pytest
from refusals import refused

from octane.core.errors import OctaneError
from octane.processes.report.cohort import write_cohort_report

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
    # A subject without a report is named without a link.
    assert re.findall('<th scope="row"><a href="([^"]*)"', html) == [
        "sub%2002/sub%2002_report.html",
        "sub-01/sub-01_report.html",
    ]
    assert text.startswith("1 of 3 subjects is incomplete: a. ")
    # Missing figures are dashes.
    assert "None" not in text
    assert "✗ Incomplete: STITCH failed. – – – → – – – –" in text
    assert "3 of 4 ▲ 1 missing" in text


def test_a_subject_unlike_the_others_is_marked_and_its_warning_shown(twin, tmp_path):
    twins = [twin(f"sub-{k}", cv_after=0.1 + 0.001 * k) for k in range(5)]
    odd = twin("sub-9", warnings=["<b>odd</b>"], cv_after=0.3)
    write_cohort_report([*twins, odd], tmp_path / "cohort.html")
    text = text_of(tmp_path / "cohort.html")
    assert text.count("▲ outlier") == 1
    assert "30.0 % → 30.0 % ▲ outlier" in text
    assert "1 subject with an outlying figure" in text
    assert "sub-9 variation after N4 above median" in text
    # Its warning is shown, not executed.
    assert "&lt;b&gt;odd&lt;/b&gt;" in text


STATES = {"A": "good", "B": "look", "C": "good", "D": "incomplete", "E": "look"}


@pytest.mark.parametrize(
    ("states", "line"),
    [
        (STATES, "1 of 5 subjects is incomplete: D. 2 of 5 subjects need a look: B, E. "),
        ({"A": "look", "B": "good"}, "1 of 2 subjects needs a look: A. "),
        ({"A": "look"}, "1 of 1 subject needs a look: A. "),
        (dict.fromkeys("AB", "incomplete"), "2 of 2 subjects are incomplete: A, B. "),
        (
            dict.fromkeys("ABCDEFGH", "look"),
            "8 of 8 subjects need a look: A, B, C, D, E, F and 2 more. ",
        ),
        (dict.fromkeys("AB", "good"), "2 of 2 subjects are good. "),
        ({"A": "good"}, "1 of 1 subject is good. "),
    ],
)
def test_the_first_line_says_who_needs_a_look(twin, tmp_path, states, line):
    write_cohort_report([twin(s, state=state) for s, state in states.items()], tmp_path / "c.html")
    assert text_of(tmp_path / "c.html").startswith(line)


def test_the_bad_come_first_each_with_its_verdict(twin, tmp_path):
    page = tmp_path / "cohort.html"
    twins = [twin(s, state=state, verdict=f"{s} is so.") for s, state in STATES.items()]
    write_cohort_report(twins, page)
    html, text = page.read_text(encoding="utf-8"), text_of(page)
    order = re.findall(r"(.) (\w) is so\.", text)
    assert order == [("✗", "D"), ("▲", "B"), ("▲", "E"), ("✓", "A"), ("✓", "C")]
    # The page is as bad as its worst subject.
    assert re.findall(r'class="verdict (\w+)"', html) == ["incomplete"]


def test_an_incomplete_subject_is_not_compared(twin, tmp_path):
    few = [twin(f"few{k}", state="incomplete", seconds=1.0) for k in range(5)]
    write_cohort_report([*few, twin("A"), twin("B")], tmp_path / "cohort.html")
    # Compared with subjects that ended early, it would be slow.
    assert "▲ outlier" not in text_of(tmp_path / "cohort.html")


@pytest.mark.parametrize("content", ["{", '{"subject": "a"}', None])
def test_what_is_no_twin_is_named(tmp_path, content):
    path = tmp_path / "a_report.json"
    if content is not None:
        path.write_text(content)
    with refused(path, "JSON"):
        write_cohort_report([path], tmp_path / "cohort.html")
    assert not (tmp_path / "cohort.html").exists()


def test_a_subject_is_given_once(twin, tmp_path):
    path = twin("a")
    with pytest.raises(OctaneError, match="give each subject once"):
        write_cohort_report([path, path], tmp_path / "cohort.html")
    write_cohort_report([path], tmp_path / "cohort.html")
    with pytest.raises(OctaneError, match="exists already"):
        write_cohort_report([path], tmp_path / "cohort.html")


@pytest.mark.parametrize(
    ("seconds", "data", "is_odd"),
    [
        (10_800.0, 3, False),  # of three channels, or three times as large
        (10_800.0, 1, True),
        (3600.0, 0.3, False),  # a small one, of which the start of each task is a larger part
        (21_600.0, 3, True),
        (10_800.0, 0, True),
    ],
)
def test_computing_time_is_compared_with_the_amount_of_data(twin, tmp_path, seconds, data, is_odd):
    size = 10**10
    others = [twin(f"sub-{k}", data_bytes=size) for k in range(5)]
    odd = twin("sub-9", seconds=seconds, data_bytes=int(size * data))
    write_cohort_report([*others, odd], tmp_path / "cohort.html")
    assert ("sub-9 computing time" in text_of(tmp_path / "cohort.html")) == is_odd
