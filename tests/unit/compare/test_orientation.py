"""Orientation of a grid of tiles, found from their overlaps."""

import numpy as np
import pytest

from octane.compare.orientation import ORIENTATIONS, Orientation, find_orientation
from octane.core.filters import gaussian

TILE, PITCH = (56, 44), (46, 36)


@pytest.fixture(scope="module")
def tiles():
    """Overlapping tiles, 3 x 3, of one smooth texture."""
    rng = np.random.default_rng(3)
    scene = gaussian(rng.standard_normal((150, 120)), 2.0).astype(np.float32)
    return {
        (r, c): scene[r * PITCH[0] :, c * PITCH[1] :][: TILE[0], : TILE[1]] + 1
        for r in range(3)
        for c in range(3)
    }


@pytest.mark.parametrize("orientation", ORIENTATIONS, ids=str)
def test_the_change_that_restores_the_grid_is_found(tiles, orientation):
    given = {}
    for tile, image in tiles.items():
        # The label from which the orientation leads back to the tile.
        row, column = (-tile[0] if "y" in orientation.flip else tile[0]), tile[1]
        column = -column if "x" in orientation.flip else column
        given[(column, row) if orientation.transpose else (row, column)] = image
    found = find_orientation(given)
    assert found is not None
    assert (found.best, found.is_clear) == (orientation, True)
    assert found.is_other == (orientation != Orientation())
    assert found.overlap == pytest.approx((1 - 46 / 56, 1 - 36 / 44), abs=0.01)


def test_tiles_without_common_structure_do_not_propose_a_change(rng):
    noise = {(r, c): rng.random(TILE, np.float32) for r in range(3) for c in range(3)}
    found = find_orientation(noise)
    assert found is None or not (found.is_clear or found.is_other)
    assert find_orientation({(0, 0): noise[0, 0]}) is None


def test_tiles_too_small_to_compare_as_given_do_not_propose_a_change():
    scene = gaussian(np.random.default_rng(3).standard_normal((80, 80)), 2.0).astype(np.float32)
    # Overlaps of 8 pixels; the wrong neighbours seem to fit by chance, at wider ones.
    small = {(r, c): scene[24 * r :, 24 * c :][:32, :32] + 1 for r in range(3) for c in range(3)}
    assert find_orientation(small) is None
