import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octane.core.errors import OctaneError
from octane.n4 import bspline

samples = st.integers(2, 300)
points = st.integers(4, 40)
axis = st.tuples(samples, points)


def random_lattice(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def solve(values, weights, counts):
    """Fit a lattice to a whole array."""
    z, y, x = (
        bspline.fit_basis(bspline.basis(n, c)) for n, c in zip(values.shape, counts, strict=True)
    )
    zy, rows = values.shape[:2], (-1, values.shape[2])
    weight_rows = weights.reshape(rows) @ x.squared
    data_rows = (weights * values).reshape(rows) @ x.cubed
    reciprocal = bspline.reciprocal_omega(weight_rows, zy, [z.squared, y.squared])
    return bspline.fit(data_rows, zy, [z.cubed, y.cubed]) * reciprocal


def plain_basis(n, c):
    """B-splines from their recursion, on float64 positions."""
    knots = np.arange(-3, c + 1, dtype=float)
    x = np.arange(n) * (c - 3) / (n - 1)
    x[-1] -= 1e-9
    b = ((x[:, None] >= knots[:-1]) & (x[:, None] < knots[1:])).astype(float)
    for degree in (1, 2, 3):
        left = (x[:, None] - knots[: -1 - degree]) / degree * b[:, :-1]
        right = (knots[degree + 1 :] - x[:, None]) / degree * b[:, 1:]
        b = left + right
    return b


@given(axis)
def test_basis_is_a_partition_of_unity_with_four_weights_a_row(sizes):
    matrix = bspline.basis(*sizes)
    assert matrix.shape == sizes
    assert matrix.dtype == np.float64
    assert (matrix >= 0).all()
    assert ((matrix > 0).sum(axis=1) <= 4).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)


@given(axis)
def test_basis_equals_the_recursion(sizes):
    # float32 positions: up to 37 spans in 2**-24, times a slope below 1; and the step back from
    # the far end, a thousandth of a sample.
    step = 1e-3 * (sizes[1] - 3) / (sizes[0] - 1)
    matrix = bspline.basis(*sizes)
    np.testing.assert_allclose(matrix[:-1], plain_basis(*sizes)[:-1], atol=1e-5)
    np.testing.assert_allclose(matrix[-1], plain_basis(*sizes)[-1], atol=1e-5 + step)


@given(axis, st.data())
def test_part_of_a_basis_is_those_rows(sizes, data):
    start = data.draw(st.integers(0, sizes[0] - 1))
    stop = data.draw(st.integers(start, sizes[0]))
    whole = bspline.basis(*sizes)
    np.testing.assert_array_equal(bspline.basis(*sizes, start, stop), whole[start:stop])


def test_too_few_control_points_are_refused():
    with pytest.raises(OctaneError, match="control points"):
        bspline.basis(10, 3)


@pytest.mark.parametrize("counts", [(4, 4, 4), (7, 4, 11)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 12), (8, 1, 1)])
def test_an_axis_of_one_sample_keeps_what_is_fitted_to_the_others(shape, counts):
    bases = [bspline.basis(n, c) for n, c in zip(shape, counts, strict=True)]
    values = np.random.default_rng(0).uniform(-1, 1, shape)
    fitted = solve(values, np.ones(shape), counts)
    found = bspline.evaluate(fitted, bases)
    if max(shape) == 1:
        np.testing.assert_allclose(found, values, rtol=1e-12)
    for axis, n in enumerate(shape):
        if n == 1:
            fitted = bspline.held_constant(fitted, axis)
    longer = [bspline.basis(max(n, 5), c) for n, c in zip(shape, counts, strict=True)]
    stretched = bspline.evaluate(fitted, longer)
    np.testing.assert_allclose(
        stretched[tuple(slice(n) if n > 1 else slice(None) for n in shape)],
        np.broadcast_to(found, stretched.shape),
        atol=1e-12,
    )


