"""Metadata of others: read where it is right, refused in one sentence where it is not."""

from pathlib import Path

import pytest

from octane.core.errors import OctaneError
from octane.store.ngff import finest_dataset

STORE = Path("a.ome.zarr")


def metadata(**changes):
    """Attributes of a good image, changed."""
    multiscale = {
        "axes": [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"],
        "datasets": [
            {
                "path": "0",
                "coordinateTransformations": [
                    {"type": "scale", "scale": [0.003, 0.002, 0.001]},
                    {"type": "translation", "translation": [1, 2, 3]},
                ],
            }
        ],
        **changes,
    }
    return {"multiscales": [multiscale]}


def test_lengths_become_micrometres():
    dataset = finest_dataset(STORE, metadata(), None)
    assert dataset.path == "0"
    assert dataset.spacing == pytest.approx((3, 2, 1))
    assert dataset.origin == pytest.approx((1000, 2000, 3000))


def test_a_transformation_of_all_resolutions_comes_after_the_own_one():
    common = [
        {"type": "scale", "scale": [2, 2, 2]},
        {"type": "translation", "translation": [1, 1, 1]},
    ]
    dataset = finest_dataset(STORE, metadata(coordinateTransformations=common), None)
    assert dataset.spacing == pytest.approx((6, 4, 2))
    assert dataset.origin == pytest.approx((3000, 5000, 7000))


def dataset_of(**changes):
    """One dataset with a scale, changed."""
    scale = [{"type": "scale", "scale": [1, 1, 1]}]
    return [{"path": "0", "coordinateTransformations": scale, **changes}]


@pytest.mark.parametrize(
    "attributes",
    [
        {"multiscales": {"axes": []}},
        metadata(datasets=[{"coordinateTransformations": []}]),
        metadata(datasets=dataset_of(coordinateTransformations=None)),
        metadata(
            datasets=dataset_of(coordinateTransformations=[{"type": "scale", "scale": ["a", 1, 1]}])
        ),
        metadata(datasets=dataset_of(coordinateTransformations=[{"type": "scale", "scale": [1]}])),
        metadata(
            datasets=dataset_of(
                coordinateTransformations=[
                    {"type": "scale", "scale": [1, 1, 1]},
                    {"type": "translation", "translation": [1, 2]},
                ]
            )
        ),
        metadata(coordinateTransformations=[{"type": "scale"}]),
    ],
)
def test_metadata_that_cannot_be_read_is_refused_with_the_store_and_a_remedy(attributes):
    with pytest.raises(OctaneError, match=r"^a\.ome\.zarr .*(correct it|add a scale)"):
        finest_dataset(STORE, attributes, None)
