"""Time of a step: the innermost span counts, sums are exact, pieces are limited."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core import timing
from octane.core.timing import Timeline, moved, span

STAGE = st.sampled_from(("read", "compute", "write"))


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by calls."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now.seconds)
    return lambda seconds: setattr(now, "seconds", now.seconds + seconds)


def test_the_innermost_span_counts(clock):
    timeline = Timeline()
    with timeline.here():
        with span("read"):
            clock(1)
            with span("decode"):
                clock(3)
            clock(2)
        clock(10)
    assert timeline.seconds() == {"read": 3, "decode": 3}
    assert timeline.tracks["main"].pieces() == [(0, 1, "read"), (1, 4, "decode"), (4, 6, "read")]


def test_seconds_are_moved_to_another_stage_and_the_piece_is_the_longer_ones(clock):
    timeline = Timeline()
    with timeline.here():
        with span("decode"):
            clock(4)
            moved("read", 1)
            moved("read", 2)
        with span("decode"):
            clock(4)
            moved("read", 1)
    assert timeline.seconds() == {"read": 4, "decode": 4}
    assert [stage for *_, stage in timeline.tracks["main"].pieces()] == ["read", "decode"]


@given(st.lists(st.tuples(STAGE, st.integers(1, 1000)), min_size=1, max_size=400))
def test_a_long_step_keeps_its_longest_pieces_and_exact_sums(steps):
    now = 0.0
    expected, spans = dict[str, float](), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "MOST", 64)
        patch.setattr(timing.time, "perf_counter", lambda: now)
        timeline = Timeline()
        with timeline.here():
            for stage, seconds in steps:
                spans.append((now, now + seconds, stage))
                with span(stage):
                    now += seconds
                expected[stage] = expected.get(stage, 0) + seconds
        track = timeline.tracks["main"]
        assert track.seconds == expected
        pieces = track.pieces()
    assert pieces == sorted(pieces)
    assert set(pieces) <= set(spans)
    # The longest pieces are kept, whatever came later.
    longest = sorted((b - a for a, b, _ in spans), reverse=True)[:64]
    assert sorted((b - a for a, b, _ in pieces), reverse=True) == longest


def test_seconds_on_the_wall_are_the_mean_of_threads_of_one_kind(clock):
    timeline = Timeline()
    with timeline.here(), span("fit"):
        clock(3)
    for lane, seconds in enumerate((4, 8)):
        with timeline.on(timeline.track(f"lane {lane}")), span("compute"):
            clock(seconds)
    with timeline.on(timeline.track("reader 0")), span("compute"):
        clock(1)
    assert timeline.seconds() == {"fit": 3, "compute": 13}
    assert timeline.wall_seconds() == {"fit": 3, "compute": 7}


def test_pieces_are_recorded_in_microseconds_of_the_start(clock):
    timeline = Timeline()
    with timeline.here():
        for stage in ("read", "write", "read"):
            with span(stage):
                clock(0.5)
    record = dict[str, Any](timeline.record())
    assert record["unit"] == "microsecond"
    assert record["tracks"][0]["stages"] == {
        "read": "0+500000 1000000+500000",
        "write": "500000+500000",
    }


def test_a_profiler_sees_every_span_and_the_parts_that_are_not_counted(monkeypatch, clock):
    said, nvtx = [], SimpleNamespace()
    nvtx.push_range = lambda name, domain: said.append((domain, name))
    nvtx.pop_range = lambda domain: said.append((domain, "end"))
    monkeypatch.setattr(timing, "_nvtx", nvtx)
    with (timeline := Timeline()).here(), span("fit"), span("histogram", counted=False):
        clock(1)
    assert said == [("octane", w) for w in ("fit", "histogram", "end", "end")]
    assert timeline.seconds() == {"fit": 1}


@pytest.mark.parametrize("profiled", [False, True])
def test_nvtx_is_loaded_under_a_profiler_alone(run_python, profiled):
    # NVTX ignores a missing library.
    library = {timing.PROFILED: "/nonexistent/injection.so" if profiled else ""}
    code = "import sys, octane.core.timing; print('nvtx' in sys.modules)"
    assert run_python(code, **library) == str(profiled)
