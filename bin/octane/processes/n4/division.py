"""Compiled loops for the division by the field; :mod:`octane.processes.n4.apply` calls them.

Arguments shared with :mod:`octane.processes.n4.kernels` are described there.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from octane.core.compiled import compiled
from octane.processes.n4.bspline import LANES
from octane.processes.n4.kernels import F32, ROWS, exp32, expand


@compiled(f"void(float32[:, :, ::1], float64[:, :, ::1], {ROWS})")
def add_field(
    log_field: np.ndarray,
    planes: np.ndarray,
    rows: tuple[np.ndarray, ...],
) -> None:
    """Add a field to a block of log fields, float32 (nz, ny, nx), in place."""
    control = np.empty(planes.shape[2] + LANES, np.float32)
    nx = log_field.shape[2]
    line = np.empty(nx + LANES, np.float32)
    for z in range(len(log_field)):
        for y in range(log_field.shape[1]):
            expand(planes[z], y, rows, control, line)
            target = log_field[z, y]
            for i in range(nx):
                target[i] += line[i]


def divide_rows(
    block: np.ndarray,
    source: np.ndarray,
    more: np.ndarray,
    planes: np.ndarray,
    rows: tuple[np.ndarray, ...],
    strength: float,
    limits: np.ndarray,
    out: np.ndarray,
    field: np.ndarray,
) -> None:
    """Divide a block by its field, in the type of `limits`; :func:`divider` compiles it.

    Sums are not reordered: every voxel has the same bits whatever block it is in.

    Parameters
    ----------
    block, source : (nz, ny, nx)
        Values to divide, and values to blend the result with.
    more : float32, (nz, ny, nx) or (0, 0, 0)
        Log fields besides that of the lattice.
    strength : float32 or float64
        1 for the full correction.
    limits : float32 or float64, (2,)
        Range of an integer `out`; equal for others.
    out, field : (nz, ny, nx); float32, (nz, ny, nx) or (0, 0, 0)
        Out: the result, and exp(log field).
    """
    real = limits.dtype.type
    low, high = limits
    control = np.empty(planes.shape[2] + LANES, np.float32)
    nx = block.shape[2]
    log_line, line = np.empty(nx + LANES, np.float32), np.empty(nx, limits.dtype)
    for z in range(len(block)):
        for y in range(block.shape[1]):
            # The log field is float32 for either type.
            expand(planes[z], y, rows, control, log_line)
            if len(more):
                others = more[z, y]
                for i in range(nx):
                    log_line[i] = others[i] + log_line[i]
            if line.itemsize == 4:
                for i in range(nx):
                    line[i] = exp32(log_line[i])
            else:
                for i in range(nx):
                    line[i] = math.exp(np.float64(log_line[i]))
            if len(field):
                row = field[z, y]
                for i in range(len(line)):
                    row[i] = F32(line[i])
            values = block[z, y]
            for i in range(len(line)):
                line[i] = real(values[i]) / line[i]
            if strength < 1:
                inputs = source[z, y]
                for i in range(len(line)):
                    before = real(inputs[i])
                    line[i] = before + (line[i] - before) * strength
            if low < high:
                for i in range(len(line)):
                    rounded = real(np.rint(line[i]))
                    rounded = rounded if rounded > low else low
                    line[i] = rounded if rounded < high else high
            target = out[z, y]
            for i in range(len(line)):
                target[i] = line[i]


@cache
def divider(block: str, source: str, out: str, working: str) -> Callable[..., None]:
    """Compile :func:`divide_rows` for arrays of these types, working in float32 or float64."""
    return compiled(
        f"void({block}[:, :, ::1], {source}[:, :, ::1], float32[:, :, ::1], float64[:, :, ::1],"
        f" {ROWS}, {working}, {working}[::1], {out}[:, :, ::1], float32[:, :, ::1])"
    )(divide_rows)
