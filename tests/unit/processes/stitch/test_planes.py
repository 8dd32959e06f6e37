"""Tiles along z: one that lies too deep or too high is named, and no good one."""

import numpy as np
import pytest
from scipy import ndimage

from octane.compare.columns import COLUMN_EDGE
from octane.processes.stitch.checks import compare
from octane.processes.stitch.planes import find_depth_shifts, refine_depths

pytestmark = pytest.mark.filterwarnings("error")

EDGE, PITCH, DEPTH = 12, 9, 24
"""Columns of a tile and between neighbours; planes."""


def textured(rng, depth, height, width):
    """Tissue that changes along z over a few planes."""
    return np.exp(ndimage.gaussian_filter(rng.normal(0, 8, (depth, height, width)), (2, 2, 2)))


def under_water(rng, depth, height, width):
    """Even tissue below a tilted surface."""
    z, y, x = np.indices((depth, height, width))
    return np.where(z > 5 + 0.1 * y - 0.05 * x, 1.0, 0.01)


def constant(rng, depth, height, width):
    """Tissue that is the same in all planes, under light that decays."""
    return np.exp(-0.05 * np.arange(depth))[:, None, None] * rng.gamma(4, 1, (1, height, width))


def tiles_of(rng, tissue=textured, rows=3, columns=3, looks=64, pitch=PITCH):
    """Columns of tiles with their own speckle, and the starts of the tiles in voxels."""
    size = [(n - 1) * int(np.ceil(pitch)) + EDGE + 1 for n in (rows, columns)]
    volume = tissue(rng, DEPTH, *size)
    profiles, starts = {}, {}
    for row, column in np.ndindex(rows, columns):
        y, x = row * pitch, column * pitch
        at = np.meshgrid(np.arange(DEPTH), y + np.arange(EDGE), x + np.arange(EDGE), indexing="ij")
        seen = (
            volume[:, y : y + EDGE, x : x + EDGE]
            if isinstance(pitch, int)
            else (ndimage.map_coordinates(volume, at, order=1))
        )
        speckle = rng.gamma(looks, 1 / looks, seen.shape)
        profiles[row, column] = (seen * speckle).astype(np.float32)
        starts[row, column] = (COLUMN_EDGE * y, COLUMN_EDGE * x)
    return profiles, starts


def rolled(profiles, tile, planes):
    """The same with one tile's planes moved deeper."""
    return {**profiles, tile: np.roll(profiles[tile], planes, axis=0)}


@pytest.mark.parametrize("tissue", [textured, under_water])
@pytest.mark.parametrize("planes", [-6, -3, 1, 2, 5])
@pytest.mark.parametrize(("tile", "pitch"), [((1, 1), PITCH), ((0, 1), PITCH), ((2, 2), 8.6)])
def test_a_tile_that_lies_too_deep_fits_higher(rng, tissue, planes, tile, pitch):
    profiles, starts = tiles_of(rng, tissue, pitch=pitch)
    assert find_depth_shifts(rolled(profiles, tile, planes), starts, ()) == {tile: -planes}


def test_several_tiles_are_named_each_by_its_own_shift(rng):
    profiles, starts = tiles_of(rng, rows=5, columns=5)
    moved = rolled(rolled(profiles, (1, 1), 3), (3, 2), -2)
    assert find_depth_shifts(moved, starts, ()) == {(1, 1): -3, (3, 2): 2}


def test_rows_and_columns_may_be_numbered_against_the_axis(rng):
    profiles, starts = tiles_of(rng)
    turned = {(2 - y, 2 - x): own for (y, x), own in rolled(profiles, (0, 1), 2).items()}
    starts = {(2 - y, 2 - x): own for (y, x), own in starts.items()}
    assert find_depth_shifts(turned, starts, ()) == {(2, 1): -2}


def spoilt(planes, factor):
    """Change planes of the middle tile."""

    def change(profiles):
        profiles[1, 1][planes] *= np.float32(factor)

    return change


def lit(profiles):
    for k, tile in enumerate(profiles):
        profiles[tile] *= np.float32(2.0 ** (k % 3)) * np.linspace(1, 0.6, EDGE, dtype=np.float32)


def unknown(profiles):
    profiles[1, 1][:, :5] = np.nan
    profiles[0, 0][3] = np.nan
    profiles[2, 2][...] = np.nan


def left_out(profiles):
    del profiles[0, 1]
    profiles[2, 1] = profiles[2, 1][:, :3]
    profiles[1, 2] = profiles[1, 2][:, :, :0]


