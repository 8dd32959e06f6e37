"""A step's work on the device that its parameters allow: a leased GPU, or the CPU."""

from collections.abc import Callable
from typing import TypeVar

from octane.config.params import LeaseParameters
from octane.core.arrays import Backend, describe
from octane.core.metrics import Metrics
from octane.gpu.run import Share, run_on_gpu

__all__ = ["CONTEXT_BYTES", "on_device"]

Result = TypeVar("Result")

CONTEXT_BYTES = 500_000_000
"""Of a GPU's memory that a process takes with its context and loaded kernels, before any data."""


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
    """Do a step's work, and note in the metrics where it was done and what happened on the way.

    Parameters
    ----------
    work
        Called with the device; anew after a GPU ran out of memory, with a smaller batch.
    device_bytes
        What the work takes on a GPU with so large a batch, the context left out.
    batch
        The largest batch: how many blocks are on the device at once.
    backend, sharing
        Which device, and how it is waited for.
    metrics
        Takes the device and the figures ``gpu``.
    subject
        What the work is, for others who wait.

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
