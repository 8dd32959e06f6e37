"""Operations of processors in compiled loops, against the same in Python."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from octane.core.compiled import compiled
from octane.core.intrinsics import LANES, blend, exchange, fetch_add, give_way


@compiled("int64(int64[::1], int64)")
def raised(cells, times):
    for _ in range(times):
        fetch_add(cells, 1, 3)
        give_way()
    return exchange(cells, 0, times)


def sum_of_rows(weights, first, rows, start, step, out, at):
    blend(weights, first, rows, start, step, out, at)


def test_threads_that_add_to_a_cell_lose_nothing():
    cells = np.array([7, 0], np.int64)
    assert raised(cells, 50_000) == 7
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(raised, [cells] * 4, [50_000] * 4)) == [50_000] * 4
    assert cells.tolist() == [50_000, 5 * 50_000 * 3]


def test_in_python_cells_are_the_same():
    cells = np.array([7, 0], np.int64)
    assert fetch_add(cells, 0, 3) == 7
    assert exchange(cells, 0, 5) == 10
    give_way()
    assert cells.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_vector_of_four_rows_has_the_bits_of_single_values(dtype):
    rng = np.random.default_rng(0)
    weights, rows = rng.normal(size=9).astype(dtype), rng.normal(size=(7, 23)).astype(dtype)
    kernel = compiled(
        f"void({dtype}[::1], int64, {dtype}[:, ::1], int64, int64, float32[::1], int64)"
    )(sum_of_rows)
    found, expected = np.zeros((2, 40), np.float32)
    kernel(weights, 3, rows, 25, 23, found, 5)
    sum_of_rows(weights, 3, rows, 25, 23, expected, 5)
    lanes = LANES * 4 // rows.itemsize
    flat = rows.reshape(-1)
    total = sum(weights[3 + k] * flat[25 + 23 * k :][:lanes] for k in range(4))
    np.testing.assert_array_equal(found[5 : 5 + lanes], total.astype(np.float32))
    np.testing.assert_array_equal(found, expected)
    assert not found[:5].any()
    assert not found[5 + lanes :].any()
