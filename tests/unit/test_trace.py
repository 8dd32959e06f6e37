"""The trace: what viewers of the Trace Event Format take, on one clock."""

import gzip
import json

import pytest

from octane.errors import OctaneError
from octane.spans import Timeline, span
from octane.trace import Recorded, trace_events, write_trace


def recorded(started: float, **stages: str) -> Recorded:
    return Recorded.model_validate(
        {"started": started, "tracks": [{"name": "lane 0", "stages": stages}]}
    )


def test_steps_are_processes_on_one_clock():
    timelines = {
        "N4": recorded(102.5, fit="0+1000"),
        "RESAMPLE 1": recorded(100.0, read="0+10 30+5", write="10+20"),
    }
    events = trace_events(timelines)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}  # ty: ignore
    assert names == {1: "RESAMPLE 1", 2: "N4"}
    found = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert found == [
        (1, "read", 0, 10),
        (1, "write", 10, 20),
        (1, "read", 30, 5),
        (2, "fit", 2_500_000, 1000),
    ]


def test_what_a_timeline_records_is_what_the_trace_takes(tmp_path):
    timeline = Timeline()
    with timeline.here():
        for _ in range(5):
            with span("read"), span("decode"):
                pass
    made = Recorded.model_validate(timeline.record())
    write_trace({"RESAMPLE": made}, tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace["displayTimeUnit"] == "ms"
    pieces = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"read", "decode"} >= {e["name"] for e in pieces}
    for event in pieces:
        assert event.keys() == {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    starts = [e["ts"] for e in pieces]
    assert starts == sorted(starts)


def test_a_name_in_gz_is_compressed_and_the_same_each_time(tmp_path):
    timelines = {"RESAMPLE": recorded(0.0, read="0+10")}
    for name in ("a.json.gz", "b.json.gz"):
        write_trace(timelines, tmp_path / name)
    first, second = ((tmp_path / n).read_bytes() for n in ("a.json.gz", "b.json.gz"))
    assert first == second
    assert json.loads(gzip.decompress(first))["traceEvents"]


def test_no_timelines_are_an_empty_trace():
    assert trace_events({}) == []


def test_a_broken_timeline_is_said(tmp_path):
    with pytest.raises(OctaneError, match="'12' is not start"):
        write_trace({"N4": recorded(0.0, fit="12")}, tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_there_is_replaced_only_when_told(tmp_path):
    timelines = {"RESAMPLE": recorded(0.0, read="0+10")}
    write_trace(timelines, tmp_path / "t.json")
    with pytest.raises(OctaneError, match="exists already"):
        write_trace(timelines, tmp_path / "t.json")
    write_trace(timelines, tmp_path / "t.json", overwrite=True)
