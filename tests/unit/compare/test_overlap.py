"""Overlap of the tiles of a grid, measured to a fraction of a voxel."""

import numpy as np
import pytest
from scipy import ndimage
from tissue import texture

from octane.compare.orientation import Orientation, find_orientation
from octane.compare.overlap import depth_mean, grid_overlap

SHAPE = (150, 130)


def tiles_of(rows, columns, overlap, *, seed=0, looks=0.0, shading=0.0, jitter=0.0):
    """Tiles of one texture, whose places are fractions of pixels."""
    rng = np.random.default_rng(seed)
    scene = texture((SHAPE[0] * rows, SHAPE[1] * columns), seed)
    y, x = (np.arange(n) for n in SHAPE)
    away = [((at + 0.5) / n - 0.5) ** 2 for at, n in zip((y, x), SHAPE, strict=True)]
    light = 1 - 2 * shading * (away[0][:, None] + away[1][None, :])
    found = {}
    for tile in np.ndindex(rows, columns):
        first = [k * n * (1 - o) for k, n, o in zip(tile, SHAPE, overlap, strict=True)]
        first = np.add(first, rng.uniform(-jitter, jitter, 2)) + 20
        at = np.meshgrid(y + first[0], x + first[1], indexing="ij")
        image = light * ndimage.map_coordinates(scene, at, order=3)
        if looks:
            image *= rng.gamma(looks, 1 / looks, SHAPE)
        found[tile] = image.astype(np.float32)
    return found


def patterned(rows, columns, pattern, seed=0):
    """Tiles without tissue whose light has a pattern, the same in all."""
    rng = np.random.default_rng(seed)
    tiles = {tile: rng.gamma(50, 1 / 50, SHAPE) * pattern for tile in np.ndindex(rows, columns)}
    return {tile: image.astype(np.float32) for tile, image in tiles.items()}


def errors(found, overlap):
    """Errors of measured overlaps, pixels."""
    axes = zip(found.axes, overlap, SHAPE, strict=True)
    return [(own.fraction - true) * n for own, true, n in axes if own is not None]


@pytest.mark.parametrize("overlap", [(0.2031, 0.1577), (0.25, 0.3333), (0.41, 0.11)])
@pytest.mark.parametrize("kind", [{}, {"looks": 4.0}, {"shading": 0.3}, {"jitter": 1.0}])
def test_the_overlap_is_measured_to_a_fraction_of_a_pixel(overlap, kind):
    found = grid_overlap([tiles_of(3, 3, overlap, **kind)], SHAPE)
    assert found.is_certain
    limit = 1.0 if "jitter" in kind else 0.35
    assert np.abs(errors(found, overlap)).max() < limit


def test_a_single_row_has_an_overlap_along_x_alone():
    found = grid_overlap([tiles_of(1, 5, (0.2, 0.15))], SHAPE)
    assert found.is_certain
    assert found.axes[0] is None
    assert np.abs(errors(found, (0.2, 0.15))).max() < 0.35


def test_pairs_of_several_sections_count_together():
    overlap = (0.2, 0.24)
    sections = [tiles_of(1, 2, overlap, seed=seed) for seed in range(6)]
    assert not grid_overlap(sections[:1], SHAPE).is_certain
    found = grid_overlap(sections, SHAPE)
    assert found.is_exact
    assert np.abs(errors(found, overlap)).max() < 0.35


def test_tiles_in_another_order_have_no_certain_overlap():
    tiles = tiles_of(3, 3, (0.2, 0.2))
    turned = {(-row, column): image for (row, column), image in tiles.items()}
    turned = {(row + 2, column): image for (row, column), image in turned.items()}
    found = grid_overlap([turned], SHAPE)
    assert not found.is_certain
    assert found.orientation is not None
    assert found.orientation.best == Orientation(flip="y")


@pytest.mark.parametrize("seed", range(5))
def test_tiles_without_common_tissue_have_none(seed):
    rng = np.random.default_rng(seed)
    noise = {tile: rng.gamma(4, 0.25, SHAPE).astype(np.float32) for tile in np.ndindex(3, 3)}
    assert not grid_overlap([noise], SHAPE).is_certain
    apart = {t: tiles_of(1, 1, (0, 0), seed=9 * seed + k)[0, 0] for k, t in enumerate(noise)}
    assert not grid_overlap([apart], SHAPE).is_certain


@pytest.mark.parametrize("grid", [(3, 3), (1, 7)])
def test_fringes_that_all_tiles_show_are_no_overlap(grid):
    y, x = np.indices(SHAPE)
    tiles = patterned(*grid, 1 + 0.5 * np.cos(2 * np.pi * (y / 17 + x / 23)))
    found = grid_overlap([tiles], SHAPE)
    assert found.orientation is not None
    assert found.orientation.is_clear
    assert not found.is_certain


def test_a_bright_frame_of_all_tiles_is_no_overlap():
    frame = np.full(SHAPE, 1.5)
    frame[4:-4, 4:-4] = 1
    found = grid_overlap([patterned(1, 7, frame)], SHAPE)
    assert found.orientation is not None
    assert found.orientation.is_clear
    assert not found.is_certain


def test_lines_that_all_tiles_show_turn_no_rows():
    lines = ndimage.gaussian_filter1d(np.random.default_rng(10).normal(size=SHAPE[0]), 1)
    found = find_orientation(patterned(2, 2, 1 + 0.5 * lines[:, None] / lines.std()))
    assert found is not None
    assert found.is_other
    assert not found.is_proof


def test_a_black_border_draws_no_overlap():
    tiles = tiles_of(1, 7, (0.2, 0.2), looks=4.0)
    border = np.zeros(SHAPE, np.float32)
    border[6:-6, 6:-6] = 1
    found = grid_overlap([{tile: image * border for tile, image in tiles.items()}], SHAPE)
    assert found.axes[1] is not None
    assert np.abs(errors(found, (0.2, 0.2))).max() < 0.5


def test_a_mean_over_depth_is_of_finite_magnitudes():
    tile = np.array([[[-2.0, np.nan]], [[4.0, 1.0]]], np.float32)
    np.testing.assert_array_equal(depth_mean(tile), [[3, 0]])
    assert depth_mean(np.array([[[3]], [[5]]], np.uint16)) == 4
