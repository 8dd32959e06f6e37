"""GPUs of the node as NVML shows them, without creating a CUDA context.

A context would use some hundred megabytes of the GPU that is being judged. Every failure of NVML
has a defined result. A missing driver, or one that does not start, is a
:class:`GpusUnavailableError` with the reason. A single GPU that fails is listed with its fault. A
figure that a GPU or a driver does not support is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pynvml

from octane.gpu.inventory import Gpu, GpuProcess, GpusUnavailableError

Value = TypeVar("Value")

REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver was found (libnvidia-ml is missing; "
    "a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver and its library have different "
    "versions (it was updated; a reboot is due)",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA driver",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old",
}

UNSUPPORTED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)
"""Errors of a GPU, a driver or a MIG instance that does not support a figure."""

PROCESS_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)


def read() -> tuple[Gpu, ...]:
    """Read the current state of all GPUs; for a GPU split by MIG, of its instances.

    A GpusUnavailableError says why NVML cannot be used.
    """
    try:
        # Never shut down: NVML counts the calls, and the driver stays loaded while a process waits.
        pynvml.nvmlInit()
        return tuple(gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _at(index))
    except pynvml.NVMLError as error:
        raise GpusUnavailableError(REASONS.get(_code(error), f"NVML fails: {error}")) from error


def _at(index: int) -> Iterator[Gpu]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        name = str(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError as error:
        # It fell off the bus, or this user may not use it; the others still count.
        yield Gpu(index, f"unknown-{index}", "unknown", 0, 0, fault=str(error))
        return
    mode = _supported(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        yield _gpu(index, uuid, name, handle, None)
        return
    for place in range(_supported(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            own = str(pynvml.nvmlDeviceGetUUID(instance))
        except pynvml.NVMLError:
            continue  # a place without an instance
        yield _gpu(index, own, name, instance, uuid)


def _gpu(index: int, uuid: str, name: str, handle: object, parent: str | None) -> Gpu:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        rates = _supported(pynvml.nvmlDeviceGetUtilizationRates, handle)
        processes = _processes(handle)
    except pynvml.NVMLError as error:
        return Gpu(index, uuid, name, 0, 0, parent=parent, fault=str(error))
    return Gpu(
        index,
        uuid,
        name,
        int(memory.total),
        int(memory.free),
        utilisation=None if rates is None else int(rates.gpu),
        processes=processes,
        parent=parent,
    )


def _processes(handle: object) -> tuple[GpuProcess, ...] | None:
    """Compute and graphics processes, each once, with the larger of its two figures."""
    found: dict[int, int | None] = {}
    listed = [_supported(ask, handle) for ask in PROCESS_LISTS]
    for process in (process for answer in listed for process in answer or ()):
        known = [found.get(process.pid), process.usedGpuMemory]
        found[int(process.pid)] = max((n for n in known if n is not None), default=None)
    if all(answer is None for answer in listed):
        return None
    return tuple(GpuProcess(pid, used) for pid, used in found.items())


def _supported(ask: Callable[[object], Value], handle: object) -> Value | None:
    """NVML's answer, or None if the GPU or the driver does not support the figure."""
    try:
        return ask(handle)
    except pynvml.NVMLError as error:
        if _code(error) in UNSUPPORTED:
            return None
        raise


def _code(error: pynvml.NVMLError) -> int:
    return vars(error)["value"]
