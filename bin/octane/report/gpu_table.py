"""What the GPUs of a run did: who waited for one and how long, what was tried, what was copied."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from octane.gpu.pinned import Direction
from octane.report.records import PipelineFigures, Record
from octane.report.summary import lease_of

__all__ = ["Copies", "GpuUse", "gpu_use"]


class Copies(BaseModel):
    """Copies in one direction: bytes, and bytes a second by the clock of the GPU."""

    direction: Direction
    bytes: int
    rate: float


class GpuUse(BaseModel):
    """A step's tasks that might have used a GPU.

    Attributes
    ----------
    tasks, on_gpu
        How many, and how many of them computed on one.
    waited, longest
        Seconds for a share of one, of all tasks and of the one that waited longest.
    failed
        Tries that did not end well, in words, with how often.
    copied, copy_seconds
        Bytes to and from GPUs, and the seconds that workers waited for it.
    copies
        The same by direction, of all tasks.
    """

    tasks: int
    on_gpu: int
    waited: float
    longest: float
    failed: dict[str, int]
    copied: int
    copy_seconds: float
    copies: list[Copies]


def gpu_use(steps: Mapping[str, Sequence[Record]]) -> dict[str, GpuUse]:
    """What the tasks of each step did with GPUs; steps that never wanted one are left out.

    Parameters
    ----------
    steps
        Records by the name of the step.
    """
    found = {}
    for step, records in steps.items():
        leases = [lease for record in records if (lease := lease_of(record)) is not None]
        failed: dict[str, int] = {}
        for lease in leases:
            for attempt in lease.attempts:
                # Where there is no GPU at all, nothing was tried and nobody waited.
                tried = attempt.gpu is not None or lease.slot_wait_seconds > 0
                if tried and attempt.outcome != "done":
                    failed[attempt.outcome] = failed.get(attempt.outcome, 0) + 1
        waits = [lease.slot_wait_seconds for lease in leases]
        use = GpuUse(
            tasks=len(records),
            on_gpu=sum(lease.backend == "gpu" for lease in leases),
            waited=sum(waits),
            longest=max(waits, default=0.0),
            failed=failed,
            copied=sum(record.traffic.get("copy", 0) for record in records),
            copy_seconds=sum(record.seconds.get("copy", 0.0) for record in records),
            copies=_copies(records),
        )
        if use.on_gpu or use.waited or use.failed:
            found[step] = use
    return found


def _copies(records: Sequence[Record]) -> list[Copies]:
    figures = [found for record in records for found in PipelineFigures.of(record).values()]
    ways = sorted({way for found in figures for way in found.transfers})
    copies = []
    for way in ways:
        own = [found.transfers[way] for found in figures if way in found.transfers]
        size, seconds = sum(t.bytes for t in own), sum(t.seconds for t in own)
        copies.append(Copies(direction=way, bytes=size, rate=size / seconds if seconds else 0.0))
    return copies
