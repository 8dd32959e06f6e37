"""Types of voxels: which to compute in, and the way back."""

import numpy as np
import pytest

from octane.dtypes import as_dtype, working_type


@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        ("bool", "float32"),
        ("uint8", "float32"),
        ("int16", "float32"),
        ("int32", "float64"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "complex64"),
    ],
)
def test_each_type_is_computed_in_one_that_holds_it(stored, computed):
    assert working_type(np.dtype(stored)) == np.dtype(computed)


def test_a_mask_is_true_from_one_half_on():
    np.testing.assert_array_equal(
        as_dtype(np.array([0.0, 0.49, 0.5, 1.0]), "bool"), [False, False, True, True]
    )
