"""Intensity maps per plane: which differences they remove, and which they keep."""

import numpy as np
import pytest

from octane.processes.n4.intensity import IntensityMaps, along_z, histogram_matching, z_profile_gain

SHAPE = (12, 40, 40)
GROUPS = [(0, 4), (4, 8), (8, 12)]
FACTORS = np.repeat([1.0, 3.0, 0.2], 4).astype(np.float32)[:, None, None]


@pytest.fixture
def tissue(rng):
    """Two tissues in equal proportions in every plane."""
    planes = np.where(np.arange(SHAPE[2]) < 25, 100.0, 300.0)
    noise = rng.normal(1, 0.05, SHAPE)
    return (planes * noise).astype(np.float32)


def matched(volume, groups=GROUPS, mask=None):
    mask = np.ones(SHAPE, bool) if mask is None else mask
    return histogram_matching(volume, mask, groups).apply(volume)


def test_a_map_is_monotone_goes_through_zero_and_clamps_nothing(tissue):
    maps = histogram_matching(tissue * FACTORS, np.ones(SHAPE, bool), GROUPS)
    line = np.linspace(-1e5, 1e7, 4001, dtype=np.float32)
    for k in range(SHAPE[0]):
        mapped = maps.apply(np.broadcast_to(line, (1, 1, line.size)), k)[0, 0]
        assert (np.diff(mapped) > 0).all()
        assert mapped[-1] > 1e6
    assert maps.apply(np.zeros((12, 1, 1), np.float32)).max() == 0


def test_intensities_below_zero_are_shifted(tissue):
    shifted = tissue - 1000
    shifted[4:8] -= 50
    found = matched(shifted)
    np.testing.assert_allclose(found.mean(axis=(1, 2)), found.mean(), rtol=0.02)


def test_groups_with_no_voxel_in_the_mask_and_planes_of_none_stay(tissue):
    volume = tissue * np.arange(1, 13, dtype=np.float32)[:, None, None]
    mask = np.ones(SHAPE, bool)
    mask[4:8] = False
    np.testing.assert_array_equal(matched(volume, GROUPS[:2], mask)[4:], volume[4:])
    assert matched(volume, mask=np.zeros(SHAPE, bool)) is volume


def test_equal_intensities_become_their_geometric_mean_and_groups_count_by_their_voxels():
    volume = np.repeat(np.array([2, 4, 8], np.float32), 4)[:, None, None] * np.ones(SHAPE, "f4")
    np.testing.assert_allclose(matched(volume), 4, rtol=1e-6)
    volume, mask = np.ones(SHAPE, "f4"), np.ones(SHAPE, bool)
    volume[4:8], mask[4:8, :, 10:] = 32, False
    np.testing.assert_allclose(matched(volume, GROUPS[:2], mask)[:8], 2, rtol=1e-6)


def test_a_plane_without_tissue_has_the_gain_of_its_neighbours(tissue):
    volume = tissue * np.array([1, 9, 4] + [1] * 9, np.float32)[:, None, None]
    mask = np.ones(SHAPE, bool)
    mask[1] = False
    volume[3] = -1  # a gain cannot make these positive
    gain = z_profile_gain(volume, mask, [(0, 4)])
    assert gain[1] == pytest.approx(np.sqrt(gain[0] * gain[2]))
    assert gain[3] == gain[2]
    assert (gain[4:] == 1).all()


def test_maps_of_kept_planes_are_brought_to_all_and_stay_within_their_section():
    maps = IntensityMaps(
        np.array([[1.0], [2.0], [30.0]]), np.full((3, 1), 5.0), np.array([1.0, 4, 7])
    )
    whole = along_z(maps, [1, 3, 6], [(0, 5), (5, 9)], 10)
    assert whole.source is not None
    np.testing.assert_allclose(whole.source[:, 0], [1, 1, 1.5, 2, 2, 30, 30, 30, 30, 30])
    np.testing.assert_allclose(whole.gain, [1, 1, 2, 4, 4, 7, 7, 7, 7, 7])


def test_what_differs_between_sections_stays(tissue):
    steps = np.repeat([1.0, 5.0, 2.0], 4)
    depth = np.exp(-0.1 * np.tile(np.arange(4), 3))
    volume = tissue * (depth * steps).astype("f4")[:, None, None]
    gain = z_profile_gain(volume, volume > 0, GROUPS)
    np.testing.assert_allclose(gain * depth, np.exp(-0.15), rtol=0.02)


@pytest.mark.parametrize("looks", [1, 4])
def test_blended_planes_change_neither_their_section_s_level_nor_its_gain(rng, looks):
    # Blended planes average two images, so that their speckle is weaker.
    speckle = rng.gamma(looks, 1 / looks, (2, 12, 60, 60))
    weights = np.ones(12)
    weights[4:6], weights[8:10] = (0.25, 0.75), (0.25, 0.75)
    depth = np.tile(np.arange(4), 3)
    light = weights * np.exp(-0.2 * depth) + (1 - weights) * np.exp(-0.2 * (depth + 4))
    noise = weights[:, None, None] * speckle[0] + (1 - weights)[:, None, None] * speckle[1]
    volume = (light[:, None, None] * noise).astype(np.float32)
    result = light * z_profile_gain(volume, volume > 0, GROUPS, 2)
    np.testing.assert_allclose(result / result.mean(), 1, atol=0.05)
    assert np.ptp(light * z_profile_gain(volume, volume > 0, GROUPS)) / result.mean() > 0.15
