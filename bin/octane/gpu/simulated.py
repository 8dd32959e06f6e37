"""Simulated GPUs, to try and to test leases where there is no GPU.

Locks, processes and waiting are real. Leases take up the memory by what they reserve, as no process
allocates anything. A file in place of a size gives other processes, utilisation and faults as well;
it is read at every look, so that a load can come and go.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from octane.core.units import bytes_of
from octane.gpu.inventory import Gpu, GpuProcess, GpusUnavailableError

VARIABLE = "OCTANE_SIMULATED_GPUS"
"""Environment variable that replaces the node's GPUs: ``2x40GB``, or a JSON file."""

EQUAL = re.compile(r"(\d+)x(.+)")


def simulated_uuid(index: int) -> str:
    """UUID of a simulated GPU."""
    return f"GPU-51300000-0000-4000-8000-{index:012d}"


class SimulatedGpus:
    """Reader of a description: ``NxSIZE``, or the path of a JSON file.

    The file is a list with one object per GPU: ``total`` and, where they differ from an idle GPU,
    ``free``, ``utilisation``, ``processes`` (pairs of pid and bytes) and ``fault``.
    """

    simulated = True

    def __init__(self, description: str) -> None:
        self.description = description

    def read(self) -> tuple[Gpu, ...]:
        """Read the description; GpusUnavailableError where it cannot be understood."""
        equal = EQUAL.fullmatch(self.description)
        try:
            described: list[dict] = (
                [{"total": bytes_of(equal[2])}] * int(equal[1])
                if equal
                else json.loads(Path(self.description).read_text(encoding="utf-8"))
            )
            return tuple(_gpu(index, gpu) for index, gpu in enumerate(described))
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise GpusUnavailableError(
                f"{VARIABLE} is '{self.description}', which is neither like 2x40GB nor a JSON file "
                f"of GPUs ({error})"
            ) from error


def _gpu(index: int, described: dict) -> Gpu:
    total = int(described["total"])
    return Gpu(
        index=index,
        uuid=simulated_uuid(index),
        name="simulated GPU",
        total=total,
        free=int(described.get("free", total)),
        utilisation=described.get("utilisation", 0),
        processes=tuple(GpuProcess(*process) for process in described.get("processes", ())),
        fault=described.get("fault"),
    )
