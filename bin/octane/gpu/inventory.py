"""Inventory: the GPUs of a node, real or simulated, and those that a process may use.

The NVML reader and the simulation create the descriptions on which the lease rules decide. A MIG
instance counts as a GPU: its memory is separate and CUDA addresses it by its own UUID.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octane.core.units import bytes_of

VARIABLE = "OCTANE_SIMULATED_GPUS"
"""Environment variable that simulates GPUs, such as ``2x40GB``, instead of the node's."""

EQUAL = re.compile(r"(\d+)x(.+)")


class GpusUnavailableError(Exception):
    """GPUs cannot be read; the message is the reason, to follow 'because'."""


@dataclass(frozen=True)
class GpuProcess:
    """Process with memory on a GPU: its PID in the reader's namespace, and bytes if known."""

    pid: int
    used: int | None = None


@dataclass(frozen=True)
class Gpu:
    """State of a GPU or MIG instance at one moment.

    ``index`` is NVML's index of the physical GPU, in PCI order; ``total`` and ``free`` are bytes;
    ``utilisation`` is the percentage of the last sample in which a kernel ran, None if unknown
    (MIG); ``processes`` is None if NVML cannot list them; ``parent`` is the UUID of a MIG
    instance's physical GPU; ``fault`` is NVML's reason why the GPU cannot be used now.
    """

    index: int
    uuid: str
    name: str
    total: int
    free: int
    utilisation: int | None = None
    processes: tuple[GpuProcess, ...] | None = ()
    parent: str | None = None
    fault: str | None = None


def named(gpu: Gpu) -> str:
    """Name of a GPU in messages: ``GPU 1``, or ``GPU 1 (MIG-...)``."""
    return f"GPU {gpu.index}" if gpu.parent is None else f"GPU {gpu.index} ({gpu.uuid})"


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """GPUs that CUDA_VISIBLE_DEVICES lets a process use, in its order.

    The variable is read as CUDA reads it: indices, UUIDs, and unambiguous prefixes of UUIDs; the
    first invalid entry ends the list, and None hides nothing. Indices are in PCI order, as for
    schedulers. The index or UUID of a GPU split by MIG means its first instance, as in CUDA.
    """
    if setting is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for entry in setting.split(","):
        gpu = _entry(gpus, entry.strip())
        if gpu is None:
            break
        if gpu not in found:
            found.append(gpu)
    return tuple(found)


def _entry(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    physical = entry.startswith("GPU-")
    uuids = [gpu.parent if physical and gpu.parent else gpu.uuid for gpu in gpus]
    fitting = {entry} & set(uuids) or {uuid for uuid in uuids if uuid.startswith(entry)}
    return gpus[uuids.index(fitting.pop())] if len(fitting) == 1 else None


def simulated_uuid(index: int) -> str:
    """UUID of a simulated GPU."""
    return f"GPU-51300000-0000-4000-8000-{index:012d}"


def simulated_gpus(description: str) -> tuple[Gpu, ...]:
    """Create idle GPUs to try and test leases; locks and waiting are real."""
    equal = EQUAL.fullmatch(description)
    try:
        count, total = (int(equal[1]), bytes_of(equal[2])) if equal else (0, 0)
    except ValueError:
        equal = None
    if equal is None:
        raise GpusUnavailableError(f"{VARIABLE} is '{description}', not of the form 2x40GB")
    return tuple(
        Gpu(index, simulated_uuid(index), "simulated GPU", total, total, utilisation=0)
        for index in range(count)
    )
