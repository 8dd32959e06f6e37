"""How a mosaic grid is cut into tiles, and which of their properties resampling keeps."""

from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from octane.config import sheets
from octane.core.errors import OctaneError
from octane.core.geometry import shape_of
from octane.layout.mosaic import (
    MosaicGrid,
    read_depths,
    read_gains,
    read_positions,
    require_sections,
    split_sections,
)
from octane.resample.operator import resampler
from octane.store.image import open_image


def test_more_tiles_than_a_mosaic_has_are_refused_at_once(write_mosaic):
    image = open_image(write_mosaic("a.zarr", np.zeros((6, 50, 36), np.float32), (6, 20, 24)))
    vast = replace(image, grid=replace(image.grid, shape=(6, 10**6, 10**6)))
    with refused("2083350000"):
        MosaicGrid.of(vast)


def test_a_mosaic_of_others_is_taken_as_it_stands(write_foreign):
    # Chunks may be larger than the grid.
    path = write_foreign("a.zarr", np.zeros((4, 20, 30), np.float32), chunks=(8, 64, 20))
    tiling = MosaicGrid.of(open_image(path))
    assert (tiling.tile, tiling.tiles, tiling.pitch) == ((4, 20, 20), [(0, 0), (0, 1)], None)
    assert tiling.tile_extent == (40.0, 200.0, 200.0)
    assert tiling.extent == (40.0, 200.0, 300.0)


@pytest.mark.parametrize("target", [(20, 7.5, 12), (7, 10, 10), (3, 4, 5)])
def test_each_tile_is_resampled_on_a_grid_that_is_centred_on_it(write_mosaic, target):
    tiling = MosaicGrid.of(
        open_image(write_mosaic("a.zarr", np.zeros((6, 50, 37), np.float32), (6, 20, 24)))
    )
    made = tiling.with_spacing(target)
    assert (made.tiles, made.tile_extent, made.extent) == (
        tiling.tiles, tiling.tile_extent, tiling.extent,
    )  # fmt: skip
    for tile in tiling.tiles:
        axes = zip(tiling.region(tile), tiling.spacing, target, strict=True)
        operators = [resampler(r.stop - r.start, spacing, t) for r, spacing, t in axes]
        assert shape_of(made.region(tile)) == tuple(operator.size for operator in operators)
    np.testing.assert_allclose(np.add(made.edge, made.margin((0, 0))), made.grid.edge)
    assert (made.grid.shape, made.grid.spacing) == (made.shape, target)


@pytest.fixture
def row(write_mosaic):
    """One row of two tiles."""
    source = write_mosaic("section_01.ome.zarr", np.ones((2, 20, 40), np.float32), (2, 20, 20))
    return MosaicGrid.of(open_image(source))


@pytest.fixture
def write_table(tmp_path):
    def write(rows, header="section,row,column,y,x", newline="\n"):
        lines = [header, *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "t.csv").write_text(newline.join(lines) + newline, newline="")
        return tmp_path / "t.csv"

    return write


# Excel begins a file with a byte order mark and ends it with empty rows; pandas writes 1.0 for 1.
@pytest.mark.parametrize(
    ("mark", "newline", "separator"),
    [("", "\n", ","), ("", "\r", ", "), ("\ufeff", "\r\n", ";"), ("", "\r\n", "\t")],
)
def test_more_sections_and_columns_in_any_order_are_read(
    row, write_table, monkeypatch, mark, newline, separator
):
    rows = [(5, 2, 5, 0, 0, "b"), (-1.5, 1.0, 150, 1.0, 0, "a"), (3, 1, 7, 0, 0, "a"), [""] * 6]
    table = write_table(rows, f"{mark}y,section,x,column,row,note", newline)
    table.write_bytes(table.read_bytes().replace(b",", separator.encode()))
    found = read_positions(table, 1, row)
    assert found == {(0, 0): (3.0, 7.0), (0, 1): (-1.5, 150.0)}
    # It is parsed once for all sections, and again after it has changed.
    with monkeypatch.context() as patch:
        patch.delattr(sheets, "_read_csv")
        assert read_positions(table, 1, row) == found
    table.write_text(table.read_text(encoding="utf-8").replace("150", "160"), encoding="utf-8")
    assert read_positions(table, 1, row)[0, 1] == (-1.5, 160.0)


