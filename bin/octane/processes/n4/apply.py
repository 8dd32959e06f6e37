"""Division of a block of voxels at full resolution by the bias field.

:func:`correct_block` accepts NumPy and CuPy arrays. NumPy arrays go through compiled loops in one
pass, CuPy arrays through a CUDA kernel, and anything that these do not support through array
operations. With each, parts of a volume equal the whole bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype, integer_limits, namespace
from octane.processes.n4 import bspline
from octane.processes.n4.cuda import APPLIED, apply_rows

NOTHING = np.empty((0, 0, 0), np.float32)


class FieldPart(NamedTuple):
    """One of the fields over a block, as the control points of its logarithm.

    `lattice` (cz, cy, cx; float32, NumPy) spans a grid of `shape` voxels (z, y, x); the block is
    the `region` of that grid (three slices, step 1).
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
        Their logarithms add up; each region has the block's shape. Without any, the field is 1.
    strength : float
        0 returns the input, 1 the full correction, values between them a linear blend.
    dtype : dtype, optional
        Of the result, by default that of `block`; integers are rounded and clipped to their range.
    source : array, (z, y, x), optional
        The untouched input to blend with, if `block` is not.
    out : array, (z, y, x), optional
        Receives the result, in its own dtype; may be `block` or `source`.
    with_field : bool
        Return the field too.

    Returns
    -------
    corrected : array, (z, y, x)
        `out`, if given. With strength 0 and the input's dtype, the input itself.
    field : array, float32, (z, y, x), or None
        Divisor of `block` at full strength.
    """
    source = block if source is None else source
    target = np.dtype(block.dtype if dtype is None else dtype) if out is None else out.dtype
    types = [np.dtype(t) for t in (block.dtype, source.dtype, target)]
    looped = fields and all(t.isnative and t != np.float16 for t in types)
    if looped and namespace(block, source) is np:
        # With strength 0 the result is the input, which is still needed after the loops.
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
        total += bspline.evaluate_region(*part, xp)
    corrected = divide(block, total, strength, dtype, source)
    return corrected, xp.exp(total) if with_field else None


def divide(
    block: np.ndarray, log_field: np.ndarray, strength: float, dtype: np.dtype, source: np.ndarray
) -> np.ndarray:
    """Divide by an evaluated field; otherwise as :func:`correct_block`."""
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
    # Not at module level: importing numba takes a third of a second.
    from octane.processes.n4 import division

    dtype = out.dtype
    if strength == 0 and not with_field:
        return divide(block, NOTHING, 0, dtype, source), None
    more = NOTHING
    if len(fields) > 1:
        more = np.zeros(block.shape, np.float32)
        for part in fields[:-1]:
            division.add_field(more, *_tables(part))
    work = np.result_type(block.dtype, source.dtype, np.float32)
    wide = work != np.float32 or (dtype.kind in "iu" and dtype.itemsize > 2)
    real = np.float64 if wide else np.float32
    field = np.empty(block.shape, np.float32) if with_field else NOTHING
    kernel = division.divider(block.dtype.name, source.dtype.name, dtype.name, real.__name__)
    # The kernel is compiled for contiguous, writable arrays, even where it only reads them.
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
    rows, axis = bspline.region_rows(*part, xp)
    log_field = xp.empty(block.shape, xp.float32) if with_field else None
    corrected = apply_rows(block, rows, axis, strength, dtype, log_field)
    if strength == 0:
        corrected = as_dtype(block, dtype)
    return corrected, None if log_field is None else xp.exp(log_field)


def _tables(part: FieldPart) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Arguments of kernels for a field: planes of control points, and the bases for their rows."""
    along_z, *others = (
        (n, c, *own.indices(n)[:2])
        for n, c, own in zip(part.shape, part.lattice.shape, part.region, strict=True)
    )
    z = bspline.axis_weights(*along_z)
    # Sums of products in a fixed order: a matrix product may round differently with its shape.
    planes = bspline.padded(len(z.first), *part.lattice.shape[1:])
    planes[...] = bspline.gather(part.lattice.astype(np.float64), z, 0)
    return planes, _bases(*others)


# Cached: blocks below each other share them, and they take longer to compute than the planes.
@lru_cache(64)
def _bases(along_y: tuple[int, ...], along_x: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    y, x = bspline.axis_weights(*along_y), bspline.axis_weights(*along_x)
    return y.first.astype(np.int64), y.weights, *bspline.vectors(x)
