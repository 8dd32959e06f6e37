import json

import pytest

from octane.report.multiqc import general_content, sections_content
from octane.report.summary import SectionQuality, Summary

SUMMARY = Summary(sections=3, missing=1, seam_median=0.02, seconds=1800.0, flagged=["Section 2"])
SECTIONS = [
    SectionQuality(number=1, title="Section 1", tiles=9, seam_median=0.02, cv_after=0.1),
    SectionQuality(number=2, title="Section 2", state="missing", flags=["missing"]),
]


def written(content):
    """As a program reads it."""
    return json.loads(json.dumps(content, allow_nan=False))


def test_general_statistics_are_a_row_of_the_subject():
    content = written(general_content("sub-01", SUMMARY))
    assert content["plot_type"] == "generalstats"
    # MultiQC takes the columns as a list of one each.
    columns = [name for column in content["pconfig"] for name in column]
    (row,) = content["data"].values()
    assert row["seam"] == pytest.approx(2)
    assert row["hours"] == pytest.approx(0.5)
    assert row["flagged"] == 1
    assert row.keys() <= set(columns)
    # Not known, and so not there.
    assert "cv_after" not in row


def test_sections_are_rows_of_a_table():
    content = written(sections_content("sub-01", SECTIONS))
    assert content["plot_type"] == "table"
    assert {"id", "section_name", "description", "pconfig", "headers"} <= content.keys()
    assert list(content["data"]) == ["sub-01 Section 1", "sub-01 Section 2"]
    first, second = content["data"].values()
    assert first == {
        "state": "stitched",
        "tiles": 9,
        "seam": pytest.approx(2),
        "cv_after": pytest.approx(10),
    }
    assert second == {"state": "missing", "marked": "missing"}
    assert all(row.keys() <= content["headers"].keys() for row in content["data"].values())


@pytest.mark.parametrize(
    "content", [general_content("s", SUMMARY), sections_content("s", SECTIONS)], ids=["all", "each"]
)
def test_the_content_is_json_that_subjects_share_by_its_id(content):
    assert written(content) == content
    assert content["id"].startswith("octane")
