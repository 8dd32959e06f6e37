"""The tile pipeline: lanes overlap, keep their buffers, and stop together."""

import re
import threading

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.core.metrics import Metrics
from octane.pipeline.lanes import run_pipeline


@pytest.fixture
def metrics():
    """Of a step."""
    return Metrics("test")


@pytest.fixture
def run(metrics):
    """Run the pipeline on the CPU."""

    def go(tiles, work, workers=2, **more):
        run_pipeline(tiles, work, label="TEST", workers=workers, xp=np, metrics=metrics, **more)

    return go


def test_every_tile_is_done_once(run):
    done = []
    run(list(range(100)), lambda tile, lane: done.append(tile) or 1, workers=3)
    assert sorted(done) == list(range(100))


def test_no_tiles_are_no_work(run):
    run([], lambda tile, lane: pytest.fail("worked"))


def test_reading_computing_and_writing_overlap(run):
    # Each tile waits in a stage of its own for the others: without overlap this would not end.
    together = threading.Barrier(3, timeout=20)

    def work(tile, lane):
        with lane.timed(("read", "compute", "write")[tile]):
            together.wait()
        return 1

    run([0, 1, 2], work, workers=3)


def test_no_more_tiles_are_in_flight_than_there_are_workers(run):
    lock, flying, most = threading.Lock(), 0, 0

    def work(tile, lane):
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        threading.Event().wait(0.002)
        with lock:
            flying -= 1
        return 1

    run(list(range(40)), work, workers=3)
    assert 1 <= most <= 3


def test_a_lane_uses_its_buffers_again(run):
    seen = set()

    def work(tile, lane):
        block = lane.buffer("block", (4, 5), np.float32)
        block[:] = tile
        seen.add(block.__array_interface__["data"][0])
        threading.Event().wait(0.001)
        assert np.all(block == tile)
        return 1

    run(list(range(50)), work, workers=2)
    assert 1 <= len(seen) <= 2


def test_a_buffer_takes_any_shape_and_type_and_grows(run):
    def work(shape, lane):
        block = lane.buffer("block", shape, np.complex64)
        block[:] = 1j
        assert block.shape == shape
        small = lane.buffer("block", (2,), np.uint8)
        assert small.dtype == np.uint8
        return block.nbytes

    run([(2, 3), (40, 50), (1, 1)], work, workers=1)


def test_what_a_lane_keeps_is_made_once(run):
    made = []

    def work(tile, lane):
        lane.keep("thing", lambda: made.append(tile) or object())
        return 1

    run(list(range(30)), work, workers=1)
    assert made == [0]


@pytest.mark.parametrize("stage", ["read", "compute", "write"])
def test_an_error_in_any_stage_names_the_tile_and_stops_the_others(run, stage):
    begun = []

    def work(tile, lane):
        begun.append(tile)
        with lane.timed(stage):
            if tile == 3:
                raise OctaneError("torn")
            threading.Event().wait(0.002)
        return 1

    with pytest.raises(OctaneError, match="torn") as caught:
        run(list(range(1000)), work, describe=lambda tile: f"tile {tile} of a.zarr")
    assert caught.value.__notes__ == ["while working on tile 3 of a.zarr"]
    assert len(begun) < 1000


@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_every_tile_is_fetched_once_and_before_those_behind_it(run, ahead):
    order = []

    def work(tile, lane):
        order.append(("work", tile))
        return 1

    run(
        list(range(20)),
        work,
        workers=1,
        fetch=lambda tile: order.append(("fetch", tile)),
        ahead=ahead,
    )
    fetched = [tile for what, tile in order if what == "fetch"]
    if ahead == 0:
        assert fetched == []
        return
    assert fetched == list(range(20))
    for tile in range(20):
        at = order.index(("work", tile))
        assert sum(what == "fetch" for what, _ in order[:at]) == min(20, tile + 1 + ahead)


def test_the_record_and_the_log_have_the_stages_of_the_lanes(run, metrics, caplog):
    caplog.set_level("INFO", logger="octane")

    def work(tile, lane):
        with lane.timed("read"):
            threading.Event().wait(0.02)
        with lane.timed("compute"):
            threading.Event().wait(0.001)
        return 1_000_000

    run(list(range(4)), work)
    noted = metrics.figures["pipeline"]["TEST"]
    assert (noted["tiles"], noted["workers"], noted["transfers"]) == (4, 2, {})
    spent = noted["lane_seconds"]
    assert spent["read"] > spent["compute"] > spent["write"] == 0
    assert sum(spent.values()) <= noted["workers"] * noted["seconds"]
    assert noted["megabytes_per_second"] == pytest.approx(4 / noted["seconds"])
    assert re.search(r"TEST: 4 tiles, 2 workers, 0\.\d s: read \d+%, ", caplog.messages[-1])
    assert metrics.record()["bound"]["stage"] == "read"


def test_a_second_pipeline_of_a_step_has_seconds_of_its_own(run, metrics):
    def work(tile, lane):
        with lane.timed("read"):
            threading.Event().wait(0.05)
        return 1

    run([0], work)
    run([0], lambda tile, lane: 1)
    assert metrics.figures["pipeline"]["TEST"]["lane_seconds"]["read"] == 0
    assert metrics.seconds["read"] >= 0.05
