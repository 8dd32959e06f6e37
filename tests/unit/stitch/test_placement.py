"""Where tiles lie in a section's grid, and what lies between them."""

import numpy as np

from octane.stitch.placement import TilePlacement
from octane.store.mosaic_grid import MosaicGrid


def test_every_pixel_that_no_tile_saw_within_the_outer_tiles_is_counted(rng):
    positions = {
        (r, c): (r * 190.0 + float(dy), c * 190.0 + float(dx))
        for (r, c), (dy, dx) in zip(np.ndindex(3, 3), rng.uniform(-25, 25, (9, 2)), strict=True)
    }
    place = (10.0,) * 3, (0.0,) * 3, (30.0, 200.0, 200.0), (30.0, 600.0, 600.0)
    grid = MosaicGrid((3, 60, 60), (3, 20, 20), *place, None)
    layout = TilePlacement(grid, positions, subpixel=True)
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
