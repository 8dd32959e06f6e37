"""Status: holders and waiters as a table, and gpu_slot.py's command on a share."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from octane.core.errors import OctaneError
from octane.gpu.admission import gigabytes, node_state
from octane.gpu.inventory import GpusUnavailableError, named, visible
from octane.gpu.lease import ABSENT, default_folder, lease, read_gpus
from octane.gpu.lease_folder import LeaseFolder, LeaseRecord, Locked, identity

if TYPE_CHECKING:
    # Leases can be used where pydantic is not installed.
    from octane.config.params import LeaseParameters
    from octane.core.arrays import Backend


PR_SET_CHILD_SUBREAPER = 36

PASSED_ON = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
)


def status(sharing: LeaseParameters) -> str:
    """Show GPUs, slots, holders, waiters and processes without a lease, for a terminal."""
    try:
        gpus, reason = read_gpus(), "there is no GPU"
    except GpusUnavailableError as error:
        gpus, reason = (), str(error)
    if not gpus:
        return f"No GPU can be leased, because {reason}.\n"
    with LeaseFolder(sharing.gpu_lock_dir or default_folder()) as folder:
        state = node_state(folder, gpus)
    allowed = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    lines = []
    for gpu, load in zip(gpus, state.loads, strict=True):
        shown = f"{gigabytes(gpu.free)} of {gigabytes(gpu.total)} free"
        shown += f", {gigabytes(load.available)} to give"
        if gpu.fault:
            shown = f"NVML reports: {gpu.fault}"
        busy = "" if gpu.utilisation is None else f", {gpu.utilisation} % busy"
        hidden = "" if gpu in allowed else ", hidden by CUDA_VISIBLE_DEVICES"
        lines += [f"{named(gpu)}  {gpu.name}  {gpu.uuid}", f"  {shown}{busy}{hidden}"]
        lines += [
            f"  slot {held.name.rpartition('.')[2]}  {_who(held.record)}"
            for held in state.held[gpu.uuid]
        ]
        lines += [
            f"  other   pid {process.pid}  "
            + ("unknown" if process.used is None else gigabytes(process.used))
            for process in gpu.processes or ()
            if process.pid in state.others[gpu.uuid]
        ]
    for place, (_, record) in enumerate(state.waiters, start=1):
        stopped = ", stopped" if time.monotonic() - record.seen >= ABSENT else ""
        lines.append(f"waiting {place}  {_who(record)}{stopped}")
    return "\n".join([*lines, ""])


def _who(record: LeaseRecord | None) -> str:
    """Describe a holder or a waiter; None where its file cannot be read."""
    if record is None:
        return "unknown  pid unknown"
    subject = f"  {record.subject}" if record.subject else ""
    waited = timedelta(seconds=round(time.monotonic() - record.since))
    return f"{record.user}  pid {record.pid}{subject}  {gigabytes(record.required)}  {waited}"


def run_on_share(
    words: list[str],
    required: int,
    backend: Backend,
    timeout: float | None,
    subject: str,
    sharing: LeaseParameters,
) -> NoReturn:
    """Wait for a share of ``required`` bytes, run a command on it, and end as the command."""
    with lease(
        required,
        backend=backend,
        timeout=sharing.timeout(backend) if timeout is None else timeout,
        slots=sharing.gpu_slots,
        folder=sharing.gpu_lock_dir,
        subject=subject or Path(words[0]).name,
    ) as held:
        code = run_command(words, {**os.environ, **held.environment()}, held.slot)
    end_like(code)


def run_command(words: list[str], environment: Mapping[str, str], slot: Locked | None) -> int:
    """Run a command on a lease and wait for all its descendants; signals are passed on to it.

    Descendants whose parent has ended become children of this process, also those in a session of
    their own. Returned is the command's exit code, or the negative number of the signal that ended
    it.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Ignored by the parent, it would have the kernel forget how the command ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    awaited = {*PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    if slot is not None:
        # On purpose: where this process is killed, the command keeps the lease.
        os.set_inheritable(slot.fd, True)
    command = _spawn(words, environment, before)
    found = identity(command)
    if slot is not None and found is not None:
        # The memory that NVML shows is the command's.
        with suppress(OSError):
            slot.write(replace(slot.record, pid=found.pid, start=found.start))
    code: int | None = None
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if child == command:
            code = os.waitstatus_to_exitcode(status)
        if child:
            continue
        arrived = signal.sigwaitinfo(awaited)
        # Those of a terminal (from the kernel, above 0) have reached the command already.
        if arrived.si_signo != signal.SIGCHLD and arrived.si_code <= 0:
            for pid in [command] if code is None else _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, arrived.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert code is not None
    return code


def end_like(code: int) -> NoReturn:
    """End this process as a command ended, by the same signal where one ended it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL cannot be set, and needs not
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code if code >= 0 else 128 - code)


def _spawn(
    words: list[str], environment: Mapping[str, str], mask: set[signal.Signals | int]
) -> int:
    # Python ignores these two, and a program that is started would go on doing so.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawnp(words[0], words, environment, setsigmask=mask, setsigdef=ignored)
    except OSError as error:
        failure = OctaneError(f"{words[0]} cannot be run ({error.strerror}); check the command.")
        # As a shell does.
        failure.code = 127 if isinstance(error, FileNotFoundError) else 126
        raise failure from error


def _children() -> list[int]:
    """PIDs of this process's children, as far as the kernel lists them."""
    with suppress(OSError):
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return [int(pid) for pid in listed.split()]
    return []
