"""Figures and pictures of a bias correction, on the shrunk grid, which is in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octane.compare.faces import Ends, Faces, mean_jumps
from octane.core.records import JumpFigures
from octane.layout.sections import Section
from octane.processes.n4.fit import BiasFit
from octane.processes.n4.iteration import log_values
from octane.processes.n4.modes import BiasModel
from octane.processes.n4.parameters import N4Parameters

PREVIEW = 384
"""Longest edge of the preview's slices, pixels."""
BINS = 128
FLAT = 1e-3
"""Deviation of a field from 1 up to which it changes nothing: noise alone moves it as much."""
FEW = 5
"""Iterations that may leave a field where it began; after more, tissue is even."""

Voxels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shown:
    """A correction on the shrunk grid, (z, y, x).

    `before`, `after` and the multiplicative `field` are volumes, `mask` the voxels that were
    fitted, `spacing` is in micrometres, `truth` are the true tissue and field, if known.
    """

    before: Voxels
    after: Voxels
    field: Voxels
    mask: npt.NDArray[np.bool_]
    spacing: Sequence[float]
    truth: Sequence[Voxels] | None = None


def figures(
    shown: Shown, model: BiasModel, sections: Sequence[tuple[Section, slice]] = ()
) -> dict[str, object]:
    """Figures for the metrics: variation before and after, range of the field, iterations.

    `sections` are those of the volume, each with its planes on the shrunk grid.
    """
    mask, inside = shown.mask, shown.field[shown.mask]
    found: dict[str, object] = {
        **(_levels(model.whole.fit) if model.whole is not None else {"levels": []}),
        "sections": [
            {
                "name": s.part.name,
                "planes": [s.part.start, s.part.stop],
                **_levels(s.fit),
                **_range(shown.field[s.part.kept][mask[s.part.kept]]),
            }
            for s in model.sections
        ],
        "sections_skipped": list(model.skipped),
        "variation": [
            {
                "number": section.number,
                "cv_before": coefficient_of_variation(shown.before[planes][mask[planes]]),
                "cv_after": coefficient_of_variation(shown.after[planes][mask[planes]]),
            }
            for section, planes in sections
            if mask[planes].any()
        ],
        "cv_before": coefficient_of_variation(shown.before[mask]),
        "cv_after": coefficient_of_variation(shown.after[mask]),
        **_range(inside),
        "mask_fraction": float(mask.mean()),
        "shrunk_shape": list(shown.before.shape),
        "shrunk_spacing": list(shown.spacing),
    }
    if shown.truth is not None:
        found["truth"] = against_truth(shown, *shown.truth)
    return found


def unchanged(
    values: Voxels,
    log_field: Voxels,
    mask: npt.NDArray[np.bool_],
    model: BiasModel,
    p: N4Parameters,
) -> list[dict[str, str]] | None:
    """Name what the fits left as it was, the volume or sections, and the cause.

    Parameters
    ----------
    values, log_field, mask : ndarray, (z, y, x)
        What was fitted, the log field that was found, and the voxels of the fit.

    Returns
    -------
    list of dict, or None
        As :class:`UnchangedFigures`; None if no correction was asked for.
    """
    fits = [own.fit for own in model.fits]
    made = any(level.iterations for fit in fits for level in fit.levels)
    if p.strength == 0 or not (made or any(fit.relative_entropy for fit in fits)):
        return None
    parts = model.sections or model.fits
    flat = []
    for part, fit in parts:
        inside = mask[part.kept]
        if not inside.any() or np.ptp(log_field[part.kept][inside]) > 2 * FLAT:
            continue
        own = log_values(values[part.kept][inside])
        stretched = np.ptp(own) > p.bias_field_fwhm * (p.number_of_histogram_bins - 1)
        done = [level for level in fit.levels if level.iterations]
        cause = "converged"
        if stretched:
            cause = "all voxels" if p.use_all_voxels else "histogram"
        elif not done:
            cause = "levels"
        elif sum(level.iterations for level in done) < FEW and not done[-1].converged:
            cause = "iterations"
        flat.append({"name": part.name, "cause": cause})
    return flat


