"""Pixel-centred grids in micrometres."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.geometry import blocks, bounds, samples


@pytest.mark.parametrize(
    ("extent", "spacing", "expected"),
    [(100, 25, 4), (3 * 3.5, 7, 2), (3 * 0.7, 1.4, 2), (2.5, 1, 3), (0.2, 1, 1), (103, 10, 10)],
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
    assert bounds(region).split()[0] == f"{region[0].start}:{shape[0]}"
