"""Section boundaries in a volume's metadata."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.store.sections import Section, noted_sections, read_sections, rescaled

STACK = [
    Section("section_01.ome.zarr", 1, 0, 15),
    Section("missing", 2, 15, 30, missing=True),
    Section("section_03.ome.zarr", 3, 30, 44),
]


def test_what_is_noted_is_read_again():
    assert read_sections({"sections": noted_sections(STACK)}, 44) == STACK


@pytest.mark.parametrize("attributes", [{}, {"sections": []}])
def test_a_volume_without_boundaries_is_one_section(attributes):
    assert read_sections(attributes, 7) == [Section("volume", 1, 0, 7)]


def test_boundaries_follow_the_planes():
    moved = rescaled(STACK, 2.5, 18)
    assert [(s.start, s.stop) for s in moved] == [(0, 6), (6, 12), (12, 18)]
    assert [s.name for s in moved] == [s.name for s in STACK]
    assert moved[1].missing


@given(
    thicknesses=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    factor=st.floats(0.2, 12),
)
def test_boundaries_stay_in_order_and_inside(thicknesses, factor):
    start, sections = 0, []
    for number, planes in enumerate(thicknesses, start=1):
        sections.append(Section("s", number, start, start + planes))
        start += planes
    planes = max(1, round(start / factor))
    moved = rescaled(sections, factor, planes)
    assert moved[0].start == 0
    assert moved[-1].stop == planes
    assert all(a.stop == b.start for a, b in pairwise(moved))
