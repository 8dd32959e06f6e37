"""CUDA kernels: compiler options, source with macros, and how many blocks a GPU runs at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

OPTIONS = ("--fmad=false",)
"""Compiler options: multiplications and additions are not fused."""


@cache
def source_with(path: Path, **macros: str | int) -> str:
    """Return a source file after the definitions of its macros."""
    # Not as options: for each new set of options CuPy runs the compiler in every process, even if
    # the kernel is in its cache.
    defined = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defined + path.read_text(encoding="utf-8")


def blocks_at_once(device: Mapping[str, int], kernel: Mapping[str, int], threads: int) -> int:
    """Return how many blocks of a kernel a GPU runs at once.

    Parameters
    ----------
    device, kernel
        CuPy's ``Device.attributes`` and ``RawKernel.attributes``.
    threads
        Threads of a block.
    """
    # A warp's registers are allocated in units of 256, and CUDA reserves 1 KiB of shared memory.
    registers = 8 * math.ceil(kernel["num_regs"] / 8) * threads
    of_one_multiprocessor = min(
        device["MaxThreadsPerMultiProcessor"] // threads,
        device["MaxRegistersPerMultiprocessor"] // registers,
        device["MaxSharedMemoryPerMultiprocessor"] // (kernel["shared_size_bytes"] + 1024),
    )
    return device["MultiProcessorCount"] * of_one_multiprocessor
