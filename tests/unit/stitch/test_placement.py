"""Where tiles lie in a section's grid, and what lies between them."""

import numpy as np
import pytest

from octane.stitch.placement import TilePlacement
from octane.store.mosaic_grid import MosaicGrid


def grid_of_tiles(rows, columns, tile=20, spacing=10.0):
    """Tiles of ``tile`` voxels, all full."""
    extent = tile * spacing
    return MosaicGrid(
        (3, rows * tile, columns * tile),
        (3, tile, tile),
        (spacing, spacing, spacing),
        (0.0, 0.0, 0.0),
        (3 * spacing, extent, extent),
        (3 * spacing, rows * extent, columns * extent),
        None,
    )


def laid(positions, *, subpixel=True):
    rows, columns = (1 + max(tile[axis] for tile in positions) for axis in range(2))
    return TilePlacement(grid_of_tiles(rows, columns), positions, subpixel=subpixel)


def test_a_section_reaches_from_its_first_tile_to_its_last():
    layout = laid({(0, 0): (0.0, 0.0), (0, 1): (-30.0, 150.0)})
    assert layout.grid.shape == (3, 23, 35)
    assert layout.edge == (0.0, -30.0, 0.0)
    assert layout.grid.edge == pytest.approx(layout.edge)
    assert layout.extent == (30.0, 230.0, 350.0)


def test_a_tile_is_placed_to_a_fraction_of_a_voxel():
    layout = laid({(0, 0): (0.0, 0.0), (0, 1): (0.0, 154.0)})
    y, x = layout.places[0, 1]
    assert (y.shift, x.shift) == (0.0, pytest.approx(15.4))
    # Centres from 15.5 voxels on, which is 0.1 voxel behind the tile's edge.
    assert (x.first, x.last) == (15, 35)
    assert x.before == pytest.approx(4.6)
    assert x.after == 0
    assert layout.places[0, 0][1].after == pytest.approx(4.6)


def test_or_to_the_nearest_voxel():
    layout = laid({(0, 0): (0.0, 0.0), (0, 1): (0.0, 154.0)}, subpixel=False)
    assert layout.places[0, 1][1].shift == 15.0


def test_rounding_does_not_make_a_whole_place_a_fraction():
    layout = laid({(0, 0): (0.0, 0.0), (0, 1): (0.0, 150.0 + 1e-7)})
    assert layout.places[0, 1][1].shift == 15.0


def test_overlapping_tiles_leave_nothing_uncovered():
    positions = {(r, c): (r * 150.0, c * 150.0) for r in range(3) for c in range(3)}
    assert laid(positions).uncovered() == 0


def test_tiles_side_by_side_leave_nothing_uncovered():
    positions = {(r, c): (r * 200.0, c * 200.0) for r in range(2) for c in range(2)}
    assert laid(positions).uncovered() == 0


def test_a_gap_between_two_tiles_is_counted():
    assert laid({(0, 0): (0.0, 0.0), (0, 1): (0.0, 250.0)}).uncovered() == 5 * 20
    assert laid({(0, 0): (0.0, 0.0), (1, 0): (230.0, 0.0)}).uncovered() == 3 * 20


def test_a_hole_among_four_tiles_is_counted():
    positions = {
        (0, 0): (0.0, 0.0),
        (0, 1): (0.0, 210.0),
        (1, 0): (210.0, 0.0),
        (1, 1): (210.0, 210.0),
    }
    # A cross of one pixel's width with its centre.
    assert laid(positions).uncovered() == 4 * 20 + 1


def test_a_ragged_outline_is_no_gap():
    assert laid({(0, 0): (0.0, 0.0), (0, 1): (-40.0, 150.0)}).uncovered() == 0


def test_every_pixel_that_no_tile_saw_within_the_outer_tiles_is_counted(rng):
    positions = {
        (r, c): (r * 190.0 + float(dy), c * 190.0 + float(dx))
        for (r, c), (dy, dx) in zip(np.ndindex(3, 3), rng.uniform(-25, 25, (9, 2)), strict=True)
    }
    layout = laid(positions)
    seen = np.zeros(layout.grid.shape[1:], bool)
    for y, x in layout.places.values():
        seen[y.first : y.last, x.first : x.last] = True
    rows, columns = (
        slice(
            max(p[axis].first for t, p in layout.places.items() if t[axis] == 0),
            min(p[axis].last for t, p in layout.places.items() if t[axis] == 2),
        )
        for axis in (0, 1)
    )
    assert layout.uncovered() == (~seen[rows, columns]).sum() > 0
