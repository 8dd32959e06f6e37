"""Quality figures of a corrected volume, with and without a known truth."""

import numpy as np
import numpy.typing as npt

__all__ = ["against_truth", "coefficient_of_variation", "field_correlation"]


def coefficient_of_variation(values: npt.NDArray) -> float:
    """Standard deviation over mean of ``values`` (any shape); 0 where the mean is 0."""
    mean = float(values.mean(dtype=np.float64))
    return float(values.std(dtype=np.float64)) / mean if mean else 0.0


def field_correlation(estimated: npt.NDArray, true: npt.NDArray) -> float:
    """Pearson correlation of two bias fields' logarithms, which a common factor leaves alone."""
    a, b = (np.log(field.astype(np.float64)).ravel() for field in (estimated, true))
    return float(np.corrcoef(a, b)[0, 1])


def against_truth(
    before: npt.NDArray,
    after: npt.NDArray,
    field: npt.NDArray,
    true_tissue: npt.NDArray,
    true_field: npt.NDArray,
    mask: npt.NDArray[np.bool_],
) -> dict[str, float]:
    """Figures of a correction where the truth is known.

    Parameters
    ----------
    before, after
        The volume before and after correction, (z, y, x).
    field
        The estimated multiplicative bias field.
    true_tissue, true_field
        The volume without bias, and the bias.
    mask
        Voxels of tissue.

    Returns
    -------
    dict
        ``cv_against_truth_before`` and ``_after``: coefficient of variation of the volume over the
        true tissue, which is 0 for a perfect correction of a volume without noise;
        ``field_correlation``.
    """
    inside = mask & (true_tissue > 0)
    tissue = true_tissue[inside]
    return {
        "cv_against_truth_before": coefficient_of_variation(before[inside] / tissue),
        "cv_against_truth_after": coefficient_of_variation(after[inside] / tissue),
        "field_correlation": field_correlation(field[inside], true_field[inside]),
    }
