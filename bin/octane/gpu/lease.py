"""A share of a GPU for as long as it is needed: wait for it, hold it, give it back.

>>> with lease("4GB", backend="auto") as held:  # doctest: +SKIP
...     subprocess.run(command, env={**os.environ, **held.environment()})

:mod:`octane.gpu.admission` decides, :mod:`octane.gpu.lease_folder` keeps what is decided, and
nothing here or there makes a CUDA context. With ``auto`` and ``cpu`` the block may run without a
GPU: look at :attr:`Lease.gpu`.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octane.config.defaults import AUTO_TIMEOUT
from octane.core.errors import OctaneError
from octane.core.timing import span
from octane.core.units import bytes_of
from octane.gpu.account import HELD, QUEUE, Survey, slot_kind, survey
from octane.gpu.admission import Decision, Request, decide
from octane.gpu.inventory import Gpu, GpuSource, GpusUnavailableError, named, visible
from octane.gpu.lease_folder import LeaseFolder, LeaseFolderBusyError, Locked
from octane.gpu.lease_records import Record
from octane.gpu.nvml import Nvml
from octane.gpu.simulated import SimulatedGpus

__all__ = ["Lease", "Taker", "default_folder", "gpu_source", "lease"]

log = logging.getLogger(__name__)

TICK = 0.5
"""Seconds between two looks, more or less by half, so that waiters do not march in step."""

ABSENT = 10.0
"""Seconds without a look after which a waiter, stopped say, keeps its place but holds up nobody."""

FAILING = 30.0
"""Seconds for which NVML may fail in the middle before it counts as gone."""

SAY_AGAIN = 60.0
"""Seconds after which the log repeats why it waits; a new reason is said after a tenth of that."""


def default_folder() -> Path:
    """The node's lease folder: ``$OCTANE_GPU_LOCK_DIR``, else one below /var/tmp.

    /var/tmp is there for every user on every Linux, stays when a user logs out (unlike /dev/shm),
    is kept by Slurm's private /tmp, and Apptainer shares it with the node.
    """
    return Path(os.environ.get("OCTANE_GPU_LOCK_DIR") or "/var/tmp/octane-gpu-leases")


def gpu_source() -> GpuSource:
    """The node's GPUs, or those that ``OCTANE_SIMULATED_GPUS`` makes up."""
    return SimulatedGpus.wanted() or Nvml()


@dataclass
class Lease:
    """What a taker got.

    Attributes
    ----------
    gpu : Gpu or None
        The GPU as it was when it was granted; None for the CPU.
    required : int
        Bytes that were promised.
    waited : float
        Seconds.
    reason : str
        Why it is the CPU; empty on a GPU.
    simulated : bool
        Whether the GPU is not real.
    fallback : bool
        Whether it is the CPU although there is a GPU.
    slot : Locked or None
        What holds it.
    """

    gpu: Gpu | None
    required: int
    waited: float = 0.0
    reason: str = ""
    simulated: bool = False
    fallback: bool = False
    slot: Locked | None = None

    def environment(self) -> dict[str, str]:
        """Variables for a program that is to use this GPU and no other, or none at all."""
        if self.gpu is None or self.slot is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        outer = os.environ.get(HELD)
        names = [outer, self.slot.name] if outer else [self.slot.name]
        return {"CUDA_VISIBLE_DEVICES": self.gpu.uuid, HELD: ",".join(names)}

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self.slot is not None:
            self.slot.release()


