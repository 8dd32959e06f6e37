"""Scores of N4's levels that need no known field, from histograms of blocks of the volume.

A score is a loss: of 0, 1, ... levels, and the same without each block, (levels,) and (levels,
blocks), as `octane.processes.n4.judgement.leave_one_out` returns. "Held-out" blocks were not in the
fit that corrects them; "fitted" ones were.
"""

from collections.abc import Sequence

import numpy as np

from octane.processes.n4.fit import BiasFit, fit_bias_field, log_field
from octane.processes.n4.judgement import (
    PARTS,
    Bins,
    Counts,
    Inside,
    Measure,
    Voxels,
    averages,
    density,
    entropy,
    histograms,
    leave_one_out,
    relative_entropy,
)

FLOOR = 1e-4
"""Least density of a histogram of log intensities."""

Loss = tuple[Counts, Counts]


def joint_variation(counts: Counts, bins: Bins) -> Counts:
    """Coefficient of joint variation of the two tissues that Otsu's threshold divides."""
    values = np.exp(bins.centres)
    count, first, second = (np.cumsum(counts * values**n, axis=-1) for n in range(3))
    whole = count[..., -1:]
    with np.errstate(all="ignore"):
        between = (first[..., -1:] * count / whole - first) ** 2 / (count * (whole - count))
    cut = np.where(np.isfinite(between), between, -1).argmax(axis=-1)[..., None]

    def parts(sums: Counts) -> Counts:
        below = np.take_along_axis(sums, cut, axis=-1)[..., 0]
        return np.stack([below, sums[..., -1] - below])

    count, first, second = map(parts, (count, first, second))
    means = first / count
    deviations = np.sqrt(np.maximum(second / count - means**2, 0))
    return deviations.sum(0) / (means[1] - means[0])


MEASURES: dict[str, Measure] = {
    "entropy": entropy,
    "joint variation": joint_variation,
    "relative entropy": relative_entropy,
}


def likelihood(held: Counts, kept: Sequence[Counts], odd: Inside, bins: Bins) -> Loss:
    """Negative mean log likelihood of held-out voxels under the histogram of the fitted ones.

    Parameters
    ----------
    held : ndarray, (levels, blocks, bins)
        Histograms of the blocks, each corrected by the field that was fitted without it.
    kept : two of ndarray, (levels, bins)
        Histogram of the even and of the odd blocks, corrected by the field fitted to them.
    odd : ndarray, (blocks,)
        The odd blocks.
    """
    under_even, under_odd = (
        np.einsum("lbi,li->lb", held, np.log(np.maximum(density(counts, bins), FLOOR)))
        for counts in kept
    )
    sums, count = -np.where(odd, under_even, under_odd), held.sum(-1)
    total, voxels = sums.sum(1, keepdims=True), count.sum(1, keepdims=True)
    return (total / voxels)[:, 0], (total - sums) / (voxels - count)


def scores(image: Voxels, inside: Inside, fields: Sequence[Voxels]) -> dict[str, Loss]:
    """Score 0, 1, ... levels of a fit.

    Parameters
    ----------
    image, inside : ndarray, (z, y, x)
        The intensities and the voxels that were fitted.
    fields : sequence of ndarray, (z, y, x)
        Log field of 0, 1, ... levels.
    """
    z, y, x = np.ix_(*(np.arange(n) * PARTS // n for n in image.shape))
    odd = (z + y + x) % 2 == 1
    halves = []
    for half in (~odd, odd):
        fit = fit_bias_field(image, inside & half, iterations=(50,) * (len(fields) - 1))
        found = [log_field(BiasFit(level.lattice, ()), image.shape) for level in fit.levels]
        halves.append([fields[0], *found])
    block_is_odd = np.indices((PARTS,) * 3).sum(0).ravel() % 2 == 1
    logs = {"voxels": np.log(image, out=np.zeros_like(image), where=inside)}
    logs["averages"], _ = averages(image, inside)
    found = {}
    for of, values in logs.items():
        bins = Bins(values[inside])
        whole, of_even, of_odd = (
            np.stack([histograms(values - field, inside, bins) for field in own])
            for own in (fields, *halves)
        )
        held = np.where(block_is_odd[:, None], of_even, of_odd)
        kept = [of_even[:, ~block_is_odd].sum(1), of_odd[:, block_is_odd].sum(1)]
        filled = whole.any(axis=(0, 2))
        found[f"held-out likelihood, {of}"] = likelihood(
            held[:, filled], kept, block_is_odd[filled], bins
        )
        for name, measure in MEASURES.items():
            for how, counts in (("held-out", held), ("fitted", whole)):
                found[f"{how} {name}, {of}"] = leave_one_out(counts, bins, measure)
    return found
