"""Work on a leased GPU, or elsewhere, or later, or on the CPU: the one retry loop.

Three things go wrong with a GPU that others use too:

- No memory: the lease waits.
- Another process is quicker between the grant and the making of the context: the lease is given
  back, and asked for again after a pause.
- Memory runs out during the work: partial results are dropped, the pool is returned and the work
  begins again with half the batch. Only when the smallest batch does not fit is the GPU given up,
  for another one, for a later moment, and in the end for the CPU or an error.

A GPU is left for good by releasing its primary context. As CuPy cannot return to a device whose
context was released, that is done when there is another GPU to go to or when the CPU takes over. A
process that waits for a better moment on its single GPU keeps the context and returns the memory.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import numpy as np

from octane.config import AUTO_TIMEOUT
from octane.config.params import LeaseParameters
from octane.core.arrays import Backend
from octane.core.errors import OctaneError
from octane.core.metrics import Metrics
from octane.gpu.device import CupyDevice, Device, DeviceMissingError, DeviceTakenError, describe
from octane.gpu.inventory import GpuSource, GpusUnavailableError, visible
from octane.gpu.lease import Lease, OnWait, gpu_source, lease

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CONTEXT_BYTES = 500_000_000
"""Bytes of a GPU that a process takes with its context and loaded kernels, before any data."""

MOMENTS = 3
"""Times that the smallest batch may run out of memory before a GPU is given up for good."""

PAUSE = 1.0
"""Seconds before the next try on a GPU, at first; doubled up to the limit below."""

LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Attempt:
    """One try.

    ``gpu`` is a UUID, None for the CPU; ``waited`` the seconds until the lease was granted, 0 for
    further tries under the same lease; ``outcome`` one of 'done', 'out of memory', 'taken by
    another', 'not usable', 'no GPU'; ``detail`` the text of the error, or why there is no GPU.
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
    lease: Lease
    device: Device | None = None

    @contextmanager
    def active(self) -> Generator[None]:
        """Compute on the device in the calling thread; the work's own thread does already."""
        if self.device is None:
            yield
        else:
            with self.device.active():
                yield


@dataclass
class Done(Generic[Result]):
    """Result of the work, and all tries, the last of them successful."""

    result: Result
    attempts: list[Attempt]

    def figures(self) -> dict[str, object]:
        """Figures for the metrics."""
        last = self.attempts[-1]
        return {
            "backend": "cpu" if last.gpu is None else "gpu",
            "gpu": last.gpu,
            "batch": last.batch,
            "slot_wait_seconds": sum(attempt.waited for attempt in self.attempts),
            "fell_back": last.gpu is None and any(a.gpu for a in self.attempts),
            "attempts": [asdict(attempt) for attempt in self.attempts],
        }


class Devices(Protocol):
    """Makes devices, by default :class:`octane.gpu.device.CupyDevice`."""

    def __call__(self, uuid: str) -> Device:
        """Device of a GPU."""
        ...

    def missing(self) -> str | None:
        """Reason for which there are none."""
        ...


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
    """Do a step's work on the device that its parameters allow, and record where and how.

    Parameters
    ----------
    work
        Called with the device; again with a smaller batch after a GPU ran out of memory.
    device_bytes
        Bytes that the work takes on a GPU with a batch of that size, without the context.
    batch
        The largest batch: how many blocks are on the device at once.
    backend, sharing
        Which device, and how it is waited for.
    metrics
        Receives the device and the figures ``gpu``.
    subject
        Work that it is for, shown to others who wait.

    Raises
    ------
    OctaneError
        With backend gpu, when no GPU can be had.
    """

    def attempt(share: Share) -> Result:
        metrics.device = describe(share.xp)
        return work(share)

    # So that the waiting for a lease is on the record's timeline.
    with metrics.timeline.here():
        done = run_on_gpu(
            attempt,
            lambda lanes: CONTEXT_BYTES + device_bytes(lanes),
            batch=batch,
            backend=backend,
            timeout=sharing.timeout(backend),
            slots=sharing.gpu_slots,
            folder=sharing.gpu_lock_dir,
            subject=subject,
        )
    figures = done.figures()
    metrics.figures["gpu"] = figures
    if figures["fell_back"]:
        metrics.warn("The GPU could not be used to the end, and the CPU did the work.")
    return done.result


