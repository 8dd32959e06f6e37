import logging

import numpy as np
import pytest
import SimpleITK as sitk
from scipy import ndimage

from octane.n4.mask import otsu_threshold, tissue_mask

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
