"""Lanes on a GPU: copies there and back, and what is counted of them."""

from functools import partial
from typing import cast

import numpy as np
import pytest
from resampling import voxels

from octane.core.metrics import Metrics
from octane.gpu.run import Share
from octane.pipeline.lanes import run_pipeline


@pytest.mark.parametrize("dtype", ["f4", ">u2"])
def test_a_lane_copies_there_and_back_and_counts_both_also_of_a_try_that_fails(cupy, dtype):
    array, found, metrics = voxels((5, 6, 7), dtype), [], Metrics("n4")

    def work(tile, lane):
        block = lane.buffer("block", array.shape, array.dtype)
        block[...] = array
        device = lane.to_device(block)
        # A lane's buffer may be filled again at once.
        block[...] = 0
        found.append(lane.to_host(device + device.dtype.type(tile), "result").copy())
        lane.to_device(array)
        if tile == 3:
            raise MemoryError
        return 1

    share = Share(cupy, 1)
    run = partial(run_pipeline, label="T", workers=1, metrics=metrics, share=share)
    run(range(3), work)
    noted = cast("dict", metrics.figures["pipeline"])["T"]["transfers"]
    assert noted["to_device"]["bytes"] == 6 * array.nbytes
    assert noted["to_host"]["bytes"] == 3 * array.nbytes
    assert all(of["seconds"] > 0 for of in noted.values())
    with pytest.raises(MemoryError):
        run([3], work)
    assert metrics.bytes["copy"] == 12 * array.nbytes
    assert "copy" in metrics.seconds
    for tile, result in enumerate(found):
        np.testing.assert_array_equal(result, array + array.dtype.type(tile))
