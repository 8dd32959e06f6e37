"""Alignment: real displacements are found despite speckle, folds and losses; others are not."""

import numpy as np
import pytest
from scipy import ndimage
from tissue import GROUND, ellipse, seen, speckled, texture

from octane.processes.stack import alignment
from octane.processes.stack.alignment import (
    ANGLES,
    MIN_LIKENESS,
    SectionPair,
    measure_pairs,
    register_faces,
    search_shift,
    solve_displacements,
    structure_pyramid,
)
from octane.processes.stack.layout.displacement import IN_PLACE, Displacement

SHAPE = (150, 180)
PIXEL = 10.0
RADIUS = 900.0


def found(first, second, *, rotate=True):
    """The displacement in pixels and degrees, and the correlation."""
    faces = structure_pyramid(first), structure_pyramid(second)
    return register_faces(*faces, 2.0 ** (len(faces[0]) - 1), rotate=rotate)[:2]


def error(one, other):
    """Difference of the shifts, and of the rotations."""
    return np.hypot(one.y - other.y, one.x - other.x), abs(one.rotation - other.rotation)


def pair(first, second, *displacement, likeness=0.9):
    return SectionPair(first, second, Displacement(*displacement), likeness)


@pytest.mark.parametrize("looks", [None, 16, 4])
@pytest.mark.parametrize(
    "true",
    [(0, 0, 0), (0.4, -0.3, 0), (-9.6, 14.2, 0), (3.3, 2.1, 0.7), (-5, 6, -4.4), (0, 0, 2.5)],
    ids=str,
)
def test_a_displacement_is_found_to_a_fraction_of_a_pixel(rng, true, looks):
    tissue, true = texture(SHAPE), Displacement(*true)
    faces = [seen(tissue), seen(tissue, true)]
    if looks:
        faces = [speckled(face, looks, rng) for face in faces]
    displaced, likeness = found(*faces)
    shift, rotation = error(displaced, true)
    assert shift < (0.15 if looks else 0.03)
    assert rotation < (0.1 if looks else 0.02)
    assert likeness > 2 * MIN_LIKENESS


def test_brightness_shading_and_offset_do_not_count(rng):
    tissue, true = texture(SHAPE), Displacement(2.4, -3.3, 0.5)
    shading = 1 - 0.3 * np.linspace(-1, 1, SHAPE[1]) ** 2
    shift, rotation = error(found(seen(tissue), 4000 * seen(tissue, true) * shading)[0], true)
    assert shift < 0.05
    assert rotation < 0.05


def folded(face):
    """A third of the tissue is displaced by six pixels."""
    face = face.copy()
    face[:, 120:-6] = face[:, 126:]
    return face


def torn(face):
    """A quarter of the tissue is lost."""
    face = face.copy()
    face[:75, :90] = face.min()
    return face


def unseen(face):
    """A border and a patch were not imaged."""
    face = face.copy()
    face[:12] = face[40:70, 60:90] = np.nan
    return face


@pytest.mark.parametrize("harmed", [folded, torn, unseen])
@pytest.mark.parametrize("second", [False, True])
def test_harm_to_a_part_of_the_tissue_does_not_move_the_rest(rng, harmed, second):
    tissue, true = texture(SHAPE), Displacement(3.4, -2.7, 0.8)
    faces = [speckled(f, 16, rng) for f in (seen(tissue), seen(tissue, true))]
    faces[second] = harmed(faces[second])
    displaced, likeness = found(*faces)
    shift, rotation = error(displaced, true)
    assert shift < 0.3
    assert rotation < 0.15
    assert likeness >= MIN_LIKENESS


@pytest.mark.parametrize("seed", range(5))
def test_faces_of_different_tissue_do_not_fit(rng, seed):
    faces = [speckled(seen(texture(SHAPE, seed + 10 * k)), 4, rng) for k in (1, 2)]
    assert found(*faces)[1] < MIN_LIKENESS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rotate", [False, True])
def test_smooth_faces_of_different_tissue_do_not_fit(seed, rotate):
    rng = np.random.default_rng(seed)
    fields = [ndimage.gaussian_filter(rng.normal(size=(192, 192)), 25) for _ in range(2)]
    faces = [speckled(np.exp(0.5 * f / f.std()), 16, rng) for f in fields]
    assert found(*faces, rotate=rotate)[1] < MIN_LIKENESS


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))]
)
def test_an_outline_alone_is_no_pair(seed):
    rng = np.random.default_rng(seed)
    faces = [speckled(ellipse((260, 320), k), 16, rng) for k in (seed, 100 + seed, seed)]
    first, second, like = measure_pairs(faces, faces, [], PIXEL, rotate=True, workers=1)
    assert (first.fits, second.fits, like.fits) == (False, False, True)
    assert like.displacement.reach(RADIUS) < 0.1 * PIXEL


def test_tissue_that_is_darker_than_its_ground_is_a_pair(rng):
    clear = np.pad(1 + GROUND - ellipse((260, 320), 1), 150, constant_values=1).clip(0.1)
    faces = [speckled(clear, 4, rng) for _ in range(2)]
    (pair,) = measure_pairs(faces, faces, [], PIXEL, rotate=True, workers=1)
    assert pair.fits


