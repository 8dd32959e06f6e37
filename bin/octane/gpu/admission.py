"""Admission: the state of the node's GPUs, and which GPU a request gets, or why it gets none.

The rules are those of docs/gpu.md, "Which GPU you get". A holder whose memory NVML does not show
counts as having allocated nothing, so nothing is promised twice. Processes without a lease can
grow; if NVML does not list them, only memory decides. A later request gets a GPU only if no earlier
one could run there even after all leases on it have ended. No starvation: the obstacles of the
first request can only shrink.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octane.gpu.inventory import Gpu, named
from octane.gpu.lease_folder import Held, LeaseFolder, LeaseRecord, pid_namespace

CROWDED = 1.5
"""Free memory, relative to the request, required next to processes without a lease."""

BUSY = 90
"""Utilisation in percent above which a GPU with processes without a lease is skipped."""

QUEUE = "wait"


@dataclass(frozen=True)
class Load:
    """A GPU, its leases, and the number of its processes without a lease.

    ``allocated`` are the bytes that each lease's holder uses, or None if NVML does not show them.
    """

    gpu: Gpu
    leases: tuple[Held, ...] = ()
    allocated: tuple[int | None, ...] = ()
    others: int = 0

    @property
    def available(self) -> int:
        """Bytes that can be promised: free ones minus those promised but not yet allocated."""
        pending = sum(
            max(0, lease.record.required - (used or 0))
            for lease, used in zip(self.leases, self.allocated, strict=True)
        )
        return max(0, self.gpu.free - pending)

    def emptied(self) -> Load:
        """Load after all leases have ended.

        In favour of earlier requests, a holder that NVML does not show counts as having allocated
        all that it was promised, and as one of the processes without a lease.
        """
        freed = sum(
            lease.record.required if used is None else used
            for lease, used in zip(self.leases, self.allocated, strict=True)
        )
        free = min(self.gpu.total, self.gpu.free + freed)
        hidden = self.allocated.count(None)
        gpu = replace(self.gpu, free=free, utilisation=None)
        return Load(gpu, others=max(0, self.others - hidden))


@dataclass(frozen=True)
class Decision:
    """Outcome of a request: the GPU to take, and the obstacles on the others by name.

    ``possible`` is False if waiting cannot help, as every GPU that it may use is too small.
    """

    gpu: Gpu | None
    reasons: Mapping[str, str]
    possible: bool


def decide(
    loads: Sequence[Load], request: LeaseRecord, earlier: Sequence[LeaseRecord] = ()
) -> Decision:
    """Decide on a request, given the earlier ones that still wait.

    A grant is valid only now: it must be recorded before the next decision.
    """
    own = [load for load in loads if load.gpu.uuid in request.uuids]
    reasons: dict[str, str] = {}
    fitting: list[Load] = []
    for load in own:
        obstacle = _obstacle(load, request)
        if obstacle is None and any(_could_run(load, waiting) for waiting in earlier):
            obstacle = "kept for an earlier request"
        if obstacle is None:
            fitting.append(load)
        else:
            reasons[named(load.gpu)] = obstacle
    # Spread leases first; then leave the GPU with more memory to those who need it.
    fitting.sort(key=lambda one: (len(one.leases), one.others, one.available, one.gpu.index))
    return Decision(
        gpu=fitting[0].gpu if fitting else None,
        reasons=reasons,
        # A GPU with a fault shows 0 bytes, but may recover.
        possible=any(
            load.gpu.fault is not None or load.gpu.total >= request.required for load in own
        ),
    )


def _could_run(load: Load, request: LeaseRecord) -> bool:
    """Tell whether a request may use a GPU and fits once all its leases have ended."""
    return load.gpu.uuid in request.uuids and _obstacle(load.emptied(), request) is None


def _obstacle(load: Load, request: LeaseRecord) -> str | None:
    """Reason why a request cannot run on a GPU now."""
    gpu, held = load.gpu, len(load.leases)
    if gpu.fault is not None:
        return f"NVML reports: {gpu.fault}"
    if gpu.total < request.required:
        return f"has only {gigabytes(gpu.total)}"
    allowed = min([request.slots, *(lease.record.slots for lease in load.leases)])
    if held > allowed:
        return f"{held} leases there, {allowed} allowed"
    if held == allowed:
        return f"{held} of {allowed} slots taken"
    needed = request.required * (CROWDED if load.others else 1)
    others = "another process is" if load.others == 1 else f"{load.others} other processes are"
    if load.available < needed:
        crowd = f", and {others} there" if load.others else ""
        return f"{gigabytes(load.available)} available{crowd}; needs {gigabytes(needed)}"
    if load.others and (gpu.utilisation or 0) > BUSY:
        return f"{gpu.utilisation} % busy, and {others} there"
    return None


def gigabytes(size: float) -> str:
    """Format bytes for messages."""
    return f"{size / 1e9:.1f} GB"


def slot_kind(uuid: str) -> str:
    """Common prefix of the names of a GPU's slots."""
    return uuid.replace("/", "_")  # MIG instances of old drivers: MIG-GPU-.../1/0


def load_of(folder: LeaseFolder, gpu: Gpu) -> Load:
    """Read the slots of a GPU; only under the folder's mutex, right after reading NVML."""
    leases, own = folder.held(slot_kind(gpu.uuid)), pid_namespace()
    used = {process.pid: process.used for process in gpu.processes or ()}
    allocated: list[int | None] = []
    for _, _, record in leases:
        left = used.get(record.pid) if record.namespace == own else None
        allocated.append(None if left is None else min(left, record.required))
        if left is not None:
            # One process may hold several leases: distribute its memory over them in order.
            used[record.pid] = max(0, left - record.required)
    holders = {os.getpid(), *(held.record.pid for held in leases if held.record.namespace == own)}
    return Load(gpu, tuple(leases), tuple(allocated), len(used.keys() - holders))


def waiters(folder: LeaseFolder) -> list[Held]:
    """Read the queue in order of arrival; only under the folder's mutex."""
    return sorted(folder.held(QUEUE), key=lambda place: place.record.since)
