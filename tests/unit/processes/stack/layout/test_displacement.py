"""Displacements of sections, and tables of them."""

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.core.geometry import Grid
from octane.processes.stack.layout.displacement import Displacement, read_displacements

GRID = Grid((4, 20, 30), (10.0, 10.0, 10.0), (5.0, 5.0, 5.0))
HEADER = "section,y,x,rotation"


@pytest.fixture
def read(tmp_path):
    """Read a table of sections 1 to 3."""

    def run(*lines, header=HEADER, grid=GRID):
        table = tmp_path / "t.csv"
        table.write_text("\n".join([header, *lines]), encoding="utf-8")
        return read_displacements(table, {1, 2, 3}, grid)

    return run


def test_empty_rows_and_other_sections_are_not_given(read):
    found = read("3;-0.125;1e1;0;9", "1;;;;7", header="section;y;x;rotation;measured_y")
    assert found == {3: Displacement(-0.125, 10.0, 0.0)}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "must have the columns section, y, x, rotation"),
        (["1,0,0,0", "4,0,0,0"], "t.csv, line 3: the input has no section 4; remove the row"),
        (["1.5,0,0,0"], "line 2: the input has no section 1.5"),
        (["1,0,0,0", "1,,,"], "line 3: a second row for section 1"),
        (["1,0,0,"], "line 2: invalid row; .* or leave all three empty"),
        ([",0,0,0"], "line 2: invalid row"),
        (["1,left,0,0"], "line 2: invalid row"),
        (['1,0,"-3,5",0'], "line 2: x is '-3,5', which has a comma; write -3.5"),
        (["1,250,250,0"], "line 2: section 1 is displaced by more than .*, 300 micrometre"),
        (["1,nan,0,0"], "line 2: section 1 is displaced by more"),
        (["1,0,0,-181"], "line 2: .* or 180 degrees"),
    ],
)
def test_a_wrong_row_is_named(read, lines, words):
    with pytest.raises(InputError, match=words):
        read(*lines)


def test_voxels_must_be_as_high_as_wide(read):
    grid = Grid((4, 20, 30), (10.0, 10.0, 12.0), (5.0, 5.0, 6.0))
    with refused("10 x 12", error=InputError):
        read("1,0,0,0", grid=grid)
