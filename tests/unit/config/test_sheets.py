"""Tables in CSV, read as text."""

from pathlib import Path

import pytest
from refusals import refused

from octane.config.sheets import (
    MOST_BYTES,
    MOST_ROWS,
    MOST_SUBJECTS,
    read_samplesheet,
    read_table,
)
from octane.core.errors import InputError


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a sheet of this text."""
    monkeypatch.chdir(tmp_path)

    def run(text, name="s.csv"):
        path = Path(name)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_samplesheet(path)

    return run


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.csv", "subject,input,overlap\n01,a b,\nx,c,0.2 0.1\n"),
        ("s.csv", b"\xef\xbb\xbfsubject;input;overlap\r\n01;a b;\r\nx;c;0.2 0.1\r\n"),
        ("s.tsv", "subject\tinput\toverlap\n\n 01 \t a b\t\n\t\t\nx\tc\t0.2 0.1"),
        ("s.csv", 'subject,input,overlap,,\n"01", "a b",,,\nx,c,"0.2 0.1",,,,\n'),
    ],
)
def test_every_way_to_write_a_sheet_gives_the_same_text(read, name, text):
    found = read(text, name)
    assert found.problems == []
    assert [cells for _, cells in found.rows] == [
        {"subject": "01", "input": "a b"},
        {"subject": "x", "input": "c", "overlap": "0.2 0.1"},
    ]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("s.yaml", "[]", "s.yaml is not a samplesheet in CSV; save it as .csv or .tsv."),
        (
            "s.csv",
            b"\xff\xfes\0u\0",
            "s.csv cannot be read (not a text file); check your permissions, or save it as CSV",
        ),
        ("s.csv", 'subject,input\n01,"a\n', "s.csv, line 2: invalid CSV row"),
        ("s.csv", 'subject,input\n01,"a" \n', "s.csv, line 2: invalid CSV row"),
    ],
)
def test_what_is_no_table_is_refused(read, name, text, sentence):
    with pytest.raises(InputError) as caught:
        read(text, name)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


NO_NAME = "line 1: give every column a unique name."
UNEVEN = "cells but 3 columns; add missing cells, or quote cells that contain the separator."


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        (
            "s.csv",
            "subject,input,input\n01,a,b\n02,c\n03,a,b,c,\n",
            [NO_NAME, f"line 3: there are 2 {UNEVEN}", f"line 4: there are 4 {UNEVEN}"],
        ),
        ("s.csv", "subject,,input\n01,a,b\n", [NO_NAME]),
    ],
)
def test_all_problems_of_a_sheet_are_found(read, name, text, problems):
    assert read(text, name).problems == [f"{name}, {problem}" for problem in problems]


def test_a_table_shows_its_first_problems(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "1,2\n" * 35)
    with pytest.raises(InputError) as caught:
        read_table(path)
    *lines, last = str(caught.value).splitlines()
    assert lines == [f"{path}, line {line}: there are 2 {UNEVEN}" for line in range(2, 7)]
    assert last == "(30 more problems)"


def test_a_table_that_is_too_large_is_refused_by_name(tmp_path):
    table = tmp_path / "positions.csv"
    with (tmp_path / "sheet.csv").open("w") as file:
        file.write("subject,input\n" + "a,b\n" * MOST_SUBJECTS)
    assert len(read_samplesheet(tmp_path / "sheet.csv").rows) == MOST_SUBJECTS
    with (tmp_path / "sheet.csv").open("a") as file:
        # Rows that are not kept count too.
        file.write("\n\n\na,b,c\n")
    with refused("sheet.csv", error=InputError):
        read_samplesheet(tmp_path / "sheet.csv")
    with table.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    for read in (read_table, read_samplesheet):
        with refused("positions.csv", "100", error=InputError):
            read(table)


@pytest.mark.parametrize("count", [MOST_ROWS, MOST_ROWS + 1])
def test_rows_of_a_table_are_bounded(tmp_path, count):
    table = tmp_path / "positions.csv"
    table.write_text("y\n" + "1\n" * count)
    if count > MOST_ROWS:
        with refused("positions.csv", error=InputError):
            read_table(table)
    else:
        assert len(read_table(table).rows) == count
