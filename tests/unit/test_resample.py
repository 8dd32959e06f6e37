"""The resampling operator against SciPy in float64 on a physical, pixel-centred grid."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from octane.dtypes import as_dtype
from octane.geometry import Grid
from octane.resample import (
    AxisOperator,
    apply,
    interpolator,
    resample,
    resampled,
    resampler,
)

TOLERANCE = 1e-6


def reference(array, spacing, target, shape):
    """The definition, step by step: Gaussian, then linear interpolation, reflecting, float64."""
    values = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    where = []
    for axis, (n, s, t, m) in enumerate(zip(array.shape, spacing, target, shape, strict=True)):
        if t > s:
            values = ndimage.gaussian_filter1d(values, (t / s - 1) / 2, axis=axis, mode="reflect")
        # Both grids have their centre at n * s / 2; sample k of the source lies at (k + 0.5) * s.
        physical = n * s / 2 + (np.arange(m) - (m - 1) / 2) * t
        where.append(physical / s - 0.5)
    return ndimage.map_coordinates(
        values, np.meshgrid(*where, indexing="ij"), order=1, mode="reflect"
    )


def check(array, spacing, target):
    grid, operators = resampled(Grid(array.shape, spacing), target)
    result = resample(array, operators)
    expected = reference(array, spacing, target, grid.shape)
    assert result.shape == grid.shape == expected.shape
    assert grid.spacing == target
    # Relative to the signal's size, as a complex value may be near 0 where two others cancel.
    np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE * np.abs(array).max())
    return result


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


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize(("target", "spacing"), FACTORS.values(), ids=FACTORS)
def test_it_agrees_with_scipy(rng, dtype, target, spacing):
    array = rng.gamma(2.0, 1.0, (23, 31, 38))
    if dtype == "complex64":
        array = array * np.exp(2j * np.pi * rng.random(array.shape))
    result = check(array.astype(dtype), spacing, target)
    assert result.dtype == dtype


def test_float64_is_computed_in_float64(rng):
    array = rng.gamma(2.0, 1.0, (17, 23, 29))
    target, spacing = (10.0, 9.0, 8.0), (3.5, 4.0, 4.5)
    grid, operators = resampled(Grid(array.shape, spacing), target)
    np.testing.assert_allclose(
        resample(array, operators), reference(array, spacing, target, grid.shape), rtol=1e-12
    )


@pytest.mark.parametrize(("dtype", "computed"), [("uint8", "f4"), ("int16", "f4"), ("int32", "f8")])
def test_integers_are_computed_in_a_type_that_holds_them(rng, dtype, computed):
    info = np.iinfo(dtype)
    array = rng.integers(info.min, info.max, (9, 12, 15), dtype=dtype, endpoint=True)
    result = check(array, (1.0, 1.0, 1.0), (2.5, 2.5, 2.5))
    assert result.dtype == computed


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
    assert (
        abs(operator.size * target - n * spacing) <= target / 2 * (1 + 1e-6) or operator.size == 1
    )
    line = np.random.default_rng(seed).gamma(2.0, 1.0, (n, 1, 1))
    expected = reference(line, (spacing, 1, 1), (target, 1, 1), (operator.size, 1, 1))
    np.testing.assert_allclose(apply(operator, line, 0), expected, rtol=1e-6)
    np.testing.assert_allclose(
        apply(operator, line.astype(np.float32), 0), expected, rtol=TOLERANCE
    )


@settings(max_examples=100)
@given(n=st.integers(1, 60), factor=st.floats(0.2, 12), value=st.floats(0.01, 1e4))
def test_a_constant_stays_constant(n, factor, value):
    operator = resampler(n, 1.0, factor)
    line = np.full((n, 1, 1), value, np.float32)
    np.testing.assert_allclose(apply(operator, line, 0), value, rtol=1e-6)


@settings(max_examples=100)
@given(n=st.integers(40, 90), spacing=st.floats(0.5, 5), factor=st.floats(0.3, 4))
def test_a_ramp_stays_linear_inside(n, spacing, factor):
    target = spacing * factor
    operator = resampler(n, spacing, target)
    ramp = ((np.arange(n) + 0.5) * spacing)[:, None, None]
    result = apply(operator, ramp, 0).ravel()
    m = operator.size
    positions = n * spacing / 2 + (np.arange(m) - (m - 1) / 2) * target
    reach = (int(4 * max(0, (factor - 1) / 2) + 0.5) + 1) * spacing
    inside = (positions > reach) & (positions < n * spacing - reach)
    assert inside.any()
    np.testing.assert_allclose(result[inside], positions[inside], rtol=1e-9)


def test_100_to_25_steps_by_exactly_4():
    operator = resampler(100, 1.0, 4.0)
    centre = (operator.index * operator.weight).sum(axis=1)[8:-8]
    assert operator.size == 25
    np.testing.assert_allclose(np.diff(centre), 4, rtol=1e-12)
    np.testing.assert_array_equal(np.diff(operator.index[4:-4], axis=0), 4)
    np.testing.assert_array_equal(operator.weight, np.tile(operator.weight[:1], (25, 1)))


def test_the_grid_keeps_its_centre_and_takes_the_target_as_it_is():
    grid = Grid((101, 90, 33), (3.5, 4.1, 10.0), (7.0, -3.0, 100.0))
    result, _ = resampled(grid, (10.0, 10.0, 25.0))
    assert result.spacing == (10.0, 10.0, 25.0)
    for axis in range(3):
        before, after = (
            g.origin[axis] + (g.shape[axis] - 1) * g.spacing[axis] / 2 for g in (grid, result)
        )
        assert after == pytest.approx(before, abs=1e-9)


def test_the_spacing_it_has_already_copies_the_voxels(rng):
    array = rng.random((5, 6, 7), np.float32)
    grid, operators = resampled(Grid(array.shape, (3.5, 4.0, 4.0)), (3.5, 4.0, 4.0))
    assert grid.shape == array.shape
    assert all(o.identity(n) for o, n in zip(operators, array.shape, strict=True))
    np.testing.assert_array_equal(resample(array, operators), array)


@pytest.mark.parametrize("spacing", [0.1 * (1 + 1e-15), 0.1 * (1 - 1e-15), np.float32(0.1)])
def test_a_spacing_that_differs_by_rounding_alone_copies_the_voxels(spacing):
    assert resampler(30, float(spacing), 0.1).identity(30)


def test_the_input_is_left_as_it_was(rng):
    array = rng.random((8, 9, 10), np.float32)
    kept = array.copy()
    _, operators = resampled(Grid(array.shape, (1, 1, 1)), (2.0, 2.0, 2.0))
    resample(array, operators)
    np.testing.assert_array_equal(array, kept)


@settings(max_examples=60)
@given(n=st.integers(1, 60), factor=st.floats(0.3, 6), data=st.data())
def test_a_part_of_an_operator_gives_the_same_bits(n, factor, data):
    operator = resampler(n, 1.0, factor)
    start = data.draw(st.integers(0, operator.size - 1))
    stop = data.draw(st.integers(start + 1, operator.size))
    array = np.random.default_rng(n).random((n, 2, 3), np.float32)
    part, needed = operator.part(slice(start, stop))
    assert part.size == stop - start
    np.testing.assert_array_equal(
        apply(part, array[needed], 0), apply(operator, array, 0)[start:stop]
    )


def test_interpolation_alone_is_linear_and_reflects_at_the_borders():
    line = np.array([1.0, 5.0, 3.0])[:, None, None]
    result = apply(interpolator(np.array([0.25, 1.0, 1.5, -0.25, 2.4]), 3), line, 0)
    np.testing.assert_allclose(result.ravel(), [2.0, 5.0, 4.0, 1.0, 3.0])


def test_an_operator_of_another_order_is_no_identity():
    turned = AxisOperator(np.array([[1], [0]]), np.ones((2, 1)))
    assert not turned.identity(2)


def test_an_operator_that_takes_the_first_samples_alone_is_no_identity(rng):
    array = rng.random((6, 2, 2), np.float32)
    first = interpolator(np.arange(4.0), 6)
    np.testing.assert_array_equal(apply(first, array, 0), array[:4])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_are_rounded_and_clipped(dtype):
    info = np.iinfo(dtype)
    values = np.array([-1e12, info.min - 0.6, 0.5, 1.5, 1.4, 99.6, info.max + 0.6, 1e12])
    expected = [info.min, info.min, 0, 2, 1, 100, info.max, info.max]
    result = as_dtype(values, dtype)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_the_widest_integers_are_clipped_without_wrapping(dtype):
    top = int(as_dtype(np.array([1e30]), dtype)[0])
    assert np.iinfo(dtype).max - top < 2048
    assert as_dtype(np.array([-1e30]), dtype)[0] == np.iinfo(dtype).min


def test_negative_values_are_rounded_and_not_truncated():
    np.testing.assert_array_equal(as_dtype(np.array([-1.6, -0.4, -2.5]), "int16"), [-2, 0, -2])
