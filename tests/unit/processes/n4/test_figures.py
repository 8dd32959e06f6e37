"""Quality figures that can be computed by hand."""

import numpy as np
import pytest

from octane.processes.n4.figures import Shown, against_truth, previews


def test_a_perfect_correction_leaves_no_variation():
    tissue, field = np.random.default_rng(2).uniform(1, 9, (2, 6, 7, 8))
    everywhere = np.ones(tissue.shape, bool)
    # A common factor does not count.
    shown = Shown(tissue * field, tissue * 3, field / 3, everywhere, (1, 1, 1))
    figures = against_truth(shown, tissue, field)
    assert figures["cv_against_truth_before"] == pytest.approx(field.std() / field.mean())
    assert figures["cv_against_truth_after"] == pytest.approx(0, abs=1e-9)
    assert figures["field_correlation"] == pytest.approx(1)


def test_voxels_outside_the_mask_or_without_tissue_do_not_count():
    tissue, field = np.array([2.0, 2.0, 2.0, 0.0]), np.array([1.0, 2.0, 3.0, 4.0])
    mask = np.array([True, True, False, True])
    shown = Shown(np.array([2.0, 4, 99, 99]), tissue, 1 / field, mask, (1, 1, 1))
    figures = against_truth(shown, tissue, field)
    assert figures["cv_against_truth_before"] == pytest.approx(0.5 / 1.5)
    assert figures["cv_against_truth_after"] == 0
    assert figures["field_correlation"] == pytest.approx(-1)


def test_profiles_are_means_in_the_mask_and_gaps_where_it_is_empty():
    volume = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    mask = (volume % 2 == 0) & (volume < 12)
    made, _ = previews(Shown(volume, 2 * volume, volume + 1, mask, (1, 1, 1)))
    np.testing.assert_array_equal(made["profile_before"], [5, np.nan])
    np.testing.assert_array_equal(made["profile_after"], [10, np.nan])
