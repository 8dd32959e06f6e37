"""A samplesheet is understood as it was meant, or refused in a sentence with file and line."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.config.samplesheet import is_subject_name, read_samplesheet
from octane.core.errors import OctaneError


@pytest.fixture
def read(tmp_path):
    """Read a sheet of this text."""

    def run(text, name="cohort.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_samplesheet(path, name)

    return run


def cells(sheet):
    """What the rows hold."""
    assert sheet.problems == []
    return [row.cells for row in sheet.rows]


EXPECTED = [{"subject": "01", "input": "a b"}, {"subject": "x", "input": "c", "overlap": "0.2 0.1"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.csv", "subject,input,overlap\n01,a b,\nx,c,0.2 0.1\n"),
        ("s.csv", b"\xef\xbb\xbfsubject;input;overlap\r\n01;a b;\r\nx;c;0.2 0.1\r\n"),
        ("s.tsv", "subject\tinput\toverlap\n\n 01 \t a b\t\n\t\t\nx\tc\t0.2 0.1"),
        ("s.csv", 'subject,input,overlap,,\n"01", "a b",,,\nx,c,"0.2 0.1",,,,\n'),
        (
            "s.yaml",
            "- subject: 01\n  input: a b\n  overlap:\n"
            "- {subject: x, input: c, overlap: [0.2, 0.1]}",
        ),
        (
            "s.yml",
            "- subject: 01\n  input: a b\n  overlap: ~\n"
            "- subject: x\n  input: 'c'\n  overlap: 0.2 0.1",
        ),
        ("s.json", json.dumps([{"subject": "01", "input": "a b"}, EXPECTED[1]])),
    ],
)
def test_every_way_to_write_a_sheet_gives_the_same_text(read, name, text):
    assert cells(read(text, name)) == EXPECTED


def test_rows_know_their_lines(read):
    sheet = read('subject,input\n\n01,"a\nb"\n02,c\n')
    assert [row.line for row in sheet.rows] == [3, 5]
    assert sheet.where(3) == "cohort.csv, line 3"
    sheet = read("# of today\n- subject: 01\n  input: a\n\n- subject: 02\n", "s.yaml")
    assert [row.line for row in sheet.rows] == [2, 5]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("s.xlsx", "subject", "s.xlsx is no samplesheet that octane knows; save it as .csv,"),
        ("s.csv", b"\xff\xfes\0u\0", "s.csv cannot be read as text; save it as CSV in UTF-8."),
        ("s.csv", "", "s.csv holds no subject; add a row for each."),
        ("s.csv", "subject,input\n", "s.csv holds no subject"),
        ("s.yaml", "", "s.yaml holds no subject"),
        ("s.csv", 'subject,input\n01,"a\n', "s.csv, line 2: this is no row of a CSV table"),
        ("s.csv", 'subject,input\n01,"a" \n', "s.csv, line 2: this is no row of a CSV table"),
        ("s.yaml", "- subject: 01\n  input: [a\n", "s.yaml, line 3: this is no YAML"),
        ("s.yaml", "subject: 01\n", "s.yaml is no list of subjects; begin each with"),
        ("s.yaml", "- subject: 01\x07\n", "s.yaml: this is no YAML"),
    ],
)
def test_what_is_no_table_is_refused(read, name, text, sentence):
    with pytest.raises(OctaneError) as caught:
        read(text, name)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        (
            "s.csv",
            "subject,input,input\n01,a,b\n02,c\n03,a,b,c,\n",
            [
                "s.csv, line 1: the column input is there 2 times; leave one.",
                "s.csv, line 3: there are 2 cells and 3 columns; fill it up, and put a cell that "
                "holds the separator in quotes.",
                "s.csv, line 4: there are 4 cells and 3 columns; fill it up, and put a cell that "
                "holds the separator in quotes.",
            ],
        ),
        (
            "s.csv",
            "subject,input,\n01,a,b\n",
            ["s.csv, line 2: a cell stands below no column name; name its column."],
        ),
        (
            "s.yaml",
            "- subject: 01\n  subject: 02\n- nothing\n- input: {a: b}\n",
            [
                "s.yaml, line 2: subject is there twice in one subject; leave one.",
                "s.yaml, line 3: this is no subject; begin it with '- subject: NAME'.",
                "s.yaml, line 4: input is neither a value nor a list of values; correct it.",
            ],
        ),
    ],
)
def test_all_problems_of_a_sheet_are_found(read, name, text, problems):
    assert read(text, name).problems == problems


TEXT = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="\ufeff"), min_size=1
)


@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1), separator=st.sampled_from(",;\t"))
def test_any_text_in_a_cell_comes_back(tmp_path_factory, rows, separator):
    stream = io.StringIO()
    csv.writer(stream, delimiter=separator).writerows([("subject", "input"), *rows])
    path = tmp_path_factory.mktemp("sheet") / "cohort.csv"
    path.write_text(stream.getvalue(), encoding="utf-8", newline="")
    assert cells(read_samplesheet(path)) == [{"subject": a, "input": b} for a, b in rows]


@pytest.mark.parametrize("name", ["01", "sub-01", "two b", "Müller_(2)", "a.b"])
def test_names_that_can_be_folders(name):
    assert is_subject_name(name)


@pytest.mark.parametrize("name", ["", ".hidden", "-flag", "a/b", "a'b", "a$b", "a\nb", "a*"])
def test_names_that_cannot(name):
    assert not is_subject_name(name)
