"""Lease: wait for a share of a GPU, hold it while it is needed, and give it back.

>>> with lease("4GB", backend="auto") as held:  # doctest: +SKIP
...     subprocess.run(command, env={**os.environ, **held.environment()})

:mod:`octane.gpu.admission` decides and :mod:`octane.gpu.lease_folder` records the decision;
neither creates a CUDA context. With ``auto`` and ``cpu`` the block may run without a GPU: check
:attr:`Lease.gpu`.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octane.config.parameters import AUTO_TIMEOUT
from octane.core.errors import NoGpuError, OctaneError
from octane.core.timing import span
from octane.core.units import bytes_of
from octane.gpu.admission import (
    QUEUE,
    Decision,
    decide,
    gigabytes,
    load_of,
    slot_kind,
    waiters,
)
from octane.gpu.inventory import VARIABLE, Gpu, GpusUnavailableError, named, simulated_gpus, visible
from octane.gpu.lease_folder import (
    PATIENCE,
    REQUIRED_LIMIT,
    LeaseFolder,
    LeaseFolderBusyError,
    LeaseFolderError,
    LeaseRecord,
    Locked,
    pid_namespace,
)

log = logging.getLogger(__name__)

TICK = 0.5
"""Seconds between two looks, plus or minus half, so that waiters do not look in step."""

ABSENT = 10.0
"""Seconds without a look after which a (stopped) waiter keeps its place but blocks nobody."""

SAY_AGAIN = 60.0
"""Seconds after which the log repeats why a process waits."""


def default_folder() -> Path:
    """Lease folder of the node: ``$OCTANE_GPU_LOCK_DIR``, else a folder in /var/tmp.

    /var/tmp exists for every user on every Linux, survives logout (unlike /dev/shm), is not
    replaced by Slurm's private /tmp, and Apptainer shares it with the node.
    """
    return Path(os.environ.get("OCTANE_GPU_LOCK_DIR") or "/var/tmp/octane-gpu-leases")


def read_gpus() -> tuple[Gpu, ...]:
    """Read the current state of the node's GPUs, or of those in ``OCTANE_SIMULATED_GPUS``."""
    if simulated := os.environ.get(VARIABLE):
        return simulated_gpus(simulated)
    from octane.gpu import nvml

    return nvml.read()


def usable(gpus: Sequence[Gpu], avoid: Collection[str]) -> tuple[str, ...]:
    """UUIDs of the GPUs that this process may use, except those to ``avoid``."""
    shown = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(gpu.uuid for gpu in shown if gpu.uuid not in avoid)


def parse_memory(memory: int | str) -> int:
    """Convert a request to bytes; an OctaneError if it is not a size."""
    try:
        size = bytes_of(memory) if isinstance(memory, str) else int(memory)
    except ValueError as error:
        raise OctaneError(f"The memory of a lease: {error}.") from error
    if not 0 <= size < REQUIRED_LIMIT:
        raise OctaneError(f"The memory of a lease is {memory}; give a size such as 4GB.")
    return size


@dataclass
class Lease:
    """Result of a request.

    ``gpu`` is the state of the GPU when it was granted, or None for the CPU; then ``reason`` says
    why, and ``fallback`` is True if a usable GPU exists. ``waited`` is in seconds; ``slot`` is the
    lock that holds the lease, taken by ``taker``.
    """

    gpu: Gpu | None
    waited: float = 0.0
    reason: str = ""
    fallback: bool = False
    slot: Locked | None = None
    taker: Taker | None = None

    def reserve(self, memory: int) -> None:
        """Reserve this many bytes instead of those requested, even if they are not free."""
        if self.taker is not None:
            self.taker.reserve(memory)

    def environment(self) -> dict[str, str]:
        """Environment variables that restrict a program to this GPU, or to the CPU."""
        return {"CUDA_VISIBLE_DEVICES": "" if self.gpu is None else self.gpu.uuid}


@contextmanager
def lease(
    memory: int | str,
    *,
    backend: str = "auto",
    timeout: float | None = None,
    slots: int = 1,
    folder: Path | None = None,
    subject: str = "",
    avoid: Collection[str] = (),
) -> Generator[Lease]:
    """Hold a share of a GPU while the block runs, however it ends.

    ``memory`` is all that the block will use on the GPU, context included: bytes, or a size such as
    '4GB'. The ``backend`` 'auto' falls back to the CPU, at once if no GPU exists, else if none came
    free in time; 'gpu' insists; 'cpu' looks at nothing. The ``timeout`` is in seconds: by default
    300 with 'auto' and unlimited with 'gpu'; 0 looks once. ``slots`` is how many leases may share
    the GPU, this one included. ``folder`` is the lease folder, the same for all who share the GPUs;
    by default :func:`default_folder`. ``subject`` is shown to others who wait, and ``avoid`` are
    UUIDs of GPUs not to use.

    With 'gpu', an OctaneError says that a GPU does not exist, that none is large enough or came
    free in time, or that the lease folder cannot be used.
    """
    required = parse_memory(memory)
    if backend == "cpu":
        yield Lease(None, reason="backend is cpu")
        return
    if backend not in ("auto", "gpu"):
        raise OctaneError(f"backend is {backend!r}: give one of auto, gpu, cpu.")
    limit = AUTO_TIMEOUT if timeout is None and backend == "auto" else timeout
    if slots < 1 or (limit is not None and not limit >= 0):
        raise OctaneError(
            f"{slots} slots or a timeout of {limit} s is too small; give at least 1 and 0."
        )
    request = LeaseRecord(
        required=required,
        slots=slots,
        since=time.monotonic(),
        subject=subject,
        pid=os.getpid(),
        namespace=pid_namespace(),
    )
    taker = Taker(folder or default_folder(), request, avoid)
    try:
        with span("lease"):
            held = taker.wait(limit, insist=backend == "gpu")
        if held.gpu is not None:
            size = gigabytes(required)
            log.info("%s: %s leased after %.1f s", named(held.gpu), size, held.waited)
        elif backend == "gpu":
            raise NoGpuError(
                f"backend is gpu, but {held.reason}; wait longer (--gpu_timeout), ask for less "
                "memory, make a GPU visible (CUDA_VISIBLE_DEVICES), or give --backend cpu."
            )
        else:
            # A machine without a GPU is normal; waiting in vain is not.
            level = logging.WARNING if held.fallback else logging.INFO
            log.log(level, "backend auto: CPU, because %s", held.reason)
        if taker.place is not None:
            taker.place.release()
        yield held
    finally:
        for lock in (taker.place, taker.slot):
            if lock is not None:
                lock.release()


