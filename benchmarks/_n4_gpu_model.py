"""Estimate of N4's time on a GPU, from host memory to host memory.

Counts of the algorithm (launches, bytes) times what a machine does in a second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

KERNELS = {
    "count_bins": (3e-6, 8),
    "sharpen": (8e-6, 0),
    "contract_x": (5e-6, 8),
    "contract_y": (4e-6, 0),
    "contract_z": (3e-6, 0),
    "expand": (5e-6, 0),
    "update": (3e-6, 12),
    "finish": (8e-6, 0),
}
"""Launches of an iteration: estimated seconds without data, and the bytes of a fitted voxel."""

SLAB = 4 << 24
"""Bytes of a slab of float32; the first is corrected before any download."""


@dataclass(frozen=True)
class Machine:
    """What a machine does: bytes per second, bytes, seconds. Estimated for an H100 on PCIe 5."""

    to_device: float = 55e9  # from page-locked memory
    to_host: float = 55e9
    memory: float = 3e12  # of the device, read and written
    cache: float = 5e12  # likewise, where the arrays of the fit stay when they are smaller than:
    cache_bytes: float = 50e6
    device_bytes: float = 80e9
    gather: float = 10e9  # rows of which the host takes the shrunk volume
    gap: float = 1.2e-6  # of the device between kernels
    launch: float = 2e-6  # of the driver
    iteration: float = 27e-6  # of Python and CuPy
    level: float = 0.6e-3  # of the host, to begin it; likewise to correct a slab
    slab: float = 0.8e-3
    bubble: float = 17e-6  # of the device in an iteration, until its answer is on the host


def estimate(
    shape: Sequence[int], shrink: int, levels: int, iterations: int, machine: Machine
) -> dict[str, float]:
    """Return the seconds of the longest stages and of all, for float32 without a mask.

    `iterations` are those of each level.
    """
    volume, fitted = 4 * math.prod(shape), math.prod(-(-n // shrink) for n in shape)
    rate = machine.cache if 8 * fitted <= machine.cache_bytes else machine.memory
    on_device = sum(wait + size * fitted / rate + machine.gap for wait, size in KERNELS.values())
    on_host = machine.iteration + len(KERNELS) * machine.launch
    each = max(on_device, on_host) + machine.bubble
    gather = volume / shrink**2 / machine.gather + 4 * fitted / machine.to_device
    fit = levels * (machine.level + iterations * each)
    upload, download = volume / machine.to_device, volume / machine.to_host
    slabs = -(-volume // SLAB)
    apply = max(2 * volume / machine.memory, slabs * machine.slab)
    # What does not fit on the device beside the fit is uploaded during the downloads.
    early = min(1.0, max(0.0, machine.device_bytes - 36 * fitted) / volume)
    after = apply / slabs + max(apply, download, (1 - early) * upload)
    total = gather + max(fit, early * upload) + after
    return {"fit": fit, "upload": upload, "download": download, "total": total}
