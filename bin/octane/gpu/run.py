"""Do work on a leased GPU, or elsewhere, or later, or on the CPU: the one retry loop.

Three things can go wrong with a GPU that others use too. There is no memory: the lease waits.
Somebody is quicker between the grant and the making of the context: the lease is given back, and
asked for again after a pause. Memory runs out in the middle of the work: what was done is dropped,
the pool is returned and the work begins again with half the batch; only when the smallest batch
does not fit is the GPU given up, for another one, for a later moment, and in the end for the CPU or
an error.

A GPU is left for good by releasing its primary context. As CuPy cannot come back to a device whose
context was released, that is done when there is another GPU to go to or when the CPU takes over;
while the same process only waits for a better moment on its single GPU, it keeps the context and
returns the memory.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import numpy as np

from octane.config.defaults import AUTO_TIMEOUT
from octane.core.errors import OctaneError
from octane.gpu.device import CupyDevice, Device, DeviceMissingError, DeviceTakenError
from octane.gpu.inventory import GpuSource, GpusUnavailableError, visible
from octane.gpu.lease import Lease, gpu_source, lease

__all__ = ["Attempt", "Done", "Share", "run_on_gpu"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")
MOMENTS = 3
"""How often the smallest batch may run out of memory before a GPU is given up for good."""

PAUSE = 1.0
"""Seconds before the next try on a GPU, at first; doubled up to the limit below."""

LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Attempt:
    """One try.

    Attributes
    ----------
    gpu : str or None
        UUID; None for the CPU.
    batch : int
        Its size.
    waited : float
        Seconds until the lease was there; 0 for further tries under the same lease.
    outcome : {'done', 'out of memory', 'taken by another', 'not usable', 'no GPU'}
        How it ended.
    detail : str
        The words of the error, or why there is no GPU.
    """

    gpu: str | None
    batch: int
    waited: float
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Share:
    """What the work gets: an array module, a batch size, and a device for each of its threads.

    Attributes
    ----------
    xp : ModuleType
        ``numpy`` or ``cupy``.
    batch : int
        How much to do at a time.
    lease : Lease
        What was granted.
    """

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
    """What came of it.

    Attributes
    ----------
    result
        What the work returned.
    attempts : list of Attempt
        All tries, the last of them successful.
    """

    result: Result
    attempts: list[Attempt] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """What happened, for the metrics."""
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
        """The device of a GPU."""
        ...

    def missing(self) -> str | None:
        """Why there are none."""
        ...


def run_on_gpu(
    work: Callable[[Share], Result],
    required_bytes: int | Callable[[int], int],
    *,
    batch: int = 1,
    backend: str = "auto",
    timeout: float | None = None,
    on_wait: Callable[[float, int, int], None] | None = None,
    slots: int = 1,
    folder: Path | None = None,
    subject: str = "",
    source: GpuSource | None = None,
    devices: Devices = CupyDevice,
) -> Done[Result]:
    """Do work on a GPU while it is leased.

    Parameters
    ----------
    work : callable
        Called with a :class:`Share`, anew for every try: it must drop what an earlier try had done,
        and must leave nothing of it behind on the GPU but what hangs on the error it raises.
    required_bytes : int or callable
        All that the work will use on the GPU, context included; of the batch where it is callable.
    batch : int
        The largest batch; halved down to 1 when memory runs out.
    backend, timeout, on_wait, slots, folder, subject, source
        As for :func:`octane.gpu.lease.lease`; the timeout holds for all waiting together.
    devices : callable
        Gives the device of a UUID.

    Returns
    -------
    Done
        The result and all that happened.

    Raises
    ------
    OctaneError
        With backend 'gpu', when no GPU could do it.
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
            # A GPU that is granted and then not to be had would go on like that forever.
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
    # Whatever was begun on a GPU and not left yet, the CPU does not need.
    for uuid in list(run.opened):
        run.leave(uuid)
    result = work(Share(np, batch, held))
    return Done(result, [*run.attempts, Attempt(None, batch, 0.0, "done")])


class _Run(Generic[Result]):
    """The work with what is known of it so far."""

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
        """How often the smallest batch ran out of memory on a GPU."""
        return sum(
            attempt.gpu == uuid and attempt.batch == 1 and attempt.outcome == "out of memory"
            for attempt in self.attempts
        )

    def too_late(self, backend: str, limit: float) -> Lease:
        """The CPU, or an error, when the time is over."""
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
        """Try under one lease, with ever smaller batches; None where it was in vain."""
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
            # What it raises for want of memory, the device's library alone knows.
            if not device.is_out_of_memory(error):
                raise
            chain: BaseException | None = error
            while chain is not None:
                traceback.clear_frames(chain.__traceback__)
                chain = chain.__cause__ or chain.__context__
            return str(error), None


def _others(source: GpuSource, uuid: str, left: set[str]) -> bool:
    """Whether there is another GPU to go to."""
    try:
        gpus = source.read()
    except GpusUnavailableError:
        return False
    allowed = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return any(gpu.uuid != uuid and gpu.uuid not in left for gpu in allowed)