FIRST = (1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([], ("section, row, column, y, x",)),
        ([FIRST, (1, 0, 1, "far", 0)], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 1, '"0,25"', 0)], ("line 3", "y is '0,25'", "0.25")),
        ([FIRST, (1, 0, 0.5, 0, 0)], ("line 3", "1e+09")),
        ([FIRST, (1, "inf", 1, 0, 0)], ("line 3", "1e+09")),
        ([FIRST, [], (1, 0, 1, 0)], ("line 4", "4 cells", "5 columns")),
        ([FIRST, (1, 0, 1, 0, "")], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 1, 0, "nan")], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 1, 0, "inf")], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 1, 0, "-1e300")], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 0, 5, 5)], ("line 3", "1e+09")),
        ([FIRST, (1, 0, 1, 5, 5), (1, 1, 0, 0, 0)], ("line 4", "row 1, column 0", "1 x 2")),
        ([FIRST, (1, 0, -1, 5, 5)], ("line 3", "row 0, column -1", "1 x 2")),
        ([FIRST], ("1 tiles", "row 0, column 1 of section 1")),
        ([(2, 0, 0, 0, 0), (2, 0, 1, 0, 9)], ("2 tiles", "row 0, column 0 of section 1")),
    ],
)
def test_what_a_table_lacks_is_named(row, write_table, rows, names):
    table = write_table(rows)
    with refused(table, *names):
        read_positions(table, 1, row)


GAINS = "section,row,column,gain"
EVEN = (1, 0, 0, 1)


def test_gains_are_read_as_they_were_written(row, write_table):
    table = write_table([(2, 0, 1, 5), (1, 0, 1, 0.1 + 0.2), EVEN], GAINS)
    assert read_gains(table, 1, row) == {(0, 0): 1.0, (0, 1): 0.1 + 0.2}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([], ("section, row, column, gain",)),
        ([EVEN, (1, 0, 1, "bright")], ("line 3", "0.001 to 1000")),
        ([EVEN, (1, 0, 1, '"0,25"')], ("line 3", "gain is '0,25'", "0.25")),
        *(
            ([EVEN, (1, 0, 1, gain)], ("line 3", "0.001 to 1000"))
            for gain in (0, -1, "nan", "inf", 1001)
        ),
        ([EVEN, (1, "inf", 1, 1)], ("line 3", "0.001 to 1000")),
        ([EVEN, (1, 0, 0.5, 1)], ("line 3", "0.001 to 1000")),
        ([EVEN, EVEN], ("line 3", "0.001 to 1000")),
        ([EVEN, (1, 0, 1)], ("line 3", "3 cells", "4 columns")),
        ([EVEN, (1, 0, 2, 1)], ("line 3", "row 0, column 2", "1 x 2")),
        ([EVEN, (2, 0, 1, 1)], ("1 tiles", "row 0, column 1 of section 1")),
    ],
)
def test_what_a_table_of_gains_lacks_is_named(row, write_table, rows, names):
    table = write_table(rows, GAINS)
    with refused(table, *names):
        read_gains(table, 1, row)


def test_a_row_of_a_section_that_is_not_there_is_named(write_table):
    table = write_table([FIRST, (2.0, 0, 0, 0, 0), (3, 0, 0, 0, 0)])
    require_sections(table, {1, 2, 3})
    with refused(table, "line 4", "section 3"):
        require_sections(table, {1, 2, None})


def test_a_table_that_is_not_there_is_named(row, tmp_path):
    with refused("none.csv"):
        read_positions(tmp_path / "none.csv", 1, row)


@pytest.fixture
def declaring(write_image):
    """Open a mosaic of 3 x 3 tiles of 40 um whose metadata declare ``tiles`` as not imaged."""

    def write(*tiles):
        noted = {"not_imaged": [list(tile) for tile in tiles]} if tiles else {}
        attributes = {"kind": "mosaic", "mosaic": noted}
        voxels = np.ones((2, 12, 12), np.float32)
        return open_image(
            write_image("a.ome.zarr", voxels, chunks=(2, 4, 4), attributes=attributes)
        )

    return write