@pytest.mark.parametrize(("seed", "size"), [(1104, 8), (1061, 25), (1495, 40)])
def test_what_fits_far_from_where_the_search_found_it_does_not_fit(monkeypatch, seed, size):
    rng = np.random.default_rng(seed)
    fields = [ndimage.gaussian_filter(rng.normal(size=(150, 190)), size) for _ in range(2)]
    faces = [speckled(np.exp(0.5 * f / f.std()), 16, rng) for f in fields]
    assert found(*faces)[1] < MIN_LIKENESS
    monkeypatch.setattr(alignment, "MAX_STRAY", np.inf)
    assert found(*faces)[1] >= MIN_LIKENESS


@pytest.mark.parametrize("period", [20, 40, 90])
def test_structure_that_repeats_fits_at_no_place_for_certain(rng, period):
    y, x = 2 * np.pi * np.indices((192, 192)) / period
    faces = [speckled(2 + np.sin(y + k) + np.sin(x), 4, rng) for k in (0, 1)]
    assert found(*faces)[1] < MIN_LIKENESS


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (3, 200), (400, 20), (9, 9)])
def test_narrow_faces_are_compared_or_left(rng, shape):
    tissue = texture(shape)
    for workers in (1, 2):
        faces = [speckled(seen(tissue), 16, rng) for _ in range(3)]
        pairs = measure_pairs(faces, faces, [], PIXEL, rotate=True, workers=workers)
        moves = solve_displacements(3, pairs, PIXEL, RADIUS)
        assert max(move.reach(0) for move in moves) < PIXEL


@pytest.mark.parametrize("value", [0, 7, np.nan])
def test_faces_without_structure_do_not_fit(value):
    blank = np.full(SHAPE, value, np.float32)
    for faces in ((blank, blank), (blank, seen(texture(SHAPE))), (seen(texture(SHAPE)), blank)):
        displaced, likeness = found(*faces)
        assert likeness == 0
        assert np.isfinite(displaced).all()


def test_a_section_that_fits_nothing_is_bridged_and_stays(rng):
    tissue, moved = texture(SHAPE), Displacement(5, 3, 0)
    faces = [seen(tissue), seen(tissue), seen(texture(SHAPE, 5)), seen(tissue, moved)]
    faces = [speckled(face, 16, rng) for face in [*faces, seen(tissue)]]
    pairs = measure_pairs(faces, faces, [], PIXEL, rotate=True, workers=2)
    assert {(p.first, p.second) for p in pairs if p.fits} == {(0, 1), (3, 4), (1, 3)}
    first, second, odd, shifted, last = solve_displacements(5, pairs, PIXEL, RADIUS)
    assert odd == IN_PLACE
    assert error(shifted, Displacement(50, 30, 0))[0] < 2
    for own in (first, second, last):
        assert error(own, IN_PLACE)[0] < 2


@pytest.mark.parametrize("odd", [4, *(pytest.param(odd, marks=pytest.mark.soak) for odd in (2, 6))])
def test_a_section_that_contradicts_its_neighbours_moves_no_other(rng, odd):
    tops = [speckled(seen(texture(SHAPE)), 2 if k == odd else 16, rng) for k in range(8)]
    moved = seen(texture(SHAPE), Displacement(5, 3, 0))
    bottoms = [*tops[:odd], speckled(moved, 2, rng), *tops[odd + 1 :]]
    pairs = measure_pairs(tops, bottoms, [], PIXEL, rotate=True, workers=2)
    assert not [p for p in pairs if p.fits and odd in (p.first, p.second)]
    moves = solve_displacements(8, pairs, PIXEL, RADIUS)
    assert max(error(own, IN_PLACE)[0] for own in moves) < 2


def test_small_errors_of_pairs_do_not_add_up():
    # Tissue that drifts by a fifth of a pixel from each section to the next.
    moves = solve_displacements(200, [pair(k, k + 1, 2.0, 0, 0) for k in range(199)], PIXEL, RADIUS)
    assert max(abs(move.y) for move in moves) < 0.4 * 199 * 2.0 / 2


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]
)
def test_small_round_tissue_in_speckle_is_not_turned(seed):
    rng = np.random.default_rng(seed)
    y, x = np.indices((300, 360))
    there = ndimage.gaussian_filter((np.hypot(y - 130, x - 210) < 30).astype(float), 1)
    tissue = sum(ndimage.gaussian_filter(rng.normal(size=y.shape), s) * s for s in (3, 8))
    face = 50 * there * np.exp(0.6 * tissue) + 3 * (1 - there)
    faces = [speckled(face, 4, rng) for _ in range(8)]
    # Corners cut off by a rotation do not make it likelier.
    assert search_shift(*(structure_pyramid(f)[0] for f in faces[:2]), ANGLES)[0] == (0, 0, 0)
    pairs = measure_pairs(faces[:4], faces[4:], [], PIXEL, rotate=True, workers=1)
    assert all(pair.fits for pair in pairs)
    assert [pair.displacement.rotation for pair in pairs] == [0, 0, 0]
    assert max(pair.displacement.reach(0) for pair in pairs) < 0.2 * PIXEL


@pytest.mark.parametrize("rotate", [False, True])
def test_slanted_tissue_is_not_moved(rotate):
    tissue, slant = texture((150, 180)), 0.5
    tops, inner, bottoms = (
        [seen(tissue, Displacement(slant * (6 * k + depth), 0)) for k in range(4)]
        for depth in (0.5, 2.5, 4.5)
    )
    pairs = measure_pairs(tops, bottoms, inner, PIXEL, rotate=rotate, workers=1)
    assert [pair.displacement for pair in pairs] == [pytest.approx((0, 0, 0), abs=0.5)] * 3
