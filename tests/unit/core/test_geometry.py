"""Pixel-centred grids in micrometres."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.geometry import Grid, blocks, samples, vector

SPACING = st.floats(0.1, 100)


@given(
    shape=st.tuples(*[st.integers(1, 500)] * 3),
    spacing=st.tuples(*[SPACING] * 3),
    edge=st.tuples(*[st.floats(-1e4, 1e4)] * 3),
)
def test_a_grid_covers_what_it_was_made_to_cover(shape, spacing, edge):
    extent = vector(*(n * s for n, s in zip(shape, spacing, strict=True)))
    grid = Grid.covering(edge, extent, spacing)
    assert grid.shape == shape
    assert grid.spacing == spacing
    np.testing.assert_allclose(grid.edge, edge, atol=1e-6)
    np.testing.assert_allclose(grid.extent, extent)


@pytest.mark.parametrize(
    ("extent", "spacing", "expected"),
    [(100, 25, 4), (3 * 3.5, 7, 2), (0.1 * 3 * 5, 0.3, 5), (2.5, 1, 3), (0.2, 1, 1), (103, 10, 10)],
)
def test_halves_are_rounded_up_and_rounding_errors_do_not_decide(extent, spacing, expected):
    assert samples(extent, spacing) == expected


@given(shape=st.tuples(*[st.integers(1, 12)] * 3), size=st.tuples(*[st.integers(1, 7)] * 3))
def test_blocks_cover_a_shape_once(shape, size):
    seen = np.zeros(shape, int)
    for region in blocks(shape, size):
        seen[region] += 1
        assert all(0 < r.stop - r.start <= n for r, n in zip(region, size, strict=True))
    assert (seen == 1).all()
