"""The array backend: one code path for NumPy and CuPy.

Algorithms ask :func:`namespace` for the module their arrays belong to and use nothing but what
both modules share, so there is no CPU copy and GPU copy of anything. CuPy is imported only when
it is asked for or when an array already is one: importing it takes about a second and loads the
CUDA libraries, which a run with ``backend = cpu`` must not do.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
import pynvml

from octane.core.errors import OctaneError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Backend", "describe", "is_cupy", "namespace", "require_cpu", "to_host"]

Backend = Literal["auto", "gpu", "cpu"]


def is_cupy(array: object) -> bool:
    """Whether `array` is a CuPy array; never imports CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def namespace(*arrays: object) -> ModuleType:
    """Return the module (``numpy`` or ``cupy``) that the arrays belong to.

    Parameters
    ----------
    *arrays
        Arrays or scalars. One CuPy array among them is enough for ``cupy``.

    Returns
    -------
    ModuleType
        ``cupy`` if an array is a CuPy array (its module is then loaded already), else ``numpy``.
    """
    if any(is_cupy(array) for array in arrays):
        return sys.modules["cupy"]
    return np


def to_host(array: ArrayLike) -> np.ndarray:
    """Return `array` as a NumPy array: a copy from a device, the array itself on the host."""
    if is_cupy(array):
        return sys.modules["cupy"].asnumpy(array)
    return np.asarray(array)


def require_cpu(backend: Backend, step: str) -> None:
    """See that a step that only the CPU does is not asked to run on a GPU.

    Raises
    ------
    OctaneError
        With 'gpu'.
    """
    if backend == "gpu":
        raise OctaneError(f"{step} runs on the CPU; leave --backend gpu to RESAMPLE and N4.")


def processor() -> str:
    """The processor's name as Linux knows it, else the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"


def describe(xp: ModuleType) -> dict[str, str | int | None]:
    """Describe the current device for the metrics.

    Parameters
    ----------
    xp : ModuleType
        ``numpy`` or ``cupy``, whichever computes.

    Returns
    -------
    dict
        ``backend`` ('cpu' or 'gpu'), ``device`` (its name), ``driver`` (the driver's own version,
        None where NVML does not tell), ``cuda`` (the newest CUDA that the driver supports) and
        ``runtime`` (the CUDA runtime), ``memory_bytes`` of the device, ``pcie_generation`` and
        ``pcie_width`` (lanes) of the best link that device and slot can have (None where NVML does
        not tell), all None on a CPU, and ``library`` (array module and version).
    """
    library = f"{xp.__name__} {xp.__version__}"
    if xp is np:
        return {
            "backend": "cpu",
            "device": processor(),
            "driver": None,
            "cuda": None,
            "runtime": None,
            "memory_bytes": None,
            "pcie_generation": None,
            "pcie_width": None,
            "library": library,
        }
    runtime = xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    name = properties["name"]
    return {
        "backend": "gpu",
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "cuda": _cuda_version(runtime.driverGetVersion()),
        "runtime": _cuda_version(runtime.runtimeGetVersion()),
        "memory_bytes": int(properties["totalGlobalMem"]),
        **_from_nvml(xp),
        "library": library,
    }


def _from_nvml(xp: ModuleType) -> dict[str, str | int | None]:
    """What NVML tells of driver and link, as far as it does."""
    runtime = xp.cuda.runtime
    # Its number there is another; of a MIG instance this is the place of the GPU that was split.
    place = runtime.deviceGetPCIBusId(runtime.getDevice()).encode()
    questions: dict[str, Callable[[], str | int]] = {
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        # The best that device and slot can have: what it has now falls while a GPU rests.
        "pcie_generation": lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(
            pynvml.nvmlDeviceGetHandleByPciBusId(place)
        ),
        "pcie_width": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(
            pynvml.nvmlDeviceGetHandleByPciBusId(place)
        ),
    }
    found: dict[str, str | int | None] = dict.fromkeys(questions)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        # Containers and WSL run CUDA without NVML.
        return found
    try:
        for name, ask in questions.items():
            # Another question may have an answer all the same.
            with suppress(pynvml.NVMLError):
                found[name] = ask()
    finally:
        pynvml.nvmlShutdown()
    return found


def _cuda_version(number: int) -> str:
    """CUDA's 12040 as '12.4'."""
    return f"{number // 1000}.{number % 1000 // 10}"
