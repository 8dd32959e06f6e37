"""Figures in the documentation equal the JSON that benchmarks and tests wrote."""

import json
import re
import shutil
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

PROJECT = Path(__file__).resolve().parents[2]
sys.path += [str(PROJECT / "benchmarks"), str(PROJECT / "tools")]

import pictures  # noqa: E402
from _common import RESULTS  # noqa: E402
from _tables import PAGE, TABLES, filled  # noqa: E402


def results(subject, part):
    return json.loads((RESULTS / f"{subject}.json").read_text(encoding="utf-8"))[part]


def test_every_table_is_in_the_page_and_what_its_benchmark_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text) == text
    assert sorted(re.findall(r"<!-- figures: (\S+) -->", text)) == sorted(TABLES)


def test_pictures_are_small_and_what_their_script_draws():
    names = {path.name for path in (PROJECT / "docs").glob("*.png")}
    assert {"demo.png", "n4.png", "stitching.png", "mosaic.png"} <= names
    assert all((PROJECT / "docs" / name).stat().st_size < 150_000 for name in names)
    drawn = imread(BytesIO(pictures.mosaic()["mosaic.png"]))
    np.testing.assert_allclose(imread(PROJECT / "docs" / "mosaic.png"), drawn, atol=0.01)


def test_a_table_is_replaced_up_to_the_empty_line_and_follows_its_figures(tmp_path):
    shutil.copy(RESULTS / "n4.json", tmp_path)
    record = json.loads((tmp_path / "n4.json").read_text())
    record["levels"]["n4_by_fitting_levels"]["2"]["truth"]["field_correlation"] = 0.1234
    (tmp_path / "n4.json").write_text(json.dumps(record))
    text = "before\n\n<!-- figures: n4-levels -->\n| old |\n\nafter\n"
    made = filled(text, tmp_path)
    assert made.startswith("before\n\n<!-- figures: n4-levels -->\n| levels of 50 |")
    assert made.endswith(" |\n\nafter\n")
    assert "| 2 | 0.062 | 0.123 |" in made
    assert "old" not in made
    assert filled(made, tmp_path) == made


def test_figures_are_within_their_bounds_in_every_case():
    record = results("n4", "agreement")
    assert record["bounds"] == {"one_minus_r": 1e-8, "median": 1e-5, "max": 2e-4}
    for case in record["cases"]:
        nearest = case["itk_iterations"][str(case["nearest_threads"])]
        assert nearest == case["iterations"], case["name"]
        for figure, bound in record["bounds"].items():
            assert case[figure] <= bound, (case["name"], figure)
    # The memory is near what was predicted, and within the limit.
    fitted, resampled = results("n4", "memory")["cases"], results("resample", "memory")["cases"]
    assert max(case["bytes"] for case in fitted) >= 12e9
    assert {16, 64, 144, 400} <= {case["tiles"] for case in resampled}
    for case in (*fitted, *resampled):
        assert case["peak_bytes"] / case["predicted_bytes"] == pytest.approx(1, abs=0.2)
    limit = results("n4", "memory")["limit_bytes"]
    assert max(case["peak_bytes"] for case in fitted) <= limit
    # Resampling was exact and the same from every store.
    for case in results("resample", "kernel")["cases"]:
        assert case["methods"]["octane"]["error"] <= 1e-6
    checksums = {}
    for case in results("resample", "end_to_end")["cases"]:
        checksums.setdefault(tuple(case["tile"]), set()).add(case["octane_checksum"])
    assert {len(found) for found in checksums.values()} == {1}


def test_every_result_says_when_where_and_of_which_commit():
    for path in sorted(RESULTS.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        for name, part in json.loads(text).items():
            known = {"date", "commit", "processor", "cores", "versions"}
            assert known <= part.keys(), (path.name, name)
            # Not what anybody could measure again: a tree with changes, one without a name, and
            # figures of an emulated GPU say nothing.
            assert part["commit"] != "unknown"
        assert "-dirty" not in text
        assert "Emulated GPU" not in text