def tilted_scan(profiles, along=(1, 1)):
    """Scan tiles deeper at larger y and x, by up to two planes each."""
    for tile, own in profiles.items():
        z, y, x = np.indices(own.shape)
        deeper = along[0] * (y // 4) + along[1] * (x // 4)
        profiles[tile] = np.take_along_axis(own, (z - deeper) % DEPTH, axis=0)


@pytest.mark.parametrize("looks", [8, 1000])
@pytest.mark.parametrize("tissue", [textured, under_water, constant])
@pytest.mark.parametrize(
    "change",
    [
        lambda profiles: None,
        spoilt(slice(3), 0),
        spoilt(slice(-2, None), 30),
        spoilt(slice(None), 0),
        lit,
        unknown,
        left_out,
        tilted_scan,
    ],
    ids=["good", "blank", "glare", "empty", "light", "NaN", "left out", "tilted scan"],
)
def test_good_tiles_are_not_named(rng, change, tissue, looks):
    profiles, starts = tiles_of(rng, tissue, looks=looks)
    change(profiles)
    assert find_depth_shifts(profiles, starts, ()) == {}


@pytest.mark.parametrize("along", [(1, 1), (0, 1), (-1, 0)])
def test_a_tilted_scan_hides_no_tile(rng, along):
    profiles, starts = tiles_of(rng, rows=4, columns=4)
    tilted_scan(profiles, along)
    assert find_depth_shifts(rolled(profiles, (1, 2), 3), starts, ()) == {(1, 2): -3}


@pytest.mark.parametrize(
    ("tissue", "shape", "tile"),
    [(constant, (3, 3), (1, 1)), (textured, (1, 2), (0, 1)), (textured, (1, 3), (0, 2))],
    ids=["constant along z", "two tiles", "one neighbour"],
)
def test_what_cannot_be_told_is_not_said(rng, tissue, shape, tile):
    profiles, starts = tiles_of(rng, tissue, *shape)
    assert find_depth_shifts(rolled(profiles, tile, 4), starts, ()) == {}


def test_tiles_without_light_or_planes_say_nothing():
    starts = {(0, x): (0, COLUMN_EDGE * PITCH * x) for x in range(3)}
    for shape in ((DEPTH, EDGE, EDGE), (1, EDGE, EDGE), (DEPTH, 0, EDGE)):
        for value in (0, 1, np.nan):
            profiles = dict.fromkeys(starts, np.full(shape, value, np.float32))
            assert find_depth_shifts(profiles, starts, ()) == {}


def test_a_tile_off_by_a_column_under_a_tilted_surface_is_not_named(rng):
    def steep(rng, depth, height, width):
        z, y, _ = np.indices((depth, height, width))
        return 0.01 + 1 / (1 + np.exp(4 * (2 + 0.5 * y - z)))

    profiles, starts = tiles_of(rng, steep)
    y, x = starts[1, 1]
    assert find_depth_shifts(profiles, {**starts, (1, 1): (y + COLUMN_EDGE, x)}, ()) == {}


def test_swapped_tiles_are_not_also_called_shifted_along_z(rng):
    def tilted(rng, depth, height, width):
        z, _, x = np.indices((depth, height, width))
        return np.where(z > 3 + 0.3 * x, 1.0, 0.01)

    profiles, starts = tiles_of(rng, tilted)
    texture = rng.gamma(4, 0.25, (2 * PITCH * COLUMN_EDGE + EDGE * COLUMN_EDGE,) * 2).astype(
        np.float32
    )
    edge = EDGE * COLUMN_EDGE
    seen = {t: texture[y : y + edge, x : x + edge] for t, (y, x) in starts.items()}
    for tiles in (profiles, seen):
        tiles[1, 0], tiles[1, 1] = tiles[1, 1], tiles[1, 0]
    sizes = ((float(edge), float(edge)), (1.0, 1.0))
    _, misplaced, _ = compare(seen, starts, starts, *sizes)
    found = {(own.row, own.column): own.swapped for own in misplaced}
    assert found == {(1, 0): (1, 1), (1, 1): (1, 0)}
    assert find_depth_shifts(profiles, starts, found) == {}
    # Without the swap's evidence in y and x, the surface says that both are shifted.
    assert find_depth_shifts(profiles, starts, ()).keys() == {(1, 0), (1, 1)}


def test_few_planes_do_not_tell_a_shift_from_speckle(rng):
    profiles, starts = tiles_of(rng)
    moved = rolled(profiles, (1, 1), 3)
    assert find_depth_shifts({t: own[:24] for t, own in moved.items()}, starts, ()) == {(1, 1): -3}
    assert find_depth_shifts({t: own[:23] for t, own in moved.items()}, starts, ()) == {}


# Refinement


def test_neighbours_are_moved_one_after_the_other(rng):
    profiles, starts = tiles_of(rng)
    # The corner has a single neighbour besides the other moved tile.
    moved = rolled(rolled(profiles, (0, 1), 3), (0, 0), -2)
    depths = {(0, 1): -3, (0, 0): 2}
    assert find_depth_shifts(moved, starts, ()) != depths
    assert refine_depths(moved, starts, (), {}) == (depths, [])
    # Placed so, they fit.
    assert find_depth_shifts(moved, starts, (), depths) == {}
    assert refine_depths(moved, starts, (), depths) == (depths, [])


def test_a_wrong_depth_is_taken_back(rng):
    profiles, starts = tiles_of(rng)
    assert find_depth_shifts(profiles, starts, (), {(1, 1): 4}) == {(1, 1): -4}
    assert refine_depths(profiles, starts, (), {(1, 1): 4}) == ({}, [])


def test_a_tile_whose_halves_disagree_stays(rng):
    profiles, starts = tiles_of(rng)
    own = rolled(profiles, (1, 1), 3)[1, 1]
    y, x = np.indices(own.shape[1:])
    # Every other column of the tile lies where it should.
    odd = np.where((y + x) % 2 == 0, own, profiles[1, 1])
    torn = {**profiles, (1, 1): odd}
    found = find_depth_shifts(torn, starts, ())
    assert [*found] == [(1, 1)]
    assert refine_depths(torn, starts, (), {}) == ({}, [(1, 1)])
