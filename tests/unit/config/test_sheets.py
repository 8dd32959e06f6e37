"""Samplesheets in CSV and YAML, read as text."""

import pytest

from octane.config.sheets import read_samplesheet
from octane.core.errors import InputError


@pytest.fixture
def read(tmp_path):
    """Read a sheet of this text."""

    def run(text, name="s.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_samplesheet(path, name)

    return run


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
        ("s.yaml", "[{subject: 01, input: a b}, {subject: x, input: c, overlap: 0.2 0.1}]"),
    ],
)
def test_every_way_to_write_a_sheet_gives_the_same_text(read, name, text):
    found = read(text, name)
    assert found.problems == []
    assert [cells for _, cells in found.rows] == [
        {"subject": "01", "input": "a b"},
        {"subject": "x", "input": "c", "overlap": "0.2 0.1"},
    ]


def test_a_parameter_in_yaml_knows_its_line(read):
    sheet = read("# of today\n- subject: 01\n  input: a\n\n- subject: 02\n  overlp: 0\n", "s.yaml")
    assert [line for line, _ in sheet.rows] == [2, 5]
    assert sheet.columns == {"subject": 2, "input": 3, "overlp": 6}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("s.json", "[]", "s.json is no samplesheet that octane knows; save it as .csv,"),
        (
            "s.csv",
            b"\xff\xfes\0u\0",
            "s.csv cannot be read (it is no text); check your rights, or save it as CSV",
        ),
        ("s.csv", 'subject,input\n01,"a\n', "s.csv, line 2: this is no row of a CSV table"),
        ("s.csv", 'subject,input\n01,"a" \n', "s.csv, line 2: this is no row of a CSV table"),
        ("s.yaml", "- subject: 01\n  input: [a\n", "s.yaml, line 3: this is no YAML"),
        ("s.yaml", "subject: 01\n", "s.yaml is no list of subjects; begin each with"),
        ("s.yaml", "- subject: 01\x07\n", "s.yaml: this is no YAML"),
        ("s.yaml", "[" * 10_000, "s.yaml: this is no YAML"),
    ],
)
def test_what_is_no_table_is_refused(read, name, text, sentence):
    with pytest.raises(InputError) as caught:
        read(text, name)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


NO_NAME = "line 1: a column has no name or that of another; name each once."
UNEVEN = "cells and 3 columns; fill it up, and put a cell that holds the separator in quotes."


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        (
            "s.csv",
            "subject,input,input\n01,a,b\n02,c\n03,a,b,c,\n",
            [NO_NAME, f"line 3: there are 2 {UNEVEN}", f"line 4: there are 4 {UNEVEN}"],
        ),
        ("s.csv", "subject,,input\n01,a,b\n", [NO_NAME]),
        (
            "s.yaml",
            "- subject: 01\n- nothing\n- input: {a: b}\n- subject: 02\n  subject: 03\n",
            [
                "line 2: this is no subject; begin it with '- subject: NAME'.",
                "line 3: this is neither a value nor a list of values; correct it.",
                "line 5: subject is there twice in one subject; remove one.",
            ],
        ),
    ],
)
def test_all_problems_of_a_sheet_are_found(read, name, text, problems):
    assert read(text, name).problems == [f"{name}, {problem}" for problem in problems]
