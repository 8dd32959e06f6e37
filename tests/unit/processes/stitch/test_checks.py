"""Checks of tiles and faces with nothing to compare: no findings and no failures."""

import numpy as np
import pytest

from octane.processes.stack.faces import brightness, brightness_steps, proposed_flips
from octane.processes.stitch.checks import compare

pytestmark = pytest.mark.filterwarnings("error")


def bad(rng, shape, value):
    tile = rng.random(shape, np.float32)
    tile[0, 0] = value
    return tile


@pytest.mark.parametrize(
    ("make", "shape", "pitch"),
    [
        (lambda _, shape: np.zeros(shape, np.float32), (40, 40), 32),
        (lambda _, shape: np.full(shape, 1e30, np.float32), (40, 40), 32),
        (lambda rng, shape: rng.random(shape, np.float32) * np.float32(1e-30), (40, 40), 32),
        (lambda rng, shape: bad(rng, shape, np.nan), (40, 40), 32),
        (lambda rng, shape: bad(rng, shape, np.inf), (40, 40), 32),
        (lambda rng, shape: rng.gamma(0.2, 1, shape).astype(np.float32), (40, 40), 32),
        (lambda rng, shape: rng.random(shape, np.float32), (40, 40), 40),
        (lambda rng, shape: rng.random(shape, np.float32), (40, 40), -30),
        (lambda rng, shape: rng.random(shape, np.float32), (2, 300), 1),
    ],
    ids=["blank", "flat", "small", "NaN", "Inf", "speckle", "abutting", "turned", "thin"],
)
def test_tiles_without_common_structure_say_nothing(rng, make, shape, pitch):
    tiles = {tile: make(rng, shape) for tile in np.ndindex(2, 3)}
    starts = {(row, column): (row * pitch, column * pitch) for row, column in tiles}
    found = compare(tiles, starts, starts, (40.0, 40.0), (1.0, 1.0))
    overlaps, misplaced, uneven = found
    assert misplaced == uneven == []
    assert [(own.found, own.better) for own in overlaps] in ([], [(None, False)] * 2)


@pytest.mark.parametrize(
    ("odd", "shape"),
    [
        ({}, (3, 3)),
        ({(1, 1): 0.1}, (3, 3)),
        ({(0, 0): 4.0}, (3, 3)),
        ({(0, 1): 0.5, (2, 1): 2.0}, (3, 3)),
        ({(0, 0): 0.5}, (2, 2)),
        ({(1, 1): 0.0, (2, 2): 0.0}, (3, 3)),
    ],
    ids=["none", "one", "corner", "two", "of four", "lost"],
)
def test_tiles_of_another_brightness_are_named(rng, odd, shape):
    tissue = rng.gamma(1.0, 1.0, (100, 100)) * (np.indices((100, 100)).sum(axis=0) > 40)
    # Light that falls off along both axes marks no tile.
    light = np.multiply.outer(np.linspace(1, 0.75, 40), np.linspace(0.8, 1, 40))
    tiles, starts = {}, {}
    for y, x in np.ndindex(*shape):
        starts[y, x] = (30 * y, 30 * x)
        part = tissue[30 * y : 30 * y + 40, 30 * x : 30 * x + 40]
        tiles[y, x] = (part * light * odd.get((y, x), 1)).astype(np.float32)
    *_, found = compare(tiles, starts, starts, (40.0, 40.0), (1.0, 1.0))
    assert {(t.row, t.column): t.brightness for t in found} == pytest.approx(odd, rel=0.1)


def test_light_that_falls_off_makes_no_tile_without_structure_fit_nowhere(rng):
    starts = {(0, x): (0, 76 * x) for x in range(4)}
    light = np.linspace(1.35, 0.65, 96)
    tiles = {t: (rng.normal(1, 0.1, (96, 96)) * light).astype(np.float32) for t in starts}
    _, *others = compare(tiles, starts, starts, (96.0, 96.0), (1.0, 1.0))
    assert others == [[], []]


def test_rows_and_columns_may_be_numbered_against_the_axis(rng):
    tissue = rng.random((100, 100), np.float32)
    starts = {(2 - row, 2 - column): (30 * row, 30 * column) for row, column in np.ndindex(3, 3)}
    tiles = {tile: tissue[y : y + 40, x : x + 40] for tile, (y, x) in starts.items()}
    overlaps, *others = compare(tiles, starts, starts, (40.0, 40.0), (1.0, 1.0))
    assert [(own.given, own.found, own.better) for own in overlaps] == [(0.25, 0.25, False)] * 2
    assert others == [[], []]


def test_a_tile_that_was_not_imaged_beside_the_tissue_is_not_named(rng):
    tissue = rng.gamma(4.0, 0.25, (70, 70)) * np.where(
        np.indices((70, 70)).sum(axis=0) > 90, 1, 0.1
    )
    starts = {(y, x): (30 * y, 30 * x) for y, x in np.ndindex(2, 2)}
    tiles = {t: tissue[y : y + 40, x : x + 40].astype(np.float32) for t, (y, x) in starts.items()}
    tiles[0, 0][...] = 0
    *_, found = compare(tiles, starts, starts, (40.0, 40.0), (1.0, 1.0))
    assert found == []


def test_faces_without_tissue_say_nothing():
    blank = np.zeros((10, 10))
    assert brightness([(blank, blank)] * 2) == [None, None]
    assert proposed_flips([(blank, blank)] * 2) == [None, None]


def test_tissue_that_ends_within_a_section_makes_it_no_darker(rng):
    # Light is lost with depth, and the tissue fills only one corner of the last face.
    face = rng.gamma(4.0, 0.25, (40, 40)) + 10.0 * (np.indices((40, 40)) > 4).all(axis=0)
    end = face * (np.indices((40, 40)) < 20).all(axis=0)
    pairs = [(face, 0.5 * face)] * 3 + [(face, 0.5 * end)]
    assert brightness(pairs) == pytest.approx([1] * 4, abs=0.05)
    assert brightness_steps(pairs)[1:] == pytest.approx([1] * 3, abs=0.05)
    dim = [(0.4 * a, 0.4 * b) for a, b in pairs[:2]]
    assert brightness_steps([*dim, *pairs[:2], *dim])[1:] == pytest.approx(
        [1, 2.5, 1, 0.8, 1], abs=0.05
    )
    pairs[1] = (0.3 * face, 0.15 * face)
    odd = [abs(np.log(ratio or 1)) > np.log(2) for ratio in brightness(pairs)]
    assert odd == [False, True, False, False]
