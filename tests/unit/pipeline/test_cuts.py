"""Cuts are taken from the written blocks."""

import numpy as np
import pytest

from octane.core.geometry import Grid, blocks
from octane.core.metrics import Metrics
from octane.pipeline import cuts as pipeline_cuts
from octane.pipeline.cuts import Cuts
from octane.store.volumes import ArrayWriter


@pytest.mark.parametrize(("longest", "step"), [(256, 1), (16, 3)])
def test_cuts_are_planes_of_the_written_volume(rng, monkeypatch, longest, step):
    voxels = rng.random((7, 20, 33), np.float32)
    monkeypatch.setattr(pipeline_cuts, "CUT", longest)
    written, metrics = np.empty(voxels.shape, np.complex64), Metrics("stack")
    cuts = Cuts(ArrayWriter(written), Grid(written.shape, (2.0, 1.0, 1.0)), written.dtype, 2)
    for region in blocks(voxels.shape, (4, 8, 10)):
        cuts[region] = 1j * voxels[region]
    cuts.note(metrics)
    np.testing.assert_array_equal(written, 1j * voxels)
    for axis, at in enumerate((2, 10, 16)):
        plane = voxels.take(at, axis)[::step, ::step]
        np.testing.assert_array_equal(metrics.previews[f"slice_{'zyx'[axis]}"], plane)
    assert metrics.previews["slice_spacing"].tolist() == [2 * step, step, step]
