"""Tile positions as a table: read whole, or what it lacks is named."""

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.store.image import open_image
from octane.store.mosaic_grid import Tiling
from octane.store.positions import read_positions


@pytest.fixture
def tiling(write_mosaic):
    """One row of two tiles."""
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 20, 40), np.float32), (2, 20, 20))
    return Tiling.of(open_image(source))


@pytest.fixture
def write_table(tmp_path):
    def write(rows, header="section,row,column,y,x", newline="\n"):
        lines = [header, *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "t.csv").write_text(newline.join(lines) + newline, newline="")
        return tmp_path / "t.csv"

    return write


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_table_of_more_sections_and_columns_is_read(tiling, write_table, newline):
    rows = [(2, 0, 0, 5, 5, "b"), (1, 0, 1, -1.5, 150, "a"), (1, 0, 0, 0, 0, "a")]
    table = write_table(rows, "section,row,column,y,x,note", newline)
    assert read_positions(table, 1, tiling) == {(0, 0): (0.0, 0.0), (0, 1): (-1.5, 150.0)}


def test_the_columns_may_stand_in_any_order(tiling, write_table):
    table = write_table([(0, 1, 7, 0, 9), (0, 1, 0, 1, 150)], "y,section,x,column,row")
    with pytest.raises(OctaneError, match="row 0, column 0"):
        read_positions(table, 1, tiling)
    table = write_table([(3, 1, 7, 0, 0), (0, 1, 150, 1, 0)], "y,section,x,column,row")
    assert read_positions(table, 1, tiling) == {(0, 0): (3.0, 7.0), (0, 1): (0.0, 150.0)}


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        ("section,row,column,y", [(1, 0, 0, 0)], "columns"),
        ("section,row,column,y,x", [], "columns"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0), (1, 0, 1, "far", 0)], "line 3"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0), (1, 0, 1, 0)], "line 3"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0), (1, 0, 1, 0, "nan")], "line 3"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0), (1, 0, 1, 0, "inf")], "line 3"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0), (1, 0, 0, 5, 5)], "line 3"),
        ("section,row,column,y,x", [(1, 0, 0, 0, 0)], "row 0, column 1 of section 1"),
        ("section,row,column,y,x", [(2, 0, 0, 0, 0), (2, 0, 1, 0, 9)], "row 0, column 0 of sec"),
    ],
    ids=[
        "column",
        "empty",
        "no number",
        "short line",
        "NaN",
        "Inf",
        "twice",
        "a tile",
        "a section",
    ],
)
def test_what_a_table_lacks_is_named(tiling, write_table, header, rows, words):
    table = write_table(rows, header)
    with pytest.raises(OctaneError, match=words) as caught:
        read_positions(table, 1, tiling)
    assert str(table) in str(caught.value)


def test_a_table_that_is_not_there_is_named(tiling, tmp_path):
    with pytest.raises(OctaneError, match=r"none\.csv"):
        read_positions(tmp_path / "none.csv", 1, tiling)


def test_a_table_that_is_no_text_is_named(tiling, tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(OctaneError, match=r"t\.csv"):
        read_positions(tmp_path / "t.csv", 1, tiling)


def test_a_table_that_excel_saved_is_read(tiling, write_table):
    table = write_table([(1, 0, 0, 0, 0), (1, 0, 1, 0, 150)], "\ufeffsection,row,column,y,x")
    assert read_positions(table, 1, tiling)[0, 1] == (0.0, 150.0)