@contextmanager
def lease(
    memory: int | str,
    *,
    backend: str = "auto",
    timeout: float | None = None,
    on_wait: Callable[[float, int, int], None] | None = None,
    slots: int = 1,
    folder: Path | None = None,
    subject: str = "",
    source: GpuSource | None = None,
    avoid: Collection[str] = (),
) -> Generator[Lease]:
    """Hold a share of a GPU while the block runs.

    Parameters
    ----------
    memory : int or str
        All that the block will use on the GPU, context included: bytes, or a size such as '4GB'.
    backend : {'auto', 'gpu', 'cpu'}
        'auto' takes the CPU when no GPU came free in time, at once where there is none; 'gpu'
        insists; 'cpu' looks at nothing.
    timeout : float, optional
        Seconds to wait. By default 300 with 'auto' and no limit with 'gpu'. 0 looks once.
    on_wait : callable, optional
        Called at every look in vain with the seconds that have passed, the bytes that the best GPU
        could give, and the bytes required. What it raises ends the waiting.
    slots : int
        How many leases may share the GPU, this one among them.
    folder : Path, optional
        Lease folder, the same for all who share the GPUs; by default :func:`default_folder`.
    subject : str
        What it is for, shown to others who wait.
    source : GpuSource, optional
        Where GPUs are read; by default :func:`gpu_source`.
    avoid : collection of str
        UUIDs of GPUs to leave alone.

    Yields
    ------
    Lease
        Given back at the end of the block, however it ends.

    Raises
    ------
    OctaneError
        With 'gpu', when there is none, when none is large enough or none came free in time; when
        the lease folder cannot be used.
    """
    required = bytes_of(memory) if isinstance(memory, str) else int(memory)
    if backend == "cpu":
        yield Lease(None, required, reason="backend is cpu")
        return
    if backend not in ("auto", "gpu"):
        raise OctaneError(f"backend is {backend!r}: give one of auto, gpu, cpu.")
    if required < 0 or slots < 1:
        raise OctaneError(f"{required} bytes and {slots} slots cannot be had; correct them.")
    limit = AUTO_TIMEOUT if timeout is None and backend == "auto" else timeout
    taker = Taker(
        source or gpu_source(), folder or default_folder(), required, slots, subject, avoid
    )
    try:
        with span("lease"):
            held = taker.wait(limit, on_wait)
        if held.gpu is None:
            if backend == "gpu":
                raise OctaneError(
                    f"backend is gpu, but {held.reason}; wait longer (--gpu-timeout), ask for less "
                    "memory, make a GPU visible (CUDA_VISIBLE_DEVICES), or give --backend cpu."
                )
            # Having no GPU at all is an ordinary machine; having waited in vain is not.
            level = logging.WARNING if held.fallback else logging.INFO
            log.log(level, "backend auto: CPU, because %s", held.reason)
        else:
            log.info(
                "%s%s: %.1f GB leased after %.1f s",
                "simulated " if held.simulated else "",
                named(held.gpu),
                required / 1e9,
                held.waited,
            )
        taker.leave()
        yield held
    finally:
        taker.leave()
        taker.release()


