"""Attenuation with depth: exact where the model holds, the same bits in blocks, and its limits."""

import numpy as np
import pytest

from octane.core.errors import InputError
from octane.processes.stitch.attenuation import LEAST_DECAY, LEAST_LIGHT, REACH, compensate_light
from octane.processes.stitch.checks_before import require_compensable

pytestmark = pytest.mark.filterwarnings("error")

SPACING = 10.0


def scattered(coefficient):
    """Intensities of tissue with coefficients in 1/mm, (z, y, x), whose integral is exact."""
    passed = np.exp(-2 * np.cumsum(coefficient, axis=0) * SPACING / 1000)
    above = np.concatenate([np.ones((1, *passed.shape[1:])), passed[:-1]])
    return (above - passed) / (2 * SPACING / 1000)


def layers(rng, planes, shape=(24, 40)):
    """Coefficients of layers of random thickness over uniform tissue, 1/mm, the same in y and x."""
    profile = np.repeat(rng.uniform(2, 10, planes), rng.integers(1, 6, planes))[:planes]
    profile[planes - planes // 3 :] = rng.uniform(3, 8)
    return np.broadcast_to(profile[:, None, None], (planes, *shape)).copy()


@pytest.mark.parametrize("planes", [6, 15, 30, 60])
def test_layers_are_recovered_however_much_light_is_left(rng, planes):
    true = layers(rng, planes)
    found = compensate_light(700 * scattered(true), SPACING)
    # A plane's light is taken in its middle.
    np.testing.assert_allclose(found.coefficient, true, rtol=5e-3)
    np.testing.assert_allclose(found.section, 700 * true, rtol=5e-3)
    assert found.decaying.all()


def test_columns_are_told_apart(rng):
    true = layers(rng, 30, (24, 120))
    true[:, :, 60:] *= 0.5
    seen = scattered(true)
    found = compensate_light(seen, SPACING).section
    inside = np.r_[0 : 60 - REACH, 60 + REACH : 120]
    np.testing.assert_allclose(found[..., inside], true[..., inside], rtol=5e-3)
    # A gain for each plane cannot do that.
    gains = true[:, 0, :1] / seen[:, 0, :1]
    assert np.abs(np.log(seen[20, 0, 119] * gains[20, 0] / true[20, 0, 119])) > 0.5


@pytest.mark.parametrize("looks", [1, 4])
def test_speckle_does_not_bias_it(rng, looks):
    true = layers(rng, 30, (100, 100))
    seen = scattered(true) * rng.gamma(looks, 1 / looks, true.shape)
    found = compensate_light(seen, SPACING)
    for values in (found.section, found.coefficient):
        ratio = values.mean(axis=(1, 2)) / true[:, 0, 0]
        np.testing.assert_allclose(ratio[:20], 1, atol=0.08)


def test_brightness_of_columns_does_not_matter(rng):
    true = layers(rng, 30, (24, 80))
    gain = np.exp(0.02 * np.arange(80))
    even, uneven = (compensate_light(scattered(true) * g, SPACING) for g in (1, gain))
    inside = (..., slice(REACH, -REACH))
    np.testing.assert_allclose((uneven.section / gain)[inside], even.section[inside], rtol=1e-6)
    np.testing.assert_allclose(uneven.coefficient[inside], even.coefficient[inside], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_have_the_bits_of_the_whole(rng, dtype):
    seen = (scattered(layers(rng, 12, (70, 90))) * rng.gamma(2, 0.5, (12, 70, 90))).astype(dtype)
    whole = compensate_light(seen, SPACING)
    block = compensate_light(seen[:, 10 : 60 + REACH, 20 - REACH : 70 + REACH], SPACING)
    assert whole.section.dtype == dtype
    for one, other in zip(whole, block, strict=True):
        own = other[..., REACH : REACH + 24, REACH : REACH + 50]
        np.testing.assert_array_equal(own, one[..., 10 + REACH : 50, 20:70])


def test_what_was_not_imaged_stays_and_does_no_harm(rng):
    seen = scattered(layers(rng, 12, (40, 60)))
    seen[:, :, 30:] = 0
    seen[4, 5, 5], seen[3, 6, 6], seen[11, 20, 20] = np.nan, np.inf, -1e-3
    found = compensate_light(seen, SPACING)
    assert np.isnan(found.section[4, 5, 5])
    assert found.section[3, 6, 6] == np.inf
    assert found.section[11, 20, 20] < 0
    assert not found.section[:, :, 30:].any()
    assert not found.coefficient[:, :, 30:].any()
    # The light next to the border does not fade into what was not imaged.
    np.testing.assert_allclose(found.section[:, 35, 29], found.section[:, 35, 20], rtol=1e-2)
    blank = compensate_light(np.zeros((8, 20, 20)), SPACING)
    assert not blank.section.any()


def test_light_that_does_not_decay_is_named_and_hardly_changed():
    found = compensate_light(np.full((30, 20, 20), 5.0), SPACING)
    assert not found.decaying.any()
    # Over 0.3 mm, on the light of 1 / LEAST_DECAY mm below.
    assert 5 < found.section.max() < 5 * 1.02 * (1 + 0.3 * LEAST_DECAY)


def test_noise_is_not_amplified_without_bound():
    seen = np.exp(-np.arange(60.0))[:, None, None] * np.ones((60, 20, 20))
    found = compensate_light(seen, SPACING).section
    assert found.max() / seen.max() < 2
    assert found[-1].max() == pytest.approx(seen[-1].max() / LEAST_LIGHT)


@pytest.mark.parametrize(
    ("dtype", "planes", "sentence"),
    [
        ("uint16", 30, "a.zarr holds uint16 voxels.*give --resample_dtype float32"),
        ("complex64", 30, "a.zarr holds complex64 voxels.*floating-point intensities"),
        ("float32", 5, "a.zarr has 5 planes.*needs at least 6; omit it"),
    ],
)
def test_other_sections_are_refused(dtype, planes, sentence):
    with pytest.raises(InputError, match=sentence):
        require_compensable("a.zarr", np.dtype(dtype), planes)
