"""The array backend: one code path for NumPy and CuPy.

Algorithms ask :func:`namespace` for the module their arrays belong to and use nothing but what
both modules share, so there is no CPU copy and GPU copy of anything. CuPy is imported only when
it is asked for or when an array already is one: importing it takes about a second and loads the
CUDA libraries, which a run with ``backend = cpu`` must not do.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from octane.core.errors import OctaneError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Backend", "is_cupy", "namespace", "require_cpu", "to_host"]

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
