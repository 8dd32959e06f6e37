"""Tapers, placement, displacements measured by correlation, and positions that fit them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from octane.stitch.registration import (
    Pair,
    Placement,
    accumulate,
    neighbours,
    overlap_shift,
    seam,
    solve,
    taper,
)


def placement(shift, count, before=0.0, after=0.0):
    return Placement(shift, count, before, after, int(np.ceil(shift)), int(shift) + count)


@given(overlap=st.floats(1, 30), offset=st.floats(0, 1))
def test_two_weights_add_up_to_one_across_their_overlap(overlap, offset):
    left = Placement(offset, 40, 0.0, overlap, 0, 40)
    right = Placement(offset + 40 - overlap, 40, overlap, 0.0, 0, 80)
    centres = np.arange(80) + 0.5
    both = np.flatnonzero((centres > right.shift + 0.1) & (centres < left.shift + 40 - 0.1))
    weights = taper(left, both) + taper(right, both)
    np.testing.assert_allclose(weights, 1, atol=3e-3)


def test_a_side_without_a_neighbour_does_not_taper():
    np.testing.assert_array_equal(taper(placement(0.0, 10), np.arange(10)), np.ones(10))


def test_a_weight_is_never_0():
    assert taper(placement(0.0, 10, 4.0, 4.0), np.arange(-3, 14)).min() > 0


def accumulated(tile, places, shape, blend="linear", region=None):
    region = region or tuple(slice(0, n) for n in shape)
    size = [r.stop - r.start for r in region]
    total, weights = np.zeros(size, np.float32), np.zeros(size[1:], np.float32)
    accumulate(total, weights, region, tile, places, blend=blend)
    return total, weights


def test_a_tile_on_whole_voxels_is_copied(rng):
    tile = rng.random((2, 5, 6), np.float32)
    total, weights = accumulated(tile, (placement(3.0, 5), placement(1.0, 6)), (2, 10, 10))
    expected = np.zeros((2, 10, 10), np.float32)
    expected[:, 3:8, 1:7] = tile
    np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(weights, (expected[0] != 0))


def test_a_tile_between_voxels_is_interpolated():
    ramp = np.broadcast_to(np.arange(8, dtype=np.float32), (1, 4, 8))
    total, _ = accumulated(ramp, (placement(0.0, 4), placement(1.25, 8)), (1, 4, 12))
    np.testing.assert_allclose(total[0, 2, 2:9], np.arange(2, 9) - 1.25, rtol=1e-6)


def test_blocks_of_a_section_hold_the_same_bits(rng):
    tile = rng.random((2, 20, 30), np.float32)
    places = (placement(2.3, 20, 5.0, 3.0), placement(0.0, 30, 0.0, 7.5))
    whole, weights = accumulated(tile, places, (2, 24, 32))
    for y in range(0, 24, 7):
        for x in range(0, 32, 9):
            region = (slice(0, 2), slice(y, min(y + 7, 24)), slice(x, min(x + 9, 32)))
            part, own = accumulated(tile, places, (2, 24, 32), region=region)
            np.testing.assert_array_equal(part, whole[region])
            np.testing.assert_array_equal(own, weights[region[1:]])


def test_without_blending_the_nearest_tile_wins():
    shape = (1, 4, 30)
    places = [placement(0.0, 20, 0.0, 10.0), placement(10.0, 20, 10.0, 0.0)]
    total, weights = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)
    for value, place in zip((1, 2), places, strict=True):
        tile = np.full((1, 4, 20), value, np.float32)
        region = tuple(slice(0, n) for n in shape)
        accumulate(total, weights, region, tile, (placement(0.0, 4), place), blend="none")
    np.testing.assert_array_equal(total[0, 0], [1] * 15 + [2] * 15)


def test_neighbours_are_beside_and_below():
    tiles = [(0, 0), (0, 1), (1, 0), (1, 1), (3, 3)]
    assert neighbours(tiles) == [
        ((0, 0), (0, 1)),
        ((0, 0), (1, 0)),
        ((0, 1), (1, 1)),
        ((1, 0), (1, 1)),
    ]


def texture(rng, shape):
    """Structure of some pixels, as tissue has it."""
    return ndimage.gaussian_filter(rng.standard_normal(shape), 2.5, mode="wrap")


@pytest.mark.parametrize("shift", [(0, 0), (3, -2), (-5, 4)])
@pytest.mark.parametrize("shape", [(40, 60), (24, 90)])
def test_a_displacement_is_found(rng, shift, shape):
    whole = texture(rng, (shape[0] + 20, shape[1] + 20))
    first = whole[10:-10, 10:-10]
    second = np.roll(whole, shift, axis=(0, 1))[10:-10, 10:-10]
    found, peak = overlap_shift(1000 + first, 900 + 0.8 * second, (8, 8))
    np.testing.assert_allclose(found, shift, atol=0.3)
    assert peak > 0.9


def test_a_displacement_is_found_to_a_fraction_of_a_pixel(rng):
    whole = texture(rng, (80, 100))
    moved = ndimage.shift(whole, (1.4, -2.6), order=5, mode="wrap")
    found, _ = overlap_shift(whole[15:-15, 15:-15], moved[15:-15, 15:-15], (6, 6))
    np.testing.assert_allclose(found, (1.4, -2.6), atol=0.15)


def test_a_displacement_is_found_through_speckle(rng):
    whole = 1 + 0.5 * texture(rng, (80, 140)) / 0.1
    whole -= whole.min() - 0.2
    first, second = whole[10:-10, 10:-10], np.roll(whole, (2, 3), axis=(0, 1))[10:-10, 10:-10]
    noisy = [(tile * rng.gamma(4.0, 0.25, tile.shape)) for tile in (first, second)]
    found, _ = overlap_shift(*noisy, (6, 6))
    np.testing.assert_allclose(found, (2, 3), atol=0.5)


def test_no_displacement_beyond_the_reach_is_found(rng):
    first, second = rng.random((30, 30)), rng.random((30, 30))
    found, _ = overlap_shift(first, second, (3, 3))
    assert np.abs(found).max() <= 3.5


def test_flat_tiles_have_no_displacement_to_trust():
    _, peak = overlap_shift(np.full((20, 30), 5.0), np.full((20, 30), 5.0), (4, 4))
    assert peak == pytest.approx(0, abs=1e-6)


def nominal(rows, columns, pitch=50.0):
    return {(r, c): (r * pitch, c * pitch) for r in range(rows) for c in range(columns)}


def test_positions_fit_the_measured_pairs(rng):
    start = nominal(3, 4)
    moves = {tile: rng.uniform(-4, 4, 2) for tile in start}
    pairs = [Pair(a, b, tuple(moves[a] - moves[b]), 1.0) for a, b in neighbours(list(start))]
    found = solve(start, pairs, (20.0, 20.0))
    offsets = np.array([np.subtract(found[t], start[t]) - moves[t] for t in start])
    # Pairs say nothing about a common displacement.
    np.testing.assert_allclose(offsets - offsets.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(
        np.mean([np.subtract(found[t], start[t]) for t in start], 0), 0, atol=1e-6
    )


def test_an_untrusted_pair_hardly_counts():
    start = nominal(2, 2)
    pairs = [Pair(a, b, (0.0, 0.0), 1.0) for a, b in neighbours(list(start))]
    pairs.append(Pair((0, 0), (0, 1), (9.0, 9.0), 0.01))
    found = solve(start, pairs, (20.0, 20.0))
    assert max(np.abs(np.subtract(found[t], start[t])).max() for t in start) < 0.01


def test_a_tile_that_no_pair_reaches_stays():
    start = nominal(1, 3)
    found = solve(start, [Pair((0, 0), (0, 1), (0.0, 4.0), 1.0)], (20.0, 20.0))
    assert found[0, 2] == pytest.approx(start[0, 2])


def test_no_tile_moves_further_than_it_may():
    start = nominal(1, 2)
    found = solve(start, [Pair((0, 0), (0, 1), (0.0, 100.0), 1.0)], (3.0, 3.0))
    assert found[0, 0][1] == pytest.approx(3.0)
    assert found[0, 1][1] == pytest.approx(47.0)


def test_a_seam_is_the_mismatch_over_the_mean():
    first = np.full((4, 4), 90.0)
    assert seam(first, first) == 0
    assert seam(first, np.full((4, 4), 110.0)) == pytest.approx(0.2)
    assert seam(np.zeros((2, 2)), np.zeros((2, 2))) == 0
