"""Admission: state of the node's GPUs, and the GPU that a request gets or why it gets none.

The rules are those of docs/gpu.md, "Which GPU you get". A holder whose memory NVML does not show
counts as having allocated nothing, so nothing is promised twice. Processes without a lease can
grow; where NVML does not list them, memory alone decides. A later request takes a GPU only where no
earlier one could run at all, even after every lease there has ended, except for those that the
later one runs under. So nobody starves: what keeps the first request waiting only becomes less.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octane.gpu.inventory import Gpu, named
from octane.gpu.lease_folder import Held, LeaseFolder, LeaseRecord, mark

CROWDED = 1.5
"""Free memory over the request that is asked for beside processes without a lease."""

BUSY = 90
"""Percent of utilisation above which a GPU with processes without a lease is passed over."""

HELD = "OCTANE_GPU_LEASE"
"""Environment variable with the leases (:func:`mark`) that a command runs under."""

QUEUE = "wait"


@dataclass(frozen=True)
class Holder:
    """Lease that is held: bytes promised, bytes in use (None where unknown), slots allowed."""

    reserved: int
    allocated: int | None = None
    slots: int = 1

    @property
    def pending(self) -> int:
        """Bytes that are promised and not yet allocated."""
        return max(0, self.reserved - (self.allocated or 0))


@dataclass(frozen=True)
class Load:
    """GPU, leases on it, and number of processes there without a lease.

    ``under`` are the leases that the asking process itself runs under, which end after it.
    """

    gpu: Gpu
    holders: tuple[Holder, ...] = ()
    others: int = 0
    under: tuple[Holder, ...] = ()

    @property
    def available(self) -> int:
        """Bytes that can be promised."""
        return max(0, self.gpu.free - sum(holder.pending for holder in self.holders))

    def drained(self) -> Load:
        """Load once all leases have ended, except for those that the asking process runs under.

        A holder that NVML does not show may have allocated all that it was promised, also by one of
        the processes without a lease: the earlier request is favoured.
        """
        if not self.holders:
            return replace(self, holders=self.under)
        freed = sum(h.reserved if h.allocated is None else h.allocated for h in self.holders)
        hidden = sum(holder.allocated is None for holder in self.holders)
        free = min(self.gpu.total, self.gpu.free + freed)
        gpu = replace(self.gpu, free=free, utilisation=None)
        return Load(gpu, self.under, others=max(0, self.others - hidden))


@dataclass(frozen=True)
class Decision:
    """Outcome for a request: the GPU to take, and the obstacles on others by their names.

    ``possible`` is False where waiting cannot help, as no GPU that it may use is large enough.
    """

    gpu: Gpu | None
    reasons: Mapping[str, str]
    possible: bool


def decide(
    loads: Sequence[Load], request: LeaseRecord, earlier: Sequence[LeaseRecord] = ()
) -> Decision:
    """Decide on a request, given those that came before it and still wait.

    A grant holds for this moment only: it has to be recorded before the next decision.
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
    # Spread first; then leave the GPU with more memory to those who need it.
    fitting.sort(key=lambda one: (len(one.holders), one.others, one.available, one.gpu.index))
    return Decision(
        gpu=fitting[0].gpu if fitting else None,
        reasons=reasons,
        # A GPU with a fault shows no memory; it may come back.
        possible=any(
            load.gpu.fault is not None or load.gpu.total >= request.required for load in own
        ),
    )


def _could_run(load: Load, request: LeaseRecord) -> bool:
    """Return True where a request may use a GPU and fits there once leases have ended."""
    return load.gpu.uuid in request.uuids and _obstacle(load.drained(), request) is None


def _obstacle(load: Load, request: LeaseRecord) -> str | None:
    """Reason for which a request cannot run on a GPU now."""
    gpu, held = load.gpu, len(load.holders)
    if gpu.fault is not None:
        return f"NVML reports: {gpu.fault}"
    if gpu.total < request.required:
        return f"has {gigabytes(gpu.total)} in all"
    allowed = min([request.slots, *(holder.slots for holder in load.holders)])
    if held > allowed:
        return f"{held} leases there, {allowed} allowed"
    if held == allowed:
        return f"{held} of {allowed} slots taken"
    needed = request.required * (CROWDED if load.others else 1)
    others = "another process is" if load.others == 1 else f"{load.others} other processes are"
    if load.available < needed:
        beside = f", and {others} there" if load.others else ""
        return f"{gigabytes(load.available)} to give{beside}; needs {gigabytes(needed)}"
    if load.others and (gpu.utilisation or 0) > BUSY:
        return f"{gpu.utilisation} % busy, and {others} there"
    return None


def gigabytes(size: float) -> str:
    """Bytes as messages show them."""
    return f"{size / 1e9:.1f} GB"


@dataclass(frozen=True)
class NodeState:
    """State of all GPUs and of the queue at one moment.

    ``held`` are the slots that are taken, ``others`` the PIDs without a lease, by the UUID of the
    GPU; ``waiters`` the places in the queue with their content, first come first.
    """

    held: Mapping[str, Sequence[Held]]
    waiters: Sequence[tuple[Held, LeaseRecord]]
    loads: Sequence[Load]
    others: Mapping[str, tuple[int, ...]]


def slot_kind(uuid: str) -> str:
    """Beginning of the names of a GPU's slots."""
    return uuid.replace("/", "_")  # MIG instances of old drivers: MIG-GPU-.../1/0


def node_state(folder: LeaseFolder, gpus: Sequence[Gpu]) -> NodeState:
    """Look at all slots and the queue; only under the folder's mutex, right after NVML was read.

    A command that was started under a lease, with the environment that the lease gives, may take
    one itself: the outer lease does not count for it, as it would wait for itself.
    """
    under = os.environ.get(HELD, "").split(",")
    held, loads, others = {}, [], {}
    for gpu in gpus:
        held[gpu.uuid] = taken = folder.held(slot_kind(gpu.uuid))
        allocated, others[gpu.uuid] = _memory(gpu, taken)
        outer, holders = [], []
        for slot in taken:
            # Locked without a readable record: nobody else goes there.
            holder = Holder(0)
            if slot.record is not None:
                holder = Holder(slot.record.required, allocated.get(slot.name), slot.record.slots)
            (outer if mark(slot) in under else holders).append(holder)
        loads.append(Load(gpu, tuple(holders), len(others[gpu.uuid]), tuple(outer)))
    queue = [(place, place.record) for place in folder.held(QUEUE) if place.record is not None]
    queue.sort(key=lambda place: place[1].since)
    return NodeState(held, queue, loads, others)


def _memory(gpu: Gpu, taken: Sequence[Held]) -> tuple[dict[str, int], tuple[int, ...]]:
    """Bytes that each slot's holder uses, as far as NVML shows them, and processes without one."""
    used: dict[int | None, int | None] = {p.pid: p.used for p in gpu.processes or ()}
    holders = {os.getpid(), *(slot.pid for slot in taken)}
    strangers = tuple(p.pid for p in gpu.processes or () if p.pid not in holders)
    allocated: dict[str, int] = {}
    for slot in taken:
        left = used.get(slot.pid)
        if slot.record is None or left is None:
            continue
        # One process may hold several: what it uses fills them one after another.
        allocated[slot.name] = min(left, slot.record.required)
        used[slot.pid] = left - allocated[slot.name]
    return allocated, strangers