@dataclass
class Taker:
    """A request that looks, decides and takes; parameters as for :func:`lease`."""

    path: Path
    request: LeaseRecord
    avoid: Collection[str]
    place: Locked | None = None
    slot: Locked | None = None
    granted: LeaseRecord | None = None

    def wait(self, limit: float | None, *, insist: bool) -> Lease:
        """Look until a GPU is granted, cannot be granted, or time is up: see :func:`lease`.

        With ``insist``, a lease folder that cannot be used is an error.
        """
        reason, said = "", -SAY_AGAIN
        while True:
            elapsed = time.monotonic() - self.request.since
            try:
                # Before the folder is locked, as NVML may hang. Changes in between only make the
                # account more cautious: a new lease has not allocated anything yet.
                gpus = read_gpus()
                if not (uuids := usable(gpus, self.avoid)):
                    return self._lease(None, self.hidden())
                # At least a second, as others lock the folder for milliseconds.
                patience = PATIENCE if limit is None else min(PATIENCE, max(1.0, limit - elapsed))
                decision = self.look(gpus, uuids, patience)
            except GpusUnavailableError as error:
                # On the first look, this is the machine's normal state.
                return self._lease(None, str(error), fallback=bool(reason))
            except LeaseFolderBusyError as error:
                reason = str(error)
            except LeaseFolderError as error:
                if insist:
                    raise
                return self._lease(None, str(error), fallback=True)
            else:
                if decision.gpu is not None:
                    return self._lease(decision.gpu)
                reason = "; ".join(f"{name}: {why}" for name, why in decision.reasons.items())
                if not decision.possible:
                    large = f"no GPU has the {gigabytes(self.request.required)} required ({reason})"
                    return self._lease(None, large, fallback=True)
            elapsed = time.monotonic() - self.request.since
            if limit is not None and elapsed >= limit:
                late = f"no GPU came free within {limit:g} s ({reason})"
                return self._lease(None, late, fallback=True)
            if elapsed - said >= SAY_AGAIN:
                size, said = gigabytes(self.request.required), elapsed
                log.info("waiting for %s of a GPU since %.0f s: %s", size, elapsed, reason)
            pause = TICK * random.uniform(0.5, 1.5)
            time.sleep(pause if limit is None else min(pause, max(0.0, limit - elapsed)))

    def look(self, gpus: tuple[Gpu, ...], uuids: tuple[str, ...], patience: float) -> Decision:
        """Look once: take the granted GPU, else join the queue."""
        with LeaseFolder(self.path, patience) as folder:
            now = time.monotonic()
            earlier = [
                record
                for _, _, record in waiters(folder)
                if record.since < self.request.since and now - record.seen < ABSENT
            ]
            request = self.request.model_copy(update={"seen": now, "uuids": uuids})
            decision = decide([load_of(folder, gpu) for gpu in gpus], request, earlier)
            if decision.gpu is not None:
                # Kept at once, so that an interrupt does not lose it.
                self.granted = self.request.model_copy(update={"since": now})
                self.slot = folder.take(slot_kind(decision.gpu.uuid), self.granted)
            elif self.place is not None:
                self.place.write(request)
            elif decision.possible:
                self.place = folder.take(QUEUE, request)
        return decision

    def reserve(self, memory: int) -> None:
        """Change the bytes of the lease that was granted; without one, do nothing."""
        if self.slot is not None and self.granted is not None:
            with LeaseFolder(self.path):
                self.slot.write(self.granted.model_copy(update={"required": memory}))

    def hidden(self) -> str:
        """Reason why the request may not use any GPU."""
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.avoid:
            return "no other GPU is left to try"
        if setting is None:
            return "no GPU was found"
        return f"CUDA_VISIBLE_DEVICES is '{setting}', which allows none of this node's GPUs"

    def _lease(self, gpu: Gpu | None, reason: str = "", *, fallback: bool = False) -> Lease:
        waited = time.monotonic() - self.request.since
        return Lease(gpu, waited, reason, fallback, self.slot, self)
