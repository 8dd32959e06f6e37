"""A GPU without octane's kernels: its link, its context, page-locked memory and copies."""

import itertools
import logging
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import numpy as np
import pynvml
from _common import cores
from _processes import run_script
from _timing import timed
from cupyx import profiler

from octane.gpu.device import describe
from octane.gpu.pinned import HostMemory

logger = logging.getLogger(__name__)

DIRECTIONS = {
    "to_device": ("to_device",),
    "to_host": ("to_host",),
    "both_at_once": ("to_device", "to_host"),
}
REPEATS = 7
STREAMS = 3

LINK = {
    "generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "width": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    "largest_generation": pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "largest_width": pynvml.nvmlDeviceGetMaxPcieLinkWidth,
}


def described(xp: ModuleType) -> dict[str, object]:
    """Describe the current device and its link, without creating a context."""
    return {**describe(xp), "link": link(xp)}


def link(xp: ModuleType) -> dict[str, int | None]:
    """Return the generation and width of the device's PCIe link, None where NVML has no figure.

    An idle GPU may lower its current generation.
    """
    found: dict[str, int | None] = dict.fromkeys(LINK)
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(xp.cuda.Device().pci_bus_id)
        for name, ask in LINK.items():
            with suppress(pynvml.NVMLError):
                found[name] = int(ask(handle))
    return found


def median_ms(xp: ModuleType, work: Callable[[], object], repeats: int) -> float:
    """Return the median milliseconds of work in the current stream, as the GPU measures them."""
    found = profiler.benchmark(
        work, n_repeat=repeats, n_warmup=3, name="work", devices=(xp.cuda.Device().id,)
    )
    return float(np.median(found.gpu_times)) * 1e3


def device_part(xp: ModuleType, quick: bool) -> dict[str, object]:
    """Measure the context, page-locking, copies on the device, and small behind large copies."""
    context, _ = run_script("_gpu_context.py", {}, cores=cores())
    size = 1 << (16 if quick else 30)
    return {
        "context": context,
        "page_locking": page_locking(xp, size >> 4),
        "on_device_GB_per_s": rate_on_device(xp, size),
        "small_copies_ms": small_copies(xp, size >> 4),
        "link_under_load": link_under_load(xp, size >> 2),
    }


def page_locking(xp: ModuleType, size: int) -> dict[str, object]:
    """Measure mapping and locking host memory, as a lane does for its buffers."""
    seconds = []
    with HostMemory(xp) as host:
        for _ in range(3):
            start = time.perf_counter()
            memory = host.take(size)
            seconds.append(time.perf_counter() - start)
            host.give_back(memory)
        return {"bytes": size, "seconds": seconds, "locked": host.pinned}


def rate_on_device(xp: ModuleType, size: int) -> float:
    """Return GB/s that a copy on the device reads and writes, the bound of every kernel."""
    source, target = xp.zeros(size, xp.uint8), xp.empty(size, xp.uint8)
    return 2 * size / median_ms(xp, lambda: xp.copyto(target, source), REPEATS) / 1e6


def small_copies(xp: ModuleType, size: int) -> dict[str, object]:
    """Measure small copies to the device, alone and behind large ones of other streams.

    They show whether the copies of a fit's tables would wait for the upload of a volume.
    """
    memory = xp.cuda.alloc_pinned_memory(size)
    source, table = np.frombuffer(memory, np.uint8, size), np.arange(64.0)
    source[...] = 1
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    targets = [xp.empty(size, xp.uint8) for _ in range(4 * STREAMS)]

    def small() -> float:
        start = time.perf_counter()
        xp.asarray(table)
        xp.cuda.get_current_stream().synchronize()
        return (time.perf_counter() - start) * 1e3

    small()
    alone = statistics.median(small() for _ in range(20))
    xp.cuda.Device().synchronize()
    start = time.perf_counter()
    for target, stream in zip(targets, itertools.cycle(streams), strict=False):
        target.set(source, stream)
    behind = [small() for _ in range(6)]
    xp.cuda.Device().synchronize()
    return {
        "alone": alone,
        "behind_large": behind,
        "large": (time.perf_counter() - start) * 1e3,
        "large_bytes": size * len(targets),
    }


def link_under_load(xp: ModuleType, size: int) -> dict[str, int | None]:
    """Return the link's state while copies are under way."""
    copy = copier(xp, size, "to_device", 8, pinned=True)
    copy()
    busy = threading.Thread(target=copy)
    busy.start()
    found = link(xp)
    busy.join()
    return found


def copier(
    xp: ModuleType, size: int, direction: str, times: int, *, pinned: bool
) -> Callable[[], None]:
    """Return a call that copies several times in a separate stream, and waits."""
    stream = xp.cuda.Stream(non_blocking=True)
    memory = xp.cuda.alloc_pinned_memory(size) if pinned else bytearray(size)
    host, device = np.frombuffer(memory, np.uint8, size), xp.zeros(size, np.uint8)
    host[...] = 1

    def copy() -> None:
        for _ in range(times):
            if direction == "to_device":
                device.set(host, stream)
            else:
                device.get(stream, out=host, blocking=False)
        stream.synchronize()

    return copy


def copy_rate(xp: ModuleType, size: int, directions: tuple[str, ...], *, pinned: bool) -> float:
    """Return the bytes per second of all directions together, the median of several rounds.

    Every direction has its own thread and stream, because a copy of pageable memory blocks the
    thread that starts it.
    """
    times = min(max(2, (1 << 28) // size), 256)
    copies = [copier(xp, size, direction, times, pinned=pinned) for direction in directions]

    def work() -> None:
        threads = [threading.Thread(target=copy) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return times * size * len(directions) / timed(work, REPEATS)[1]["median"]


def transfers(xp: ModuleType, sizes: tuple[int, ...]) -> dict[str, object]:
    """Measure copies by size, direction and kind of host memory."""
    cases = []
    for size, memory in itertools.product(sizes, ("pageable", "pinned")):
        rates = {
            name: copy_rate(xp, size, directions, pinned=memory == "pinned") / 1e9
            for name, directions in DIRECTIONS.items()
        }
        cases.append({"bytes": size, "memory": memory, "GB_per_s": rates})
        logger.info("%s", cases[-1])
    return {"cases": cases}
