"""The tile pipeline: lanes overlap, keep their buffers, and stop together."""

import errno
import mmap
import os
import re
import threading
import time

import numpy as np
import pytest
from refusals import refused

from octane.core.errors import OctaneError
from octane.core.metrics import Metrics
from octane.pipeline.lanes import run_pipeline


@pytest.fixture
def metrics():
    """Metrics of a step."""
    return Metrics("test")


@pytest.fixture
def run(metrics):
    """Run the pipeline on the CPU."""

    def go(tiles, work, workers=2, **more):
        run_pipeline(tiles, work, label="TEST", workers=workers, metrics=metrics, **more)

    return go


def test_reading_computing_and_writing_overlap(run):
    # Each tile waits for the others in a different stage: without overlap this would not end.
    together = threading.Barrier(3, timeout=20)

    def work(tile, lane):
        with lane.timed(("read", "compute", "write")[tile]):
            together.wait()
        return 1

    run([0, 1, 2], work, workers=3)


def test_a_lane_reuses_its_buffers_and_kept_objects(run):
    seen, made = set(), []

    def work(tile, lane):
        lane.keep("thing", lambda: made.append(tile) or object())
        block = lane.buffer("block", (4, 5), np.float32)
        block[:] = tile
        seen.add(block.__array_interface__["data"][0])
        time.sleep(0.001)
        assert np.all(block == tile)
        return 1

    run(list(range(50)), work, workers=2)
    assert 1 <= len(made) == len(seen) <= 2


def test_a_kernel_without_huge_pages_gives_buffers_all_the_same(run, monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(mmap, "mmap", Plain)
    run([0], lambda _, lane: lane.buffer("in", (3,), np.uint16).size)


def test_an_error_names_the_tile_and_stops_the_others(run):
    begun = []

    def work(tile, lane):
        begun.append(tile)
        with lane.timed("compute"):
            if tile == 3:
                raise OctaneError("torn")
            time.sleep(0.002)
        return 1

    with refused("torn") as caught:
        run(list(range(1000)), work, describe=lambda tile: f"tile {tile} of a.zarr")
    assert caught.value.__notes__ == ["while working on tile 3 of a.zarr"]
    assert len(begun) < 1000


def test_the_record_and_the_log_have_the_stages_of_the_lanes(run, metrics, caplog):
    caplog.set_level("INFO", logger="octane")

    def work(tile, lane):
        with lane.timed("read"):
            time.sleep(0.02)
        with lane.timed("compute"):
            time.sleep(0.001)
        return 1_000_000

    run(list(range(4)), work)
    spent = metrics.timeline.seconds()
    assert 0.08 <= spent["read"] > spent["compute"]
    assert re.fullmatch(r"TEST: 4 tiles, 2 workers, 0\.\d s: read \d+%, .*", caplog.messages[-1])
    # A second pipeline of a step counts its own seconds.
    run([0], lambda tile, lane: 1)
    assert "read" not in caplog.messages[-1]
