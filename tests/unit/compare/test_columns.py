"""Columns of a tile: means over squares of pixels, plane by plane."""

import numpy as np
import pytest

from octane.compare.columns import columns


@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4", "f8", "c8"])
def test_columns_are_means_of_the_modulus_over_whole_squares(dtype):
    voxels = np.random.default_rng(1).uniform(-120, 120, (3, 20, 29)).astype(dtype)
    if dtype == "c8":
        voxels = voxels + np.complex64(1j) * voxels[::-1]
    found = columns(voxels, 8)
    whole = np.abs(voxels[:, :16, :24].astype("c16" if dtype == "c8" else "f8"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, whole.reshape(3, 2, 8, 3, 8).mean(axis=(2, 4)), rtol=1e-6)


def test_values_that_are_not_finite_do_not_count():
    voxels = np.full((2, 16, 16), 5.0, np.float32)
    voxels[0, 0, :4], voxels[0, 1, 0] = np.nan, np.inf
    voxels[1, :8, :8] = np.nan
    found = columns(voxels, 8)
    assert np.isnan(found[1, 0, 0])
    assert np.isclose(np.nan_to_num(found, nan=5), 5).all()


def test_a_tile_smaller_than_a_square_has_no_columns():
    assert columns(np.ones((4, 10, 7)), 8).shape == (4, 1, 0)
