"""One code path for NumPy and CuPy arrays, and voxel types.

Algorithms ask :func:`namespace` for the module of their arrays, and use only what both share.
CuPy, which takes a second to load the CUDA libraries, is imported only for its own arrays.
"""

from __future__ import annotations

import os
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

# Read when CuPy is imported, which zarr does too. CuPy's default, CUB, takes longer to compile for
# the first sum, and the emulated CUDA does not test it.
os.environ.setdefault("CUPY_ACCELERATORS", "")

Backend = Literal["auto", "gpu", "cpu"]


def is_cupy(array: object) -> bool:
    """Tell whether `array` is a CuPy array; never imports CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def namespace(*arrays: object) -> ModuleType:
    """Return ``cupy`` if any of the arrays or scalars is CuPy's, else ``numpy``."""
    if any(is_cupy(array) for array in arrays):
        return import_module("cupy")
    return np


def to_host(array: ArrayLike) -> np.ndarray:
    """Return `array` as a NumPy array: a copy from a device, the array itself on the host."""
    if is_cupy(array):
        return import_module("cupy").asnumpy(array)
    return np.asarray(array)


def output_type(asked: str, own: np.dtype) -> np.dtype:
    """Type of an output in native byte order: ``asked``, or the input's own for "input"."""
    return (own if asked == "input" else np.dtype(asked)).newbyteorder("=")


def working_type(dtype: np.dtype) -> np.dtype:
    """Type to compute in: real and complex floats in native byte order, integers as floats.

    Integers of up to 16 bits and float16 become float32, larger integers float64.
    """
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
    # Equal types in any byte order: float64 does not hold all integers of 64 bits.
    if target.kind not in "iu" or values.dtype.newbyteorder("=") == target.newbyteorder("="):
        return values.astype(target, copy=False)
    xp = namespace(values)
    # In float32 at least: NumPy would round uint8 in float16, which lacks large integers.
    floating = values.astype(working_type(values.dtype), copy=False)
    limits = integer_limits(target, floating.dtype)
    if xp is not np:
        return xp.clip(xp.rint(floating), *limits).astype(target)
    # Here, because numba takes a third of a second to import.
    from octane.core.rounding import rounded

    return rounded(floating, limits, target)


def integer_limits(target: np.dtype, floating: np.dtype) -> tuple[float, float]:
    """Smallest and largest values that a floating and an integer type share."""
    limits = np.iinfo(str(target))
    top = floating.type(limits.max)
    # float64 rounds the largest int64 up, and float32 the largest int32: use the float below.
    if int(top) > limits.max:
        top = np.nextafter(top, floating.type(0))
    return float(limits.min), float(top)


def require_cpu(backend: Backend, step: str) -> None:
    """Raise an InputError if a CPU-only step is to run on a GPU."""
    if backend == "gpu":
        raise InputError(f"{step} runs on the CPU; use --backend gpu only for RESAMPLE and N4.")


def processor() -> str:
    """Name of the processor as Linux reports it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"
