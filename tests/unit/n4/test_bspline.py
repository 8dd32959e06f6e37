import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octane.n4 import bspline

points = st.integers(4, 40)
axis = st.tuples(st.integers(2, 300), points)


def random_lattice(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def solve(values, weights, counts):
    """Fit a lattice to a whole array."""
    z, y, x = (
        bspline.fit_basis(bspline.basis(n, c)) for n, c in zip(values.shape, counts, strict=True)
    )
    zy, rows = values.shape[:2], (-1, values.shape[2])
    omega = bspline.fit(weights.reshape(rows) @ x.squared, zy, [z.squared, y.squared])
    delta = bspline.fit((weights * values).reshape(rows) @ x.cubed, zy, [z.cubed, y.cubed])
    return delta * bspline.reciprocal(omega)


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


@given(axis, st.data())
def test_basis_equals_the_recursion_and_parts_of_it_are_its_rows(sizes, data):
    matrix = bspline.basis(*sizes)
    assert ((matrix > 0).sum(axis=1) <= 4).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)
    # float32 positions: up to 37 spans in 2**-24, times a slope below 1; and the step back from
    # the far end, a thousandth of a sample.
    step = 1e-3 * (sizes[1] - 3) / (sizes[0] - 1)
    np.testing.assert_allclose(matrix[:-1], plain_basis(*sizes)[:-1], atol=1e-5)
    np.testing.assert_allclose(matrix[-1], plain_basis(*sizes)[-1], atol=1e-5 + step)
    start = data.draw(st.integers(0, sizes[0] - 1))
    stop = data.draw(st.integers(start, sizes[0]))
    np.testing.assert_array_equal(bspline.basis(*sizes, start, stop), matrix[start:stop])


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


@settings(max_examples=30)
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


def test_both_evaluations_agree_and_cache_blocks_change_nothing(monkeypatch):
    lattice, shape = random_lattice((7, 5, 6)), (20, 31, 42)
    bases = [bspline.basis(n, c) for n, c in zip(shape, lattice.shape, strict=True)]
    expected = np.einsum("zc,yd,xe,cde->zyx", *bases, lattice)
    whole = bspline.evaluate_region(lattice, shape)
    np.testing.assert_allclose(whole, expected, atol=2e-6)
    np.testing.assert_allclose(bspline.evaluate(lattice, bases), expected, atol=2e-6)
    monkeypatch.setattr(bspline, "CACHED", 300)
    np.testing.assert_array_equal(bspline.evaluate_region(lattice, shape), whole)


@pytest.mark.parametrize(("n", "points"), [(2, 4), (16, 4), (64, 7), (50, 9), (5, 11), (333, 5)])
def test_vectors_hold_the_basis(n, points):
    basis, parts = bspline.vectors(bspline.axis_weights(n, points))
    found = np.zeros((n + bspline.LANES, points), np.float32)
    for (at, c), part in zip(parts, basis, strict=True):
        # In order: what a vector has behind its span is that of the next.
        found[at : at + bspline.LANES] = 0
        found[at : at + bspline.LANES, c : c + 4] = part.reshape(4, -1).T
    np.testing.assert_array_equal(found[:n], bspline.basis(n, points).astype(np.float32))
    assert not found[n:].any()


def test_products_in_parts_equal_the_product(monkeypatch):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(57, 20)), rng.normal(size=(20, 8))
    monkeypatch.setattr(bspline, "BLAS_SERIAL", 500)
    np.testing.assert_allclose(bspline.product(left, right), left @ right, rtol=1e-12)


def test_the_fit_is_lee_s_scattered_data_approximation():
    rng = np.random.default_rng(1)
    shape, counts = (6, 7, 12), (4, 5, 9)
    values, weights = rng.normal(size=shape), rng.uniform(0, 2, shape) * (rng.random(shape) < 0.6)
    weights[:, :, 3:] = 0  # control points without data stay 0
    bases = [bspline.basis(n, c) for n, c in zip(shape, counts, strict=True)]
    delta, omega = np.zeros(counts), np.zeros(counts)
    for index in np.ndindex(*shape):
        b = np.einsum("i,j,k->ijk", *(m[i] for m, i in zip(bases, index, strict=True)))
        phi = b * values[index] / np.sum(b**2)
        delta += weights[index] * b**2 * phi
        omega += weights[index] * b**2
    expected = np.divide(delta, omega, out=np.zeros(counts), where=omega > bspline.OMEGA_FLOOR)
    np.testing.assert_allclose(solve(values, weights, counts), expected, rtol=1e-9)
