"""Inventory: GPUs of a node, real or simulated, and those that an allocation lets a process use.

NVML's reader and the simulation fill in the description that the lease rules decide on. A MIG
instance counts as a GPU: its memory is separate and CUDA addresses it by its own UUID.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octane.core.units import bytes_of

VARIABLE = "OCTANE_SIMULATED_GPUS"
"""Environment variable that replaces the node's GPUs, such as ``2x40GB``."""

EQUAL = re.compile(r"(\d+)x(.+)")


class GpusUnavailableError(Exception):
    """GPUs cannot be read; the message says why, as the end of a sentence with 'because'."""


@dataclass(frozen=True)
class GpuProcess:
    """Process with memory on a GPU: PID as the reading process sees it, and bytes where known."""

    pid: int
    used: int | None = None


@dataclass(frozen=True)
class Gpu:
    """GPU or MIG instance at one moment.

    ``index`` is NVML's of the physical GPU, in PCI order; ``total`` and ``free`` are bytes;
    ``utilisation`` is the percentage of the last sample in which a kernel ran, None where NVML does
    not know (MIG); ``processes`` is None where NVML lists none; ``parent`` is the UUID of the
    physical GPU of a MIG instance; ``fault`` is NVML's reason why it cannot be used now.
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

    The variable is read as CUDA reads it: indices, UUIDs, and prefixes of UUIDs that fit one GPU;
    the first entry that names nothing ends the list, and None hides nothing. An index counts in PCI
    order, as schedulers count. The index or UUID of a GPU that is split by MIG names its first
    instance, which CUDA would take.
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
    """Make idle GPUs, to try and to test leases; locks and waiting are real."""
    equal = EQUAL.fullmatch(description)
    try:
        count, total = (int(equal[1]), bytes_of(equal[2])) if equal else (0, 0)
    except ValueError:
        equal = None
    if equal is None:
        raise GpusUnavailableError(f"{VARIABLE} is '{description}', and not like 2x40GB")
    return tuple(
        Gpu(index, simulated_uuid(index), "simulated GPU", total, total, utilisation=0)
        for index in range(count)
    )
