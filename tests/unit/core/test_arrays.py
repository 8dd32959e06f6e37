import numpy as np
import pytest
from refusals import refused

from octane.core import arrays
from octane.core.arrays import as_dtype, working_type


def test_a_step_of_the_cpu_refuses_a_gpu():
    for name in ("auto", "cpu"):
        arrays.require_cpu(name, "STITCH")
    with refused("STITCH", "CPU"):
        arrays.require_cpu("gpu", "STITCH")


@pytest.mark.parametrize(
    ("stored", "computed"),
    [("? u1 i2 f2 f4 >f4", "f4"), ("i4 f8", "f8"), ("c8 >c8", "c8")],
)
def test_each_type_is_computed_in_one_that_holds_it(stored, computed):
    assert {working_type(np.dtype(name)) for name in stored.split()} == {np.dtype(computed)}
    # An output has the machine's byte order.
    assert arrays.output_type("input", np.dtype(">u2")) == np.dtype("=u2")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("bool", [0.0, 0.49, 0.5, 1.0], [False, False, True, True]),
        ("int16", [-1.6, -0.4, -2.5], [-2, 0, -2]),
        ("uint8", [-1e12, -0.6, 0.5, 1.5, 1.4, 99.6, 255.6], [0, 0, 0, 2, 1, 100, 255]),
    ],
)
def test_values_are_rounded_half_to_even(dtype, values, expected):
    result = as_dtype(np.array(values), dtype)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int16, np.uint32, np.int64])
def test_no_number_becomes_0_and_infinities_the_limits(dtype):
    values = np.array([np.nan, np.inf, -np.inf] * 7, np.float64)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    zero, most, least = as_dtype(values, dtype)[-3:]
    assert (zero, least) == (0, low)
    assert 0.9999999 * high < most <= high


@pytest.mark.parametrize(("floating", "integer"), [("f4", "i4"), ("f8", "i8"), ("f8", "u8")])
def test_what_is_too_large_does_not_become_the_smallest_integer(floating, integer):
    largest = int(as_dtype(np.array([1e30], floating), integer)[0])
    assert 0.9999999 * np.iinfo(integer).max < largest <= np.iinfo(integer).max
