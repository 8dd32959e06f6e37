"""The steps' timelines as one trace for Perfetto or Chrome (the Trace Event Format).

A step is a process and a track a thread, so that a viewer shows every section's workers below each
other on the clock that they shared: what ran beside what, and what waited.
"""

import gzip
import json
import re
from collections.abc import Mapping

from pydantic import BaseModel

from octane.core.errors import OctaneError

__all__ = ["Recorded", "RecordedTrack", "trace_content", "trace_events"]


class RecordedTrack(BaseModel):
    """A track, as :meth:`octane.core.timing.Timeline.record` writes it.

    Attributes
    ----------
    name
        What it is called.
    stages
        Per stage, ``start+length`` of its pieces, in microseconds since the timeline's start.
    """

    name: str
    stages: dict[str, str]

    def pieces(self) -> list[tuple[int, int, str]]:
        """Start, length and stage of all, in order."""
        found = []
        for stage, text in self.stages.items():
            for piece in text.split():
                if not re.fullmatch(r"\d+\+\d+", piece):
                    raise OctaneError(
                        f"the timeline's piece '{piece}' is not start+length; run the step again."
                    )
                start, _, length = piece.partition("+")
                found.append((int(start), int(length), stage))
        return sorted(found)


class Recorded(BaseModel):
    """A step's timeline.

    Attributes
    ----------
    started
        Seconds since 1970.
    tracks
        In the order in which they began.
    """

    started: float
    tracks: list[RecordedTrack]


def trace_events(timelines: Mapping[str, Recorded]) -> list[dict[str, object]]:
    """The events of a trace.

    Parameters
    ----------
    timelines
        By the name of the step, as a viewer is to show it.

    Returns
    -------
    list of dict
        Metadata first, then complete events in the order of their start, microseconds since the
        first of all timelines began.
    """
    named: list[dict[str, object]] = []
    events: list[tuple[int, dict[str, object]]] = []
    first = min((t.started for t in timelines.values()), default=0.0)
    ordered = sorted(timelines.items(), key=lambda item: item[1].started)
    for process, (name, timeline) in enumerate(ordered, start=1):
        named.append(_metadata("process_name", process, 0, {"name": name}))
        named.append(_metadata("process_sort_index", process, 0, {"sort_index": process}))
        origin = round((timeline.started - first) * 1e6)
        for thread, track in enumerate(timeline.tracks, start=1):
            named.append(_metadata("thread_name", process, thread, {"name": track.name}))
            for start, length, stage in track.pieces():
                event: dict[str, object] = {
                    "name": stage,
                    "cat": "octane",
                    "ph": "X",
                    "ts": origin + start,
                    "dur": length,
                    "pid": process,
                    "tid": thread,
                }
                events.append((origin + start, event))
    return [*named, *(event for _, event in sorted(events, key=lambda item: item[0]))]


def _metadata(
    name: str, process: int, thread: int, arguments: Mapping[str, object]
) -> dict[str, object]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": dict(arguments)}


def trace_content(timelines: Mapping[str, Recorded]) -> bytes:
    """The file that ui.perfetto.dev and chrome://tracing open: JSON, compressed by gzip.

    Parameters
    ----------
    timelines
        By the name of the step.
    """
    trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(timelines)}
    # Without a time of its own, so that the same timelines are the same file.
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)
