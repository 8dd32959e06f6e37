"""Numbers of sections, the gaps between them, and what may be stacked."""

from pathlib import Path

import numpy as np
import pytest

from octane.core.errors import OctaneError
from octane.core.geometry import vector
from octane.store.image import open_image
from octane.store.numbering import Voxels, gaps, number_of, require_alike

FLOAT = np.dtype(np.float32)


def test_gaps_are_the_numbers_between():
    assert gaps([4, 1, 7]) == [2, 3, 5, 6]
    assert gaps([5]) == []
    assert gaps([]) == []


@pytest.mark.parametrize(
    ("name", "noted", "number"),
    [
        ("section_03.ome.zarr", {"section": {"number": 7}}, 7),
        ("section_03.ome.zarr", {"section": {"thickness": 70.0}}, 3),
        ("section_03.ome.zarr", {}, 3),
        ("tissue.ome.zarr", {}, None),
    ],
)
def test_what_is_noted_counts_before_the_name(write_image, name, noted, number):
    store = write_image(name, np.ones((4, 8, 8), np.float32), attributes=noted)
    assert number_of(open_image(store)) == number


def test_sections_of_one_voxel_size_and_type_are_alike():
    near = vector(10, 10, 10.000001)
    require_alike([Voxels(Path("a"), vector(10, 10, 10), FLOAT), Voxels(Path("b"), near, FLOAT)])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Voxels(Path("b"), vector(10, 10, 20), FLOAT), "b has another voxel size than a; resample"),
        (Voxels(Path("b"), vector(10, 10, 10), np.dtype("u2")), "b is uint16 and a is float32"),
    ],
)
def test_others_are_refused_by_name(other, words):
    with pytest.raises(OctaneError, match=words):
        require_alike([Voxels(Path("a"), vector(10, 10, 10), FLOAT), other])
