"""Faces of sections: how brightness jumps where a section begins."""

from itertools import pairwise

import numpy as np
import pytest

from octane.compare.faces import Faces, boundaries, ends_of

SHAPE = (90, 110)


@pytest.fixture
def jumps(rng):
    """Jumps between sections of one tissue, with the given light on each plane."""
    tissue = rng.gamma(4.0, 0.25, SHAPE) + 10.0 * (np.hypot(*np.indices(SHAPE)) < 80)

    def run(lights, numbers=None, blended=0):
        starts = np.cumsum([0, *map(len, lights)])
        planes = [np.arange(a, a + len(own)) for a, own in zip(starts, lights, strict=False)]
        counts = [0, *[blended] * (len(lights) - 1)]
        own = map(ends_of, planes, counts)
        ends = dict(zip(numbers or range(1, len(lights) + 1), own, strict=True))
        faces = Faces(ends, SHAPE)
        volume = np.concatenate(lights)[:, None, None] * tissue
        # In blocks, as in a step.
        for first in range(0, len(volume), 7):
            block = volume[first : first + 7]
            area = (slice(0, SHAPE[0]), slice(0, SHAPE[1]))
            faces.add(block, np.arange(first, first + len(block)), area)
        return boundaries(faces)

    return run


DEPTH = np.arange(15)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("planes", [3, 6, 15])
def test_light_that_is_lost_with_depth_jumps_by_what_was_lost(jumps, loss, planes):
    light = np.exp(-loss * DEPTH[:planes])
    # In three planes both faces are the same, so changes within are unknown.
    lost = loss * planes if planes > 3 else 0.0
    assert jumps([light] * 3) == pytest.approx({2: np.exp(lost), 3: np.exp(lost)}, rel=1e-6)


def test_what_changes_as_much_within_sections_is_no_jump(jumps):
    light = np.exp(0.03 * np.arange(45))
    assert jumps(np.split(light, 3)) == pytest.approx({2: 1, 3: 1}, rel=1e-6)


def test_anatomy_that_changes_along_z_is_no_jump(jumps):
    # The change at boundaries equals that next to them, and reverses within each section.
    light = np.exp(0.3 * np.sin(2 * np.pi * np.arange(60) / 20))
    found = jumps(np.split(light, [17, 38]))
    assert found == pytest.approx({2: 1, 3: 1}, abs=0.02)


def test_a_section_of_other_brightness_jumps_at_both_sides(jumps):
    light = np.ones(15)
    assert jumps([light, 0.8 * light, light]) == pytest.approx({2: 0.8, 3: 1.25})


def test_without_tissue_or_the_section_before_nothing_is_said(jumps):
    light = np.ones(15)
    assert jumps([light]) == {}
    assert jumps([light, 0 * light, light]) == {}
    assert jumps([light, light, light], [1, 2, 4]) == pytest.approx({2: 1})


def ramped(lights, count, *, to=1.0):
    """Each section's light, reached from the previous one's over ``count`` planes."""
    weights = to * np.minimum((np.arange(len(lights[0])) + 0.5) / count, 1)
    weights[count:] = 1
    mixed = [
        np.exp((1 - weights) * np.log(before[-1]) + weights * np.log(own))
        for before, own in pairwise(lights)
    ]
    return [lights[0], *mixed]


@pytest.mark.parametrize("count", [2, 6, 16, 24])
def test_a_jump_that_is_blended_is_what_remains_from_face_to_face(jumps, count):
    light = np.ones(40)
    found = jumps(ramped([light, 0.5 * light], count), blended=count)
    # Faces of four planes, side by side: over a long ramp, they differ by four planes of it.
    assert found[2] == pytest.approx(0.5 ** min(0.75, 4 / count), rel=0.1)


def test_a_step_at_the_end_of_blended_planes_is_seen(jumps):
    light = np.ones(40)
    whole = ramped([light, 0.5 * light], 16)
    torn = ramped([light, 0.5 * light], 16, to=0.5)
    assert jumps(torn, blended=16)[2] < jumps(whole, blended=16)[2] * 0.9


def test_light_that_fades_in_sections_and_is_blended_jumps_less(jumps):
    light = np.exp(-0.05 * np.arange(30))
    weights = np.minimum((np.arange(30) + 0.5) / 12, 1)
    deeper = np.exp(-0.05 * (30 + np.arange(30)))
    lights = [light, *[(1 - weights) * deeper + weights * light] * 2]
    plain = jumps([light] * 3)
    blended = jumps(lights, blended=12)
    assert plain[2] == pytest.approx(np.exp(0.05 * 30), rel=1e-6)
    assert 1.2 < blended[2] < plain[2] ** 0.6


def test_a_section_that_is_blended_to_its_end_is_compared_all_the_same(jumps):
    light = np.ones(8)
    found = jumps(ramped([light, 0.5 * light, light], 8), blended=8)
    assert found[2] == pytest.approx(0.5 ** (4 / 8), rel=0.1)
