"""Work on a leased GPU, with retries there, on another GPU, later, or on the CPU.

Four things go wrong with a shared GPU:

- It lacks memory: the lease waits.
- Another process takes it between the grant and the creation of the context: the lease is given
  back, and requested again after a pause.
- Memory runs out: the work starts again with half the batch. If even the smallest batch does not
  fit, another GPU is tried, then a later moment, and at last the CPU, or it is an error.
- The GPU is lost because a kernel or its memory failed. CUDA then refuses all work in this process,
  on any GPU: the work ends with an error, and the workflow retries it in a new process.

On a GPU that is given up, this process keeps its context but frees all other memory.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np

from octane.config.parameters import LeaseParameters
from octane.core.arrays import Backend
from octane.core.errors import GpuLostError, NoGpuError
from octane.core.metrics import Metrics
from octane.gpu.device import CupyDevice, DeviceMissingError, DeviceTakenError, describe
from octane.gpu.inventory import GpusUnavailableError
from octane.gpu.lease import Lease, lease, read_gpus, usable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CONTEXT_BYTES = 500_000_000
"""GPU memory assumed for a process's context and kernels, before any data; not measured yet. The
lease reserves more if NVML shows a larger context."""

MOMENTS = 3
"""How often the smallest batch may run out of memory before a GPU is given up for good."""

PAUSE = 1.0
"""Seconds before the first new try on a GPU; doubled up to :data:`LONGEST_PAUSE`."""

LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Attempt:
    """One try.

    ``gpu`` is a UUID, or None for the CPU; ``waited`` is the seconds until the lease was granted, 0
    for further tries under the same lease; ``outcome`` is one of 'done', 'out of memory', 'taken by
    another', 'not usable', 'no GPU'; ``detail`` is the error's text, or why no GPU was leased.
    """

    gpu: str | None
    batch: int
    waited: float
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Share:
    """Array module (``numpy`` or ``cupy``), batch size and device that the work gets."""

    xp: ModuleType
    batch: int
    device: CupyDevice | None = None

    def active(self) -> AbstractContextManager[None]:
        """Make the device current in the calling thread, as it is in the work's own thread."""
        return nullcontext() if self.device is None else self.device.active()

    def empty(self) -> None:
        """Free device memory that arrays no longer use."""
        if self.device is not None:
            self.device.empty()


def on_device(
    work: Callable[[Share], Result],
    device_bytes: Callable[[int], int],
    *,
    batch: int,
    backend: Backend,
    sharing: LeaseParameters,
    metrics: Metrics,
    subject: str,
) -> Result:
    """Do work on a device that the parameters allow, and record where and how.

    A calling thread without a CUDA context of its own stays on the last leased GPU.

    Parameters
    ----------
    work
        Called with the device at every try: it must drop the results of an earlier try, and leave
        nothing on the GPU except objects referenced by the error that it raises.
    device_bytes
        GPU memory in bytes that the work needs with a batch of that size, without the context.
    batch
        The largest batch: how many blocks are on the device at once. Halved, down to 1, when
        memory runs out.
    backend, sharing
        Which device, and how to wait for it; the timeout limits the total waiting time.
    metrics
        Receives the device and the ``gpu`` figures.
    subject
        Name of the work, shown to others who wait.

    Raises
    ------
    NoGpuError
        With backend gpu, if no GPU can be used.
    GpuLostError
        If the GPU fails during the work.
    """

    def attempt(share: Share) -> Result:
        metrics.device = {"backend": "cpu"} if share.xp is np else describe(share.xp)
        return work(share)

    run = _Run(attempt, CONTEXT_BYTES + device_bytes(batch), batch)
    # So that waiting for a lease is on the record's timeline.
    with metrics.timeline.here():
        result = run.compute(backend, sharing, subject)
    last = run.attempts[-1]
    fell_back = last.gpu is None and any(attempt.gpu for attempt in run.attempts)
    metrics.figures["gpu"] = {
        "backend": "cpu" if last.gpu is None else "gpu",
        "gpu": last.gpu,
        "batch": last.batch,
        "slot_wait_seconds": sum(attempt.waited for attempt in run.attempts),
        "fell_back": fell_back,
        "context_bytes": run.context,
        "attempts": [asdict(attempt) for attempt in run.attempts],
    }
    if fell_back:
        metrics.warn("The GPU could not finish, so the CPU did the work.")
    return result


