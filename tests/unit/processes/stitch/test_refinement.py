"""Refined places of tiles: confirmed by both halves of the overlaps, or left as stated."""

import numpy as np
import pytest
from scipy import ndimage

from octane.compare.correlation import TilePair, neighbours, overlap_shift
from octane.core.geometry import vector
from octane.layout.mosaic import MosaicGrid
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import overlap
from octane.processes.stitch.refinement import grain, refine_positions
from octane.processes.stitch.registration import solve_positions

EDGE, PITCH = 80, 60


@pytest.fixture
def tiles(rng):
    """Tiles of a smooth image, off by up to 3 pixels, and noise; with the grid and both places."""

    def make(noise, *, count=(3, 3), error=3.0, scale=1.0, pixel=2.0):
        extent = (EDGE * pixel,) * 2
        shape = (1, count[0] * EDGE, count[1] * EDGE)
        whole = vector(1, *(n * pixel for n in shape[1:]))
        pitch = (PITCH * pixel, PITCH * pixel)
        grid = MosaicGrid(
            *(shape, (1, EDGE, EDGE), vector(1, pixel, pixel), vector(0, 0, 0)),
            *(vector(1, *extent), whole, pitch),
        )
        stated = grid.positions(pitch)
        image = ndimage.gaussian_filter(rng.standard_normal((300, 300)), 2.5)
        image /= image.std()
        true, seen = {}, {}
        for tile, place in stated.items():
            off = rng.uniform(-error, error, 2)
            true[tile] = tuple(np.add(place, off * pixel))
            y, x = (np.arange(EDGE) + at / pixel + 20 for at in true[tile])
            own = ndimage.map_coordinates(image, np.meshgrid(y, x, indexing="ij"))
            own = 5 + own + noise * rng.standard_normal(own.shape)
            seen[tile] = (own * scale).astype(np.float32)
        return grid, stated, true, seen

    return make


def wrong(places, true, pixel=2.0):
    """Root mean square distance from the truth but for a common one, pixels."""
    off = np.array([np.subtract(places[tile], place) for tile, place in true.items()]) / pixel
    return float(np.sqrt(np.mean(np.sum((off - off.mean(axis=0)) ** 2, axis=1))))


def highest(grid, stated, seen, most):
    """The places that fit the highest correlation of every pair."""
    places, start = dict(stated), {t: (y / 2, x / 2) for t, (y, x) in stated.items()}
    for _ in range(2):
        placement, pairs = TilePlacement(grid, places), []
        for pair in neighbours([*places]):
            views = overlap(placement, seen, *pair)
            assert views is not None
            pairs.append(TilePair(*pair, *overlap_shift(*views, (most, most))))
        start = solve_positions(start, pairs, (most / 2, most / 2))
        places = {t: (y * 2, x * 2) for t, (y, x) in start.items()}
    return places


@pytest.mark.parametrize("count", [(3, 3), (2, 2), (1, 3), (1, 2)])
@pytest.mark.parametrize("noise", [0, 0.3])
def test_certain_overlaps_count_in_full_and_give_the_same_bits(tiles, count, noise):
    grid, stated, true, seen = tiles(noise, count=count)
    found = refine_positions(grid, stated, seen, 20.0)
    assert not found.reason
    assert wrong(found.positions, true) < 0.3 < 1 < wrong(stated, true)
    assert found.positions == highest(grid, stated, seen, 20.0)


@pytest.mark.parametrize(
    "count",
    [*(pytest.param(n, marks=pytest.mark.soak) for n in ((3, 3), (1, 3))), (2, 2), (1, 2)],
)
def test_tiles_of_noise_stay_as_stated(tiles, count):
    kept, off = [], []
    for _ in range(12):
        grid, stated, true, seen = tiles(1000, count=count)
        found = refine_positions(grid, stated, seen, 20.0)
        assert (found.positions == stated) == bool(found.reason)
        kept.append(bool(found.reason))
        places = stated, highest(grid, stated, seen, 20.0)
        off.append([wrong(own, true) for own in places])
    # A few agree by chance.
    assert sum(kept) >= 10
    # Negative control: their highest correlations move them.
    before, after = np.median(off, axis=0)
    assert after > 1.5 * before


@pytest.mark.parametrize("noise", [0.5, 2, 4, 7, 10])
def test_refined_tiles_are_not_further_off_than_stated_ones(tiles, noise):
    grid, stated, true, seen = tiles(noise)
    found = refine_positions(grid, stated, seen, 20.0)
    assert wrong(found.positions, true) < 1.1 * wrong(stated, true)


def test_exact_places_stay(tiles):
    grid, stated, _, seen = tiles(2, error=0)
    found = refine_positions(grid, stated, seen, 20.0)
    assert found.positions == stated
    assert found.reason


@pytest.mark.parametrize("lost", [0.0, "noise"])
def test_a_tile_without_structure_spoils_no_other(tiles, rng, lost):
    grid, stated, true, seen = tiles(0.3)
    seen[1, 1] = rng.random((EDGE, EDGE), np.float32) if lost else np.zeros_like(seen[1, 1])
    found = refine_positions(grid, stated, seen, 20.0)
    others = {tile: place for tile, place in true.items() if tile != (1, 1)}
    assert not found.reason
    assert wrong(found.positions, others) < 0.4 < 1 < wrong(stated, others)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**70])
def test_the_unit_of_the_voxels_does_not_count(tiles, scale):
    grid, stated, _, seen = tiles(0.3)
    scaled = {tile: np.ldexp(image, int(np.log2(scale))) for tile, image in seen.items()}
    one, other = (refine_positions(grid, stated, own, 20.0) for own in (seen, scaled))
    assert one == other
    assert not one.reason


def test_tiles_that_do_not_overlap_stay(tiles):
    grid, stated, _, seen = tiles(0)
    apart = {tile: (2 * y, 2 * x) for tile, (y, x) in stated.items()}
    found = refine_positions(grid, apart, seen, 20.0)
    assert (found.positions, found.reason) == (apart, "no tiles overlap")
    alone = refine_positions(grid, {(0, 0): (0.0, 0.0)}, seen, 20.0)
    assert (alone.positions, alone.reason) == ({(0, 0): (0.0, 0.0)}, "")


@pytest.mark.parametrize("shift", [(0, 0), (3, -5)])
def test_the_grain_is_that_of_the_speckle(rng, shift):
    image = ndimage.gaussian_filter(rng.standard_normal((200, 300)), 8)
    noise = [rng.standard_normal(image.shape) for _ in range(2)]
    moved = np.roll(image, shift, axis=(0, 1))
    assert grain(image + noise[0], moved + noise[1], shift) == pytest.approx(2, abs=0.2)
    coarse = [ndimage.gaussian_filter(own, 2) for own in noise]
    # Twice the integral of a Gaussian's squared autocorrelation.
    grains = grain(image + coarse[0], moved + coarse[1], shift)
    assert grains == pytest.approx(4 * np.pi * 2**2, rel=0.2)