class Taker:
    """Looks, decides and takes for one request.

    Parameters
    ----------
    source, path, required, slots, subject, avoid
        As for :func:`lease`; ``path`` is the lease folder, opened at the first look that finds a
        GPU.
    """

    def __init__(
        self,
        source: GpuSource,
        path: Path,
        required: int,
        slots: int,
        subject: str = "",
        avoid: Collection[str] = (),
    ) -> None:
        self.source = source
        self.path = path
        self.required = required
        self.slots = slots
        self.subject = subject
        self.avoid = avoid
        self.arrived = time.monotonic()
        self._folder: LeaseFolder | None = None
        self._place: Locked | None = None
        self._slot: Locked | None = None
        self._said = ("", -SAY_AGAIN)

    def release(self) -> None:
        """Give back what was granted."""
        if self._slot is not None:
            self._slot.release()

    def leave(self) -> None:
        """Leave the queue; what was granted stays."""
        if self._place is not None:
            self._place.release()
            self._place = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def wait(self, limit: float | None, on_wait: Callable[[float, int, int], None] | None) -> Lease:
        """Look until there is a GPU, or no hope, or no time: see :func:`lease`."""
        failing: float | None = None
        asked = False
        while True:
            elapsed = time.monotonic() - self.arrived
            available = 0
            try:
                gpus = self.candidates()
                failing, asked = None, True
            except GpusUnavailableError as error:
                reason = str(error)
                failing = elapsed if failing is None else failing
                # At the start it is how this machine is; later it may pass.
                if not asked or elapsed - failing >= FAILING:
                    return self._without(reason, fallback=asked)
            else:
                if not gpus:
                    return self._without(self.hidden())
                try:
                    decision = self.look(gpus)
                except LeaseFolderBusyError as error:
                    reason = str(error)
                else:
                    if decision.gpu is not None:
                        return self._with(decision.gpu)
                    reason = _why(gpus, decision)
                    if not decision.possible:
                        return self._without(
                            f"no GPU has the {self.required / 1e9:.1f} GB required ({reason})",
                            fallback=True,
                        )
                    available = decision.available
            elapsed = time.monotonic() - self.arrived
            if limit is not None and elapsed >= limit:
                return self._without(
                    f"no GPU came free within {limit:g} s ({reason})", fallback=True
                )
            self._say(elapsed, reason)
            if on_wait is not None:
                on_wait(elapsed, available, self.required)
            pause = TICK * random.uniform(0.5, 1.5)
            time.sleep(pause if limit is None else min(pause, max(0.0, limit - elapsed)))

    def candidates(self) -> tuple[Gpu, ...]:
        """All GPUs as they are now where one may be used, else none.

        Raises
        ------
        GpusUnavailableError
            When they cannot be looked at.
        """
        # Read before the mutex is taken, as NVML may hang. What happens in between makes the
        # account more careful, never less: a lease that is new in it has allocated nothing yet.
        gpus = self.source.read()
        return gpus if self._own(gpus) else ()

    def look(self, gpus: tuple[Gpu, ...]) -> Decision:
        """Look once: take what is granted, else stand in the queue."""
        if self._folder is None:
            self._folder = LeaseFolder(self.path)
        with self._folder.mutex():
            seen = survey(self._folder, gpus)
            decision = self.decided(seen)
            if decision.gpu is not None:
                # Known here from the first moment, so that an interrupt does not lose it.
                self._slot = self._folder.take(
                    slot_kind(decision.gpu.uuid), self._record(time.monotonic())
                )
            elif decision.possible:
                record = self._record(self.arrived, self._own(gpus))
                if self._place is None:
                    self._place = self._folder.take(QUEUE, record)
                else:
                    self._place.write(record)
        return decision

    def decided(self, seen: Survey) -> Decision:
        """What becomes of the request as things are, without taking anything."""
        now = time.monotonic()
        own = "" if self._place is None else self._place.name
        earlier = [
            Request(record.required, record.slots, record.uuids, record.since)
            for name, record in seen.waiters
            if name != own and record.since <= self.arrived and now - record.seen < ABSENT
        ]
        request = Request(self.required, self.slots, self._own(seen.gpus), self.arrived)
        return decide(seen.loads, request, earlier)

    def _own(self, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
        """UUIDs of those that the request may use."""
        allowed = visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(gpu.uuid for gpu in allowed if gpu.uuid not in self.avoid)

    def _record(self, since: float, uuids: tuple[str, ...] = ()) -> Record:
        return Record(
            self.required, self.slots, since, self.subject, seen=time.monotonic(), uuids=uuids
        )

    def hidden(self) -> str:
        """Why there is no GPU that the request may use."""
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.avoid:
            return "no other GPU is left to try"
        if setting is None:
            return "there is no GPU"
        return f"CUDA_VISIBLE_DEVICES is '{setting}', which allows none of this node's GPUs"

    def _with(self, gpu: Gpu) -> Lease:
        waited = time.monotonic() - self.arrived
        return Lease(gpu, self.required, waited, simulated=self.source.simulated, slot=self._slot)

    def _without(self, reason: str, *, fallback: bool = False) -> Lease:
        waited = time.monotonic() - self.arrived
        return Lease(None, self.required, waited, reason, self.source.simulated, fallback)

    def _say(self, elapsed: float, reason: str) -> None:
        before, when = self._said
        if elapsed - when >= SAY_AGAIN or (reason != before and elapsed - when >= SAY_AGAIN / 10):
            log.info(
                "waiting for %.1f GB of a GPU since %.0f s: %s",
                self.required / 1e9,
                elapsed,
                reason,
            )
            self._said = (reason, elapsed)


def _why(gpus: tuple[Gpu, ...], decision: Decision) -> str:
    """Why each GPU is not to be had."""
    reasons = decision.reasons
    return "; ".join(f"{named(gpu)}: {reasons[gpu.uuid]}" for gpu in gpus if gpu.uuid in reasons)
