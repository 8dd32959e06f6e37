"""The order of sections, by their faces."""

import pytest
from scipy import ndimage

from octane.processes.stack.faces import find_order_errors


@pytest.mark.parametrize(
    ("order", "exchanged", "repeated"),
    [
        ((0, 1, 2, 3, 4), [], []),
        ((0, 2, 1, 3, 4), [(1, 2)], []),
        ((1, 0, 2, 3, 4), [(0, 1)], []),
        ((0, 1, 1, 3, 4), [], [(1, 2)]),
        ((0, 1, 2, 1, 4), [], [(1, 3)]),
    ],
)
def test_sections_in_another_order_or_twice_are_found(rng, order, exchanged, repeated):
    planes = [ndimage.gaussian_filter(rng.normal(size=(60, 50)), 3) for _ in range(6)]
    faces = [
        [1 + plane + rng.normal(scale=0.01, size=plane.shape) for plane in planes[k : k + 2]]
        for k in order
    ]
    found = find_order_errors(faces, [True] * 4)
    assert (found.exchanged, found.repeated) == (exchanged, repeated)
    # Sections of other numbers need not match.
    assert find_order_errors(faces, [False] * 4) == ([], [])
