"""Rows and columns of tiles, from their places or in spite of gaps in their numbers."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.processes.mosaic.names import NamedFile, NamePattern
from octane.processes.mosaic.parameters import TileParameters
from octane.processes.mosaic.place import Place
from octane.processes.mosaic.tile_grid import arrange

EXTENT = (100.0, 80.0)
FOLDER = Path("tiles")


def arranged(names, positions=None, text="*_{tile}.tif", spacing=(1.0, 1.0), **given):
    """Grid of files by name; ``positions`` are theirs, in the same order."""
    files = [NamedFile.read(name, NamePattern.of(text)) for name in names]
    places = {
        name: Place(name, None, None, None, None, (0.0, *place), "micrometer")
        for name, place in zip(names, positions or [], strict=False)
    }
    return arrange(files, places, TileParameters.model_validate(given), FOLDER, EXTENT, spacing)


def cells(grid):
    return [entry.tile for entry in grid.entries]


def test_places_give_rows_and_columns_despite_jitter_stagger_and_missing_tiles(rng):
    tiles = [(r, c) for r in range(30) for c in range(25) if (r, c) not in ((0, 0), (4, 7))]
    rng.shuffle(tiles)
    tiles = [(int(row), int(column)) for row, column in tiles]
    # A pitch of 90 x 70; each second column is lower by 0.4 of it.
    places = [
        (r * 90 + 36 * (c % 2) + a, c * 70 + b)
        for (r, c), (a, b) in zip(tiles, rng.uniform(-3, 3, (len(tiles), 2)), strict=True)
    ]
    grid = arranged([f"t_{k}.tif" for k in range(len(tiles))], places)
    assert cells(grid) == tiles
    assert (grid.rows, grid.columns, grid.placed_by) == (30, 25, "the places")
    assert grid.missing(1) == [(0, 0), (4, 7)]
    assert grid.draw(1)[4] == "#######." + "#" * 17


def test_two_tiles_in_one_cell_are_refused():
    places = [(0, 0), (0, 70), (90, 0), (100, 4)]
    with refused("t_2.tif", "tiles/t_3.tif", "row 1", "column 0"):
        arranged([f"t_{k}.tif" for k in range(4)], places)


@pytest.mark.parametrize("count", [1, 2])
def test_a_single_row_or_tile_is_a_grid(count):
    grid = arranged([f"t_{k}.tif" for k in range(count)], [(5, 0), (6, 70)][:count])
    assert (grid.rows, grid.columns) == (1, count)


def test_numbers_begin_with_the_smallest_of_all_sections():
    names = ["1_r5_c2.tif", "1_r6_c2.tif", "2_r6_c3.tif"]
    grid = arranged(names, text="{section}_r{row}_c{column}.tif")
    assert cells(grid) == [(0, 0), (1, 0), (1, 1)]
    assert grid.missing(2) == [(0, 0), (0, 1), (1, 0)]
    assert grid.remarks == [
        "Rows are numbered from 5; the first is taken as 0.",
        "Columns are numbered from 2; the first is taken as 0.",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {},
            (
                "--tile_rows",
                "--tile_columns",
                "--tile_order",
                "--tile_table",
            ),
        ),
        (
            {"order": "rows-snake-top-left"},
            (
                "--tile_rows",
                "--tile_columns",
            ),
        ),
        ({"order": "rows-snake-top-left", "rows": 4}, ("6",)),
        (
            {"order": "rows-snake-top-left", "rows": 1, "columns": 2},
            (
                "--tile_rows",
                "--tile_columns",
            ),
        ),
        (
            {"order": "rows-snake-top-left", "rows": 2, "flip": "y"},
            ("--tile_order",),
        ),
    ],
)
def test_numbers_without_an_order_that_fits_are_refused(given, sentence):
    with refused(*sentence):
        arranged([f"t_{k}.tif" for k in range(1, 7)], **given)


def test_rows_that_run_along_x_are_refused():
    names = [f"r{r}_c{c}.tif" for r in range(3) for c in range(3)]
    places = [(c * 90.0, r * 70.0) for r in range(3) for c in range(3)]
    with refused("--tile_pattern"):
        arranged(names, places, text="r{row}_c{column}.tif")
    grid = arranged(names, places, text="r{column}_c{row}.tif")
    np.testing.assert_allclose([e.position for e in grid.entries], places)


@pytest.mark.parametrize("order", ["rows-snake-top-left", "columns-raster-top-left"])
def test_an_order_that_contradicts_places_is_refused_by_name(order):
    names = [f"t_{k}.tif" for k in range(9)]
    places = [(r * 90.0, c * 70.0) for r in range(3) for c in range(3)]
    with refused("--tile_order"):
        arranged(names, places, order=order, rows=3, columns=3)
    assert arranged(names, places).rows == 3
    arranged(names, places, order="rows-raster-top-left", rows=3, columns=3)


def test_places_in_a_wrong_unit_are_not_taken_for_exchanged_rows():
    names = [f"r{r}_c{c}.tif" for r in range(3) for c in range(3)]
    places = [(r * 0.09, c * 0.07) for r in range(3) for c in range(3)]
    sentence = (
        "90",
        "70",
        "100",
        "80",
    )
    with refused(*sentence):
        arranged(names, places, text="r{row}_c{column}.tif")


@pytest.mark.parametrize("text", ["r{row}_c{column}.tif", "*.tif"])
@pytest.mark.parametrize(
    ("scale", "said"), [(1 / 8, "as if they were pixels"), (1e-3, "as if they were in millimetres")]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_places_that_are_too_near_are_named_with_their_unit(rng, text, scale, said, rows):
    names = [f"r{r}_c{c}.tif" for r in range(rows) for c in range(3)]
    near = rng.uniform(-1, 1, (len(names), 2)) if rows > 1 else np.zeros((len(names), 2))
    tiles = [(r * 90, c * 70) for r in range(rows) for c in range(3)]
    places = [
        ((y + a) * scale, (x + b) * scale) for (y, x), (a, b) in zip(tiles, near, strict=True)
    ]
    with pytest.raises(InputError, match=said):
        arranged(names, places, text=text, spacing=(8.0, 8.0))


def test_names_that_count_in_steps_give_rows_and_columns():
    tiles = [(row, column) for row in (0, 1, 3) for column in range(5) if (row, column) != (0, 2)]
    # As TeraStitcher's folders: tenths of a micrometre.
    names = [f"{21600 + 7200 * column:06d}_{-90 + 90 * row:06d}.tif" for row, column in tiles]
    grid = arranged(names, text="{column}_{row}.tif")
    assert cells(grid) == tiles
    assert grid.remarks == [
        "Rows are numbered from -90 in steps of 90.",
        "Columns are numbered from 21600 in steps of 7200.",
    ]
