"""Bottlenecks of the steps: the stage that took most of a step's time, and a remedy."""

from collections.abc import Mapping
from typing import NamedTuple

from octane.core.timing import OTHER


class Bound(NamedTuple):
    """Stage that took most of a step's time, its bottleneck in one word, and a remedy."""

    stage: str
    by: str
    remedy: str


_INPUT = "keep the input on faster storage, or give the task more cpus"
_OUTPUT = "write to faster storage (--scratch_dir, -work-dir)"
BOUNDS = {
    "read": ("storage", "keep the input on faster storage"),
    "decode": ("cores", "give the task more cpus, or store its input in blosc-lz4 or uncompressed"),
    "copy": ("link", "compute on the CPU (--backend cpu)"),
    "compute": ("cores", "give the task more cpus, or a GPU if the step can use one"),
    "encode": ("cores", "give the task more cpus, or choose a faster codec (blosc-lz4, none)"),
    "write": ("storage", _OUTPUT),
    "to disk": ("storage", _OUTPUT),
    "lease": ("GPU", "use more GPUs (--gpu_count), or let more tasks share one (--gpu_slots)"),
    "fit": ("cores", "fit on a GPU (-profile gpu), or give the task more cpus"),
    OTHER: ("Python", "use larger tiles"),
} | dict.fromkeys(("shrink", "weights", "mask", "project"), ("input", _INPUT))
"""Bottleneck and remedy by stage."""
BOUNDS_ON_GPU = {
    "compute": ("GPU", "use more GPUs (--gpu_count)"),
    "fit": ("GPU", "raise --n4_shrink_factor or lower --n4_iterations; both change the field"),
}
"""Entries that differ on a GPU."""


def bound_of(seconds: Mapping[str, float], *, gpu: bool) -> Bound | None:
    """Find a step's bottleneck from the wall-clock seconds of its stages; None without any.

    ``gpu`` says whether a GPU computed.
    """
    if not any(seconds.values()):
        return None
    stage = max(seconds, key=lambda name: seconds[name])
    known = BOUNDS | BOUNDS_ON_GPU if gpu else BOUNDS
    by, remedy = known.get(stage, ("core", "this runs on one core; more cpus do not help"))
    return Bound(stage, by, remedy)
