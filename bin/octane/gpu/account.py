"""What is on each GPU: leases with what they have allocated, and processes without a lease."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octane.gpu.admission import Holder, Load
from octane.gpu.inventory import Gpu
from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.lease_records import Record
from octane.gpu.processes import Identity, lineage

__all__ = ["HELD", "QUEUE", "Held", "Survey", "slot_kind", "survey"]

HELD = "OCTANE_GPU_LEASE"
"""Environment variable with the slot that a command runs under."""

QUEUE = "wait"


@dataclass(frozen=True)
class Held:
    """A slot that is taken: the file's name in the lease folder, and what it says."""

    name: str
    record: Record | None


@dataclass(frozen=True)
class Survey:
    """Everything at one moment.

    Attributes
    ----------
    gpus : tuple of Gpu
        As they were read.
    held : mapping of str to tuple of Held
        The slots that are taken, by the GPU's UUID.
    waiters : tuple of (str, Record)
        Names of places in the queue and what they say, first come first.
    loads : tuple of Load
        What the rules decide on, without the leases that the asking process runs under itself.
    others : mapping of str to tuple of int
        Numbers of the processes without a lease, by the GPU's UUID.
    """

    gpus: tuple[Gpu, ...]
    held: Mapping[str, tuple[Held, ...]]
    waiters: tuple[tuple[str, Record], ...]
    loads: tuple[Load, ...]
    others: Mapping[str, tuple[int, ...]]


def slot_kind(uuid: str) -> str:
    """What the names of a GPU's slots begin with."""
    return uuid.replace("/", "_")  # MIG instances of old drivers: MIG-GPU-.../1/0


def survey(
    folder: LeaseFolder,
    gpus: Sequence[Gpu],
    descent: Callable[[int], tuple[Identity, ...]] = lineage,
) -> Survey:
    """Look at all slots and the queue; to be called under the folder's mutex.

    A command that was started under a lease, with the environment that the lease gives, may take
    one of its own: the outer one does not stand in its way, or it would wait for itself.

    Parameters
    ----------
    folder : LeaseFolder
        Opened.
    gpus : sequence of Gpu
        As they were read just before.
    descent : callable
        A process and its parents, nearest first.
    """
    own = descent(os.getpid())
    under = os.environ.get(HELD, "").split(",")
    held, loads, others = {}, [], {}
    for gpu in gpus:
        taken = tuple(Held(name, record) for name, record in folder.held(slot_kind(gpu.uuid)))
        allocated, strangers = _attributed(gpu, taken, own, descent)
        # The variable alone could be left over from a lease that is now another's.
        inside = {
            slot.name
            for slot in taken
            if slot.name in under and slot.record is not None and slot.record.identity in own
        }
        holders = tuple(
            _holder(slot.record, allocated.get(slot.name))
            for slot in taken
            if slot.name not in inside
        )
        held[gpu.uuid] = taken
        others[gpu.uuid] = strangers
        loads.append(Load(gpu, holders, len(strangers)))
    queue = [(name, record) for name, record in folder.held(QUEUE) if record is not None]
    queue.sort(key=lambda place: place[1].since)
    return Survey(tuple(gpus), held, tuple(queue), tuple(loads), others)


def _holder(record: Record | None, allocated: int | None) -> Holder:
    if record is None:
        # Locked by something that left no word: nobody else goes there.
        return Holder(reserved=0)
    return Holder(record.required, allocated, record.slots, record.since)


def _attributed(
    gpu: Gpu,
    taken: Sequence[Held],
    own: tuple[Identity, ...],
    descent: Callable[[int], tuple[Identity, ...]],
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Bytes that each slot's holder uses, as far as they show, and who has no lease."""
    used: dict[Identity, int] = {}
    strangers: list[int] = []
    records = [slot.record for slot in taken if slot.record is not None]
    identities = {record.identity for record in records}
    for process in gpu.processes or ():
        chain = descent(process.pid)
        # The nearest, as a lease may be taken by what runs under another.
        holder = next((one for one in chain if one in identities), None)
        if holder is None:
            if not own or own[0] not in chain:
                strangers.append(process.pid)
        elif process.used is not None:
            used[holder] = used.get(holder, 0) + process.used
    allocated: dict[str, int] = {}
    for slot in taken:
        if slot.record is None or slot.record.identity not in used:
            continue
        # One process may hold several: what it uses fills them one after another.
        left = used[slot.record.identity]
        allocated[slot.name] = min(left, slot.record.required)
        used[slot.record.identity] = left - allocated[slot.name]
    return allocated, tuple(strangers)
