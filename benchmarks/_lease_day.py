"""A day of mixed jobs on a node that others use too: who waits, what fails, which GPU stands idle.

Time is simulated; the decisions are those of the real rules. Jobs come at random, each with a
memory and an amount of work; jobs on one GPU slow each other down once together they ask for more
than all of its time. Somebody without a lease comes now and then, takes memory and keeps a GPU
busy.

Compared with Nextflow's ``maxForks`` alone: the first jobs in line run, so many at a time, on the
GPUs in turn, whatever memory is free there. A job that finds too little fails after a minute and
comes again at the end of the line, as a retried task does.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from octane.gpu.admission import Holder, Load, Request, decide
from octane.gpu.inventory import Gpu
from octane.gpu.lease import TICK

__all__ = ["GPUS", "KINDS", "OTHERS", "TOTAL", "Day", "Policy", "by_forks", "by_leases", "day"]

GB = 10**9
DAY = 24 * 3600.0
TOTAL = 48 * GB
GPUS = 2
FAILS_AFTER = 60.0
RETRIES = 2

# Memory, seconds of work, share of a GPU's time that it can use, jobs a day.
KINDS = {
    "small": (6 * GB, 6 * 60.0, 0.5, 190),
    "medium": (20 * GB, 15 * 60.0, 0.7, 50),
    "large": (40 * GB, 40 * 60.0, 0.9, 10),
}
OTHERS = (20 * GB, 45 * 60.0, 0.6, 8)
"""The same of jobs without a lease."""


@dataclass(eq=False)
class Job:
    """A job, from its arrival on; ``kind`` is empty for one without a lease."""

    kind: str
    memory: int
    work: float
    busy: float
    arrived: float
    started: float | None = None
    failures: int = 0


@dataclass(eq=False)
class Run:
    """A job on a GPU: what it takes there, and seconds of work that are left."""

    job: Job
    memory: int
    busy: float
    left: float
    since: float
    fails: bool = False


@dataclass
class Node:
    """GPUs with what runs on them, and who waits."""

    slots: int
    now: float = 0.0
    runs: list[list[Run]] = field(default_factory=lambda: [[] for _ in range(GPUS)])
    waiting: list[Job] = field(default_factory=list)
    turn: int = 0

    def free(self, gpu: int) -> int:
        """Bytes that nothing uses."""
        return TOTAL - sum(run.memory for run in self.runs[gpu])

    def speed(self, gpu: int) -> float:
        """Work done in a second by each job on a GPU."""
        return 1 / max(1.0, sum(run.busy for run in self.runs[gpu]))

    def place(self, job: Job, gpu: int) -> None:
        """Start a job; where memory is short it fails after a while."""
        if job.memory <= self.free(gpu):
            job.started = self.now
            run = Run(job, job.memory, job.busy, job.work, self.now)
        else:
            run = Run(job, 0, 0.0, FAILS_AFTER, self.now, fails=True)
        self.runs[gpu].append(run)

    def pass_time(self, until: float) -> None:
        """Work until a moment, and end what is done."""
        for gpu, runs in enumerate(self.runs):
            done = (until - self.now) * self.speed(gpu)
            for run in runs:
                run.left -= done
        self.now = until
        for runs in self.runs:
            for run in [run for run in runs if run.left <= 1e-6]:
                runs.remove(run)
                if run.fails:
                    run.job.failures += 1
                    self.waiting.append(run.job)


@dataclass(frozen=True)
class Day:
    """What came of a day.

    Attributes
    ----------
    idle_with_waiters, used : float
        Shares of the GPUs' time: empty while somebody waits, and with something running.
    failed_tries : int
        Starts that found too little memory.
    given_up : int
        Jobs that failed more often than Nextflow retries here (conf/base.config).
    hours : float
        Until the last job was done.
    waits : dict of str to list of float
        Seconds from arrival to successful start, by kind of job.
    """

    idle_with_waiters: float
    used: float
    failed_tries: int
    given_up: int
    hours: float
    waits: dict[str, list[float]]


Policy = Callable[[Node], tuple[Job, int] | None]


def by_leases(node: Node) -> tuple[Job, int] | None:
    """The first of the waiters, looking in a random order, that the lease rules let start."""
    loads = []
    for gpu, runs in enumerate(node.runs):
        busy = min(100, round(100 * sum(run.busy for run in runs)))
        shown = Gpu(gpu, f"GPU-{gpu}", "", TOTAL, node.free(gpu), utilisation=busy)
        held = tuple(Holder(run.memory, run.memory, node.slots) for run in runs if run.job.kind)
        loads.append(Load(shown, held, len(runs) - len(held)))
    uuids = [load.gpu.uuid for load in loads]
    for job in random.Random(node.now).sample(node.waiting, len(node.waiting)):
        earlier = [one for one in node.waiting if one.arrived < job.arrived]
        own, *others = (Request(one.memory, node.slots, uuids) for one in (job, *earlier))
        found = decide(loads, own, others)
        if found.gpu is not None:
            return job, found.gpu.index
    return None


def by_forks(node: Node) -> tuple[Job, int] | None:
    """The first in line while there are fewer than maxForks, on the GPUs in turn."""
    own = sum(bool(run.job.kind) for runs in node.runs for run in runs)
    if not node.waiting or own >= GPUS * node.slots:
        return None
    node.turn += 1
    return node.waiting[0], node.turn % GPUS


def arrivals(seed: int) -> list[Job]:
    """The jobs of a day."""
    rng = random.Random(seed)
    jobs = [
        Job(kind, memory, work * rng.uniform(0.5, 1.5), busy, rng.uniform(0, DAY))
        for kind, (memory, work, busy, number) in {**KINDS, "": OTHERS}.items()
        for _ in range(number)
    ]
    return sorted(jobs, key=lambda job: job.arrived)


def day(policy: Policy, slots: int, seed: int) -> Day:
    """Simulate a day, and on until the last job is done.

    Parameters
    ----------
    policy : callable
        Names a waiter that may start now and its GPU, or nobody.
    slots : int
        Jobs that may share a GPU.
    seed : int
        Of the arrivals.
    """
    node, coming, rng = Node(slots), arrivals(seed), random.Random(seed)
    jobs = [job for job in coming if job.kind]
    look = float("inf")
    idle = used = 0.0
    while coming or node.waiting or any(run.job.kind for runs in node.runs for run in runs):
        ends = [
            node.now + run.left / node.speed(gpu)
            for gpu, runs in enumerate(node.runs)
            for run in runs
        ]
        event = min([look, *ends, *(job.arrived for job in coming[:1])])
        empty = sum(not runs for runs in node.runs)
        used += (event - node.now) * (GPUS - empty)
        idle += (event - node.now) * empty * bool(node.waiting)
        node.pass_time(event)
        came = bool(coming) and coming[0].arrived <= event
        if came:
            job = coming.pop(0)
            if job.kind:
                node.waiting.append(job)
            else:
                best = max(range(GPUS), key=node.free)
                if job.memory <= node.free(best):
                    node.place(job, best)
        if came or look <= event:  # who comes looks at once, and so may others in that moment
            look = float("inf")
            while (chosen := policy(node)) is not None:
                node.waiting.remove(chosen[0])
                node.place(*chosen)
        elif node.waiting and look == float("inf"):
            look = event + TICK * rng.uniform(0, 1.5)
    return Day(
        idle_with_waiters=idle / (GPUS * node.now),
        used=used / (GPUS * node.now),
        failed_tries=sum(job.failures for job in jobs),
        given_up=sum(job.failures > RETRIES for job in jobs),
        hours=node.now / 3600,
        waits={
            kind: [(job.started or 0.0) - job.arrived for job in jobs if job.kind == kind]
            for kind in KINDS
        },
    )
