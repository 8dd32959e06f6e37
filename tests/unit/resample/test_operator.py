"""The resampling operator of an axis against SciPy in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resampling import apply, resampled_by_scipy

from octane.resample.operator import AxisOperator, interpolator, resampler


@settings(max_examples=150)
@given(
    n=st.integers(1, 70),
    spacing=st.floats(0.3, 20),
    factor=st.floats(0.2, 12),
    seed=st.integers(0, 2**31),
)
def test_any_axis_agrees_with_scipy(n, spacing, factor, seed):
    target = spacing * factor
    operator = resampler(n, spacing, target)
    excess = abs(operator.size * target - n * spacing)
    assert excess <= target / 2 * (1 + 1e-6) or operator.size == 1
    line = np.random.default_rng(seed).gamma(2.0, 1.0, (n, 1, 1))
    expected = resampled_by_scipy(line, (spacing, 1, 1), (target, 1, 1), (operator.size, 1, 1))
    np.testing.assert_allclose(apply(operator, line, 0), expected, rtol=1e-6)
    np.testing.assert_allclose(apply(operator, line.astype(np.float32), 0), expected, rtol=1e-6)


@pytest.mark.parametrize("spacing", [0.1 * (1 + 1e-15), 0.1 * (1 - 1e-15), np.float32(0.1)])
def test_a_spacing_that_differs_by_rounding_alone_copies_the_voxels(spacing):
    assert resampler(30, float(spacing), 0.1).identity(30)


def test_another_order_or_the_first_samples_alone_are_no_identity(rng):
    array = rng.random((6, 2, 2), np.float32)
    assert not AxisOperator(np.array([1, 0]), np.ones((2, 1))).identity(2)
    np.testing.assert_array_equal(apply(interpolator(np.arange(4.0), 6), array, 0), array[:4])
