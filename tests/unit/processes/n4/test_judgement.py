"""The number of levels that correct bias is judged by the histogram."""

import numpy as np
import pytest
from scipy import ndimage

from octane.processes.n4.fit import fit_bias_field
from octane.processes.n4.judgement import (
    BINS,
    PARTS,
    Bins,
    averages,
    fewest,
    histograms,
    judged,
    leave_one_out,
    relative_entropy,
)

SHAPE = (48, 48, 48)
EVERYWHERE = np.ones(SHAPE, bool)
Z, Y, X = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")


@pytest.fixture
def tissue(rng):
    """Three tissues in patches of a fifth of the volume, with speckle of 16 looks."""
    smooth = ndimage.gaussian_filter(rng.standard_normal(SHAPE), 4)
    classes = np.digitize(smooth, np.quantile(smooth, (1 / 3, 2 / 3)))
    speckle = rng.gamma(16, 1 / 16, SHAPE)
    return (np.array([60, 100, 140])[classes] * speckle).astype(np.float32)


def test_a_field_that_removes_tissue_is_left_out(tissue):
    fit = fit_bias_field(tissue, EVERYWHERE, iterations=(20, 20, 20))
    assert np.ptp(fit.lattice) > 0.1
    found = judged(fit, tissue, EVERYWHERE)
    assert not found.levels
    assert not found.lattice.any()
    assert len(found.relative_entropy) == 1 + 3
    assert found.relative_entropy[3] > found.relative_entropy[0]


def test_the_levels_that_correct_bias_are_kept_as_if_fitted_alone(tissue):
    biased = (tissue * np.exp(0.5 * X * Y + 0.3 * Z)).astype(np.float32)
    fit = fit_bias_field(biased, EVERYWHERE, iterations=(50, 50, 50, 50))
    found = judged(fit, biased, EVERYWHERE)
    assert 1 <= len(found.levels) < 4
    alone = fit_bias_field(biased, EVERYWHERE, iterations=(50,) * len(found.levels))
    np.testing.assert_array_equal(found.lattice, alone.lattice)
    assert [own.convergence for own in found.levels] == [own.convergence for own in alone.levels]


@pytest.mark.parametrize(("amplitude", "kept"), [(0.004, False), (0.1, True)])
def test_a_field_that_hardly_varies_is_left_out(rng, amplitude, kept):
    patches = ndimage.gaussian_filter(rng.standard_normal(SHAPE), 3) > 0
    image = (np.where(patches, 900, 400) * (1 + amplitude * X)).astype(np.float32)
    fit = fit_bias_field(image, EVERYWHERE, iterations=(50,), convergence_threshold=1e-5)
    assert bool(judged(fit, image, EVERYWHERE).levels) is kept


def test_relative_entropy_is_that_of_a_gaussian_at_any_width_and_least_for_two_peaks(rng):
    found = []
    for values in (
        rng.normal(3, 0.2, 10**6), rng.normal(0, 1, 10**6),
        rng.normal(rng.choice([-1, 1], 10**6), 0.1),
    ):  # fmt: skip
        logs = values.astype(np.float32).reshape(100, 100, 100)
        bins = Bins(logs)
        counts = histograms(logs, np.ones(logs.shape, bool), bins)
        found.append(relative_entropy(counts.sum(0), bins))
    of_gaussian = 0.5 * np.log(2 * np.pi * np.e)
    assert found[:2] == pytest.approx([of_gaussian] * 2, abs=0.02)
    assert found[2] < of_gaussian - 0.5


def test_blocks_share_the_voxels_inside_that_are_in_a_bin(rng):
    shape = (13, 3, 20)
    logs = rng.normal(size=shape).astype(np.float32)
    bins = Bins(logs)
    inside = rng.random(shape) < 0.7
    logs[0, 0, 0], inside[0, 0, 0] = bins.low + bins.width * BINS + 1, True
    counts = histograms(logs, inside, bins)
    assert counts.shape == (PARTS**3, BINS)
    assert counts.sum() == inside.sum() - 1
    block = (slice(0, 3), slice(0, 1), slice(0, 4))
    assert counts[0].sum() == inside[block].sum() - 1
    # An axis of three voxels has blocks without any.
    losses, without = leave_one_out(counts[None], bins)
    assert without.shape == (1, PARTS * 3 * PARTS)
    assert np.isfinite(losses).all()


def test_averages_are_of_voxels_inside_alone(rng):
    image = np.full((9, 9, 9), 1e6, np.float32)
    mask = np.zeros(image.shape, bool)
    mask[2:7, 2:7, 2:7] = True
    image[mask] = 5
    logs, usable = averages(image, mask)
    np.testing.assert_array_equal(usable, mask)
    np.testing.assert_allclose(logs[mask], np.log(5), rtol=1e-5)
    # As ITK, `use_all_voxels` fits values that have no logarithm.
    assert not averages(-image, mask)[1].any()


@pytest.mark.parametrize(("spread", "levels"), [(0.0, 2), (0.1, 1), (10.0, 0)])
def test_the_fewest_levels_within_a_standard_error_are_chosen(spread, levels):
    losses = np.array([3.0, 1.05, 1.0, 2.0])
    blocks = np.where(np.arange(100) % 2, 1, -1) * spread / np.sqrt(99)
    without = losses[:, None] + np.array([1, 1, 0, 1])[:, None] * blocks
    assert fewest(losses, without) == levels
