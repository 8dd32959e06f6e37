"""What a machine offers a run: cores, memory, GPUs, and places to work in with their free space."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from octane.gpu.inventory import Gpu, GpuSource, GpusUnavailableError, visible

__all__ = ["Machine", "Place", "look_at_machine"]

MOUNTS = Path("/proc/self/mounts")

LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""What a container may use, in the second version of control groups and in the first."""

SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "glusterfs", "9p")
"""How the types of file systems begin that lie behind a network."""


@dataclass(frozen=True)
class Place:
    """A folder's file system: its device, type (empty where it is not known) and free bytes."""

    folder: Path
    device: int
    kind: str
    free: int

    @property
    def shared(self) -> bool:
        """Whether it lies behind a network."""
        return self.kind.startswith(SHARED)

    @classmethod
    def of(cls, folder: Path) -> "Place":
        """The file system of a folder, or of the nearest one above it that is there."""
        folder = folder.absolute()
        while not folder.exists():
            folder = folder.parent
        return cls(folder, folder.stat().st_dev, _kind_of(folder), shutil.disk_usage(folder).free)


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes
    ----------
    cores
        That this process may use.
    memory
        Bytes that this process may use.
    gpus
        Those that work and that this process may use.
    no_gpu
        Why there is none, as the end of a sentence; empty where there is one.
    temporary
        Where the node's own temporary files go.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...]
    no_gpu: str
    temporary: Place


def look_at_machine(source: GpuSource) -> Machine:
    """Look at this machine; GPUs through NVML, which makes no CUDA context."""
    gpus: tuple[Gpu, ...] = ()
    reason = "there is no GPU"
    try:
        found = visible(source.read(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        gpus = tuple(gpu for gpu in found if gpu.fault is None)
        if found and not gpus:
            reason = f"none of them works ({found[0].fault})"
    except GpusUnavailableError as error:
        reason = str(error)
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        len(affinity(0)) if affinity else os.cpu_count() or 1,
        _memory(),
        gpus,
        "" if gpus else reason,
        Place.of(Path(tempfile.gettempdir())),
    )


def _memory() -> int:
    """Bytes of the machine, or of the container or job that this process is kept in."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in LIMITS:
        try:
            text = limit.read_text(encoding="ascii").strip()
        except OSError:
            continue
        # 'max' where there is no limit.
        sizes += [int(text)] if text.isdigit() else []
    return min(sizes)


def _kind_of(folder: Path) -> str:
    """Type of the file system; the longest mount point above the folder is its own."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        _, point, name, *_ = line.split()
        point = point.encode().decode("unicode_escape", errors="replace")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind
