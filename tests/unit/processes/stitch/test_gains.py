"""Gains of tiles: overlaps yield the ones put in, and nothing where there are none."""

from functools import partial

import numpy as np
import pytest
from scipy import ndimage
from seen_tiles import light, seen_tiles

from octane.processes.stitch.flat_field import estimate_flat_field
from octane.processes.stitch.gains import (
    MeasuredGains,
    equalise_brightness,
    judge_flat_field,
    measure_gains,
)

EVEN = light(96, 0)
SHADED = light(96, 0.3)


@pytest.fixture
def seen(rng):
    """Projections of tiles with their placement."""
    return partial(seen_tiles, rng)


def drifting(rng, tiles):
    """Gains from 0.7 to 1.4, whose geometric mean is 1."""
    logs = rng.uniform(np.log(0.7), np.log(1.4), len(tiles))
    return dict(zip(tiles, map(float, np.exp(logs - logs.mean())), strict=True))


def times(tiles, gains, dark=0.0):
    """Tiles as bright as their gains make them."""
    return equalise_brightness(tiles, {tile: 1 / gain for tile, gain in gains.items()}, dark)


def found_in(*given, **more):
    """Gains that must be found."""
    found = measure_gains(*given, **more)
    assert isinstance(found, MeasuredGains)
    return found


def off(found, true):
    """Root mean square of the relative errors of gains."""
    return float(np.std([np.log(found.gains[tile] / true[tile]) for tile in true]))


# Measured: 0.001 to 0.006.
@pytest.mark.parametrize(
    ("flat", "count", "overlap", "noise", "dark"),
    [
        (EVEN, 2, 0.2, 0.05, 0),
        (EVEN, 4, 0.2, 0.15, 0),
        (EVEN, 4, 0.1, 0.05, 100),
        (SHADED, 4, 0.2, 0.05, 0),
        (SHADED, 5, 0.15, 0.15, 100),
    ],
)
def test_gains_are_found_whatever_the_tissue(seen, rng, flat, count, overlap, noise, dark):
    tiles, placement = seen(flat, count, overlap, noise, dark)
    true = drifting(rng, tiles)
    found = found_in(times(tiles, true, dark), placement, dark=dark)
    assert off(found, true) < 0.01
    assert found.held_out.lowers_seams
    assert np.prod([*found.gains.values()]) == pytest.approx(1)


@pytest.mark.parametrize("tilt", [0.0, 0.1])
def test_a_flat_field_and_gains_are_told_apart(seen, rng, tilt):
    flat = light(96, 0.3, tilt=tilt)
    tiles, placement = seen(flat, 5)
    true = dict.fromkeys(tiles, 1.0) if tilt else drifting(rng, tiles)
    shown = times(tiles, true)
    found = found_in(shown, placement, with_flat_field=True)
    assert off(found, true) < 0.01
    evened = estimate_flat_field(equalise_brightness(shown, found.gains, 0.0), placement)
    assert evened is not None
    assert (flat / evened.profile).std() < 0.01


def test_a_trend_is_one_of_the_gains_unless_a_flat_field_explains_it(seen):
    tiles, placement = seen(EVEN, 4)
    true = {tile: 1.1 ** (tile[1] - 1.5) for tile in tiles}
    assert off(found_in(times(tiles, true), placement), true) < 0.01
    found = found_in(times(tiles, true), placement, with_flat_field=True)
    assert np.std([*found.gains.values()]) < 0.01


@pytest.mark.parametrize("flat", [EVEN, SHADED])
def test_tiles_of_one_brightness_are_not_helped(seen, flat):
    found = found_in(*seen(flat, 4, noise=0.15))
    assert not found.held_out.lowers_seams
    assert max(abs(gain - 1) for gain in found.gains.values()) < 0.02


def test_a_single_bright_tile_is_found(seen):
    tiles, placement = seen(EVEN, 4, noise=0.15)
    true = dict.fromkeys(tiles, 3 ** (-1 / 16)) | {(1, 2): 3 ** (15 / 16)}
    found = found_in(times(tiles, true), placement)
    assert off(found, true) < 0.01
    assert found.held_out.lowers_seams


def test_odd_and_dark_tiles_are_left_out(seen, rng):
    tiles, placement = seen(EVEN, 4)
    true = drifting(rng, tiles)
    shown = times(tiles, true)
    shown[0, 0] = np.roll(shown[0, 0], 40, (0, 1))
    shown[3, 3] = np.zeros_like(shown[3, 3])
    found = found_in(shown, placement, [(0, 0)])
    assert {*tiles} - {*found.gains} == {(0, 0), (3, 3)}
    assert off(found, {tile: true[tile] for tile in found.gains}) < 0.01
    dark = {tile: np.zeros_like(own) for tile, own in tiles.items()}
    assert measure_gains(dark, placement) is None
    assert judge_flat_field(dark, placement) is None


def test_groups_of_tiles_without_a_common_overlap_each_have_the_mean_1(seen, rng):
    tiles, placement = seen(EVEN, 5)
    middle = [(2, column) for column in range(5)]
    true = drifting(rng, tiles)
    found = found_in(times(tiles, true), placement, middle).gains
    for rows in ((0, 1), (3, 4)):
        own = {tile for tile in tiles if tile[0] in rows}
        logs = np.log([[found[tile], true[tile]] for tile in sorted(own)])
        assert logs[:, 0].mean() == pytest.approx(0, abs=1e-9)
        assert (logs[:, 0] - logs[:, 1]).std() < 0.01


def test_seams_that_were_not_fitted_are_those_of_the_noise(seen):
    tiles, placement = seen(SHADED, 4, noise=0.1)
    judged = judge_flat_field(tiles, placement)
    assert judged is not None
    assert judged.lowers_seams
    # Blocks of 3 x 3 pixels of two tiles.
    assert judged.after == pytest.approx([0.1 * 2**0.5 / 3] * 2, rel=0.1)
    even = judge_flat_field(*seen(EVEN, 4, noise=0.1))
    assert even is not None
    assert not even.lowers_seams


def test_tiles_beside_their_places_are_not_helped_by_what_both_halves_share(seen, rng):
    for most in (1, 3, 6):
        tiles, placement = seen(EVEN, 4, noise=0.05)
        for tile in tiles:
            shift = rng.uniform(-most, most, 2)
            tiles[tile] = ndimage.shift(tiles[tile], shift, order=1, mode="nearest")
        assert not found_in(tiles, placement).held_out.lowers_seams
