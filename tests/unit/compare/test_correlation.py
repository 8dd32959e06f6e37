"""Displacements measured by correlation."""

import numpy as np
from scipy import ndimage

from octane.compare.correlation import overlap_shift


def test_a_displacement_is_found_to_a_fraction_of_a_pixel(rng):
    whole = ndimage.gaussian_filter(rng.standard_normal((80, 100)), 2.5, mode="wrap")
    moved = ndimage.shift(whole, (1.4, -2.6), order=5, mode="wrap")
    found, _ = overlap_shift(whole[15:-15, 15:-15], moved[15:-15, 15:-15], (6, 6))
    np.testing.assert_allclose(found, (1.4, -2.6), atol=0.15)
