"""Flat fields: overlaps yield the one applied to the tiles, and nothing else."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage
from seen_tiles import light, seen_tiles

from octane.core.errors import OctaneError
from octane.processes.stitch.checks_before import resample_flat_field
from octane.processes.stitch.flat_field import FlatField, estimate_flat_field, shading_of

FILE = Path("flat.tif")
TILE = 96
"""Edge of a tile, pixels."""


@pytest.fixture
def seen(rng):
    """Projections of tiles with their placement."""
    return partial(seen_tiles, rng)


def left(found, flat):
    """Root mean square of the remaining shading, over the mean."""
    return (flat / found.profile).std() / (flat / found.profile).mean()


def fitted(*given, **more):
    """Flat field that must be found."""
    found = estimate_flat_field(*given, **more)
    assert isinstance(found, FlatField)
    return found


# Measured: 0.002 to 0.011.
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize(
    ("loss", "tilt", "overlap", "noise"),
    [
        (0.3, 0, 0.2, 0.02),
        (0.3, 0, 0.2, 0.15),
        (0.3, 0, 0.1, 0.05),
        (0, 0.1, 0.2, 0.05),
        (0.1, 0, 0.3, 0.05),
    ],
)
def test_the_light_is_found_whatever_the_tissue(seen, count, loss, tilt, overlap, noise):
    flat = light(TILE, loss, tilt=tilt)
    found = fitted(*seen(flat, count, overlap, noise))
    assert found.profile.shape == flat.shape
    assert found.profile.mean() == pytest.approx(1, abs=1e-6)
    assert flat.std() > 0.02
    assert left(found, flat) < 0.02
    low, high = np.percentile(flat, (1, 99))
    assert shading_of(found.profile) == pytest.approx(high - low, abs=0.05)


# Measured: 0.5 and 1.0.
@pytest.mark.parametrize("most", [0, 3])
def test_tiles_beside_their_places_change_little_and_the_error_says_it(seen, rng, most):
    flat, errors, true = light(TILE, 0.3), [], []
    for _ in range(5):
        tiles, placement = seen(flat, 4, noise=0.15)
        for tile in tiles.values():
            tile[:] = np.roll(tile, rng.integers(-most, most + 1, 2), (0, 1))
        found = fitted(tiles, placement)
        assert left(found, flat) < 0.02
        errors.append(found.error)
        true.append(shading_of(flat / found.profile))
    assert 0.4 < np.median(errors) / np.median(true) < 1.5


def lost(tile):
    tile[:] = 0


def undefined(tile):
    tile[:] = np.nan


def brighter(tile):
    tile *= 3


@pytest.mark.parametrize("fault", [lost, undefined, brighter])
def test_a_faulty_tile_changes_little(seen, fault):
    flat = light(TILE, 0.3)
    tiles, placement = seen(flat)
    fault(tiles[1, 0])
    assert left(fitted(tiles, placement), flat) < 0.02


def test_tiles_without_tissue_do_not_count(seen, rng):
    flat = light(TILE, 0.3)
    tiles, placement = seen(flat, 4)
    for tile in list(tiles)[:8]:
        # The camera's own noise, which is not shaded.
        tiles[tile] = rng.normal(20, 1, flat.shape).astype(np.float32)
    assert left(fitted(tiles, placement), flat) < 0.02


def test_the_last_tiles_may_be_cut(seen):
    flat = light(TILE, 0.3)
    tiles, placement = seen(flat, cut=36)
    found = fitted(tiles, placement)
    assert left(found, flat) < 0.02
    np.testing.assert_allclose(found.correct(tiles[2, 0]), tiles[2, 0] / found.profile[:60], 1e-5)


@pytest.mark.parametrize("shape", [(96, 96), (48, 48), (37, 37), (200, 200)])
def test_a_flat_field_of_another_resolution_is_brought_to_the_tile(shape):
    given = 7 * light(shape[0], 0.3)
    made = resample_flat_field(given, (96, 96), FILE)
    assert made.mean() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(made, light(96, 0.3), atol=0.015)
    zoomed = ndimage.zoom(
        given.astype(float), 96 / shape[0], order=1, mode="nearest", grid_mode=True
    )
    np.testing.assert_array_equal(made, (zoomed / zoomed.mean()).astype(np.float32))


def holed(value):
    made = np.ones((96, 96))
    made[3, 4] = value
    return made


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.ones((3, 96, 96)), "has 3 x 96 x 96 pixels and a tile 96 x 96; give"),
        (np.ones((96, 128)), "has 96 x 128 pixels and a tile 96 x 96; give"),
        (np.ones((0, 0)), "has 0 x 0 pixels and a tile 96 x 96; give"),
        (np.full((96, 96), "a"), "not above 0; give"),
        *((holed(value), "not above 0; give") for value in (0, -1, np.nan, np.inf)),
    ],
)
def test_what_is_no_flat_field_is_refused(given, sentence):
    with pytest.raises(OctaneError, match=sentence):
        resample_flat_field(given, (96, 96), FILE)
