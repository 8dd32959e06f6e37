"""The full-resolution correction, compiled: a block evaluated, divided, blended and rounded.

No sum is reordered: every voxel has the same bits whatever block it is in.
"""

import math
from functools import cache

import numpy as np

from octane.core.compiled import Kernel, compiled
from octane.n4.rows import F32, exp32, expand

__all__ = ["add_field", "divider"]


@compiled(
    "void(float32[:, :, ::1], float64[:, :, ::1], int64[::1], float64[:, ::1], float32[:, ::1],"
    " int64[:, ::1])"
)
def add_field(
    log_field: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
) -> None:
    """Add a field to a block of log fields.

    Parameters
    ----------
    log_field : float32, (nz, ny, nx)
        Changed in place.
    planes : float64, (nz, cy, cx)
        Control points of every plane.
    first_y, basis_y, basis_x, spans
        As for :func:`subtract`, of the block's rows and columns.
    """
    control = np.empty(planes.shape[2], np.float32)
    line = np.empty(log_field.shape[2], np.float32)
    for z in range(len(log_field)):
        for y in range(log_field.shape[1]):
            expand(planes[z], first_y[y], basis_y[y], basis_x, spans, control, line)
            target = log_field[z, y]
            for i in range(len(line)):
                target[i] += line[i]


def divide32(
    block: np.ndarray,
    source: np.ndarray,
    more: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
    strength: np.float32,
    limits: tuple[np.float32, np.float32],
    out: np.ndarray,
    field: np.ndarray,
) -> None:
    """Divide a block by its field, in float32: see :func:`divider`."""
    control = np.empty(planes.shape[2], np.float32)
    line = np.empty(block.shape[2], np.float32)
    low, high = limits
    for z in range(len(block)):
        for y in range(block.shape[1]):
            expand(planes[z], first_y[y], basis_y[y], basis_x, spans, control, line)
            if len(more):
                others = more[z, y]
                for i in range(len(line)):
                    line[i] = others[i] + line[i]
            for i in range(len(line)):
                line[i] = exp32(line[i])
            if len(field):
                field[z, y] = line
            values = block[z, y]
            for i in range(len(line)):
                line[i] = F32(values[i]) / line[i]
            if strength < 1:
                inputs = source[z, y]
                for i in range(len(line)):
                    before = F32(inputs[i])
                    line[i] = before + (line[i] - before) * strength
            if low < high:
                for i in range(len(line)):
                    rounded = F32(np.rint(line[i]))
                    rounded = rounded if rounded > low else low
                    line[i] = rounded if rounded < high else high
            target = out[z, y]
            for i in range(len(line)):
                target[i] = line[i]


def divide64(
    block: np.ndarray,
    source: np.ndarray,
    more: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    spans: np.ndarray,
    strength: float,
    limits: tuple[float, float],
    out: np.ndarray,
    field: np.ndarray,
) -> None:
    """Divide a block by its field, in float64: see :func:`divider`."""
    control = np.empty(planes.shape[2], np.float32)
    line = np.empty(block.shape[2], np.float32)
    low, high = limits
    for z in range(len(block)):
        for y in range(block.shape[1]):
            expand(planes[z], first_y[y], basis_y[y], basis_x, spans, control, line)
            values, inputs, target = block[z, y], source[z, y], out[z, y]
            for i in range(len(line)):
                log = more[z, y, i] + line[i] if len(more) else line[i]
                gain = math.exp(np.float64(log))
                if len(field):
                    field[z, y, i] = gain
                value = np.float64(values[i]) / gain
                if strength < 1:
                    before = np.float64(inputs[i])
                    value = before + (value - before) * strength
                if low < high:
                    value = min(max(np.rint(value), low), high)
                target[i] = value


@cache
def divider(block: str, source: str, out: str, working: str) -> Kernel:
    """Return the kernel that corrects blocks of these types.

    Parameters
    ----------
    block, source, out, working : str
        Names of NumPy's dtypes; `working` is float32 or float64. float32 holds what it is converted
        to and from only up to 16-bit integers.

    Returns
    -------
    Kernel
        Of these arguments, blocks all of shape (nz, ny, nx): `block`, the values to divide;
        `source`, those to blend with; `more` (float32, or of shape (0, 0, 0)), log fields besides
        that of the lattice; `planes` to `spans` as for :func:`add_field`; `strength`; `limits`, the
        range of an integer `out`, equal for others; `out`; and `field` (float32, or of shape
        (0, 0, 0)), which is given exp(log field).
    """
    signature = (
        f"void({block}[:, :, ::1], {source}[:, :, ::1], float32[:, :, ::1], float64[:, :, ::1],"
        f" int64[::1], float64[:, ::1], float32[:, ::1], int64[:, ::1], {working},"
        f" UniTuple({working}, 2), {out}[:, :, ::1], float32[:, :, ::1])"
    )
    return Kernel(divide32 if working == "float32" else divide64, signature, reorder=False)
