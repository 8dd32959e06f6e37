"""Who holds and who waits, as a table and as JSON; and what a request would get."""

from __future__ import annotations

import os
import time
from pathlib import Path

from octane.gpu.account import Held, Survey, survey
from octane.gpu.inventory import Gpu, GpuSource, GpusUnavailableError, named, visible
from octane.gpu.lease import ABSENT, Taker
from octane.gpu.lease_folder import LeaseFolder
from octane.gpu.lease_records import Record

__all__ = ["current", "preview", "table"]


def current(source: GpuSource, path: Path) -> dict[str, object]:
    """GPUs, slots, holders, reservations, waiters and foreign processes.

    Parameters
    ----------
    source : GpuSource
        Where GPUs are read.
    path : Path
        Lease folder.

    Returns
    -------
    dict
        Ready for JSON; memory in bytes, times in seconds. ``gpus`` is empty where there are none,
        and ``reason`` then says why.
    """
    found: dict[str, object] = {"simulated": source.simulated, "folder": str(path), "reason": None}
    try:
        gpus = source.read()
    except GpusUnavailableError as error:
        return {**found, "reason": str(error), "gpus": [], "waiters": []}
    if not gpus:
        return {**found, "reason": "there is no GPU", "gpus": [], "waiters": []}
    seen = _look(gpus, path)
    now = time.monotonic()
    allowed = {gpu.uuid for gpu in visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))}
    loads = {load.gpu.uuid: load for load in seen.loads}
    return {
        **found,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "total": gpu.total,
                "free": gpu.free,
                "available": loads[gpu.uuid].available,
                "utilisation": gpu.utilisation,
                "fault": gpu.fault,
                "visible": gpu.uuid in allowed,
                "holders": [_holder(held, now) for held in seen.held[gpu.uuid]],
                "other_processes": [
                    {"pid": process.pid, "used": process.used}
                    for process in gpu.processes or ()
                    if process.pid in seen.others[gpu.uuid]
                ],
            }
            for gpu in gpus
        ],
        "waiters": [
            {**_who(record), "for": now - record.since, "stopped": now - record.seen >= ABSENT}
            for _, record in seen.waiters
        ],
    }


def table(found: dict[str, object]) -> str:
    """The same as a table for a terminal."""
    gpus, waiters = found["gpus"], found["waiters"]
    assert isinstance(gpus, list)
    assert isinstance(waiters, list)
    if not gpus:
        return f"No GPU can be leased, because {found['reason']}.\n"
    lines = []
    for gpu in gpus:
        index = named(Gpu(gpu["index"], gpu["uuid"], gpu["name"], 0, 0))
        busy = "" if gpu["utilisation"] is None else f", {gpu['utilisation']} % busy"
        hidden = "" if gpu["visible"] else ", hidden by CUDA_VISIBLE_DEVICES"
        state = f"NVML reports: {gpu['fault']}" if gpu["fault"] else _memory(gpu)
        lines.append(f"{index}  {gpu['name']}  {gpu['uuid']}")
        lines.append(f"  {state}{busy}{hidden}")
        lines += [
            f"  slot {held['slot']}  {_person(held)}  {_gb(held['required'])}  {_time(held['for'])}"
            for held in gpu["holders"]
        ]
        lines += [
            f"  other   pid {other['pid']}  {_gb(other['used'])}"
            for other in gpu["other_processes"]
        ]
    for place, waiter in enumerate(waiters, start=1):
        stopped = ", stopped" if waiter["stopped"] else ""
        lines.append(
            f"waiting {place}  {_person(waiter)}  {_gb(waiter['required'])}  "
            f"{_time(waiter['for'])}{stopped}"
        )
    return "\n".join([*lines, ""])


def preview(
    source: GpuSource, path: Path, required: int, slots: int
) -> tuple[Gpu | None, list[str]]:
    """The GPU that a request would take now, and a line for every GPU.

    Nothing is taken, and nobody is kept waiting by it.
    """
    taker = Taker(source, path, required, slots)
    try:
        gpus = taker.candidates()
    except GpusUnavailableError as error:
        return None, [f"No GPU, because {error}."]
    if not gpus:
        return None, [f"No GPU, because {taker.hidden()}."]
    decision = taker.decided(_look(gpus, path))
    lines = []
    for gpu in gpus:
        if decision.gpu is not None and gpu.uuid == decision.gpu.uuid:
            lines.append(f"{named(gpu)}: would be taken ({gpu.uuid})")
        else:
            hidden = "hidden by CUDA_VISIBLE_DEVICES"
            lines.append(f"{named(gpu)}: {decision.reasons.get(gpu.uuid, hidden)}")
    return decision.gpu, lines


def _look(gpus: tuple[Gpu, ...], path: Path) -> Survey:
    with LeaseFolder(path) as folder, folder.mutex():
        return survey(folder, gpus)


def _who(record: Record) -> dict[str, object]:
    return {
        "user": record.user,
        "pid": record.pid,
        "subject": record.subject,
        "required": record.required,
    }


def _holder(held: Held, now: float) -> dict[str, object]:
    slot = int(held.name.rpartition(".")[2])
    if held.record is None:
        return {"slot": slot, "user": None, "pid": None, "subject": "", "required": 0, "for": None}
    return {"slot": slot, **_who(held.record), "for": now - held.record.since}


def _memory(gpu: dict) -> str:
    return f"{_gb(gpu['free'])} of {_gb(gpu['total'])} free, {_gb(gpu['available'])} to give"


def _person(who: dict) -> str:
    subject = f"  {who['subject']}" if who["subject"] else ""
    return f"{who['user'] or 'unknown'}  pid {who['pid'] or 'unknown'}{subject}"


def _gb(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
