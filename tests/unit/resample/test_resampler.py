"""Resampling of arrays against SciPy in float64 on a physical, pixel-centred grid."""

import math

import numpy as np
import pytest
from resampling import resample_arrays, resampled_by_scipy

from octane.core.geometry import Grid
from octane.resample.operator import resampled
from octane.resample.resampler import resample

# Relative to the largest magnitude.
TOLERANCE = 5e-7


FACTORS = {
    "4, even": ((4.0, 4.0, 4.0), (1.0, 1.0, 1.0)),
    "3, odd": ((3.0, 3.0, 3.0), (1.0, 1.0, 1.0)),
    "10 over 3.5": ((10.0, 10.0, 10.0), (3.5, 3.5, 3.5)),
    "irrational": ((math.pi, math.e, math.sqrt(7)), (1.0, math.sqrt(2), 1.1)),
    "anisotropic": ((10.0, 10.0, 10.0), (3.5, 4.0, 6.5)),
    "one axis alone": ((10.0, 4.0, 4.0), (3.5, 4.0, 4.0)),
    "a little coarser": ((1.01, 1.02, 1.03), (1.0, 1.0, 1.0)),
    "finer": ((0.7, 0.5, 0.9), (1.0, 1.0, 1.0)),
    "coarser than the axis": ((100.0, 10.0, 10.0), (3.5, 4.0, 4.0)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("target", "spacing"), FACTORS.values(), ids=FACTORS)
def test_it_agrees_with_scipy(rng, dtype, target, spacing):
    array = rng.gamma(2.0, 1.0, (23, 31, 38))
    if dtype.startswith("complex"):
        array = array * np.exp(2j * np.pi * rng.random(array.shape))
    array = array.astype(dtype)
    grid, operators = resampled(Grid(array.shape, spacing), target)
    result = resample(array, operators)
    expected = resampled_by_scipy(array, spacing, target, grid.shape)
    assert result.shape == grid.shape == expected.shape
    assert (grid.spacing, result.dtype) == (target, dtype)
    np.testing.assert_array_equal(result, resample_arrays(array, operators))
    # Relative to the largest value: a complex value may be near 0 if others cancel.
    error = (TOLERANCE if result.real.itemsize == 4 else 1e-13) * np.abs(array).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=error)
