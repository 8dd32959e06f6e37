import logging

import numpy as np
import pytest
import SimpleITK as sitk
from scipy import ndimage

from octane.processes.n4.mask import otsu_threshold, tissue_mask

AXES = np.meshgrid(*[np.linspace(-1, 1, n) for n in (20, 30, 30)], indexing="ij")
BALL = np.where(sum(a**2 for a in AXES) < 0.49, 100.0, 5.0)
BALL += np.random.default_rng(0).normal(0, 2, BALL.shape)


def test_the_threshold_is_that_of_simpleitk():
    values = BALL.astype(np.float32)
    expected = sitk.GetArrayFromImage(sitk.OtsuThreshold(sitk.GetImageFromArray(values), 0, 1))
    np.testing.assert_array_equal(values > otsu_threshold(values), expected == 1)


@pytest.mark.parametrize("shape", [(5, 30, 40), (1, 17, 9), (30, 3, 50)])
@pytest.mark.parametrize("sigma", [0.5, 2])
def test_a_section_is_what_scipy_makes_of_it(rng, shape, sigma):
    section = ndimage.gaussian_filter(rng.standard_normal(shape, np.float32), sigma)
    smooth = ndimage.gaussian_filter(section, 1)
    expected = smooth > otsu_threshold(smooth)
    for plane in expected:
        ndimage.binary_fill_holes(plane, output=plane)
    expected = ndimage.binary_erosion(ndimage.binary_dilation(expected), border_value=1)
    np.testing.assert_array_equal(tissue_mask(section, [(0, len(section))]), expected)


def test_a_constant_section_has_no_tissue_and_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        mask = tissue_mask(np.concatenate([BALL, np.zeros_like(BALL)]), [(0, 20), (20, 40)])
    assert mask[:20].any()
    assert not mask[20:].any()
    assert "section 1 (planes 20 to 40)" in caplog.text


SHAPE = (24, 44, 44)
PLACES = np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij")
NOISE = np.random.default_rng(3)
BIAS = np.exp(0.35 * PLACES[2] - 0.25 * PLACES[1])
BACKGROUNDS = {
    "noise": np.abs(NOISE.normal(0, 15, SHAPE)),
    "zero": np.zeros(SHAPE),
    "offset": NOISE.normal(100, 5, SHAPE),
    "below zero": NOISE.normal(0, 15, SHAPE),
}
TISSUES = {
    "two": np.where(np.sin(7 * PLACES[2]) * np.sin(6 * PLACES[1]) > 0, 850, 600) * BIAS,
    "even": NOISE.normal(600, 18, SHAPE),
    "speckle": 600 * NOISE.gamma(1, 1, SHAPE) * BIAS,
}


def imaged(background, tissue, size=0.81):
    inside = sum(a**2 for a in PLACES) < size
    return np.where(inside, TISSUES[tissue], BACKGROUNDS[background]).astype(np.float32), inside


def found(volume):
    warnings = []
    return tissue_mask(volume, [(0, len(volume))], warnings.append), warnings


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("tissue", TISSUES)
@pytest.mark.parametrize(
    "times", [5, *(pytest.param(n, marks=pytest.mark.soak) for n in (33, 1000)), 1e6]
)
@pytest.mark.parametrize("part", [1e-4, 0.004, 0.02])
def test_glare_leaves_the_mask_as_it_is(background, tissue, times, part):
    volume, inside = imaged(background, tissue)
    clean, _ = found(volume)
    shares = []
    for spots in (True, False):
        glaring = volume.copy()
        places = np.flatnonzero(inside)
        count = int(part * volume.size)
        # Spots anywhere in the tissue, or a sheet in its middle.
        first = len(places) // 2
        chosen = np.random.default_rng(0).choice(places, count, replace=False)
        glaring.flat[chosen if spots else places[first : first + count]] = 600 * times
        mask, warnings = found(glaring)
        assert not warnings
        shares.append((mask ^ clean).mean() / clean.mean())
    # A sheet of 5 times is not glaring next to speckle of 1 look.
    assert max(shares) < (0.16 if tissue == "speckle" and times == 5 else 0.1)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("tissue", TISSUES)
@pytest.mark.parametrize("size", [0.155, 0.81])
def test_tissue_without_glare_has_the_mask_of_otsu_s_threshold(background, tissue, size):
    """Sparse tissue, 3 % of the volume, is not taken for glare."""
    volume, inside = imaged(background, tissue, size)
    mask, warnings = found(volume)
    assert not warnings
    smooth = ndimage.gaussian_filter(volume, 1)
    plain = smooth > otsu_threshold(smooth)
    expected = ndimage.binary_erosion(ndimage.binary_dilation(plain), border_value=1)
    differ = (mask ^ expected).mean() / inside.mean()
    if size > 0.5:
        assert differ < 0.02  # filled holes
    assert mask.mean() == pytest.approx(inside.mean(), rel=0.15)


def test_glare_in_one_section_is_clipped_there_alone():
    volume, inside = imaged("noise", "two")
    dark = volume / 50
    dark[10:12, 15:30, 15:30] = 600 * 33
    mask = tissue_mask(np.concatenate([volume, dark]), [(0, 24), (24, 48)])
    np.testing.assert_array_equal(mask[:24], found(volume)[0])
    assert (mask[24:] ^ mask[:24]).mean() < 0.05 * inside.mean()


@pytest.mark.parametrize("value", [-32768, -1e9])
def test_values_of_missing_data_leave_the_mask_as_it_is(value):
    volume, inside = imaged("noise", "two")
    clean, _ = found(volume)
    volume[::6, ::7, ::9] = value
    assert (found(volume)[0] ^ clean).mean() < 0.05 * inside.mean()


def test_a_mask_of_a_small_part_of_what_lies_above_the_background_is_warned_of():
    volume, _ = imaged("noise", "even")
    volume[6:18, 14:30, 14:30] = 2e5  # More than is taken for glare.
    mask, (warning,) = found(volume)
    assert mask.mean() < 0.1
    assert "tissue mask: section 0 (planes 0 to 24)" in warning