@settings(max_examples=25)
@given(st.tuples(*[st.tuples(st.integers(2, 40), points)] * 3))
def test_refining_keeps_the_curve(axes):
    shape, counts = zip(*axes, strict=True)
    coarse = random_lattice([min(c, 9) for c in counts]).astype(np.float64)
    fine = bspline.refine(coarse)
    assert fine.shape == tuple(2 * c - 3 for c in coarse.shape)
    before, after = (
        bspline.evaluate(c, [bspline.basis(*a) for a in zip(shape, c.shape, strict=True)])
        for c in (coarse, fine)
    )
    # The last sample's step back from the end (a thousandth of a sample) is the same in both.
    np.testing.assert_allclose(after, before, atol=2e-5)


def test_refining_keeps_the_dtype():
    assert bspline.refine(random_lattice((4, 5, 6))).dtype == np.float32


@settings(max_examples=50)
@given(st.tuples(*[st.integers(2, 40)] * 3), st.tuples(*[st.integers(4, 9)] * 3), st.data())
def test_a_region_equals_the_whole_bit_for_bit(shape, counts, data):
    lattice = random_lattice(counts)
    region = []
    for n in shape:
        start = data.draw(st.integers(0, n - 1))
        region.append(slice(start, data.draw(st.integers(start, n))))
    whole = bspline.evaluate_region(lattice, shape)
    part = bspline.evaluate_region(lattice, shape, region)
    assert whole.shape == shape
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(part, whole[tuple(region)])


def test_a_region_does_not_depend_on_the_cache_blocks(monkeypatch):
    lattice, shape = random_lattice((7, 5, 6)), (20, 30, 40)
    whole = bspline.evaluate_region(lattice, shape)
    monkeypatch.setattr(bspline, "CACHED", 300)
    np.testing.assert_array_equal(bspline.evaluate_region(lattice, shape), whole)


def test_a_region_with_a_step_is_refused():
    with pytest.raises(ValueError, match="step 1"):
        bspline.evaluate_region(
            random_lattice((4, 4, 4)), (8, 8, 8), (slice(0, 8, 2), slice(8), slice(8))
        )


def test_both_evaluations_agree():
    lattice, shape = random_lattice((7, 5, 6)), (20, 31, 42)
    bases = [bspline.basis(n, c) for n, c in zip(shape, lattice.shape, strict=True)]
    np.testing.assert_allclose(
        bspline.evaluate_region(lattice, shape),
        np.einsum("zc,yd,xe,cde->zyx", *bases, lattice),
        atol=2e-6,
    )
    np.testing.assert_allclose(
        bspline.evaluate(lattice, bases), bspline.evaluate_region(lattice, shape), atol=2e-6
    )


def test_products_in_parts_equal_the_product(monkeypatch):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(57, 20)), rng.normal(size=(20, 8))
    monkeypatch.setattr(bspline, "BLAS_SERIAL", 500)
    np.testing.assert_allclose(bspline.product(left, right), left @ right, rtol=1e-12)


def test_the_fit_is_lee_s_scattered_data_approximation():
    rng = np.random.default_rng(1)
    shape, counts = (6, 7, 9), (4, 5, 6)
    values, weights = rng.normal(size=shape), rng.uniform(0, 2, shape) * (rng.random(shape) < 0.6)
    bases = [bspline.basis(n, c) for n, c in zip(shape, counts, strict=True)]
    delta, omega = np.zeros(counts), np.zeros(counts)
    for index in np.ndindex(*shape):
        b = np.einsum("i,j,k->ijk", *(m[i] for m, i in zip(bases, index, strict=True)))
        phi = b * values[index] / np.sum(b**2)
        delta += weights[index] * b**2 * phi
        omega += weights[index] * b**2
    expected = np.divide(delta, omega, out=np.zeros(counts), where=omega > bspline.OMEGA_FLOOR)
    np.testing.assert_allclose(solve(values, weights, counts), expected, rtol=1e-9)


def test_a_control_point_without_data_stays_zero():
    weights = np.zeros((12, 12, 12))
    weights[:, :, :3] = 1
    lattice = solve(np.ones((12, 12, 12)), weights, (4, 4, 9))
    assert (lattice[:, :, 5:] == 0).all()
    assert (lattice[1:3, 1:3, 0] > 0).all()
