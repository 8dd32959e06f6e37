"""The target voxel size of RESAMPLE."""

import numpy as np
import pytest
from refusals import refused

from octane.processes.resample.layout import target_voxel_size
from octane.processes.resample.parameters import ResampleParameters
from octane.store.image import open_image


@pytest.mark.parametrize("kind", ["section", "volume"])
def test_a_store_of_another_kind_is_not_resampled_as_a_mosaic(write_image, kind):
    path = write_image("a.ome.zarr", np.ones((4, 20, 30), np.float32), attributes={"kind": kind})
    asked = ResampleParameters(resolution=(20.0, 20.0, 20.0))
    with refused(kind, "--layout"):
        target_voxel_size(open_image(path), asked)
    volume = asked.model_copy(update={"layout": "volume"})
    assert target_voxel_size(open_image(path), volume) == (20.0, 20.0, 20.0)