class _Run(Generic[Result]):
    """Work, its tries so far, the GPUs that it gave up, and its largest context, if measured."""

    def __init__(self, work: Callable[[Share], Result], required: int, batch: int) -> None:
        self.work = work
        self.required = required
        self.batch = batch
        self.attempts: list[Attempt] = []
        self.left: set[str] = set()
        self.context: int | None = None

    def compute(self, backend: Backend, sharing: LeaseParameters, subject: str) -> Result:
        """Try under one lease after another, and at last on the CPU."""
        limit = sharing.timeout(backend)
        waited, pause = 0.0, PAUSE
        absent = None if backend == "cpu" else CupyDevice.missing()
        if absent is not None:
            self._give_up(backend, absent, logging.INFO)
        while backend != "cpu" and absent is None:
            if self.attempts and limit is not None and waited >= limit:
                # Otherwise a GPU that is granted but then not usable would be tried forever.
                last = self.attempts[-1]
                late = f"no GPU could be used within {limit:g} s ({last.outcome}: {last.detail})"
                self._give_up(backend, f"{late}; wait longer (--gpu_timeout), ask for less memory")
                break
            with lease(
                self.required,
                backend=backend,
                timeout=None if limit is None else max(0.0, limit - waited),
                slots=sharing.gpu_slots,
                subject=subject,
                avoid=self.left,
            ) as held:
                waited += held.waited
                if held.gpu is None:
                    attempt = Attempt(None, self.batch, held.waited, "no GPU", held.reason)
                    self.attempts.append(attempt)
                    break
                results = self._under(held)
            if results:
                return results[0]
            uuid, outcome = held.gpu.uuid, self.attempts[-1].outcome
            if outcome == "not usable" and _others(uuid, self.left):
                continue
            if outcome == "not usable":
                self._give_up(backend, self.attempts[-1].detail)
                break
            if outcome == "out of memory" and (
                _others(uuid, self.left) or self._exhausted(uuid) >= MOMENTS
            ):
                self.left.add(uuid)
                continue
            log.info("%s: trying again in %.0f s", outcome, pause)
            time.sleep(pause * random.uniform(0.5, 1.5))
            waited += pause
            pause = min(2 * pause, LONGEST_PAUSE)
        result = self.work(Share(np, self.batch))
        self.attempts.append(Attempt(None, self.batch, 0.0, "done"))
        return result

    def _give_up(self, backend: Backend, reason: str, level: int = logging.WARNING) -> None:
        """Use the CPU; with backend gpu, raise. The reason ends with a remedy."""
        if backend == "gpu":
            raise NoGpuError(f"backend is gpu, but {reason}, or give --backend cpu.")
        log.log(level, "backend auto: CPU, because %s", reason)
        self.attempts.append(Attempt(None, self.batch, 0.0, "no GPU", reason))

    def _exhausted(self, uuid: str) -> int:
        """Count how often the smallest batch ran out of memory on a GPU."""
        return sum(
            attempt.gpu == uuid and attempt.batch == 1 and attempt.outcome == "out of memory"
            for attempt in self.attempts
        )

    def _under(self, held: Lease) -> list[Result]:
        """Try under one lease with ever smaller batches; an empty list if none fits."""
        assert held.gpu is not None
        uuid, waited, batch = held.gpu.uuid, held.waited, self.batch
        before = _own_bytes(uuid)
        try:
            device = CupyDevice(uuid)
            device.open()
        except DeviceMissingError as error:
            log.warning("%s: %s", uuid, error)
            self.attempts.append(Attempt(uuid, batch, waited, "not usable", str(error)))
            self.left.add(uuid)
            return []
        except DeviceTakenError as error:
            self.attempts.append(Attempt(uuid, batch, waited, "taken by another", str(error)))
            return []
        self._account(_own_bytes(uuid) - before, held)
        while True:
            results, failure = self._once(device, batch)
            # The error is gone, and with it the arrays in the frames that it passed through.
            gc.collect()
            device.empty()
            outcome = "done" if results else "out of memory"
            self.attempts.append(Attempt(uuid, batch, waited, outcome, failure))
            if results:
                return results
            log.warning("GPU memory ran out with a batch of %d: %s", batch, failure)
            if batch == 1:
                return []
            waited, batch = 0.0, batch // 2

    def _account(self, context: int, held: Lease) -> None:
        """Record a context's bytes (0 or less if unknown), and reserve those beyond the assumed."""
        if context <= 0:
            return
        self.context = max(context, self.context or 0)
        if context > CONTEXT_BYTES:
            more = context - CONTEXT_BYTES
            log.info("the lease grows by %.0f MB, because the CUDA context is larger", more / 1e6)
            held.reserve(self.required + more)

    def _once(self, device: CupyDevice, batch: int) -> tuple[list[Result], str]:
        """Try once: a list with the result, or empty if memory ran out, and that error's text."""
        try:
            with device.active():
                return [self.work(Share(device.xp, batch, device))], ""
        except Exception as error:
            # Only the device's library recognises its out-of-memory errors.
            if device.is_out_of_memory(error):
                return [], str(error)
            if device.is_lost():
                raise GpuLostError(
                    f"The GPU {device.uuid} failed ({error}); run again, or with --backend cpu."
                ) from error
            raise


def _own_bytes(uuid: str) -> int:
    """GPU memory of this process; 0 where NVML does not show it, as in some containers.

    In a container, another process may be listed under this process's ID: only use differences.
    """
    try:
        shown = [gpu.processes or () for gpu in read_gpus() if gpu.uuid == uuid]
    except GpusUnavailableError:
        return 0
    return sum(p.used or 0 for processes in shown for p in processes if p.pid == os.getpid())


def _others(uuid: str, left: set[str]) -> bool:
    """Tell whether another GPU can be tried."""
    try:
        return bool(usable(read_gpus(), {uuid, *left}))
    except GpusUnavailableError:
        return False
