"""The number of N4's levels, chosen by scores that need no known field, against the known field.

Each phantom is fitted with four levels, and twice more with blocks held out of the fit.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from _common import cores
from _light_phantoms import LOOKS, TISSUES, WIDTHS, Case, Phantom, Volume, phantom
from _light_scores import scores

from octane.processes.n4.fit import BiasFit, fit_bias_field, log_field
from octane.processes.n4.inclusion import voxels_to_fit
from octane.processes.n4.judgement import EVEN, Inside, fewest
from octane.processes.n4.plan import Mesh

LEVELS = 4
FOUR = Mesh((4, 4, 4), (50,) * LEVELS, (LEVELS, LEVELS, LEVELS))
"""The levels that are given; each doubles the mesh of every axis."""
SEEDS = 3
NEAR, NEAR_RMS = 1.05, 0.002
"""A choice is right if its error is at most this much above the least error, by ratio or rms."""
WORSE = 1.1
"""A choice is worse than the default if its error is higher by this ratio, and by NEAR_RMS."""

logger = logging.getLogger(__name__)


class Trial(NamedTuple):
    """One phantom: by number of levels the error of the field; by score the choice."""

    case: Case
    errors: list[float]
    chosen: dict[str, int]

    def right(self, levels: int) -> bool:
        """Tell whether no other number of levels has a much smaller error."""
        least = min(self.errors)
        return self.errors[levels] <= max(NEAR * least, least + NEAR_RMS)

    def worse(self, levels: int, default: int) -> bool:
        """Tell whether the error is clearly higher than with the default number of levels."""
        usual = self.errors[default]
        return self.errors[levels] > max(WORSE * usual, usual + NEAR_RMS)


class Fields(NamedTuple):
    """A fit of a phantom: the voxels, and the log fields of 0, 1, ... levels with their errors."""

    fit: BiasFit
    inside: Inside
    fields: list[Volume]
    errors: list[float]


def fitted(made: Phantom, mesh: Mesh = FOUR) -> Fields:
    """Fit all levels to a phantom; an error is the rms of the logarithm of two fields' ratio."""
    inside, _ = voxels_to_fit(made.image, made.mask, "The phantom")
    fit = fit_bias_field(
        made.image,
        inside,
        iterations=mesh.iterations,
        control_points=mesh.control_points,
        fitting_levels=mesh.fitting_levels,
        workers=cores(),
    )
    fields = [np.zeros_like(made.log_bias)]
    fields += [log_field(BiasFit(level.lattice, ()), inside.shape) for level in fit.levels]
    errors = [float((field - made.log_bias)[inside].std()) for field in fields]
    return Fields(fit, inside, fields, errors)


def trial(case: Case, edge: int) -> Trial:
    """Fit a phantom of `edge` voxels along each axis and let each score choose."""
    made: Phantom = phantom(case, edge)
    _, inside, fields, errors = fitted(made)
    sizes = [float(field[inside].std()) for field in fields]
    chosen = {name: fewest(*loss) for name, loss in scores(made.image, inside, fields).items()}
    chosen = {name: n if sizes[n] >= EVEN else 0 for name, n in chosen.items()}
    chosen |= {f"always {levels}": levels for levels in range(LEVELS + 1)}
    chosen["least error"] = int(np.argmin(errors))
    return Trial(case, errors, chosen)


def cases(*, quick: bool) -> Iterator[Case]:
    """All phantoms, or some."""
    widths, looks, seeds = (None, *WIDTHS), LOOKS, range(1, 1 + SEEDS)
    if quick:
        widths, looks, seeds = (None, WIDTHS[0]), (4,), range(1, 2)
    for seed, tissue, look, width in itertools.product(seeds, TISSUES, looks, widths):
        yield Case(tissue, width, look, seed)


def share(found: list[bool]) -> float:
    """Fraction that is true."""
    return sum(found) / len(found)


def summary(trials: list[Trial], name: str) -> dict[str, float]:
    """How often the choices of one score are right, and worse than three or four levels."""
    levels = [own.chosen[name] for own in trials]
    both = list(zip(trials, levels, strict=True))
    biased = [(own, n) for own, n in both if own.case.width is not None]
    even = [(own, n) for own, n in both if own.case.width is None]
    return {
        "right": share([own.right(n) for own, n in both]),
        "right_with_bias": share([own.right(n) for own, n in biased]),
        "right_without_bias": share([own.right(n) for own, n in even]),
        "left_out_without_bias": share([n == 0 for _, n in even]),
        "worse_than_four": share([own.worse(n, LEVELS) for own, n in both]),
        "worse_than_three": share([own.worse(n, LEVELS - 1) for own, n in both]),
        "mean_error": float(np.mean([own.errors[n] for own, n in both])),
        **{
            f"right_{tissue}": share([own.right(n) for own, n in both if own.case.tissue == tissue])
            for tissue in {own.case.tissue: None for own in trials}
        },
        **{
            f"right_{looks or 'no'}_looks": share(
                [own.right(n) for own, n in both if own.case.looks == looks]
            )
            for looks in {own.case.looks: None for own in trials}
        },
    }


def levels(*, quick: bool) -> dict[str, object]:
    """Choose the number of levels of every phantom by every score."""
    edge, trials = 32 if quick else 96, []
    for case in cases(quick=quick):
        trials.append(trial(case, edge))
        logger.info("%s: errors %s", case, " ".join(f"{e:.4f}" for e in trials[-1].errors))
    found = [{"score": name, **summary(trials, name)} for name in trials[0].chosen]
    return {
        "edge": edge,
        "phantoms": len(trials),
        "cases": sorted(found, key=lambda own: -own["right"]),
    }
