"""Distances along z between sections of a phantom, and the thicknesses that fit them."""

from itertools import pairwise

import numpy as np
import pytest
from uneven_sections import UnevenParameters, render_tile, thicknesses

from octane.processes.stack.thickness import Distance, measure_distance, solve_thicknesses

TRIED = range(8, 22)


def sections(looks, **given):
    """Sections of the phantom in planes of 10 um, 24 deep and 16 thick, and their thickness."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (24, 128, 192),
        "voxel_size": 10,
        "section_thickness": 160,
        "thickness_jitter": 30,
        "speckle_looks": looks,
        "scattering": 1,
    }
    p = UnevenParameters.model_validate({**made, **given})
    voxels = [render_tile(p, k, (0, 0), p.tile_shape, (0, 0)) for k in range(p.sections)]
    return voxels, [own / 10 for own in thicknesses(p)]


@pytest.mark.parametrize("looks", [0, 16, 4, 1])
def test_the_distance_of_sections_is_found_in_the_planes_that_both_show(looks):
    voxels, true = sections(looks, section_steps=0.5)
    for (upper, lower), thickness in zip(pairwise(voxels), true, strict=False):
        found = measure_distance(upper, lower, TRIED)
        assert not found.problem
        assert found.planes == pytest.approx(thickness, abs=0.3)
        assert found.std < 0.3


def test_half_of_the_tissue_may_be_lost_or_not_imaged():
    voxels, true = sections(16)
    upper, lower = voxels[:2]
    lower[:, :, 120:] = lower[:, ::-1, 120:]
    upper[:, :30] = np.nan
    found = measure_distance(upper, lower, TRIED)
    assert not found.problem
    assert found.planes == pytest.approx(true[0], abs=0.5)


def test_what_cannot_be_measured_is_not_guessed():
    (upper, lower, *_), _ = sections(1)
    rng = np.random.default_rng(1)
    noise = [rng.gamma(1, 1, upper.shape).astype(np.float32) for _ in range(2)]
    assert measure_distance(*noise, TRIED).problem
    assert measure_distance(np.full_like(upper, np.nan), lower, TRIED).problem
    assert measure_distance(np.zeros_like(upper), np.zeros_like(lower), TRIED).problem
    # The tissue of a whole section lies between them, or the range leaves out the true distance.
    assert measure_distance(upper[:8], lower, range(2, 6)).problem
    assert measure_distance(upper, lower, range(4, 10)).problem


def test_thicknesses_fit_all_distances_and_the_stated_ones_elsewhere():
    pairs = {(0, 1): Distance(15.0, 0.1), (2, 3): Distance(17.5, 0.1)}
    found = solve_thicknesses([16.0, 16.0, 16.0, 16.0], pairs)
    assert [planes for planes, _ in found] == pytest.approx([15, 16, 17.5, 16], abs=0.01)
    assert [std for _, std in found] == pytest.approx([0.1, 8, 0.1, 8], abs=0.01)
    # A distance across two sections shows the thickness of the other one.
    found = solve_thicknesses(
        [16.0, 16.0, 16.0], {(0, 1): Distance(15.0, 0.1), (0, 2): Distance(33.0, 0.1)}
    )
    assert [planes for planes, _ in found] == pytest.approx([15, 18, 16], abs=0.01)
