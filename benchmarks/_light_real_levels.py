"""N4's number of levels on a real brain and on real nuclei, with biases that were put in."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from _light_images import Volume, volumes
from _light_levels import FOUR, SEEDS, Trial, fitted, share
from _light_phantoms import WIDTHS, Case, imaged

from octane.processes.n4.judgement import judged
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import Mesh, plan_mesh

STEP = 2
"""Every second voxel is fitted, as the derived shrink factor of the brain is."""
LOOKS = (None, 16)
"""Looks of the speckle that the brain gets; nuclei have their own noise."""
AUTO = "auto"
"""Name of the choice of ``--n4_levels auto``, and of the mesh of ``--n4_iterations auto``."""

logger = logging.getLogger(__name__)


def trials(case: Case, volume: Volume, meshes: Iterable[Mesh]) -> Iterator[Trial]:
    """Fit each mesh to a volume with a case's bias; judge levels as ``--n4_levels auto`` does."""
    keep = (slice(None, None, STEP),) * 3
    made = imaged(volume.voxels[keep], volume.mask[keep], case)
    for mesh in meshes:
        done = fitted(made, mesh)
        chosen = len(judged(done.fit, made.image, done.inside).levels)
        yield Trial(case, done.errors, {AUTO: chosen})


def summary(found: Sequence[Trial]) -> dict[str, object]:
    """Mean errors by number of levels, and those of the choices; how many of them are right."""
    errors = np.array([own.errors for own in found])
    levels = [own.chosen[AUTO] for own in found]
    both = list(zip(found, levels, strict=True))
    return {
        "trials": len(found),
        "errors": errors.mean(axis=0).tolist(),
        "error": float(np.mean([own.errors[n] for own, n in both])),
        "least_error": float(errors.min(axis=1).mean()),
        "levels": sorted({*levels}),
        "right": share([own.right(n) for own, n in both]),
    }


def real_levels(*, quick: bool) -> list[dict[str, object]]:
    """Judge the levels of each volume, with the mesh that is given and that which is derived."""
    rows: list[dict[str, object]] = []
    derived = N4Parameters.model_validate({"iterations": AUTO})
    for name, volume in volumes().items():
        auto = plan_mesh(volume.voxels.shape, volume.spacing, derived, Path(name))
        meshes = {"50 50 50 50": FOUR, AUTO: auto}
        looks = LOOKS if name == "brain" else (None,)
        seeds = range(1, 2 if quick else 1 + SEEDS)
        for width in (None, *(WIDTHS[:1] if quick else WIDTHS)):
            cases = [Case(name, width, *own) for own in itertools.product(looks, seeds)]
            every = [trials(case, volume, meshes.values()) for case in cases]
            for named, found in zip(meshes, zip(*every, strict=True), strict=True):
                row = {"image": name, "iterations": named, "width": width, **summary(found)}
                rows.append(row)
                logger.info("%s", row)
    # A volume's rows of one mesh together.
    return sorted(rows, key=lambda row: (row["image"] != "brain", row["iterations"] == AUTO))
