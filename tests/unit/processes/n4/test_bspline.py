import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octane.processes.n4 import bspline

points = st.integers(4, 40)
axis = st.tuples(st.integers(2, 300), points)


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


def test_products_in_parts_equal_the_product(monkeypatch):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(57, 20)), rng.normal(size=(20, 8))
    monkeypatch.setattr(bspline, "BLAS_SERIAL", 500)
    np.testing.assert_allclose(bspline.product(left, right), left @ right, rtol=1e-12)
