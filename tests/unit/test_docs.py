"""Figures in the documentation equal the JSON that a benchmark wrote."""

import json
import re
import shutil
from pathlib import Path

import pytest
from _tables import PAGES, RESULTS, TABLES, filled

PROJECT = Path(__file__).resolve().parents[2]


def results(name):
    path = RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path.name} was not measured yet")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_table_is_what_its_benchmark_measured(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


def test_every_table_is_in_a_page():
    marked = {
        name
        for page in PAGES
        for name in re.findall(r"<!-- figures: (\S+) -->", page.read_text(encoding="utf-8"))
    }
    assert marked == set(TABLES)


def test_a_table_is_replaced_up_to_the_empty_line_and_follows_its_figures(tmp_path):
    shutil.copy(RESULTS / "phantom.json", tmp_path)
    record = json.loads((tmp_path / "phantom.json").read_text())
    record["n4_by_fitting_levels"]["2"]["truth"]["field_correlation"] = 0.1234
    (tmp_path / "phantom.json").write_text(json.dumps(record))
    text = "before\n\n<!-- figures: phantom -->\n| old |\n\nafter\n"
    made = filled(text, tmp_path)
    assert made.startswith("before\n\n<!-- figures: phantom -->\n| levels of 50 |")
    assert made.endswith(" |\n\nafter\n")
    assert "| 2 | 0.123 | 0.062 |" in made
    assert "old" not in made
    assert filled(made, tmp_path) == made


def test_what_was_not_measured_is_said(tmp_path):
    assert "Not measured yet." in filled("<!-- figures: n4-speed -->\n| old |\n", tmp_path)


def test_a_mark_that_no_benchmark_fills_is_an_error():
    with pytest.raises(KeyError, match="unknown"):
        filled("<!-- figures: unknown -->\n")


def test_the_agreement_with_itk_is_within_the_bounds_in_every_case():
    record = results("n4_agreement")
    assert record["bounds"] == {"one_minus_r": 1e-8, "median": 1e-5, "max": 2e-4}
    for case in record["cases"]:
        nearest = case["itk_iterations"][str(case["nearest_threads"])]
        assert nearest == case["iterations"], case["name"]
        for figure, bound in record["bounds"].items():
            assert case[figure] <= bound, (case["name"], figure)


def test_the_memory_stayed_within_the_limit_and_near_what_was_predicted():
    record = results("n4_memory")
    assert max(case["bytes"] for case in record["cases"]) >= 12e9
    for case in record["cases"]:
        assert case["peak_bytes"] <= record["limit_bytes"]
        assert case["peak_over_predicted"] == pytest.approx(1, abs=0.2)


def test_resampling_was_exact_and_the_same_from_every_store():
    for case in results("resample_kernel")["cases"]:
        assert case["methods"]["octane"]["error"] <= 1e-6
    checksums = {}
    for case in results("resample_end_to_end")["cases"]:
        checksums.setdefault(tuple(case["tile"]), set()).add(case["octane_checksum"])
    assert {len(found) for found in checksums.values()} == {1}


def test_memory_of_resampling_is_near_what_was_predicted():
    record = results("resample_memory")
    assert {16, 64, 144, 400} <= {case["tiles"] for case in record["cases"]}
    for case in record["cases"]:
        assert case["peak_bytes"] / case["predicted_bytes"] == pytest.approx(1, abs=0.2)


def test_the_test_profile_quotes_what_the_phantom_benchmark_measured():
    measured = results("phantom")["n4_by_fitting_levels"]
    quoted = re.search(
        r"true field (\S+) in place of (\S+),", (PROJECT / "conf" / "test.config").read_text()
    )
    assert quoted is not None
    assert quoted.groups() == tuple(
        f"{measured[level]['truth']['field_correlation']:.2f}" for level in ("3", "2")
    )


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_every_result_says_when_where_and_of_which_commit(path):
    text = path.read_text(encoding="utf-8")
    known = {"benchmark", "date", "commit", "processor", "cores", "versions"}
    assert known <= json.loads(text).keys()
    # A tree with changes is no commit that anybody could measure again.
    assert "-dirty" not in text
