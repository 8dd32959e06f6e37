"""The voxels that N4 fits: compacted, and cut into slabs of rows.

Included voxels are compacted in raster order, in float32. They are processed in slabs of grid rows
(:class:`VoxelSlab`), small enough for the cache on a CPU; on a GPU there is a single slab.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from octane.core.arrays import namespace, to_host
from octane.core.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class VoxelSlab:
    """Slab `number`: some rows of the grid, their compact voxels, and the voxels' positions.

    `where` is None if all voxels of the rows are included.
    """

    number: int
    rows: slice
    voxels: slice
    where: np.ndarray | None


class FitVoxels:
    """The included voxels: their bounding box, their values and slabs of rows.

    A context manager; leaving it ends its threads.
    """

    def __init__(
        self,
        image: np.ndarray,
        mask: np.ndarray | None,
        weights: np.ndarray | None,
        workers: int,
        slab_size: int,
    ) -> None:
        xp = self.xp = namespace(image)
        check_arrays(image, mask, weights)
        self.shape = tuple(image.shape)
        image = image.astype(xp.float32)
        inside = xp.ones(self.shape, bool) if mask is None else _as_bool(xp.asarray(mask))
        if weights is not None:
            weights = xp.asarray(weights).astype(xp.float32)
            inside &= weights > 0
        self.size = int(inside.sum())
        if self.size == 0:
            raise InputError("The N4 mask is empty: give a mask with voxels of 1, or omit it.")
        bad = inside & ~xp.isfinite(image)
        count = int(bad.sum())
        if count:
            index = tuple(int(i) for i in np.argwhere(to_host(bad))[0])
            raise InputError(
                f"{count} voxels to be fitted by N4 are NaN or infinite, the first at (z, y, x) = "
                f"{index}: exclude them from the mask (nonfinite = mask) or repair the volume."
            )
        # Voxels outside the mask's bounding box do not take part in the fit.
        self.box = []
        for axis in range(3):
            others = tuple(a for a in range(3) if a != axis)
            hit = np.flatnonzero(to_host(inside.any(axis=others)))
            self.box.append(slice(int(hit[0]), int(hit[-1]) + 1))
        inside = inside[tuple(self.box)]
        self.box_shape = tuple(inside.shape)
        self.values = image[tuple(self.box)][inside]
        self.weights = None if weights is None else weights[tuple(self.box)][inside]
        self.slabs = self._cut(inside, slab_size)
        self.workers = workers if xp is np else 1
        self.closing = ExitStack()
        self.pool = self.closing.enter_context(ThreadPoolExecutor(self.workers))

    def __enter__(self) -> FitVoxels:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def _cut(self, inside: np.ndarray, size: int) -> list[VoxelSlab]:
        xp = self.xp
        nz, ny, nx = self.box_shape
        n_rows = nz * ny
        step = max(1, size // nx) if xp is np else n_rows
        inside = inside.reshape(n_rows, nx)
        per_row = to_host(inside.sum(axis=1))
        # The first compact voxel of every row, and the end.
        self.begins = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int64)
        positions = np.int32 if step * nx < 2**31 else np.int64
        self.where = None if self.size == inside.size else xp.empty(self.size, positions)
        slabs = []
        for number, row0 in enumerate(range(0, n_rows, step)):
            row1 = min(row0 + step, n_rows)
            voxels = slice(int(self.begins[row0]), int(self.begins[row1]))
            where = None
            if self.where is not None:
                where = self.where[voxels]
                where[:] = xp.flatnonzero(inside[row0:row1])
            slabs.append(VoxelSlab(number, slice(row0, row1), voxels, where))
        return slabs

    def each(self, work: Callable[[VoxelSlab], T]) -> list[T]:
        """Run `work` on every slab."""
        return [work(slab) for slab in self.slabs]

    def spread(self, slab: VoxelSlab, values: np.ndarray) -> np.ndarray:
        """Spread compact voxels of a slab over its rows, 0 where voxels are excluded."""
        nx = self.box_shape[2]
        n_rows = slab.rows.stop - slab.rows.start
        if slab.where is None:
            return values.reshape(n_rows, nx)
        dense = self.xp.zeros(n_rows * nx, self.xp.float32)
        dense[slab.where] = values
        return dense.reshape(n_rows, nx)


def check_arrays(image: np.ndarray, mask: np.ndarray | None, weights: np.ndarray | None) -> None:
    """Raise an OctaneError for arrays that N4 does not accept: axes, shapes and dtype."""
    if image.ndim != 3:
        raise InputError(f"N4 needs a volume with axes (z, y, x), not {image.ndim} axes.")
    for name, other in (("mask", mask), ("weight image", weights)):
        if other is not None and tuple(other.shape) != tuple(image.shape):
            raise InputError(
                f"The {name} has shape {tuple(other.shape)}, the volume {tuple(image.shape)}: "
                f"give a {name} on the grid of the volume."
            )
    if image.dtype.kind not in "fiu":
        raise InputError(f"N4 fits real intensities, not {image.dtype}: convert them first.")


def require_varied(name: str, values: np.ndarray) -> None:
    """Raise an OctaneError if all voxels to be fitted have the same value."""
    if values.size and values.min() == values.max():
        raise InputError(
            f"{name} has the same value, {values.min():g}, in every voxel to be fitted, so a field "
            "cannot be estimated: check the input and the mask."
        )


def _as_bool(mask: np.ndarray) -> np.ndarray:
    """Return a 0/1 mask as bool; raise for other values, which ITK ignores silently."""
    if mask.dtype == bool:
        return mask.copy()
    inside = mask == 1
    if bool((inside | (mask == 0)).all()):
        return inside
    raise InputError(
        f"The N4 mask holds values other than 0 and 1 (from {mask.min()} to {mask.max()}): "
        "threshold it to 0 and 1 (mask > 0)."
    )
