"""The voxels that N4 fits: compacted, and cut into slabs of rows.

Included voxels are compacted in raster order, in float32. They are processed in slabs of grid rows
(:class:`VoxelSlab`), small enough for the cache on a CPU; on a GPU there is a single slab.

The mask is evaluated on the host, from one byte per voxel: on a GPU, each operation would be a
small kernel to compile at its first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

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

    Image, mask and weights may be NumPy or CuPy arrays; the values are on the device of `xp`. A
    context manager; leaving it ends its threads.

    Attributes
    ----------
    values, weights : float32, (size,)
        Compact voxels; `weights` is None without a weight image.
    begins : ndarray, int64, (rows + 1,)
        The first compact voxel of every row of the box, and the end.
    where : ndarray or None
        Position of each compact voxel in its slab, on the host; None if all voxels of the box are
        included.
    """

    def __init__(
        self,
        image: np.ndarray,
        mask: np.ndarray | None,
        weights: np.ndarray | None,
        workers: int,
        slab_size: int,
        xp: ModuleType = np,
    ) -> None:
        self.xp = xp
        check_arrays(image, mask, weights)
        self.shape = tuple(image.shape)
        # Copies, because the loops of a CPU overwrite the values.
        with np.errstate(over="ignore"):
            image = image.astype(np.float32, order="C")
        weights = None if weights is None else weights.astype(np.float32, order="C")
        inside = included(mask, weights)
        if not (image.size if inside is None else inside.any()):
            raise InputError("The N4 mask is empty: give a mask with voxels of 1, or omit it.")
        # Voxels outside the mask's bounding box do not take part in the fit.
        self.box = [slice(0, n) for n in self.shape] if inside is None else _bounding_box(inside)
        self.box_shape = tuple(part.stop - part.start for part in self.box)
        chosen = None if inside is None else _positions(inside[tuple(self.box)])
        values = self._compact(image, chosen)
        with np.errstate(invalid="ignore"):
            # Finite values cannot overflow the sum.
            total = float(values.sum(dtype=np.float64))
        if not math.isfinite(total):
            raise _not_finite(to_host(image), inside)
        self.values = _moved(values, xp)
        self.weights = None if weights is None else _moved(self._compact(weights, chosen), xp)
        self.size = self.values.size
        self._cut(chosen, slab_size)
        self.workers = workers if xp is np else 1
        self.closing = ExitStack()
        self.pool = self.closing.enter_context(ThreadPoolExecutor(self.workers))

    def __enter__(self) -> FitVoxels:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def _compact(self, array: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        """Return the included voxels of an array, on its own device."""
        voxels = array[tuple(self.box)].reshape(-1)
        return voxels if chosen is None else voxels.take(namespace(array).asarray(chosen))

    def _cut(self, chosen: np.ndarray | None, size: int) -> None:
        nz, ny, nx = self.box_shape
        self._step = max(1, size // nx) if self.xp is np else nz * ny
        self.begins, self.where = np.arange(nz * ny + 1, dtype=np.int64) * nx, None
        if chosen is None:
            return
        self.begins = np.searchsorted(chosen, self.begins)
        self.where = np.empty(self.size, np.int32 if self._step * nx < 2**31 else np.int64)
        for rows, voxels in self._parts():
            self.where[voxels] = chosen[voxels] - rows.start * nx

    def _parts(self) -> list[tuple[slice, slice]]:
        """Rows and compact voxels of each slab."""
        last = len(self.begins) - 1
        rows = [slice(a, b) for a, b in pairwise([*range(0, last, self._step), last])]
        return [(own, slice(*self.begins[[own.start, own.stop]].tolist())) for own in rows]

    @cached_property
    def slabs(self) -> list[VoxelSlab]:
        """The slabs, with positions on the device; CUDA kernels use others."""
        slabs = []
        for number, (rows, voxels) in enumerate(self._parts()):
            where = None if self.where is None else self.xp.asarray(self.where[voxels])
            slabs.append(VoxelSlab(number, rows, voxels, where))
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


def included(mask: np.ndarray | None, weights: np.ndarray | None) -> npt.NDArray[np.bool_] | None:
    """Return the voxels of a mask with a weight above 0, on the host; None if all are."""
    inside = None if mask is None else _as_bool(to_host(mask))
    if weights is not None:
        weighted = to_host(weights > 0)
        inside = weighted if inside is None else inside & weighted
    return None if inside is None or inside.all() else inside


def _bounding_box(inside: npt.NDArray[np.bool_]) -> list[slice]:
    box = []
    for axis in range(3):
        hit = np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))
        box.append(slice(int(hit[0]), int(hit[-1]) + 1))
    return box


def _positions(inside: npt.NDArray[np.bool_]) -> np.ndarray | None:
    """Return the flat positions of included voxels; None if all are."""
    return None if inside.all() else np.flatnonzero(np.ascontiguousarray(inside))


def _moved(array: np.ndarray, xp: ModuleType) -> np.ndarray:
    return to_host(array) if xp is np else xp.asarray(array)


def _not_finite(image: np.ndarray, inside: npt.NDArray[np.bool_] | None) -> InputError:
    bad = ~np.isfinite(image)
    if inside is not None:
        bad &= inside
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    return InputError(
        f"{np.count_nonzero(bad)} voxels to be fitted by N4 are NaN or infinite, the first at "
        f"(z, y, x) = {first}: exclude them from the mask (nonfinite = mask) or repair the volume."
    )


def _as_bool(mask: np.ndarray) -> npt.NDArray[np.bool_]:
    """Return a 0/1 mask as bool; raise for other values, which ITK ignores silently."""
    if mask.dtype == bool:
        return mask
    inside = mask == 1
    if bool((inside | (mask == 0)).all()):
        return inside
    raise InputError(
        f"The N4 mask holds values other than 0 and 1 (from {mask.min()} to {mask.max()}): "
        "threshold it to 0 and 1 (mask > 0)."
    )
