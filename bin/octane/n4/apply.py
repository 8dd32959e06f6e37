"""Division of a block of voxels at full resolution by the bias field.

:func:`correct_block` takes NumPy and CuPy arrays. NumPy arrays go through compiled loops in one
pass, CuPy arrays through a CUDA kernel, and what these do not take through array operations. Parts
of a volume equal the whole bit for bit in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype, integer_limits, namespace
from octane.core.compiled import LANES, Kernel, compiled
from octane.n4 import bspline
from octane.n4.cuda import APPLIED, apply_rows
from octane.n4.kernels import F32, exp32, expand

NOTHING = np.empty((0, 0, 0), np.float32)


class FieldPart(NamedTuple):
    """One of the fields over a block, as the logarithm's control points.

    `lattice` (cz, cy, cx; float32, NumPy or CuPy) spans a grid of `shape` voxels (z, y, x), and the
    block is the `region` of that grid (three slices, step 1).
    """

    lattice: np.ndarray
    shape: Sequence[int]
    region: Sequence[slice]


def correct_block(
    block: np.ndarray,
    fields: Sequence[FieldPart],
    *,
    strength: float = 1.0,
    dtype: npt.DTypeLike | None = None,
    source: np.ndarray | None = None,
    out: np.ndarray | None = None,
    with_field: bool = False,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Divide a block by its bias field.

    Parameters
    ----------
    block : array, (z, y, x)
        Real intensities of any dtype, NumPy or CuPy.
    fields : sequence of FieldPart
        Their logarithms add up; each region of the block's shape. With none, the field is 1.
    strength : float
        0 gives the input, 1 the full correction, between them a linear blend.
    dtype : dtype, optional
        Of the result, by default that of `block`; integers are rounded and clipped to their range.
    source : array, (z, y, x), optional
        The untouched input to blend with, where `block` is not.
    out : array, (z, y, x), optional
        Takes the result, in its own dtype; may be `block` or `source`.
    with_field : bool
        Return the field too.

    Returns
    -------
    corrected : array, (z, y, x)
        `out`, where it is given. With strength 0 and the input's dtype, the input itself.
    field : array, float32, (z, y, x), or None
        Divisor of `block` at full strength.
    """
    source = block if source is None else source
    target = np.dtype(block.dtype if dtype is None else dtype) if out is None else out.dtype
    types = [np.dtype(t) for t in (block.dtype, source.dtype, target)]
    looped = fields and all(t.isnative and t != np.float16 for t in types)
    if looped and namespace(block, source) is np:
        # With strength 0 the input is the result, and is still needed after the loops.
        fresh = out is None or not out.flags.c_contiguous or strength == 0
        place = np.empty(block.shape, target) if fresh else out
        made, field = _correct_compiled(block, fields, strength, source, place, with_field)
    elif len(fields) == 1 and source is block and APPLIED.keys() >= {block.dtype, target}:
        made, field = _correct_kernel(block, fields[0], strength, target, with_field)
    else:
        made, field = _correct_arrays(block, fields, strength, target, source, with_field)
    if out is None or made is out:
        return made, field
    out[...] = made
    return out, field


