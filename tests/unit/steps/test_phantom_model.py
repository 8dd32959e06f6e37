"""The phantom depends on position alone, so that tiles agree where they overlap."""

import numpy as np
import pytest

from octane.config.params import PhantomParameters
from octane.steps.phantom_model import (
    BACKGROUND,
    Subject,
    attenuation,
    bias_field,
    section_gain,
    shading,
    speckle,
    stage_errors,
    tissue,
)

PARAMETERS = PhantomParameters(
    sections=3,
    tiles=(2, 3),
    tile_shape=(10, 40, 50),
    voxel_size=(5.0, 4.0, 3.0),
    overlap=(0.2, 0.3),
)


@pytest.fixture
def subject():
    return Subject.of(PARAMETERS)


def axes(subject, counts=(9, 40, 50)):
    return [(np.arange(n) + 0.5) * e / n for n, e in zip(counts, subject.extent, strict=True)]


def test_sizes_follow_from_the_parameters(subject):
    assert subject.tile_extent == (50.0, 160.0, 150.0)
    assert subject.pitch == pytest.approx((128.0, 105.0))
    assert subject.edge_tile == (30, 38)
    assert subject.extent == pytest.approx((450.0, 128 + 30 * 4, 210 + 38 * 3))


def test_a_value_depends_on_its_position_alone(subject):
    z, y, x = axes(subject)
    for function in (tissue, lambda s, *a: bias_field(s, 0.5, *a)):
        whole = function(subject, z, y, x)
        part = function(subject, z[2:5], y[10:20], x[30:])
        np.testing.assert_allclose(part, whole[2:5, 10:20, 30:], rtol=1e-6)


def test_the_tissue_lies_in_a_darker_background(subject):
    values = tissue(subject, *axes(subject))
    assert values.dtype == np.float32
    assert values.shape == (9, 40, 50)
    np.testing.assert_allclose(values[:, 0, 0], BACKGROUND, rtol=0.05)
    assert values[4, 10:30, 15:35].mean() > 5 * BACKGROUND
    assert values.min() >= BACKGROUND / 2
    assert values.max() < 1.6


def test_the_bias_runs_over_the_range_asked_for(subject):
    field = np.log(bias_field(subject, 0.5, *axes(subject)))
    assert 0.6 < field.max() - field.min() <= 1.0
    np.testing.assert_array_equal(bias_field(subject, 0.0, *axes(subject)), 1)


def test_attenuation_is_exponential_in_depth():
    np.testing.assert_allclose(
        attenuation(2.0, np.array([0.0, 500.0, 1000.0])), np.exp([0, -1, -2]), rtol=1e-6
    )


def test_shading_falls_from_the_centre_to_the_corners():
    y, x = np.array([0.0, 50.0, 100.0]), np.array([0.0, 100.0, 200.0])
    shade = shading(0.2, (100.0, 200.0), y, x)
    assert shade[1, 1] == 1
    np.testing.assert_allclose(shade[[0, 0, 2, 2], [0, 2, 0, 2]], 0.8, rtol=1e-6)
    np.testing.assert_allclose(shade[0, 1], 0.9, rtol=1e-6)


@pytest.mark.parametrize("looks", [1, 4, 16])
def test_speckle_has_mean_1_and_the_variance_of_its_looks(looks):
    values = speckle(looks, (60, 60, 60), [1, 2, 3])
    assert values.mean(dtype=float) == pytest.approx(1, abs=0.01)
    assert values.var(dtype=float) == pytest.approx(1 / looks, rel=0.05)


def test_speckle_is_its_own_in_every_tile_and_the_same_again():
    first, again, other = (speckle(4, (4, 5, 6), [1, 0, c]) for c in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.4


def test_the_stage_errs_within_its_limits_and_not_at_the_first_tile():
    tiles = [(r, c) for r in range(4) for c in range(5)]
    p = PARAMETERS.model_copy(update={"position_error": 12.0})
    errors = stage_errors(p, 0, tiles)
    values = np.array(list(errors.values()))
    assert errors[0, 0] == (0.0, 0.0)
    assert np.abs(values).max() <= 12
    assert np.abs(values[1:]).mean() > 3
    assert stage_errors(p, 0, tiles) == errors
    assert stage_errors(p, 1, tiles) != errors


def test_sections_differ_in_brightness_by_the_steps_asked_for():
    gains = [section_gain(1, k, 0.4) for k in range(50)]
    assert np.exp(-0.4) <= min(gains) < 0.75
    assert 1.3 < max(gains) <= np.exp(0.4)
    assert section_gain(1, 3, 0.4) == gains[3]
    assert section_gain(1, 3, 0) == 1
