"""Positions of tiles that fit measured displacements."""

import numpy as np
import pytest

from octane.compare.correlation import TilePair, neighbours
from octane.processes.stitch.registration import solve_positions


def nominal(rows, columns, pitch=50.0):
    return {(r, c): (r * pitch, c * pitch) for r in range(rows) for c in range(columns)}


def test_positions_fit_the_measured_pairs(rng):
    start = nominal(3, 4)
    moves = {tile: rng.uniform(-4, 4, 2) for tile in start}
    pairs = [TilePair(a, b, tuple(moves[a] - moves[b]), 1.0) for a, b in neighbours(list(start))]
    found = solve_positions(start, pairs, (20.0, 20.0))
    offsets = np.array([np.subtract(found[t], start[t]) - moves[t] for t in start])
    # Pairs do not determine a common displacement.
    np.testing.assert_allclose(offsets - offsets.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(
        np.mean([np.subtract(found[t], start[t]) for t in start], 0), 0, atol=1e-6
    )


def test_an_untrusted_pair_hardly_counts():
    start = nominal(2, 2)
    pairs = [TilePair(a, b, (0.0, 0.0), 1.0) for a, b in neighbours(list(start))]
    pairs.append(TilePair((0, 0), (0, 1), (9.0, 9.0), 0.01))
    found = solve_positions(start, pairs, (20.0, 20.0))
    assert max(np.abs(np.subtract(found[t], start[t])).max() for t in start) < 0.01


@pytest.mark.parametrize(
    ("columns", "shift", "reach", "expected"),
    # A tile that no pair reaches stays, and no tile moves beyond the limit.
    [(3, 4.0, 20.0, [2, 48, 100]), (2, 100.0, 3.0, [3, 47])],
)
def test_tiles_without_a_pair_and_tiles_beyond_reach(columns, shift, reach, expected):
    start = nominal(1, columns)
    found = solve_positions(start, [TilePair((0, 0), (0, 1), (0.0, shift), 1.0)], (reach, reach))
    assert [x for _, x in found.values()] == pytest.approx(expected, abs=1e-3)
