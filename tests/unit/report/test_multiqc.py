import json

import pytest

from octane.report.multiqc import multiqc_content
from octane.report.summary import Summary


def test_general_statistics_are_a_row_of_the_subject():
    summary = Summary(
        sections=3, missing=1, seam_median=0.02, seconds=1800.0, flagged=["Section 2"]
    )
    made = multiqc_content("sub-01", summary)
    content = json.loads(json.dumps(made, allow_nan=False))
    assert content == made
    assert (content["id"], content["plot_type"]) == ("octane", "generalstats")
    # MultiQC takes the columns as a list of one each.
    columns = [name for column in content["pconfig"] for name in column]
    row = content["data"]["sub-01"]
    assert row["seam"] == pytest.approx(2)
    assert row["hours"] == pytest.approx(0.5)
    assert row["flagged"] == 1
    assert row.keys() <= set(columns)
    # Unknown figures are not there.
    assert "cv_after" not in row
