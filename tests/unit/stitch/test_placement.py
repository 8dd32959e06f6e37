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


@pytest.mark.parametrize(("x", "subpixel"), [(154.0, False), (150.0 + 1e-7, True)])
def test_a_tile_is_placed_to_a_whole_voxel_where_asked_or_nearly_there(x, subpixel):
    layout = laid({(0, 0): (0.0, 0.0), (0, 1): (0.0, x)}, subpixel=subpixel)
    assert layout.places[0, 1][1].shift == 15.0


def square(n, pitch):
    return {(r, c): (r * pitch, c * pitch) for r in range(n) for c in range(n)}


@pytest.mark.parametrize(
    ("positions", "uncovered"),
    [
        (square(3, 150.0), 0),
        (square(2, 200.0), 0),
        ({(0, 0): (0.0, 0.0), (0, 1): (0.0, 250.0)}, 5 * 20),
        ({(0, 0): (0.0, 0.0), (1, 0): (230.0, 0.0)}, 3 * 20),
        # A cross of one pixel's width with its centre.
        (square(2, 210.0), 4 * 20 + 1),
        # Nothing is missing beyond the outer tiles.
        ({(0, 0): (0.0, 0.0), (0, 1): (-40.0, 150.0)}, 0),
    ],
    ids=["overlap", "side by side", "gap in x", "gap in y", "cross", "ragged outline"],
)
def test_what_lies_between_tiles_is_counted(positions, uncovered):
    assert laid(positions).uncovered() == uncovered


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