def _correct_arrays(
    block: np.ndarray,
    fields: Sequence[FieldPart],
    strength: float,
    dtype: np.dtype,
    source: np.ndarray,
    with_field: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    xp = namespace(block, source)
    total = xp.zeros(block.shape, xp.float32)
    for part in fields:
        total += bspline.evaluate_region(xp.asarray(part.lattice), *part[1:])
    corrected = divide(block, total, strength, dtype, source)
    return corrected, xp.exp(total) if with_field else None


def divide(
    block: np.ndarray, log_field: np.ndarray, strength: float, dtype: np.dtype, source: np.ndarray
) -> np.ndarray:
    """Divide by a field that is evaluated already, as :func:`correct_block`."""
    if strength == 0:
        return source if source.dtype == dtype else as_dtype(source, dtype)
    xp = namespace(block, log_field)
    # float32 holds every 16-bit integer; wider integers need float64.
    work = np.dtype(xp.result_type(block.dtype, source.dtype, xp.float32))
    result = block.astype(work) / xp.exp(log_field.astype(work))
    if strength < 1:
        before = source.astype(work)
        result = before + (result - before) * work.type(strength)
    return as_dtype(result, dtype)


def _correct_compiled(
    block: np.ndarray,
    fields: Sequence[FieldPart],
    strength: float,
    source: np.ndarray,
    out: np.ndarray,
    with_field: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    dtype = out.dtype
    if strength == 0 and not with_field:
        return divide(block, NOTHING, 0, dtype, source), None
    more = NOTHING
    if len(fields) > 1:
        more = np.zeros(block.shape, np.float32)
        for part in fields[:-1]:
            _add_field(more, *_tables(part))
    work = np.result_type(block.dtype, source.dtype, np.float32)
    wide = work != np.float32 or (dtype.kind in "iu" and dtype.itemsize > 2)
    real = np.float64 if wide else np.float32
    field = np.empty(block.shape, np.float32) if with_field else NOTHING
    kernel = _divider(block.dtype.name, source.dtype.name, dtype.name, real.__name__)
    # The kernel's arrays are of one kind: contiguous, and writable even where they are only read.
    values = np.require(block, requirements=["C", "W"])
    kernel(
        values,
        values if source is block else np.require(source, requirements=["C", "W"]),
        more,
        *_tables(fields[-1]),
        real(strength),
        np.array(integer_limits(dtype, np.dtype(real)) if dtype.kind in "iu" else (0, 0), real),
        out,
        field,
    )
    if strength == 0:
        out = divide(block, NOTHING, 0, dtype, source)
    return out, field if with_field else None


def _correct_kernel(
    block: np.ndarray, part: FieldPart, strength: float, dtype: np.dtype, with_field: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    xp = namespace(block)
    rows, axis = bspline.region_rows(xp.asarray(part.lattice), part.shape, part.region)
    log_field = xp.empty(block.shape, xp.float32) if with_field else None
    corrected = apply_rows(block, rows, axis, strength, dtype, log_field)
    if strength == 0:
        corrected = as_dtype(block, dtype)
    return corrected, None if log_field is None else xp.exp(log_field)


def _tables(part: FieldPart) -> tuple[np.ndarray, ...]:
    """Arguments of kernels for a field: planes of control points, and the bases of y and x."""
    along_z, *others = (
        (n, c, *own.indices(n)[:2])
        for n, c, own in zip(part.shape, part.lattice.shape, part.region, strict=True)
    )
    z = bspline.axis_weights(*along_z)
    # Sums of products in a fixed order: a matrix product may round differently with its shape.
    planes = bspline.padded(len(z.first), *part.lattice.shape[1:])
    planes[...] = bspline.gather(np.asarray(part.lattice, np.float64), z)
    return planes, *_bases(*others)


# Blocks below each other have the same ones, which take longer to make than planes.
@lru_cache(64)
def _bases(along_y: tuple[int, ...], along_x: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    y, x = bspline.axis_weights(*along_y), bspline.axis_weights(*along_x)
    return y.first.astype(np.int64), y.weights, *bspline.vectors(x)


# The compiled loops. Arguments that octane.n4.kernels has too are described there.


@compiled(
    "void(float32[:, :, ::1], float64[:, :, ::1], int64[::1], float64[:, ::1], float32[:, ::1],"
    " int64[:, ::1])"
)
def _add_field(
    log_field: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    parts: np.ndarray,
) -> None:
    """Add a field to a block of log fields, float32 (nz, ny, nx), in place."""
    control = np.empty(planes.shape[2] + LANES, np.float32)
    nx = log_field.shape[2]
    line = np.empty(nx + LANES, np.float32)
    for z in range(len(log_field)):
        for y in range(log_field.shape[1]):
            expand(planes[z], basis_y[y], first_y[y], basis_x, parts, control, 0, nx, line, 0)
            target = log_field[z, y]
            for i in range(nx):
                target[i] += line[i]


def _divide_rows(
    block: np.ndarray,
    source: np.ndarray,
    more: np.ndarray,
    planes: np.ndarray,
    first_y: np.ndarray,
    basis_y: np.ndarray,
    basis_x: np.ndarray,
    parts: np.ndarray,
    strength: float,
    limits: np.ndarray,
    out: np.ndarray,
    field: np.ndarray,
) -> None:
    """Divide a block by its field, in the type of `limits`; :func:`_divider` compiles it.

    No sum is reordered: every voxel has the same bits whatever block it is in.

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
            # The log field is float32 in both types.
            expand(planes[z], basis_y[y], first_y[y], basis_x, parts, control, 0, nx, log_line, 0)
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
def _divider(block: str, source: str, out: str, working: str) -> Kernel:
    """Compile :func:`_divide_rows` for arrays of these types, working in float32 or float64."""
    return compiled(
        f"void({block}[:, :, ::1], {source}[:, :, ::1], float32[:, :, ::1], float64[:, :, ::1],"
        f" int64[::1], float64[:, ::1], float32[:, ::1], int64[:, ::1], {working},"
        f" {working}[::1], {out}[:, :, ::1], float32[:, :, ::1])"
    )(_divide_rows)