def test_tiles_that_were_not_imaged_stay_so_when_resampled(declaring):
    tiling = MosaicGrid.of(declaring((1, 2), (0, 0)))
    coarse = tiling.with_spacing((20.0, 20.0, 20.0))
    assert coarse.attributes()["not_imaged"] == [[0, 0], [1, 2]]
    assert coarse.imaged_tiles == [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert (tiling.voxels, coarse.voxels) == (7 * 2 * 4 * 4, 7 * 1 * 2 * 2)


def test_a_mosaic_that_declares_nothing_notes_nothing(declaring):
    tiling = MosaicGrid.of(declaring())
    assert (tiling.imaged_tiles, tiling.voxels) == (tiling.tiles, 2 * 12 * 12)
    assert "not_imaged" not in tiling.attributes()


@pytest.mark.parametrize(
    ("tiles", "holes"),
    [([(0, 0), (0, 1)], []), ([(1, 1)], [(1, 1)]), ([(1, 1), (0, 0)], [(1, 1)]),
     ([(1, 1), (1, 2)], [])],
)  # fmt: skip
def test_a_hole_is_what_imaged_tiles_enclose(declaring, tiles, holes):
    assert MosaicGrid.of(declaring(*tiles)).holes == {*holes}


def test_rows_and_columns_beyond_the_imaged_tiles_are_not_within_them(declaring):
    tiling = MosaicGrid.of(declaring((0, 2), (1, 2), (2, 2), (0, 0)))
    assert [tiling.surrounds(tile) for tile in ((0, 0), (1, 1), (1, 2), (2, 2))] == [
        *(True, True),
        *(False, False),
    ]


@pytest.mark.parametrize(
    ("tiles", "names"),
    [
        ([(0, 0), (1, 3)], ("3 x 3", "row 1, column 3", "octane.mosaic.not_imaged")),
        ([*np.ndindex(3, 3)], ("--allow_missing_sections", "octane.mosaic.not_imaged")),
        ([(0, -1)], ("octane.mosaic.not_imaged.0.1",)),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(declaring, tiles, names):
    with refused("a.ome.zarr", *names):
        MosaicGrid.of(declaring(*tiles))


def test_a_table_may_lack_tiles_that_were_not_imaged(declaring, write_table):
    tiling = MosaicGrid.of(declaring((1, 1), (2, 2)))
    rows = [(1, r, c, 30 * r + c, 35 * c - r) for r, c in tiling.imaged_tiles]
    found = read_positions(write_table(rows), 1, tiling)
    assert [*found] == tiling.tiles
    np.testing.assert_allclose(found[1, 1], (31, 34))
    np.testing.assert_allclose(found[2, 2], (62, 68))
    # A row that is given counts.
    found = read_positions(write_table([*rows, (1, 2, 2, 64, 70)]), 1, tiling)
    assert found[2, 2] == (64, 70)
    with refused("1 tiles", "row 2"):
        read_positions(write_table(rows[:-1]), 1, tiling)


# Depths

DEEP = "section,row,column,y,x,z"


@pytest.fixture
def deep(write_mosaic):
    """One row of two tiles of 9 planes of 10 micrometres."""
    source = write_mosaic("section_01.ome.zarr", np.ones((9, 20, 40), np.float32), (9, 20, 20))
    return MosaicGrid.of(open_image(source))


@pytest.mark.parametrize(
    ("z", "depths"),
    [
        (30, {(0, 1): 3}),
        (-40.0, {(0, 1): -4}),
        # To the nearest plane, as tables may be of another resolution.
        (-26, {(0, 1): -3}),
        (4, {}),
        (0, {}),
        ("", {}),
    ],
)
def test_depths_are_read_in_whole_planes(deep, write_table, z, depths):
    table = write_table([(1, 0, 0, 0, 0, ""), (1, 0, 1, 0, 16, z), (2, 0, 0, 0, 0, 999)], DEEP)
    assert read_depths(table, 1, deep) == depths
    assert read_positions(table, 1, deep) == {(0, 0): (0, 0), (0, 1): (0, 16)}


def test_a_table_without_depths_or_of_one_depth_moves_nothing(deep, write_table):
    alike = write_table([(1, 0, 0, 0, 0, 1500), (1, 0, 1, 0, 16, 1500)], DEEP)
    assert read_depths(alike, 1, deep) == {}
    assert read_depths(write_table([(1, 0, 0, 0, 0), (1, 0, 1, 0, 16)]), 1, deep) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [(0, 50), (0, -50), (0, "nan"), (0, "inf"), (0, "1e300"), (0, "deep"), (20, 30)],
)
def test_depths_that_are_none_are_refused(deep, write_table, first, second):
    table = write_table([(1, 0, 0, 0, 0, first), (1, 0, 1, 0, 16, second)], DEEP)
    with pytest.raises(OctaneError) as caught:
        read_depths(table, 1, deep)
    assert str(table) in str(caught.value)


def test_a_section_s_rows_keep_their_depths(write_table):
    table = write_table([(1, 0, 0, 0, 0, ""), (1, 0, 1, 0, 9, 30), (2, 0, 0, 0, 0, "")], DEEP)
    assert split_sections(table) == {
        1: f"{DEEP}\n1,0,0,0,0,\n1,0,1,0,9,30\n",
        # Without any, as from a table without the column.
        2: "section,row,column,y,x\n2,0,0,0,0\n",
    }
