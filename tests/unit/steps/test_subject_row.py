"""A row for a new subject: added to a sheet as it stands, or refused and nothing is changed."""

import pytest

from octane.config.samplesheet import read_samplesheet
from octane.config.subject import Setting
from octane.core.errors import OctaneError
from octane.steps.subject_row import add_row

SETTINGS = {
    "subject": Setting("01"),
    "input": Setting("/data/a, b"),
    "resolution": Setting(10),
    "overlap": Setting("0.2", stated=False),
    "max_cpus": Setting(8),
}


def test_a_sheet_is_made_and_goes_on(tmp_path):
    sheet = tmp_path / "cohort.csv"
    add_row(sheet, SETTINGS)
    add_row(sheet, {**SETTINGS, "subject": Setting("02"), "overlap": Setting("0.1 0.2")})
    found = read_samplesheet(sheet)
    assert found.problems == []
    assert [row.cells for row in found.rows] == [
        {"subject": "01", "input": "/data/a, b", "resolution": "10"},
        {"subject": "02", "input": "/data/a, b", "resolution": "10", "overlap": "0.1 0.2"},
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "subject,input,resolution,overlap,positions,section_thickness\n01,"),
        ("\n,,\n", "subject,input,resolution,overlap,positions,section_thickness\n01,"),
        ("\ufeff", "\ufeffsubject,input,resolution,overlap,positions,section_thickness\n01,"),
        ("resolution;input;subject", "resolution;input;subject\n10;"),
        ("resolution;input;subject\r\n\r\n", "resolution;input;subject\r\n\r\n10;"),
    ],
)
def test_a_sheet_without_a_row_gets_its_first(tmp_path, before, after):
    sheet = tmp_path / "cohort.csv"
    sheet.write_bytes(before.encode())
    add_row(sheet, SETTINGS)
    assert sheet.read_bytes().decode().startswith(after)
    (row,) = read_samplesheet(sheet).rows
    assert row.cells == {"subject": "01", "input": "/data/a, b", "resolution": "10"}


def test_a_spreadsheets_own_separator_and_mark_stay(tmp_path):
    sheet = tmp_path / "cohort.csv"
    before = "\ufeffinput;subject;resolution\r\nx;a;".encode()
    sheet.write_bytes(before)
    add_row(sheet, SETTINGS)
    assert sheet.read_bytes() == before + b"\n/data/a, b;01;10\n"
    assert read_samplesheet(sheet).rows[1].cells["input"] == "/data/a, b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("subject,input\n07,x\n", "has no column resolution; add it to the first line"),
        ("subject,input\n", "has no column resolution; add it to the first line"),
        ("subject,input,resolution\n01,x,\n", "line 2: the subject 01 is there already;"),
        ("subject,input\n01\n", "line 2: there are 1 cells and 2 columns"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_sheet_stays(tmp_path, text, sentence):
    sheet = tmp_path / "cohort.csv"
    sheet.write_text(text, encoding="utf-8")
    with pytest.raises(OctaneError) as caught:
        add_row(sheet, SETTINGS)
    assert sentence in str(caught.value)
    assert sheet.read_text(encoding="utf-8") == text


def test_only_csv_gets_a_row(tmp_path):
    with pytest.raises(OctaneError, match=r"cohort.yaml is not CSV"):
        add_row(tmp_path / "cohort.yaml", SETTINGS)
