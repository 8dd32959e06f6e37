"""Where the seconds of a run went: the records of its tasks put together.

Tasks of one step ran beside each other, on several days where a run was resumed: the clock of the
report leaves out the time in which nothing ran, so that what ran can be seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.core.bounds import STAGES, Spent, codec_of
from octane.core.timing import summed
from octane.pipeline.outside import Outside
from octane.report.records import OutsideFigures, PipelineFigures, Record
from octane.report.trace import Recorded

__all__ = ["KINDS", "LEASE", "OWN", "Clock", "occupancy", "outside_by", "spent_by"]

LEASE = "lease"
"""Waiting for a share of a GPU."""
OWN = "own"
"""A step's own work outside the tile pipeline, such as N4's fit."""
KINDS = (*STAGES, LEASE, OWN)
"""What a timeline is drawn of, from below."""

PAUSE = 30.0
"""Seconds in which nothing ran that the clock leaves out: more than Nextflow takes for a task."""


def spent_by(records: Iterable[Record]) -> dict[str, Spent]:
    """What the workers of all tasks did, by the label of the work.

    Parameters
    ----------
    records
        Of one step.

    Returns
    -------
    dict
        Sums over the tasks; the workers are those of the task that had most.
    """
    found: dict[str, Spent] = {}
    for record in records:
        for label, figures in PipelineFigures.of(record).items():
            before = found.get(label, Spent(label, {}, 0.0, 0.0, 0, 0, tasks=0))
            found[label] = Spent(
                label,
                summed((before.seconds, figures.lane_seconds)),
                before.cpu_seconds + figures.cpu_seconds,
                before.wall + figures.seconds,
                before.tiles + figures.tiles,
                max(before.workers, figures.workers),
                before.read_bytes + figures.read_bytes,
                before.written_bytes + figures.written_bytes,
                before.gpu or record.device.get("backend") == "gpu",
                summed((before.gaps, figures.gap_seconds)),
                before.tasks + 1,
                codec_of(record.settings),
                before.looks_ahead or figures.looks_ahead,
            )
    return found


def outside_by(records: Iterable[Record]) -> dict[str, Outside]:
    """What the tasks did outside of their tile pipelines, by the label of the step.

    Parameters
    ----------
    records
        Of one step.

    Returns
    -------
    dict
        Sums over the tasks that noted it.
    """
    found: dict[str, Outside] = {}
    for record in records:
        if "outside" not in record.figures:
            continue
        figures = OutsideFigures.model_validate(record.figures["outside"])
        label = record.step.upper()
        before = found.get(label, Outside(label, 0.0, 0.0, {}, {}, gpu=False, settings={}))
        found[label] = Outside(
            label,
            before.whole + figures.seconds,
            before.pipeline + figures.pipeline_seconds,
            summed((before.parts, figures.part_seconds)),
            summed((before.readers, figures.reader_seconds)),
            before.gpu or record.device.get("backend") == "gpu",
            record.settings,
        )
    return found


@dataclass(frozen=True)
class Clock:
    """Seconds since the first task began, those left out in which no task ran.

    Attributes
    ----------
    begins
        When stretches of work began, seconds since 1970, rising.
    before
        Seconds shown before each.
    end
        Seconds in all.
    """

    begins: npt.NDArray[np.float64]
    before: npt.NDArray[np.float64]
    end: float

    @classmethod
    def of(cls, intervals: Sequence[tuple[float, float]]) -> "Clock":
        """The clock of tasks, each from when to when, seconds since 1970."""
        begins: list[float] = []
        before: list[float] = []
        shown, stop = 0.0, -np.inf
        for begin, end in sorted(intervals):
            if begin > stop + PAUSE:
                begins.append(begin)
                before.append(shown)
                stop = begin
            shown += max(0.0, end - stop)
            stop = max(stop, end)
        return cls(np.array(begins), np.array(before), shown)

    @property
    def pauses(self) -> list[float]:
        """Where time was left out."""
        return self.before[1:].tolist()

    def __call__(self, moments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The clock's seconds at moments within tasks, seconds since 1970."""
        at = np.clip(np.searchsorted(self.begins, moments, side="right") - 1, 0, None)
        return self.before[at] + (moments - self.begins[at])


def occupancy(
    timelines: Sequence[Recorded], clock: Clock, edges: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """How many workers were at what, over time.

    Parameters
    ----------
    timelines
        Of one step's tasks.
    clock
        Of the whole run.
    edges
        Of the bins, the clock's seconds, equally wide.

    Returns
    -------
    dict
        For each of :data:`KINDS`, the mean number of workers in each bin.
    """
    width = edges[1] - edges[0]
    # What was done until each edge, of which the differences are what was done in each bin.
    until = {kind: np.zeros(len(edges)) for kind in KINDS}
    for timeline in timelines:
        for track in timeline.tracks:
            for stage in track.stages:
                pieces = [(s, n) for s, n, of in track.pieces() if of == stage]
                if not pieces or stage == "other":
                    continue
                starts, lengths = np.array(pieces, np.float64).T / 1e6
                begin = clock(timeline.started + starts)
                kind = stage if stage in KINDS else OWN
                for at, length in zip(begin, lengths, strict=True):
                    until[kind] += np.clip(edges - at, 0, length)
    return {kind: np.diff(done) / width for kind, done in until.items()}
