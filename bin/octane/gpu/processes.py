"""Who a process is, beyond its number: numbers are used again, and differ between containers.

A process is known by its number in its own PID namespace together with its start time, which Linux
counts in clock ticks since boot and which is the same in every namespace. So a lease that was taken
in a container is matched with the process that NVML shows on the host.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Identity", "boot_id", "identity", "lineage"]

PROC = Path("/proc")
DEEPEST = 256
"""No chain of parents is longer; a chain that changes while it is read could go in a circle."""


class Identity(NamedTuple):
    """A process: its number in its own PID namespace, and its start in clock ticks since boot."""

    pid: int
    start: int


@cache
def boot_id() -> str:
    """Id of the boot; empty where the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def identity() -> Identity:
    """The running process; its start is 0 where /proc does not tell."""
    found = _look(os.getpid())
    return Identity(os.getpid(), found[0].start if found else 0)


def lineage(pid: int) -> tuple[Identity, ...]:
    """A process and its parents, nearest first; ends where /proc does not tell.

    Parameters
    ----------
    pid : int
        As this process sees it.
    """
    chain: list[Identity] = []
    while pid > 0 and len(chain) < DEEPEST:
        found = _look(pid)
        if found is None:
            break
        chain.append(found[0])
        pid = found[1]
    return tuple(chain)


def _look(pid: int) -> tuple[Identity, int] | None:
    """A process and its parent's number."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold brackets and blanks itself.
    fields = stat.rpartition(")")[2].split()
    inner = re.search(r"^NSpid:.*?(\d+)\s*$", status, re.MULTILINE)
    return Identity(int(inner[1]) if inner else pid, int(fields[19])), int(fields[1])
