"""What the GPUs of a run did: who waited for one and how long, what was tried, what was copied."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from octane.records import PipelineFigures, Record
from octane.summary import lease_of
from octane.transfers import DIRECTIONS, Direction, link_rate

__all__ = ["GpuUse", "gpu_use"]


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
    fastest
        Bytes a second of the fastest of the largest copies, by direction.
    link
        Bytes a second that the GPU's link carries, where the driver tells.
    """

    tasks: int
    on_gpu: int
    waited: float
    longest: float
    failed: dict[str, int]
    copied: int
    copy_seconds: float
    fastest: dict[Direction, float]
    link: float | None


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
            fastest=_fastest(records),
            link=max(filter(None, (link_rate(record.device) for record in records)), default=None),
        )
        if use.on_gpu or use.waited or use.failed:
            found[step] = use
    return found


def _fastest(records: Sequence[Record]) -> dict[Direction, float]:
    """Of the largest copies in each direction, which the calls themselves slow down least."""
    copies = [
        copy
        for record in records
        for figures in PipelineFigures.of(record).values()
        for copy in figures.transfers
    ]
    found: dict[Direction, float] = {}
    for direction in DIRECTIONS:
        own = [copy for copy in copies if copy.direction == direction]
        most = max((copy.size for copy in own), default=0)
        rates = [copy.gigabytes_per_second["fastest"] for copy in own if copy.size == most]
        if rates:
            found[direction] = max(rates) * 1e9
    return found
