"""The array backend: one code path for NumPy and CuPy, and the types of voxels.

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
import numpy.typing as npt

from octane.core.errors import OctaneError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Backend = Literal["auto", "gpu", "cpu"]


def is_cupy(array: object) -> bool:
    """Tell whether `array` is a CuPy array; never imports CuPy."""
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


def output_type(asked: str, own: np.dtype) -> np.dtype:
    """Type of an output: what its ``dtype`` parameter asks for, or the input's own."""
    return own if asked == "input" else np.dtype(asked)


def working_type(dtype: np.dtype) -> np.dtype:
    """Type to compute in: floating and complex ones as they are, small integers in float32.

    It is of the machine's byte order.
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
    if target.kind not in "iu":
        return values.astype(target, copy=False)
    xp = namespace(values)
    rounded = xp.rint(values)
    return xp.clip(rounded, *integer_limits(target, rounded.dtype)).astype(target)


def integer_limits(target: np.dtype, floating: np.dtype) -> tuple[float, float]:
    """Smallest and largest value of a floating type that are values of an integer type too."""
    limits = np.iinfo(str(target))
    top = floating.type(limits.max)
    # The largest int64 is no float64, and the largest int32 no float32: the one below.
    if int(top) > limits.max:
        top = np.nextafter(top, floating.type(0))
    return float(limits.min), float(top)


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
