"""Resampling with compiled loops, plane by plane, for NumPy arrays.

Planes are processed in order, as a decoder returns them, while they are still in the cache. Each is
immediately summed along y, which shrinks it. A ring buffer keeps as many of the resulting planes as
the z operator has taps. Once it holds the last plane that an output needs, it is summed along z,
and that one plane along x, directly into the result. A tile is therefore read once and never stored
in full: only the ring is, about a megabyte for planes of 256 x 256 voxels.

Along every axis, taps are summed in order, however planes are batched and whichever outputs are
requested, so that parts equal the whole bit for bit.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from octane.core.arrays import as_dtype, integer_limits, working_type
from octane.resample.operator import AxisOperator, reach

LOOPED = frozenset(map(np.dtype, "bBhHiIlLfdFD"))
"""Types that the loops read and write; others are converted from or to the computing type."""

LANES = 48
"""Values summed along x together: one of each of as many lines, of half as many if complex."""

STAGED_BYTES = 1 << 20
"""Bytes of planes that are converted at once for the loops: as many as stay in the L2 cache."""

ALIGNMENT = 64
"""Bytes of a cache line: vectors that straddle two lines cost a tenth of the total time."""


def component(dtype: np.dtype) -> np.dtype:
    """Type of a complex type's components; real types are returned unchanged."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


class CompiledResampler:
    """A :class:`octane.resample.resampler.Resampler` on the CPU."""

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[np.uint8]] = {}

    def begin(
        self,
        operators: Sequence[AxisOperator],
        plane_shape: tuple[int, int],
        dtype: npt.DTypeLike,
        out_dtype: npt.DTypeLike,
    ) -> None:
        """Begin a tile; an unfinished one is dropped."""
        z, y, x = operators
        _, _, nx = reach(operators, plane_shape)
        self._dtype, self._out = np.dtype(dtype), np.dtype(out_dtype)
        self._plane_shape = plane_shape
        self._pushed = self._done = 0
        working = working_type(self._dtype)
        # Input and output types of the loops.
        self._taken = self._dtype if self._dtype in LOOPED else working
        cast = self._out in LOOPED and (self._out.kind == "c") == (working.kind == "c")
        given = self._out if cast else working
        work = component(working)
        # Not at module level: importing numba takes a third of a second.
        from octane.resample import kernels

        self._kernel = kernels.push(component(self._taken), work, component(given))
        self._axes = [
            array
            for operator in operators
            for array in (
                np.ascontiguousarray(operator.start, np.int64),
                np.ascontiguousarray(operator.weight, work),
            )
        ]
        # A complex value is two adjacent real ones.
        components = 2 if working.kind == "c" else 1
        lines = LANES // components
        width = nx * components
        self._scratch = (
            # A power of two, so that a row's position is found without a division.
            self._take("rows", (1 << (y.taps - 1).bit_length(), width), work),
            self._take("ring", (z.taps * y.size, width), work),
            self._take("lines", (lines, width), work),
            self._take("transposed", (nx, LANES), work),
            self._take("sums", (x.size, LANES), work),
        )
        self._result = self._take("result", (z.size, y.size, x.size), given)
        rounded = given.kind in "iu"
        low, high = integer_limits(given, work) if rounded else (-np.inf, np.inf)
        self._conversion = components, x.identity(nx), rounded, work.type(low), work.type(high)

    def buffer(self, planes: int) -> np.ndarray:
        """A reusable array to decode the next planes into, (planes, y, x)."""
        return self._take("buffer", (planes, *self._plane_shape), self._dtype)

    def push(self, planes: np.ndarray) -> None:
        """Process the next planes in the order of z, (planes, y, x) with any strides.

        They must have the shape and type that :meth:`begin` was given.
        """
        if planes.dtype == self._taken and planes.flags.c_contiguous and planes.flags.writeable:
            self._run(planes)
            return
        step = max(1, STAGED_BYTES // (prod(self._plane_shape) * self._taken.itemsize))
        for start in range(0, len(planes), step):
            part = planes[start : start + step]
            staged = self._take("staged", part.shape, self._taken)
            staged[...] = part
            self._run(staged)

    def finish(self) -> np.ndarray:
        """Return the result, (z, y, x), in the requested type; valid until the next ``begin``."""
        same = self._result.dtype == self._out
        return self._result if same else as_dtype(self._result, self._out)

    def _run(self, planes: np.ndarray) -> None:
        self._done = self._kernel(
            planes.view(component(self._taken)),
            self._pushed,
            self._done,
            *self._axes,
            *self._scratch,
            *self._conversion,
            self._result.view(component(self._result.dtype)),
        )
        self._pushed += len(planes)

    def _take(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return a buffer kept by name and aligned to a cache line; it is replaced if too small."""
        size = prod(shape) * dtype.itemsize
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            fresh = np.empty(size + ALIGNMENT, np.uint8)
            start = -fresh.ctypes.data % ALIGNMENT
            kept = self._kept[name] = fresh[start : start + size]
        return kept[:size].view(dtype).reshape(shape)
