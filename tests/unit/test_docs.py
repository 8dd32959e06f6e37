"""Figures in the documentation equal the JSON that a benchmark wrote."""

import json
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / "benchmarks" / "results"


def table_after(text: str, marker: str) -> list[list[str]]:
    """Cells of the first Markdown table after ``<!-- figures: marker -->``, without its header."""
    lines = text.partition(f"<!-- figures: {marker} -->")[2].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return rows[2:]


def test_the_levels_table_of_n4_is_what_the_phantom_benchmark_measured():
    measured = json.loads((RESULTS / "phantom.json").read_text())["n4_by_fitting_levels"]
    rows = table_after((PROJECT / "docs" / "n4.md").read_text(), "phantom")
    before = measured["1"]["truth"]["cv_against_truth_before"]
    assert rows[0] == ["(before)", "", f"{before:.3f}"]
    expected = [
        [
            level,
            f"{figures['truth']['field_correlation']:.3f}",
            f"{figures['truth']['cv_against_truth_after']:.3f}",
        ]
        for level, figures in measured.items()
    ]
    assert rows[1:] == expected


def test_the_test_profile_quotes_what_the_phantom_benchmark_measured():
    measured = json.loads((RESULTS / "phantom.json").read_text())["n4_by_fitting_levels"]
    quoted = re.search(
        r"true field (\S+) in place of (\S+),", (PROJECT / "conf" / "test.config").read_text()
    )
    assert quoted is not None
    assert quoted.groups() == tuple(
        f"{measured[level]['truth']['field_correlation']:.2f}" for level in ("3", "2")
    )


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.stem)
def test_every_result_says_when_where_and_of_which_commit(path):
    record = json.loads(path.read_text())
    assert {"benchmark", "date", "commit", "processor", "cores", "versions"} <= record.keys()
