"""Where time goes: the innermost span counts, sums are exact, and the pieces stay few."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.core import timing
from octane.core.idling import Idling
from octane.core.timing import MOST, RECORDED, Timeline, coarsened, moved, span

STAGE = st.sampled_from(("read", "compute", "write"))


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now.seconds)

    def pass_(seconds: float) -> None:
        now.seconds += seconds

    return pass_


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


@pytest.fixture
def watched(clock):
    """Two lanes of a timeline, and the clock that runs while neither computes."""
    timeline, idling = Timeline(), Idling(0.0)
    lanes = [timeline.track(f"lane {k}") for k in range(2)]
    for lane in lanes:
        lane.watch(idling)
    return clock, idling, lanes


def test_what_lanes_did_while_none_computed_is_counted(watched):
    clock, idling, (first, second) = watched
    clock(1)
    first.begin("decode")
    clock(2)
    second.begin("read")
    second.begin("compute")
    clock(4)
    first.end()
    first.begin("compute")
    clock(8)
    second.end()
    clock(16)
    first.end()
    clock(32)
    second.end()
    assert idling.at(64.0) == 1 + 2 + 32 + 1
    assert first.meanwhile == {"decode": 2}
    assert second.meanwhile == {"read": 32}
    # Each has its own seconds as well.
    assert first.seconds == {"decode": 6, "compute": 24}


def test_threads_share_the_idle_clock():
    idling = Idling(time.perf_counter())
    together = Barrier(4)

    def work(number: int) -> list[float]:
        track = Timeline().track(str(number))
        track.watch(idling)
        together.wait()
        seen = []
        for _ in range(300):
            track.begin("compute" if number % 2 else "read")
            seen.append(idling.at(time.perf_counter()))
            track.end()
        return seen

    start = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(work, range(4)))
    # Nobody computes any more: it runs again, as fast as the clock.
    first = time.perf_counter()
    passed = idling.at(first)
    assert idling.at(first + 1) == pytest.approx(passed + 1)
    assert all(0 <= value <= passed + 1e-3 for values in seen for value in values)
    assert passed <= first - start + 1


def test_moved_seconds_take_their_share_of_what_was_waited(watched):
    clock, _, (first, second) = watched
    first.begin("decode")
    clock(2)
    second.begin("compute")
    clock(2)
    first.move("read", 3)
    first.end()
    second.end()
    assert first.meanwhile == {"read": 1.5, "decode": 0.5}


def test_a_lane_that_is_watched_anew_begins_anew(watched):
    clock, _, (first, _) = watched
    first.begin("read")
    clock(2)
    first.end()
    first.watch(Idling(2.0))
    first.begin("read")
    clock(3)
    first.end()
    assert first.meanwhile == {"read": 3}
    assert first.seconds == {"read": 5}


@given(st.lists(st.tuples(st.integers(0, 2), STAGE, st.floats(0, 10)), max_size=60))
def test_the_idle_clock_is_that_of_a_walk_through_all_moments(steps):
    """Against the oracle that looks at all lanes after every step."""
    now = 0.0
    timeline, idling = Timeline(), Idling(0.0)
    lanes = [timeline.track(f"lane {k}") for k in range(3)]
    open_: list[list[str]] = [[], [], []]
    expected, parts = 0.0, [dict[str, float](), {}, {}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "perf_counter", lambda: now)
        for lane in lanes:
            lane.watch(idling)
        for number, stage, seconds in steps:
            if len(open_[number]) == 2:
                lanes[number].end()
                open_[number].pop()
            else:
                lanes[number].begin(stage)
                open_[number].append(stage)
            now += seconds
            if not any(stages and stages[-1] == "compute" for stages in open_):
                expected += seconds
                for stages, part in zip(open_, parts, strict=True):
                    if stages:
                        part[stages[-1]] = part.get(stages[-1], 0.0) + seconds
        for lane, stages in zip(lanes, open_, strict=True):
            for _ in stages:
                lane.end()
    assert idling.at(now) == pytest.approx(expected)
    for lane, part in zip(lanes, parts, strict=True):
        assert {s: v for s, v in lane.meanwhile.items() if v > 1e-9} == pytest.approx(
            {s: v for s, v in part.items() if v > 1e-9}
        )


def test_a_thread_without_a_track_works_as_well():
    with span("read"):
        moved("decode", 1)
    assert Timeline().seconds() == {}


def test_time_counts_when_the_work_fails(clock):
    timeline = Timeline()

    def work() -> None:
        with timeline.here(), span("fit"):
            clock(2)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    with span("later"):
        clock(1)
    assert timeline.seconds() == {"fit": 2}


def test_threads_have_tracks_of_their_own():
    timeline = Timeline()
    meet = Barrier(4)

    def work(_: int) -> None:
        with timeline.here(), span("read"):
            meet.wait(10)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(timeline.tracks) == 4
    assert all(set(track.seconds) == {"read"} for track in timeline.tracks.values())


def test_a_lane_keeps_its_track_in_whatever_thread_it_runs():
    timeline = Timeline()

    def work(_: int) -> None:
        with timeline.on(timeline.track("lane 0")), timeline.here(), span("read"):
            pass

    for number in range(2):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, number).result()
    assert list(timeline.tracks) == ["lane 0"]


def test_a_thread_finds_what_is_its_own(clock):
    timeline = Timeline()
    assert timeline.own() == {}
    with timeline.on(timeline.track("lane 0")), span("read"):
        clock(1)
    with timeline.here(), span("fit"):
        clock(2)
    assert timeline.own() == {"fit": 2}


def test_the_track_of_another_timeline_is_let_be(clock):
    first, second = Timeline(), Timeline()
    with first.here(), span("a"):
        clock(1)
        with second.here(), span("b"):
            clock(2)
    assert (first.seconds(), second.seconds()) == ({"a": 3}, {"b": 2})


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(1e-3, 3), STAGE), min_size=1, max_size=40),
    st.floats(0.05, 5),
)
def test_coarse_pieces_are_true_of_every_cell(steps, grain):
    pieces, now = [], 0.0
    for gap, length, stage in steps:
        pieces.append((now + gap, now + gap + length, stage))
        now += gap + length
    coarse = coarsened(pieces, grain)
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(coarse))
    assert all(a[2] != b[2] or a[1] < b[0] - 1e-9 for a, b in pairwise(coarse))
    for start, end, stage in coarse:
        cells = round((end - start) / grain)
        assert cells >= 1
        for cell in range(cells):
            low, high = start + cell * grain, start + (cell + 1) * grain
            within = {
                s: sum(max(0, min(b, high) - max(a, low)) for a, b, t in pieces if t == s)
                for s in ("read", "compute", "write")
            }
            assert within[stage] >= max(within.values()) - 1e-9
            assert within[stage] >= grain - sum(within.values()) - 1e-9


def test_a_long_step_keeps_few_pieces_and_exact_sums(clock):
    timeline = Timeline()
    with timeline.here():
        for _ in range(10 * MOST):
            with span("read"):
                clock(2)
            with span("compute"):
                clock(1)
    track = timeline.tracks["main"]
    assert track.seconds == {"read": 20 * MOST, "compute": 10 * MOST}
    assert 0 < len(track.pieces()) <= MOST
    assert track.grain > 0
    # Read took most of every cell.
    longest = {s: sum(b - a for a, b, t in track.pieces() if t == s) for s in track.seconds}
    assert longest["read"] > longest["compute"]


def test_the_record_is_short_and_in_microseconds(clock):
    timeline = Timeline()
    with timeline.here():
        for number in range(5000):
            with span("read" if number % 2 else "write"):
                clock(0.5)
            clock(0.25)
    record = dict[str, Any](timeline.record())
    (track,) = record["tracks"]
    assert record["unit"] == "microsecond"
    assert sum(len(text.split()) for text in track["stages"].values()) <= RECORDED
    start, _, length = track["stages"]["write"].split()[0].partition("+")
    assert (int(start), int(length) > 0) == (0, True)
    assert abs(record["started"] - time.time()) < 3600


def test_a_profiler_sees_every_span_and_the_parts_that_are_not_counted(monkeypatch, clock):
    said = []
    monkeypatch.setattr(
        timing,
        "_nvtx",
        SimpleNamespace(
            push_range=lambda name, domain: said.append((domain, name)),
            pop_range=lambda domain: said.append((domain, "end")),
        ),
    )
    timeline = Timeline()
    with timeline.here(), span("fit"), span("histogram", counted=False):
        clock(1)
    assert said == [("octane", w) for w in ("fit", "histogram", "end", "end")]
    assert timeline.seconds() == {"fit": 1}


@pytest.mark.parametrize("profiled", [False, True])
def test_nvtx_is_loaded_under_a_profiler_alone(project, profiled):
    env = {k: v for k, v in os.environ.items() if k != timing.PROFILED}
    if profiled:
        # NVTX lets be a library that is not there.
        env[timing.PROFILED] = "/nonexistent/injection.so"
    code = (
        "import sys; from octane.core.timing import span\n"
        "with span('read'): pass\n"
        "print('nvtx' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "PYTHONPATH": str(project / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(profiled)
