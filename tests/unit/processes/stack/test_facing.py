"""Facing planes: those that show the same tissue, where it was imaged and is comparable."""

import numpy as np
import pytest

from octane.processes.stack.facing import comparable_pixels, facing_planes
from octane.processes.stack.layout.stack import lay_out
from octane.processes.stack.parameters import StackParameters
from octane.store.image import open_image


@pytest.fixture
def laid_out(write_image, reading):
    """Grid and slabs of three sections of a thickness, each with 8 planes of 10 um."""

    def run(thickness, **noted):
        images = []
        for number in (1, 2, 3):
            section = {"number": number, "thickness": thickness, **noted}
            attributes = {"kind": "section", "section": section}
            path = write_image(
                f"section_{number}.ome.zarr", np.ones((8, 6, 8), np.float32), attributes=attributes
            )
            images.append(open_image(path, reading))
        boxes = [(image.grid.edge, image.grid.extent) for image in images]
        return lay_out(images, boxes, StackParameters(), images[0].grid.spacing)

    return run


@pytest.mark.parametrize(
    ("thickness", "expected"),
    [
        # Planes that the previous section imaged as well, two deeper; the third lacks a neighbour.
        (60.0, {1: ([0, 1], [6, 7], []), 2: ([6, 7], [12, 13], []), 3: ([12, 13], [18, 19], [])}),
        # No more than four.
        (30.0, {1: ([0, 1], [3, 4, 5, 6], []), 2: ([3, 4, 5], [6, 7, 8, 9], [])}),
        # No shared depth: the planes next to the faces show the change per plane.
        (80.0, {1: ([0, 1], [6, 7], [2, 3]), 2: ([8, 9], [14, 15], [10, 11])}),
    ],
    ids=["two shared", "many shared", "none shared"],
)
def test_neighbours_are_compared_on_planes_that_both_imaged(laid_out, thickness, expected):
    grid, slabs = laid_out(thickness)
    found = facing_planes(slabs, grid)
    assert [*found] == [1, 2, 3]
    for number, planes in expected.items():
        assert tuple(own.tolist() for own in found[number]) == planes


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ({}, ["1111", "1111", "1111"]),
        # y and x of the first and the last corner, micrometres; a pixel is 20 wide.
        ({"imaged": [[0, 0, 60, 45], [20, 40, 60, 80]]}, ["1100", "1111", "1111"]),
        ({"not_compared": [[0, 0, 25, 20]]}, ["0111", "0111", "1111"]),
    ],
    ids=["whole", "ragged", "without a tile"],
)
def test_what_was_not_imaged_is_not_compared(laid_out, noted, expected):
    grid, slabs = laid_out(60.0, **noted)
    found = comparable_pixels(slabs[0], grid, 2)
    assert ["".join(map(str, row)) for row in found.astype(int)] == expected
