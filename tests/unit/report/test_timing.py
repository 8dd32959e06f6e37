"""Seconds of a run: tasks are added up, and pauses between them left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core.records import Record
from octane.report.timing import KINDS, OWN, PAUSE, Clock, occupancy, step_bound


def task(started: float, *tracks: dict[str, str], **seconds: float) -> Record:
    named = [{"name": f"lane {k}", "stages": stages} for k, stages in enumerate(tracks)]
    timeline = {"started": started, "tracks": named}
    return Record.model_validate({"step": "n4", "timeline": timeline, "seconds": seconds})


def test_the_bound_of_a_step_is_that_of_its_tasks_together():
    walls = [{"read": 5.0, "compute": 4.0}, {"compute": 4.0}, {}]
    records = [Record(step="resample", wall_seconds=of) for of in walls]
    found = step_bound(records)
    assert found is not None
    assert (found.stage, found.by) == ("compute", "cores")
    found = step_bound([*records, Record(step="resample", device={"backend": "gpu"})])
    assert found is not None
    assert found.by == "GPU"
    assert step_bound([Record(step="resample")]) is None


def test_a_clock_leaves_out_pauses():
    day = 86400.0
    clock = Clock([(day, day + 5), (0.0, 10.0), (3.0, 20.0), (20.0 + PAUSE / 2, 60.0)])
    assert clock.end == pytest.approx(60 + 5)
    assert clock.pauses == [clock(day)]


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.1, 100)), min_size=1, max_size=12))
def test_a_clock_never_goes_back_and_never_runs_fast(tasks):
    intervals = [(begin, begin + length) for begin, length in tasks]
    clock = Clock(intervals)
    moments = np.array(sorted(m for interval in intervals for m in interval))
    shown = np.array([clock(moment) for moment in moments])
    assert shown[0] == 0
    steps, real = np.diff(shown), np.diff(moments)
    assert (steps >= -1e-6).all()
    assert (steps <= real + 1e-6).all()
    assert shown.max() <= clock.end + 1e-6


def test_workers_are_counted_by_what_they_do():
    records = [
        task(100.0, {"read": "0+1000000", "compute": "1000000+1000000"}, {"fit": "0+2000000"}),
        task(101.0, {"read": "0+500000", "other": "500000+500000"}),
    ]
    clock = Clock([(100.0, 102.0), (101.0, 102.0)])
    found = occupancy(records, clock, np.linspace(0, 2, 5))
    assert list(found) == list(KINDS)
    np.testing.assert_allclose(found["read"], [1, 1, 1, 0], atol=1e-9)
    np.testing.assert_allclose(found["compute"], [0, 0, 1, 1], atol=1e-9)
    np.testing.assert_allclose(found[OWN], [1, 1, 1, 1], atol=1e-9)
    np.testing.assert_allclose(found["write"], 0)


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.floats(1, 3),
)
def test_the_pieces_stand_for_all_seconds_of_their_stage(pieces, more):
    text = " ".join(f"{start}+{length}" for start, length in pieces)
    seconds = more * sum(length for _, length in pieces) / 1e6
    edges = np.linspace(0, 12, 37)
    record = task(5.0, {"write": text}, write=seconds)
    found = occupancy([record], Clock([(5.0, 17.0)]), edges)["write"]
    assert found.sum() * (edges[1] - edges[0]) == pytest.approx(seconds, rel=1e-6)
