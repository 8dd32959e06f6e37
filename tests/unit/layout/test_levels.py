"""Grids of the levels of a volume."""

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.layout.levels import level_grids
from octane.processes.resample.layout import target_of
from octane.processes.resample.parameters import ResampleParameters
from octane.store.image import open_image


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


@pytest.mark.parametrize("kind", ["section", "volume"])
def test_a_store_of_another_kind_is_not_resampled_as_a_mosaic(write_image, kind):
    path = write_image("a.ome.zarr", np.ones((4, 20, 30), np.float32), attributes={"kind": kind})
    asked = ResampleParameters(resolution=(20.0, 20.0, 20.0))
    with pytest.raises(OctaneError, match=f"is a {kind}, not a mosaic; give --layout volume"):
        target_of(open_image(path), asked)
    volume = asked.model_copy(update={"layout": "volume"})
    assert target_of(open_image(path), volume) == (20.0, 20.0, 20.0)
