"""N4 on serial sections: one field for the volume, one for each section, or one after the other.

A section's field is fitted on its own planes as if they were a separate volume, so fields may jump
from one section to the next. In two-pass mode, a field over the volume is then fitted to the
volume corrected by the sections' fields. All fields are logarithms and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from octane.core.errors import InputError
from octane.pipeline.workers import run_tiles
from octane.processes.n4 import bspline
from octane.processes.n4.apply import FieldPart
from octane.processes.n4.fit import BiasFit
from octane.processes.n4.plan import Part, Plan

Fit = Callable[[np.ndarray, np.ndarray, np.ndarray | None, Part, int], BiasFit]


class PartFit(NamedTuple):
    """The field of a section or of the volume, defined on the grid of that part."""

    part: Part
    fit: BiasFit


@dataclass(frozen=True)
class BiasModel:
    """The bias field of a volume: the sum of the fitted log fields.

    Attributes
    ----------
    shape
        Voxels of the volume, (z, y, x).
    whole
        Field over the entire volume, or None.
    sections
        Fields of sections.
    skipped
        Names of sections without contrast in the mask.
    """

    shape: tuple[int, int, int]
    whole: PartFit | None
    sections: tuple[PartFit, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def fits(self) -> tuple[PartFit, ...]:
        """All fields, that over the entire volume first."""
        return self.sections if self.whole is None else (self.whole, *self.sections)

    def pieces(self, region: Sequence[slice]) -> list[tuple[slice, list[FieldPart]]]:
        """Cut a region of the volume where sections meet: planes of the region, and their fields.

        Planes outside all sections lack a field, unless one covers the entire volume.
        """
        z, y, x = region
        first, last, _ = z.indices(self.shape[0])
        ends = {end for part, _ in self.fits for end in (part.start, part.stop)}
        borders = [first, *sorted(end for end in ends if first < end < last), last]
        cut = []
        for low, high in pairwise(borders):
            fields = []
            for part, fit in self.fits:
                if part.start <= low and high <= part.stop:
                    own = (slice(low - part.start, high - part.start), y, x)
                    fields.append(FieldPart(fit.lattice, self._shape_of(part), own))
            cut.append((slice(low - first, high - first), fields))
        return cut

    def on_grid(self, keep: Sequence[slice]) -> np.ndarray:
        """Evaluate on the voxels of strided slices: float32, on the host."""
        planes = range(self.shape[0])[keep[0]]
        across = [np.arange(n)[k] for n, k in zip(self.shape[1:], keep[1:], strict=True)]
        total = np.zeros((len(planes), *map(len, across)), np.float32)
        for part, fit in self.fits:
            own = np.array(planes[part.kept]) - part.start
            total[part.kept] += _at(fit, self._shape_of(part), [own, *across])
        return total

    def _shape_of(self, part: Part) -> tuple[int, int, int]:
        return (part.stop - part.start, *self.shape[1:])


def _at(fit: BiasFit, shape: Sequence[int], indices: Sequence[np.ndarray]) -> np.ndarray:
    bases = [
        bspline.basis(n, c)[i] for n, c, i in zip(shape, fit.lattice.shape, indices, strict=True)
    ]
    return bspline.evaluate(fit.lattice.astype(np.float64), bases).astype(np.float32)


def fit_modes(
    plan: Plan,
    shrunk: np.ndarray,
    mask: np.ndarray,
    weights: np.ndarray | None,
    fit: Fit,
    workers: int,
) -> BiasModel:
    """Fit the planned sections, then the planned field over the volume that they corrected.

    Parameters
    ----------
    plan
        The parts to fit, and the voxels of the volume that enter the fit.
    shrunk, mask, weights : ndarray, (z, y, x)
        The shrunk volume, the voxels to fit, and their weights or None.
    fit : callable
        Fits one part: called with its voxels, mask, weights, the part, and its number of threads.
    workers : int
        Threads; sections are fitted concurrently.

    Raises
    ------
    OctaneError
        If every section lacks contrast in the mask.
    """
    shape, whole = plan.volume.grid.shape, plan.whole
    if not plan.sections and whole is not None:
        return BiasModel(shape, PartFit(whole, fit(shrunk, mask, weights, whole, workers)))
    usable = [p for p in plan.sections if _has_contrast(shrunk[p.kept], mask[p.kept])]
    if not usable:
        raise InputError(
            "Every section is empty or constant inside the mask: check the section boundaries and "
            "the mask, or fit the volume as a whole (--n4_mode global)."
        )
    skipped = tuple(part.name for part in plan.sections if part not in usable)
    # One thread per section avoids waiting; if threads outnumber sections, each gets several.
    each = max(1, workers // len(usable))

    def one(part: Part) -> PartFit:
        own = None if weights is None else weights[part.kept]
        return PartFit(part, fit(shrunk[part.kept], mask[part.kept], own, part, each))

    fits = tuple(run_tiles(usable, one, workers=workers, describe=lambda part: part.name))
    model = BiasModel(shape, None, fits, skipped)
    if whole is None:
        return model
    left = shrunk / np.exp(model.on_grid(plan.keep))
    return replace(model, whole=PartFit(whole, fit(left, mask, weights, whole, workers)))


def _has_contrast(values: np.ndarray, mask: np.ndarray) -> bool:
    inside = values[mask]
    return inside.size > 0 and bool(inside.min() < inside.max())
