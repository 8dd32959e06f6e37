"""The filters match SciPy bit for bit, so that results do not change with its version."""

import numpy as np
import pytest
from scipy import ndimage

from octane.core.filters import gaussian


def images(rng):
    """Images of one to three axes, some shorter than the filters."""
    for _ in range(60):
        shape = rng.integers(1, 50, rng.integers(1, 4))
        yield (100 * rng.standard_normal(shape)).astype(rng.choice([np.float32, np.float64]))
    # More than one batch of the filter.
    yield rng.standard_normal((300, 200)).astype(np.float32)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.5, 6.0, 8.0])
@pytest.mark.parametrize("truncate", [3.0, 4.0])
def test_gaussian_is_scipys(rng, sigma, truncate):
    for image in images(rng):
        expected = ndimage.gaussian_filter(image, sigma, truncate=truncate)
        found = gaussian(image, sigma, truncate)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
