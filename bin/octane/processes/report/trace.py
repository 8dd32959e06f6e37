"""Timelines of the steps as one trace for Perfetto or Chrome (the Trace Event Format).

A task is a process, and a track is a thread: a viewer shows the workers of all sections below each
other on one clock.
"""

import gzip
import json
from collections.abc import Mapping
from operator import itemgetter

from octane.core.records import Recorded


def trace_content(timelines: Mapping[str, Recorded]) -> bytes:
    """Make the file that ui.perfetto.dev and chrome://tracing open: JSON, compressed by gzip.

    ``timelines`` are keyed by task. Metadata come first, then complete events in the
    order of their start, in microseconds since the first of all timelines began.
    """
    metadata: list[dict[str, object]] = []
    events: list[dict[str, object]] = []

    def add_metadata(kind: str, process: int, thread: int, **arguments: object) -> None:
        metadata.append({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": arguments})

    first = min((t.started for t in timelines.values()), default=0.0)
    ordered = sorted(timelines.items(), key=lambda item: item[1].started)
    for process, (task, timeline) in enumerate(ordered, start=1):
        add_metadata("process_name", process, 0, name=task)
        add_metadata("process_sort_index", process, 0, sort_index=process)
        origin = round((timeline.started - first) * 1e6)
        for thread, track in enumerate(timeline.tracks, start=1):
            add_metadata("thread_name", process, thread, name=track.name)
            place = {"cat": "octane", "ph": "X", "pid": process, "tid": thread}
            events += [
                {"name": stage, "ts": origin + start, "dur": length, **place}
                for start, length, stage in track.pieces()
            ]
    all_events = [*metadata, *sorted(events, key=itemgetter("ts"))]
    content = json.dumps(
        {"displayTimeUnit": "ms", "traceEvents": all_events}, separators=(",", ":")
    )
    # Without a time stamp, so that the same timelines give the same file.
    return gzip.compress(content.encode(), mtime=0)
