"""Tiles of another gain, out of focus or saturated, among sound ones."""

import numpy as np
import pytest

from octane.core.filters import gaussian
from octane.processes.stitch.checks import compare
from octane.processes.stitch.exposure import blurred_tiles
from octane.processes.stitch.record import SATURATED
from octane.processes.stitch.saturation import saturation

EDGE, PITCH = 60, 45


def tiles_of(image, shape, change=None):
    """Tiles of an image and their starts; ``change`` maps tiles to functions of theirs."""
    starts = {(y, x): (PITCH * y, PITCH * x) for y, x in np.ndindex(*shape)}
    tiles = {t: image[y : y + EDGE, x : x + EDGE].copy() for t, (y, x) in starts.items()}
    for tile, own in (change or {}).items():
        tiles[tile] = own(tiles[tile])
    return {tile: own.astype(np.float32) for tile, own in tiles.items()}, starts


def times(gains):
    return {tile: lambda image, gain=gain: gain * image for tile, gain in gains.items()}


@pytest.fixture
def tissue(rng):
    return 100 + 20 * rng.normal(size=(300, 300)) + 300 * gaussian(rng.normal(size=(300, 300)), 3.0)


@pytest.mark.parametrize(
    ("gains", "shape"),
    [
        ({}, (3, 3)),
        ({(1, 1): 0.8}, (3, 3)),
        ({(0, 0): 1.15}, (2, 2)),
        # They part the others into two groups that are alike.
        ({(1, 1): 0.8, (0, 2): 1.15, (2, 0): 0.7}, (3, 3)),
        ({(0, x): 1.2 for x in range(4)}, (4, 4)),
        ({(1, 1): 0.8, (1, 2): 0.8}, (4, 4)),
        ({(0, 3): 0.8}, (1, 6)),
    ],
)
def test_tiles_of_another_gain_are_named_alone_or_together(tissue, gains, shape):
    tiles, starts = tiles_of(tissue.clip(1), shape, times(gains))
    *_, misplaced, uneven = compare(tiles, starts, starts, (EDGE, EDGE), (1.0, 1.0))
    assert {(t.row, t.column): t.brightness for t in uneven} == pytest.approx(gains, rel=0.05)
    assert misplaced == []
    assert blurred_tiles(tiles, starts, ()) == []


def test_light_that_drifts_from_tile_to_tile_marks_none(tissue):
    drift = {tile: 1.05 ** sum(tile) for tile in np.ndindex(4, 4)}
    tiles, starts = tiles_of(tissue.clip(1), (4, 4), times(drift))
    *_, uneven = compare(tiles, starts, starts, (EDGE, EDGE), (1.0, 1.0))
    assert uneven == []


def test_a_blurred_tile_is_out_of_focus_and_in_its_place(tissue):
    blur = {(1, 1): lambda image: gaussian(image.astype(np.float64), 2.0)}
    tiles, starts = tiles_of(tissue, (3, 3), blur)
    (found,) = blurred_tiles(tiles, starts, ())
    assert (found.row, found.column) == (1, 1)
    assert found.contrast < 0.5
    assert compare(tiles, starts, starts, (EDGE, EDGE), (1.0, 1.0))[1:] == ([], [])
    assert blurred_tiles(tiles, starts, {(1, 1)}) == []


@pytest.mark.parametrize("kind", ["copy", "noise", "transposed", "flipped"])
def test_a_tile_that_fits_no_neighbour_is_named(tissue, rng, kind):
    noise = rng.normal(100, 20, (EDGE, EDGE))
    change = {
        "copy": lambda _: tissue[PITCH : PITCH + EDGE, :EDGE],
        "noise": lambda _: noise,
        "transposed": lambda image: image.T,
        "flipped": lambda image: image[::-1],
    }[kind]
    # Little contrast: the seams are far below those of different tissue.
    tiles, starts = tiles_of(
        300 + tissue, (3, 3), {(1, 1): lambda image: change(image - 300) + 300}
    )
    _, (found,), uneven = compare(tiles, starts, starts, (EDGE, EDGE), (1.0, 1.0))
    assert (found.row, found.column) == (1, 1)
    assert found.copy_of == ((1, 0) if kind == "copy" else None)
    assert uneven == []


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_voxels_at_the_top_are_counted(rng, dtype):
    block = rng.normal(100, 30, (8, 40, 40)).clip(0)
    assert saturation(block.astype(dtype), SATURATED)[0] < SATURATED
    share, top = saturation(block.clip(0, 120).astype(dtype), SATURATED)
    assert (share, top) == (pytest.approx(np.mean(block >= 120), abs=0.02), 120)


@pytest.mark.parametrize(
    "block",
    [
        np.zeros((2, 4, 4)),
        np.full((2, 4, 4), 7),
        np.full((2, 4, 4), np.nan),
        np.arange(32).reshape(2, 4, 4) // 16,
        # Few grey levels of smooth tissue.
        np.arange(320).reshape(2, 4, 40) // 20,
        np.zeros((0, 4, 4)),
    ],
    ids=["blank", "flat", "unknown", "mask", "smooth", "empty"],
)
def test_a_block_without_a_pile_of_voxels_at_the_top_is_not_saturated(block):
    assert saturation(block, SATURATED)[0] == 0
    assert saturation(np.full((2, 4, 4), 4095), SATURATED) == (1, 4095)
