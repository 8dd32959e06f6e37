"""Grids of the levels of a volume."""

import pytest

from octane.core.geometry import Grid
from octane.layout.levels import level_grids


@pytest.mark.parametrize(
    ("spacing", "coarser"),
    [
        ((10.0, 10.0, 10.0), (25, 50, 100)),
        ((3.5, 4.0, 4.0), (10, 25, 50, 100)),
        ((30.0, 30.0, 30.0), (50, 100)),
        ((200.0, 10.0, 10.0), ()),
    ],
)
def test_unasked_it_has_its_own_resolution_and_the_usual_coarser_ones(spacing, coarser):
    levels = level_grids(Grid((80, 80, 80), spacing), None)
    assert [level.spacing for level in levels] == [spacing, *((t, t, t) for t in coarser)]
