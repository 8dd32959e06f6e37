"""Where the seconds of a run went: tasks are added up, and pauses between them left out."""

import json
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.config.params import PyramidParameters
from octane.core.bounds import bound_of
from octane.core.metrics import as_json
from octane.report.records import Record
from octane.report.timing import KINDS, OWN, PAUSE, Clock, occupancy, outside_by, spent_by
from octane.report.trace import Recorded
from octane.steps.pyramid import build_pyramid


def task(seconds: float, gaps: dict[str, float] | None = None, **lanes: float) -> Record:
    told = {"tiles": 3, "workers": 2, "seconds": seconds, "lane_seconds": lanes, "cpu_seconds": 1.5}
    told |= {"gap_seconds": gaps or {}, "read_bytes": 10, "looks_ahead": True}
    return Record.model_validate(
        {
            "step": "resample",
            "settings": {"codec": "none"},
            "figures": {"pipeline": {"RESAMPLE": told}},
            "bytes": {"read": 70},
        }
    )


def recorded(started: float, *tracks: dict[str, str]) -> Recorded:
    named = [{"name": f"lane {k}", "stages": stages} for k, stages in enumerate(tracks)]
    return Recorded.model_validate({"started": started, "tracks": named})


def test_tasks_of_a_step_are_added_up():
    spent = spent_by([task(2, read=3, compute=1), task(1, read=1, write=2), Record(step="n4")])
    (of,) = spent.values()
    assert of.seconds == {"read": 4, "compute": 1, "write": 2}
    assert (of.wall, of.tiles, of.workers, of.cpu_seconds, of.read_bytes) == (3, 6, 2, 3.0, 20)
    assert not of.gpu
    assert (of.tasks, of.codec, of.looks_ahead) == (2, "none", True)


def test_the_report_says_of_each_level_of_a_pyramid_what_the_log_said(
    write_image, rng, tmp_path, reading, execution
):
    source = write_image("v.ome.zarr", rng.random((40, 48, 56), np.float32))
    resolutions = PyramidParameters(resolutions=(10, 20, 50))
    metrics = build_pyramid(source, tmp_path / "p.ome.zarr", resolutions, reading, execution)
    record = Record.model_validate(json.loads(as_json(metrics.record())))
    spent = spent_by([record])
    pipelines = cast("dict[str, dict[str, str]]", record.figures["pipeline"])
    logged = {label: of["bound"] for label, of in pipelines.items()}
    assert list(logged) == [f"PYRAMID {n} um" for n in (10, 20, 50)]
    assert {label: bound_of(of) for label, of in spent.items()} == logged
    read, written = (
        [getattr(of, f"{name}_bytes") for of in spent.values()] for name in ("read", "written")
    )
    assert sum(read) == record.traffic["read"]
    assert written == [4 * 40 * 48 * 56, 4 * 20 * 24 * 28, 4 * 8 * 10 * 11]
    for stage in ("read", "write"):
        # The sentences that tell the rates, whatever bounded it here.
        slow = {n: replace(of, seconds={stage: 1.0}) for n, of in spent.items()}
        rates = [float(bound_of(of).split("; ")[1].split(" MB/s")[0]) for of in slow.values()]
        sizes = read if stage == "read" else written
        walls = [of.wall for of in spent.values()]
        assert rates == [round(n / s / 1e6) for n, s in zip(sizes, walls, strict=True)]


def test_records_that_tell_no_bytes_of_each_pipeline_are_told_without_a_rate():
    old = {"tiles": 1, "workers": 1, "seconds": 1.0, "lane_seconds": {"write": 1.0}}
    record = {"step": "pyramid", "figures": {"pipeline": {"PYRAMID 50 um": old}}}
    (of,) = spent_by([Record.model_validate(record | {"bytes": {"written": 9}})]).values()
    assert "MB/s" not in bound_of(of)


def test_what_tasks_did_outside_of_their_pipelines_is_added_up():
    told = {"seconds": 10.0, "pipeline_seconds": 2.0, "part_seconds": {"fit": 7.0}}
    more = told | {"part_seconds": {"fit": 1.0, "mask": 3.0}, "reader_seconds": {"read": 4.0}}
    records = [
        Record(step="n4", figures={"outside": told}),
        Record(step="n4", figures={"outside": more}, device={"backend": "gpu"}),
        Record(step="n4"),
    ]
    (of,) = outside_by(records).values()
    assert (of.label, of.whole, of.pipeline, of.gpu) == ("N4", 20, 4, True)
    assert of.parts == {"fit": 8, "mask": 3}
    assert of.readers == {"read": 4}
    assert outside_by([Record(step="stack")]) == {}


def test_gaps_of_tasks_are_added_up():
    (of,) = spent_by([task(2, {"read": 1.0}), task(1, {"read": 0.5, "idle": 0.2})]).values()
    assert of.gaps == {"read": 1.5, "idle": 0.2}


def test_a_clock_leaves_out_what_nothing_ran_in():
    day = 86400.0
    clock = Clock.of([(day, day + 5), (0.0, 10.0), (3.0, 20.0), (20.0 + PAUSE / 2, 60.0)])
    assert clock.end == pytest.approx(60 + 5)
    assert len(clock.pauses) == 1
    np.testing.assert_allclose(clock(np.array([day]))[0], clock.pauses[0])


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.1, 100)), min_size=1, max_size=12))
def test_a_clock_never_goes_back_and_never_runs_fast(tasks):
    intervals = [(begin, begin + length) for begin, length in tasks]
    clock = Clock.of(intervals)
    moments = np.array(sorted(m for interval in intervals for m in interval))
    shown = clock(moments)
    assert shown[0] == 0
    steps, real = np.diff(shown), np.diff(moments)
    assert (steps >= -1e-6).all()
    assert (steps <= real + 1e-6).all()
    assert shown.max() <= clock.end + 1e-6


def test_workers_are_counted_by_what_they_do():
    timelines = [
        recorded(100.0, {"read": "0+1000000", "compute": "1000000+1000000"}, {"fit": "0+2000000"}),
        recorded(101.0, {"read": "0+500000", "other": "500000+500000"}),
    ]
    clock = Clock.of([(100.0, 102.0), (101.0, 102.0)])
    found = occupancy(timelines, clock, np.linspace(0, 2, 5))
    assert list(found) == list(KINDS)
    np.testing.assert_allclose(found["read"], [1, 1, 1, 0], atol=1e-9)
    np.testing.assert_allclose(found["compute"], [0, 0, 1, 1], atol=1e-9)
    np.testing.assert_allclose(found[OWN], [1, 1, 1, 1], atol=1e-9)
    np.testing.assert_allclose(found["write"], 0)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), max_size=20))
def test_no_second_is_lost_in_the_bins(pieces):
    text = " ".join(f"{start}+{length}" for start, length in pieces)
    timelines = [recorded(5.0, {"write": text})]
    edges = np.linspace(0, 12, 37)
    found = occupancy(timelines, Clock.of([(5.0, 17.0)]), edges)["write"]
    expected = sum(length for _, length in pieces) / 1e6
    assert found.sum() * (edges[1] - edges[0]) == pytest.approx(expected, abs=1e-6)
