"""Seconds and bounds of the steps of a run, and their stages over time."""

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octane.core.records import Record
from octane.core.timing import OTHER, STAGES, Bound, bound_of, summed

LEASE = "lease"
"""Waiting for a share of a GPU."""
OWN = "own"
"""A step's own work outside of the pipeline, such as N4's fit."""
KINDS = (*STAGES, LEASE, OWN)
"""Kinds of work in a strip, from below."""
PAUSE = 30.0
"""Seconds without any task that the strips leave out: more than Nextflow takes to start one."""


def step_bound(records: Sequence[Record]) -> Bound | None:
    """Find what bounds the tasks of a step together."""
    walls = summed(record.wall_seconds for record in records)
    return bound_of(walls, gpu=any(record.on_gpu for record in records))


class Clock:
    """Seconds since the first task began, without pauses in which no task ran.

    A run that goes on the next day would else be two lines at the edges of an empty strip.

    Parameters
    ----------
    intervals
        Begin and end of each task, seconds since 1970.

    Attributes
    ----------
    end
        Seconds in all.
    pauses
        Seconds at which a pause was left out.
    """

    def __init__(self, intervals: Sequence[tuple[float, float]]) -> None:
        begins, before = list[float](), list[float]()
        shown, stop = 0.0, -math.inf
        for begin, end in sorted(intervals):
            if begin > stop + PAUSE:
                begins.append(begin)
                before.append(shown)
                stop = begin
            shown += max(0.0, end - stop)
            stop = max(stop, end)
        self._begins, self._before = begins, before
        self.end, self.pauses = shown, before[1:]

    def __call__(self, moment: float) -> float:
        """Convert a moment within a task, seconds since 1970."""
        at = max(0, bisect_right(self._begins, moment) - 1)
        return self._before[at] + moment - self._begins[at]


def occupancy(
    records: Sequence[Record], clock: Clock, edges: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Find the mean number of workers in each bin for each of :data:`KINDS`.

    Parameters
    ----------
    records
        Records of the tasks of one step.
    clock
        Clock of the whole run.
    edges
        Edges of the bins in seconds of the clock, equally wide.
    """
    # Work done until each edge; its differences are the work done in each bin.
    until = {kind: np.zeros(len(edges)) for kind in KINDS}
    for record in records:
        if record.timeline is None:
            continue
        origin = clock(record.timeline.started)
        pieces = [p for track in record.timeline.tracks for p in track.pieces() if p[2] != OTHER]
        noted = summed({stage: length / 1e6} for _, length, stage in pieces)
        for start, length, stage in pieces:
            # The record has only the longest pieces, but all seconds of each stage.
            share = record.seconds.get(stage, noted[stage]) / noted[stage] if length else 0.0
            kind = stage if stage in KINDS else OWN
            until[kind] += share * np.clip(edges - origin - start / 1e6, 0, length / 1e6)
    return {kind: np.diff(done) / (edges[1] - edges[0]) for kind, done in until.items()}
