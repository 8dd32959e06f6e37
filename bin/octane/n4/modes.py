"""N4 on serial sections: one field for the volume, one for each section, or both in turn.

A field per section is fitted on the section's own planes as if it were a volume by itself, so that
it may jump from one section to the next. In two passes the whole is fitted on what the sections'
fields leave. All fields are logarithms and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from octane.core.errors import OctaneError
from octane.n4 import bspline
from octane.n4.apply import FieldPart
from octane.n4.fit import BiasFit
from octane.n4.plan import Part, Plan
from octane.pipeline.workers import run_tiles

Fit = Callable[[np.ndarray, np.ndarray, np.ndarray | None, Part, int], BiasFit]


@dataclass(frozen=True)
class SectionFit:
    """A section's field; the grid it is defined on is the section's own."""

    part: Part
    fit: BiasFit


@dataclass(frozen=True)
class BiasModel:
    """The bias field of a volume: the sum of the log fields that were fitted.

    Attributes
    ----------
    shape
        Voxels of the volume, (z, y, x).
    whole
        Field over the whole volume, or None.
    sections
        Fields of sections.
    skipped
        Names of sections with nothing to be fitted.
    """

    shape: tuple[int, int, int]
    whole: BiasFit | None
    sections: tuple[SectionFit, ...] = ()
    skipped: tuple[str, ...] = ()

    def pieces(self, region: Sequence[slice]) -> list[tuple[slice, list[FieldPart]]]:
        """Cut a part of the volume where sections meet: planes of the part, and their fields.

        Planes of no section, where there is no field over the whole either, have none.
        """
        z, y, x = region
        first, last, _ = z.indices(self.shape[0])
        inside = [(s.part.start, s.part.stop) for s in self.sections]
        cuts = {c for borders in inside for c in borders if first < c < last}
        borders = [first, *sorted(cuts), last]
        cut = []
        for low, high in pairwise(borders):
            fields = []
            if self.whole is not None:
                fields.append(FieldPart(self.whole.lattice, self.shape, (slice(low, high), y, x)))
            for section in self.sections:
                start, stop = section.part.start, section.part.stop
                if start <= low and high <= stop:
                    own = (slice(low - start, high - start), y, x)
                    shape = (stop - start, *self.shape[1:])
                    fields.append(FieldPart(section.fit.lattice, shape, own))
            cut.append((slice(low - first, high - first), fields))
        return cut

    def on_grid(self, keep: Sequence[slice]) -> np.ndarray:
        """Evaluate on the voxels of strided slices: float32, on the host."""
        planes = range(self.shape[0])[keep[0]]
        across = [np.arange(n)[k] for n, k in zip(self.shape[1:], keep[1:], strict=True)]
        total = np.zeros((len(planes), *map(len, across)), np.float32)
        if self.whole is not None:
            total += _at(self.whole, self.shape, [np.array(planes), *across])
        for section in self.sections:
            part = section.part
            own = np.array(planes[part.kept]) - part.start
            shape = (part.stop - part.start, *self.shape[1:])
            total[part.kept] += _at(section.fit, shape, [own, *across])
        return total


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
    """Fit the sections, then the whole volume on what they leave, as far as they are planned.

    Parameters
    ----------
    plan
        Sections and whole, and the voxels of the volume that are fitted.
    shrunk, mask, weights : ndarray, (z, y, x)
        The shrunk volume, the voxels to fit, and their weights or None.
    fit : callable
        Fits one part: called with its voxels, mask, weights, the part, and the threads it has.
    workers : int
        Threads; sections are fitted at the same time.

    Raises
    ------
    OctaneError
        When no section has anything to be fitted.
    """
    shape, whole = plan.volume.grid.shape, plan.whole
    if not plan.sections and whole is not None:
        return BiasModel(shape, fit(shrunk, mask, weights, whole, workers))
    usable = [p for p in plan.sections if _has_contrast(shrunk[p.kept], mask[p.kept])]
    if not usable:
        raise OctaneError(
            "No section has voxels of more than one value inside the mask: check the section "
            "boundaries and the mask, or fit the volume as a whole (--mode global)."
        )
    skipped = tuple(part.name for part in plan.sections if part not in usable)
    # A section by each thread, which costs no waiting for one another; few sections share them.
    each = max(1, workers // len(usable))

    def one(part: Part) -> SectionFit:
        own = None if weights is None else weights[part.kept]
        return SectionFit(part, fit(shrunk[part.kept], mask[part.kept], own, part, each))

    fits = tuple(run_tiles(usable, one, workers=workers, describe=lambda part: part.name))
    model = BiasModel(shape, None, fits, skipped)
    if whole is None:
        return model
    left = shrunk / np.exp(model.on_grid(plan.keep))
    return replace(model, whole=fit(left, mask, weights, whole, workers))


def _has_contrast(values: np.ndarray, mask: np.ndarray) -> bool:
    inside = values[mask]
    return inside.size > 0 and bool(inside.min() < inside.max())