def run_on_gpu(
    work: Callable[[Share], Result],
    required_bytes: int | Callable[[int], int],
    *,
    batch: int = 1,
    backend: str = "auto",
    timeout: float | None = None,
    on_wait: OnWait | None = None,
    slots: int = 1,
    folder: Path | None = None,
    subject: str = "",
    source: GpuSource | None = None,
    devices: Devices = CupyDevice,
) -> Done[Result]:
    """Do work on a GPU while it is leased.

    ``work`` is called at every try: it must drop the results of an earlier try, and must leave
    nothing of it on the GPU except what hangs on the error that it raises. ``required_bytes`` is
    all that it uses on the GPU, context included, or a function of the batch. ``batch`` is the
    largest batch, halved down to 1 when memory runs out. The others are as for
    :func:`octane.gpu.lease.lease`; the timeout holds for all waiting together. With backend 'gpu'
    an OctaneError says why no GPU could do it.
    """
    source = source or gpu_source()
    limit = AUTO_TIMEOUT if timeout is None and backend == "auto" else timeout
    run = _Run(work, required_bytes, batch, devices)
    absent = None if backend == "cpu" else devices.missing()
    if absent is not None:
        if backend == "gpu":
            raise OctaneError(
                f"backend is gpu, but {absent}: install CuPy for this machine's CUDA version, or "
                "give --backend cpu."
            )
        log.info("backend auto: CPU, because %s", absent)
        run.attempts.append(Attempt(None, batch, 0.0, "no GPU", absent))
        backend = "cpu"
    waited, pause = 0.0, PAUSE
    while True:
        if run.attempts and limit is not None and waited >= limit and backend != "cpu":
            # Otherwise a GPU that is granted and then cannot be had would be tried forever.
            held = run.too_late(backend, limit)
            break
        with lease(
            run.required,
            backend=backend,
            timeout=None if limit is None else max(0.0, limit - waited),
            on_wait=on_wait,
            slots=slots,
            folder=folder,
            subject=subject,
            source=source,
            avoid=run.left,
        ) as held:
            waited += held.waited
            if held.gpu is None:
                if backend == "cpu":
                    break
                run.attempts.append(Attempt(None, batch, held.waited, "no GPU", held.reason))
                break
            found = run.under(held)
        if found is not None:
            return found
        uuid, outcome = held.gpu.uuid, run.attempts[-1].outcome
        if outcome == "not usable":
            continue
        if outcome == "out of memory" and (
            _others(source, uuid, run.left) or run.exhausted(uuid) >= MOMENTS
        ):
            run.leave(uuid)
            continue
        log.info("%s: the next try comes in %.0f s", outcome, pause)
        time.sleep(pause * random.uniform(0.5, 1.5))
        waited += pause
        pause = min(2 * pause, LONGEST_PAUSE)
    # The CPU needs no GPU that was opened and not left yet.
    for uuid in list(run.opened):
        run.leave(uuid)
    result = work(Share(np, batch, held))
    return Done(result, [*run.attempts, Attempt(None, batch, 0.0, "done")])


class _Run(Generic[Result]):
    """Work with its tries so far, and the devices that it opened and left."""

    def __init__(
        self,
        work: Callable[[Share], Result],
        required_bytes: int | Callable[[int], int],
        batch: int,
        devices: Devices,
    ) -> None:
        self.work = work
        self.batch = batch
        self.required = required_bytes if isinstance(required_bytes, int) else required_bytes(batch)
        self.devices = devices
        self.attempts: list[Attempt] = []
        self.opened: dict[str, Device] = {}
        self.left: set[str] = set()

    def exhausted(self, uuid: str) -> int:
        """Count the times that the smallest batch ran out of memory on a GPU."""
        return sum(
            attempt.gpu == uuid and attempt.batch == 1 and attempt.outcome == "out of memory"
            for attempt in self.attempts
        )

    def too_late(self, backend: str, limit: float) -> Lease:
        """Lease of the CPU, or an error, when the time is over."""
        last = self.attempts[-1]
        reason = f"no GPU could be used within {limit:g} s ({last.outcome}: {last.detail})"
        if backend == "gpu":
            raise OctaneError(
                f"backend is gpu, but {reason}; wait longer (--gpu-timeout), ask for less memory, "
                "or give --backend cpu."
            )
        log.warning("backend auto: CPU, because %s", reason)
        self.attempts.append(Attempt(None, self.batch, 0.0, "no GPU", reason))
        return Lease(None, self.required, reason=reason, fallback=True)

    def leave(self, uuid: str) -> None:
        """Release a GPU's context for good."""
        self.left.add(uuid)
        device = self.opened.pop(uuid, None)
        if device is not None:
            device.leave()

    def under(self, held: Lease) -> Done[Result] | None:
        """Try under one lease, with ever smaller batches; None where none fits."""
        assert held.gpu is not None
        uuid, waited, batch = held.gpu.uuid, held.waited, self.batch
        if uuid not in self.opened:
            try:
                self.opened[uuid] = self.devices(uuid)
            except DeviceMissingError as error:
                log.warning("%s: %s", uuid, error)
                self.attempts.append(Attempt(uuid, batch, waited, "not usable", str(error)))
                self.left.add(uuid)
                return None
        device = self.opened[uuid]
        try:
            device.open()
        except DeviceTakenError as error:
            del self.opened[uuid]  # no context was made
            self.attempts.append(Attempt(uuid, batch, waited, "taken by another", str(error)))
            return None
        while True:
            failure, done = self._once(device, batch, held)
            # After the error is gone, and with it the arrays of the frames that it passed through.
            gc.collect()
            device.empty()
            if done is not None:
                self.attempts.append(Attempt(uuid, batch, waited, "done"))
                return done
            self.attempts.append(Attempt(uuid, batch, waited, "out of memory", failure))
            log.warning("GPU memory ran out with a batch of %d: %s", batch, failure)
            if batch == 1:
                return None
            waited, batch = 0.0, batch // 2

    def _once(self, device: Device, batch: int, held: Lease) -> tuple[str, Done[Result] | None]:
        try:
            with device.active():
                return "", Done(self.work(Share(device.xp, batch, held, device)), self.attempts)
        except Exception as error:
            # Only the device's library knows its errors for lack of memory.
            if not device.is_out_of_memory(error):
                raise
            chain: BaseException | None = error
            while chain is not None:
                traceback.clear_frames(chain.__traceback__)
                chain = chain.__cause__ or chain.__context__
            return str(error), None


def _others(source: GpuSource, uuid: str, left: set[str]) -> bool:
    """Return True where there is another GPU to go to."""
    try:
        gpus = source.read()
    except GpusUnavailableError:
        return False
    allowed = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return any(gpu.uuid != uuid and gpu.uuid not in left for gpu in allowed)