def jumps(before: Voxels, mapped: Voxels, ends: Mapping[int, Ends]) -> JumpFigures | None:
    """Judge intensity maps by what they do at section boundaries.

    Parameters
    ----------
    before, mapped : ndarray, (z, y, x)
        The volume without and with the maps.
    ends : mapping
        Faces of each section, by its number, as :func:`octane.compare.faces.ends_of` has them.

    Returns
    -------
    JumpFigures, or None
        None if no neighbouring sections share tissue.
    """
    found: list[Faces] = []
    for volume in (before, mapped):
        faces = Faces(ends, volume.shape[1:])
        area = [slice(0, n) for n in volume.shape[1:]]
        faces.add(volume, np.arange(len(volume)), area)
        found.append(faces)
    return mean_jumps(*found)


def _levels(fit: BiasFit) -> dict[str, object]:
    return {
        "levels": [
            {"iterations": level.iterations, "convergence": list(level.convergence)}
            for level in fit.levels
        ],
        "relative_entropy": list(fit.relative_entropy),
    }


def _range(field: Voxels) -> dict[str, float]:
    return {"field_min": float(field.min()), "field_max": float(field.max())}


def previews(shown: Shown) -> tuple[dict[str, npt.NDArray], list[float]]:
    """Slices, profiles and histograms for the report, and the slices' pixel size (micrometres)."""
    mask = shown.mask
    step = max(1, -(-max(mask.shape) // PREVIEW))
    volumes = {"before": shown.before, "after": shown.after, "field": shown.field}
    if shown.truth is not None:
        volumes["true_field"] = shown.truth[1]
    # The plane with tissue nearest the middle: the middle itself may be a missing section.
    centre = [
        min(np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {a}))), key=lambda i: abs(i - n // 2))
        for a, n in enumerate(mask.shape)
    ]
    made: dict[str, npt.NDArray] = {}
    for name, values in volumes.items():
        for axis, letter in enumerate("zyx"):
            plane = np.take(values, centre[axis], axis=axis)
            made[f"{name}_{letter}"] = plane[::step, ::step]
    counts = mask.sum(axis=(1, 2))
    limits = np.percentile(shown.before[mask], (0.1, 99.9))
    for name in ("before", "after"):
        total = np.where(mask, volumes[name], 0).sum(axis=(1, 2), dtype=np.float64)
        made[f"profile_{name}"] = np.where(counts > 0, total / np.maximum(counts, 1), np.nan)
        # With a number of bins and a range, NumPy does not sort the values.
        found = np.histogram(volumes[name][mask], BINS, tuple(limits))
        made[f"histogram_{name}"], made["histogram_edges"] = found
    return made, [s * step for s in shown.spacing]


def coefficient_of_variation(values: npt.NDArray) -> float:
    """Standard deviation over mean of ``values`` (any shape); 0 if the mean is 0."""
    mean = float(values.mean(dtype=np.float64))
    return float(values.std(dtype=np.float64)) / mean if mean else 0.0


def against_truth(shown: Shown, true_tissue: Voxels, true_field: Voxels) -> dict[str, float]:
    """Figures of a correction whose true tissue and field are known.

    ``cv_against_truth_before`` and ``_after`` are the coefficients of variation of the volume
    divided by the true tissue, 0 for a perfect correction of a volume without noise;
    ``field_correlation`` is Pearson's correlation of the fields' logarithms, which a common factor
    does not change.
    """
    inside = shown.mask & (true_tissue > 0)
    tissue = true_tissue[inside]
    field, true = (np.log(f[inside].astype(np.float64)) for f in (shown.field, true_field))
    return {
        "cv_against_truth_before": coefficient_of_variation(shown.before[inside] / tissue),
        "cv_against_truth_after": coefficient_of_variation(shown.after[inside] / tissue),
        "field_correlation": float(np.corrcoef(field, true)[0, 1]),
    }
