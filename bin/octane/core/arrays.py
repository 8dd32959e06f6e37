"""Arrays of NumPy and CuPy in one code path, and the types of voxels.

Algorithms ask :func:`namespace` for the module of their arrays, and use what both modules share.
CuPy, which takes a second to load the CUDA libraries, is imported for its own arrays only.
"""

from __future__ import annotations

import platform
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from octane.core.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Backend = Literal["auto", "gpu", "cpu"]


def is_cupy(array: object) -> bool:
    """Tell whether `array` is a CuPy array; never imports CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def namespace(*arrays: object) -> ModuleType:
    """Return ``cupy`` where an array or scalar among these is CuPy's, else ``numpy``."""
    if any(is_cupy(array) for array in arrays):
        return import_module("cupy")
    return np


def to_host(array: ArrayLike) -> np.ndarray:
    """Return `array` as a NumPy array: a copy from a device, the array itself on the host."""
    if is_cupy(array):
        return import_module("cupy").asnumpy(array)
    return np.asarray(array)


def output_type(asked: str, own: np.dtype) -> np.dtype:
    """Type of an output in native order: what ``dtype`` asks for, or the input's own."""
    return (own if asked == "input" else np.dtype(asked)).newbyteorder("=")


def working_type(dtype: np.dtype) -> np.dtype:
    """Type to compute in: floating and complex ones in native order, small integers in float32."""
    if dtype.kind in "fc" and dtype.itemsize > 2:
        return dtype.newbyteorder("=")
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def as_dtype(values: npt.NDArray, dtype: npt.DTypeLike) -> npt.NDArray:
    """Convert ``values`` to ``dtype``: integers are rounded (half to even) and clipped.

    Masks (bool) are true from one half on. Complex values stay complex.
    """
    target = np.dtype(dtype)
    if target.kind == "b":
        return values >= 0.5
    if target.kind not in "iu":
        return values.astype(target, copy=False)
    xp = namespace(values)
    # Rounded in float32 at least: NumPy rounds uint8 to float16, which lacks large integers.
    rounded = xp.rint(values.astype(working_type(values.dtype), copy=False))
    return xp.clip(rounded, *integer_limits(target, rounded.dtype)).astype(target)


def integer_limits(target: np.dtype, floating: np.dtype) -> tuple[float, float]:
    """Smallest and largest value of a floating type that are values of an integer type too."""
    limits = np.iinfo(str(target))
    top = floating.type(limits.max)
    # float64 lacks the largest int64, and float32 the largest int32: the one below.
    if int(top) > limits.max:
        top = np.nextafter(top, floating.type(0))
    return float(limits.min), float(top)


def require_cpu(backend: Backend, step: str) -> None:
    """Raise an OctaneError where a step of the CPU is to run on a GPU."""
    if backend == "gpu":
        raise InputError(f"{step} runs on the CPU; leave --backend gpu to RESAMPLE and N4.")


def processor() -> str:
    """The processor's name as Linux knows it, else the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"
