"""Section boundaries in a volume's metadata."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from octane.core.errors import InputError
from octane.layout.sections import (
    Section,
    distances,
    gaps,
    number_of,
    read_sections,
    rescale_sections,
    section_number,
)
from octane.store.image import open_image


def test_boundaries_follow_the_planes_and_a_volume_without_any_is_one_section():
    stack = [Section("a", 1, 0, 15), Section("b", 2, 15, 30), Section("c", 3, 30, 44)]
    assert [(s.start, s.stop) for s in rescale_sections(stack, 2.5, 18)] == [
        (0, 6),
        (6, 12),
        (12, 18),
    ]
    assert read_sections({}, 7) == read_sections({"sections": []}, 7)
    assert read_sections({}, 7) == [Section("volume", 1, 0, 7)]


@given(thicknesses=st.lists(st.integers(1, 50), min_size=1, max_size=12), factor=st.floats(0.2, 12))
def test_boundaries_stay_in_order_and_inside(thicknesses, factor):
    start, sections = 0, []
    for number, planes in enumerate(thicknesses, start=1):
        sections.append(Section("s", number, start, start + planes))
        start += planes
    planes = max(1, round(start / factor))
    moved = rescale_sections(sections, factor, planes)
    assert moved[0].start == 0
    assert moved[-1].stop == planes
    assert all(a.stop == b.start for a, b in pairwise(moved))


def test_gaps_are_the_numbers_between():
    assert gaps([4, 1, 7]) == [2, 3, 5, 6]
    assert gaps([5]) == []
    assert gaps([]) == []
    # Two dates in the names of stores.
    with refused("1", "20250101"):
        gaps([20250101, 1])


@pytest.mark.parametrize(
    ("edges", "words", "thickness"),
    [
        ({1: 5.0, 2: 135.0, 3: 265.0}, "130", True),
        # The stage may count downwards, and sections may be missing.
        ({7: 400.0, 3: 920.0, 5: 660.0, 4: 790.0}, "130", True),
        # Millimetres, in float32.
        ({n: 1000 * float(np.float32(0.13 * n)) for n in range(40)}, "130", True),
        ({n: round(30.4 * n) for n in range(40)}, "30.4103", True),
        ({1: 0.0, 2: 160.0}, "160", True),
        ({1: 0.0, 2: 161.0}, "161", False),
        ({1: 0.0, 2: 9.0}, "9", False),
        ({1: 0.0, 2: 130.0, 3: 390.0}, "130 to 260", False),
        ({1: 0.0, 2: 130.0, 3: 250.0}, "125", True),
        ({1: 0.0, 2: 130.0, 3: 245.0}, "115 to 130", False),
        ({1: 0.0, 2: 3.0, 3: 1.0}, None, False),
        ({1: 0.0, 2: 0.0}, None, False),
        ({1: 0.0}, None, False),
    ],
)
def test_distances_are_a_thickness_where_they_are_steady_and_were_imaged(edges, words, thickness):
    found = distances(edges)
    assert found is None if words is None else str(found) == words
    if found is not None:
        assert found.are_thickness(depth=160.0, voxel=10.0) == thickness


@pytest.mark.parametrize(
    ("name", "noted", "number"),
    [
        ("section_03.ome.zarr", {"section": {"number": 7}}, 7),
        ("section_03.ome.zarr", {"section": {"thickness": 70.0}}, 3),
        ("section_03.ome.zarr", {"section": {"number": 0}}, 0),
        ("tissue.ome.zarr", {}, None),
    ],
)
def test_what_is_noted_counts_before_the_name(write_image, name, noted, number):
    store = write_image(name, np.ones((4, 8, 8), np.float32), attributes=noted)
    assert number_of(open_image(store)) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("section_07.ome.zarr", 7),
        ("sub-01_section_12.ome.zarr", 12),
        ("2021-brain3-left.zarr", 3),
        ("007", 7),
        ("brain.ome.zarr", None),
        ("z00.zarr", 0),
        ("", None),
        ("section_07_10um.ome.zarr", 7),
        ("slice_z07_stitch_3d.ome.zarr", 7),
        ("sub-01.section_02.ome.zarr", 2),
        ("Slice 3 at 5x.zarr", 3),
    ],
)
def test_the_number_of_a_section_is_found_in_its_name(name, number):
    assert section_number(name) == number


def test_a_section_number_that_no_subject_reaches_is_refused():
    assert section_number("section_000000000000007.ome.zarr") == 7
    name = f"section_1{30 * '0'}.ome.zarr"
    with refused(name, error=InputError):
        section_number(name)
