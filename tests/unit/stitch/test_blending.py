"""Weights of tiles, tiles added to a section, and the mismatch at seams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.stitch.blending import accumulate, seam, taper
from octane.stitch.placement import Placement


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


def test_a_side_without_a_neighbour_does_not_taper_and_no_weight_is_0():
    np.testing.assert_array_equal(taper(placement(0.0, 10), np.arange(10)), np.ones(10))
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
    total, weights = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)
    region = tuple(slice(0, n) for n in shape)
    for value, place in ((1, placement(0.0, 20, 0.0, 10.0)), (2, placement(10.0, 20, 10.0, 0.0))):
        tile = np.full((1, 4, 20), value, np.float32)
        accumulate(total, weights, region, tile, (placement(0.0, 4), place), blend="none")
    np.testing.assert_array_equal(total[0, 0], [1] * 15 + [2] * 15)


def test_a_seam_is_the_mismatch_over_the_mean():
    first = np.full((4, 4), 90.0)
    assert seam(first, first) == 0
    assert seam(first, np.full((4, 4), 110.0)) == pytest.approx(0.2)
    assert seam(np.zeros((2, 2)), np.zeros((2, 2))) == 0
