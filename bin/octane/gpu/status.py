"""Status: a table of holders and waiters, and how gpu_slot.py runs its command."""

from __future__ import annotations

import fcntl
import os
import pwd
import resource
import signal
import time
from pathlib import Path

from octane.config.parameters import LeaseParameters
from octane.core.errors import OctaneError
from octane.gpu.admission import gigabytes, load_of, waiters
from octane.gpu.inventory import GpusUnavailableError, named, visible
from octane.gpu.lease import ABSENT, default_folder, lease, read_gpus
from octane.gpu.lease_folder import Held, LeaseFolder


def status() -> str:
    """Describe GPUs, slots, holders and waiters for a terminal."""
    try:
        gpus, reason = read_gpus(), "no GPU was found"
    except GpusUnavailableError as error:
        gpus, reason = (), str(error)
    if not gpus:
        return f"No GPU can be leased, because {reason}.\n"
    with LeaseFolder(default_folder()) as folder:
        loads, queue = [load_of(folder, gpu) for gpu in gpus], waiters(folder)
    allowed = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    lines = []
    for gpu, load in zip(gpus, loads, strict=True):
        shown = f"{gigabytes(gpu.free)} of {gigabytes(gpu.total)} free"
        shown += f", {gigabytes(load.available)} available"
        if gpu.fault:
            shown = f"NVML reports: {gpu.fault}"
        busy = "" if gpu.utilisation is None else f", {gpu.utilisation} % busy"
        hidden = "" if gpu in allowed else ", hidden by CUDA_VISIBLE_DEVICES"
        lines += [f"{named(gpu)}  {gpu.name}  {gpu.uuid}", f"  {shown}{busy}{hidden}"]
        lines += [f"  slot {held.name.rpartition('.')[2]}  {_who(held)}" for held in load.leases]
    for number, place in enumerate(queue, start=1):
        stopped = ", stopped" if time.monotonic() - place.record.seen >= ABSENT else ""
        lines.append(f"waiting {number}  {_who(place)}{stopped}")
    return "\n".join([*lines, ""])


def _who(held: Held) -> str:
    """Describe a holder or a waiter."""
    record = held.record
    # Other users' text must not control the terminal.
    subject = "".join(filter(str.isprintable, record.subject))
    minutes = (time.monotonic() - record.since) / 60
    size = gigabytes(record.required)
    return f"{_user(held.uid)}  pid {record.pid}  {subject}  {size}  {minutes:.1f} min"


def _user(uid: int) -> str:
    """Name of a user, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run_on_share(
    words: list[str],
    required: int,
    backend: str,
    subject: str,
    sharing: LeaseParameters,
) -> None:
    """Wait for a share of ``required`` bytes, and replace this process by a command that uses it.

    The command inherits the lease's file, and the lease lasts while any process has it open.
    """
    with lease(
        required,
        backend=backend,
        timeout=sharing.timeout(backend),
        slots=sharing.gpu_slots,
        subject=subject or Path(words[0]).name,
    ) as held:
        if held.slot is not None:
            # A number above those that scripts use and tcsh closes; macOS allows only 256.
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            fcntl.fcntl(held.slot.fd, fcntl.F_DUPFD, min(256, most // 2))
        # Python ignores it, and the command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvpe(words[0], words, {**os.environ, **held.environment()})
        except OSError as error:
            failure = OctaneError(
                f"{words[0]} cannot be run ({error.strerror}); check the command."
            )
            # As a shell does.
            failure.code = 127 if isinstance(error, FileNotFoundError) else 126
            raise failure from error
