"""The trace: valid for viewers of the Trace Event Format, on one clock."""

import gzip
import json

from octane.core.records import Recorded
from octane.core.timing import Timeline, span
from octane.processes.report.trace import trace_content


def recorded(started: float, **stages: str) -> Recorded:
    return Recorded.model_validate(
        {"started": started, "tracks": [{"name": "lane 0", "stages": stages}]}
    )


def test_what_a_timeline_records_is_what_the_trace_takes():
    timeline = Timeline()
    with timeline.here():
        for _ in range(5):
            with span("read"), span("decode"):
                pass
    recorded = Recorded.model_validate(timeline.record())
    content = trace_content({"RESAMPLE": recorded})
    assert content == trace_content({"RESAMPLE": recorded})
    trace = json.loads(gzip.decompress(content))
    assert trace["displayTimeUnit"] == "ms"
    pieces = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"read", "decode"} >= {e["name"] for e in pieces}
    for event in pieces:
        assert event.keys() == {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        assert event["ts"] >= 0
        assert event["dur"] >= 0


def test_tasks_are_on_one_clock():
    both = {"a": recorded(100.0, read="0+10"), "b": recorded(102.5, fit="0+1")}
    events = json.loads(gzip.decompress(trace_content(both)))["traceEvents"]
    assert [e["ts"] for e in events if e["ph"] == "X"] == [0, 2_500_000]
