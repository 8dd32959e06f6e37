"""The sixteen orders of tiles."""

from itertools import product
from typing import get_args

import pytest

from octane.processes.mosaic.orders import changed_order, tile_at
from octane.processes.mosaic.parameters import TileOrder


@pytest.mark.parametrize(
    ("order", "drawn"),
    [
        ("rows-raster-top-left", ["012", "345"]),
        ("rows-snake-top-right", ["210", "345"]),
        ("columns-raster-bottom-left", ["135", "024"]),
        ("columns-snake-bottom-right", ["521", "430"]),
    ],
)
def test_orders_are_as_drawn(order, drawn):
    numbers = {tile_at(index, order, 2, 3): str(index) for index in range(6)}
    assert ["".join(numbers[row, column] for column in range(3)) for row in range(2)] == drawn


@pytest.mark.parametrize("order", get_args(TileOrder))
def test_a_changed_order_visits_the_changed_tiles(order):
    rows, columns = 3, 4
    for transpose, flip in product((False, True), ("", "y", "x", "yx")):
        shape = (columns, rows) if transpose else (rows, columns)
        changed = changed_order(order, flip, transpose=transpose)
        for index in range(rows * columns):
            row, column = tile_at(index, order, rows, columns)
            row, column = (column, row) if transpose else (row, column)
            row = shape[0] - 1 - row if "y" in flip else row
            column = shape[1] - 1 - column if "x" in flip else column
            assert tile_at(index, changed, *shape) == (row, column)
