"""What there is to know of a node's GPUs, and which of them an allocation lets a process use.

The one description that NVML's reader and the simulation fill in and that the lease rules decide
on. A MIG instance is a GPU of its own here: its memory is fenced off and CUDA addresses it by its
own UUID.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Gpu", "GpuProcess", "GpuSource", "GpusUnavailableError", "named", "visible"]


class GpusUnavailableError(Exception):
    """GPUs cannot be looked at; the message says why, as the end of a sentence with 'because'."""


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU.

    Attributes
    ----------
    pid : int
        As the reading process sees it.
    used : int or None
        Bytes; None where NVML does not tell.
    """

    pid: int
    used: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU or MIG instance at one moment.

    Attributes
    ----------
    index : int
        NVML's index of the physical GPU, in PCI order.
    uuid : str
        Of the GPU or of the MIG instance.
    name : str
        As NVML shows it.
    total, free : int
        Memory, bytes.
    utilisation : int or None
        Percent of the last sample in which a kernel ran; None where NVML does not tell (MIG).
    processes : tuple of GpuProcess, or None
        None where NVML does not list any.
    parent : str or None
        The physical GPU's UUID, of a MIG instance.
    fault : str or None
        Why it cannot be used now, in NVML's words.
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


class GpuSource(Protocol):
    """Where a node's GPUs are read from."""

    @property
    def simulated(self) -> bool:
        """Whether they are not real."""
        ...

    def read(self) -> tuple[Gpu, ...]:
        """All GPUs as they are now.

        Raises
        ------
        GpusUnavailableError
            When they cannot be looked at.
        """
        ...


def named(gpu: Gpu) -> str:
    """How a GPU is spoken of in messages: ``GPU 1``, or ``GPU 1 (MIG-...)``."""
    return f"GPU {gpu.index}" if gpu.parent is None else f"GPU {gpu.index} ({gpu.uuid})"


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets a process use, in its order.

    Follows CUDA's own reading: indices, UUIDs, and prefixes of UUIDs that fit one GPU alone; the
    first entry that names nothing ends the list. An index counts in PCI order, which is what
    schedulers mean by it. The index or UUID of a GPU that is split by MIG names its first instance,
    the one that CUDA would take.

    Parameters
    ----------
    gpus : sequence of Gpu
        All that there are.
    setting : str or None
        The variable; None where it is not set, which hides nothing.

    Returns
    -------
    tuple of Gpu
        Never more than the setting names.
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
    if entry.startswith("MIG-"):
        instances = [gpu for gpu in gpus if gpu.parent is not None]
        exact = [gpu for gpu in instances if gpu.uuid == entry]
        fitting = exact or [gpu for gpu in instances if gpu.uuid.startswith(entry)]
        return fitting[0] if len(fitting) == 1 else None
    if not entry.startswith("GPU-"):
        return None
    physical = [gpu.parent or gpu.uuid for gpu in gpus]
    fitting = {uuid for uuid in physical if uuid.startswith(entry)}
    if len(fitting) != 1:
        return None
    return gpus[physical.index(fitting.pop())]
