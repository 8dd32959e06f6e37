"""Cuts through a volume, taken from its blocks while they are written."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Grid, Region
from octane.core.metrics import Metrics
from octane.layout.sections import Section, imaged_plane, rescale_sections
from octane.store.image import Image
from octane.store.volumes import Writer
from octane.store.writer import Make

CUT = 256
"""Longest edge of a cut through a volume, pixels."""


class Cuts:
    """A writer of a volume that keeps cuts: across z at ``plane``, across y and x in the middle.

    They are taken from the blocks, so that no chunk is read again.
    """

    def __init__(self, writer: Writer, grid: Grid, dtype: npt.DTypeLike, plane: int) -> None:
        self._writer, self._grid = writer, grid
        self.centre = (plane, grid.shape[1] // 2, grid.shape[2] // 2)
        self._step = _step(grid)
        counts = [-(-n // self._step) for n in grid.shape]
        self._planes = [np.zeros(counts[:a] + counts[a + 1 :], dtype) for a in range(3)]

    def __setitem__(self, region: Region, block: npt.NDArray, /) -> None:
        """Write a region, and take its part of each cut."""
        self._writer[region] = block
        self.take(region, block)

    def fill(self, region: Region, make: Make, _: object, /) -> None:
        """Write the voxels that ``make`` returns for a region, and take their part of each cut."""
        self[region] = make(region)

    def take(self, region: Region, block: npt.NDArray) -> None:
        """Take a block's part of each cut."""
        kept = [slice(-r.start % self._step, None, self._step) for r in region]
        first = [-(-r.start // self._step) for r in region]
        for axis, (plane, at, r) in enumerate(zip(self._planes, self.centre, region, strict=True)):
            if r.start <= at < r.stop:
                part = block[(*kept[:axis], at - r.start, *kept[axis + 1 :])]
                places = zip(first[:axis] + first[axis + 1 :], part.shape, strict=True)
                plane[tuple(slice(start, start + n) for start, n in places)] = part

    def note(self, metrics: Metrics) -> None:
        """Add the cuts (the modulus of complex ones) and their pixel spacing to a record."""
        for name, plane in zip("zyx", self._planes, strict=True):
            metrics.previews[f"slice_{name}"] = _shown(plane)
        metrics.previews["slice_spacing"] = np.multiply(self._grid.spacing, self._step)


def note_cuts(
    levels: Sequence[Image], sections: list[Section], metrics: Metrics, ending: str = ""
) -> None:
    """Add the cuts of a written volume to a record, under names with this ``ending``.

    They are read from the coarsest of the ``levels`` (finest first) that fills them, or else from
    the finest.
    """
    fills = [image for image in levels if max(image.grid.shape) >= CUT]
    image = fills[-1] if fills else levels[0]
    grid, first = image.grid, levels[0].grid
    nz, ny, nx = grid.shape
    own = rescale_sections(sections, grid.spacing[0] / first.spacing[0], nz)
    step = _step(grid)
    for axis, at in enumerate((imaged_plane(own, nz), ny // 2, nx // 2)):
        whole = [slice(0, n) for n in grid.shape]
        cut = image.read((*whole[:axis], slice(at, at + 1), *whole[axis + 1 :])).squeeze(axis)
        metrics.previews[f"slice_{'zyx'[axis]}{ending}"] = _shown(cut[::step, ::step])
    metrics.previews["slice_spacing"] = np.multiply(grid.spacing, step)


def _step(grid: Grid) -> int:
    return max(1, -(-max(grid.shape) // CUT))


def _shown(plane: npt.NDArray) -> npt.NDArray:
    return np.abs(plane) if plane.dtype.kind == "c" else plane
