"""Images are sampled linearly where a displacement places their pixels."""

import numpy as np
import pytest
from scipy import ndimage

from octane.processes.stack.layout.displacement import Displacement
from octane.processes.stack.sampling import sample_linear


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(40, 50), (2, 30), (1, 30), (1, 1)])
@pytest.mark.parametrize("rotation", [0.0, -3.0, 90.0])
def test_samples_are_scipys_inside_and_as_given_beyond(rng, dtype, shape, rotation):
    factor = 1 + 2j if dtype == "complex64" else 1
    images = (factor * rng.normal(size=(3, *shape))).astype(dtype)
    move, start = Displacement(rotation=rotation), (0.4, -2.7)
    at = move.apply(*np.indices((45, 55)).astype(float), (0, 0))
    places = [p + s for p, s in zip(at, start, strict=True)]
    inside = np.all([(p >= 0) & (p <= n - 1) for p, n in zip(places, shape, strict=True)], axis=0)
    found = sample_linear(images, start, move.turn, (45, 55), beyond=7.0)
    assert found.dtype == dtype
    for image, own in zip(images, found, strict=True):
        expected = ndimage.map_coordinates(image, places, order=1, mode="nearest")
        np.testing.assert_allclose(own[inside], expected[inside], rtol=1e-5, atol=1e-5)
    assert (found[:, ~inside].real == 7).all()


def test_an_infinite_part_of_a_complex_voxel_leaves_the_other_as_it_is():
    image = np.full((1, 4, 4), 2 + 3j, np.complex64)
    image[0, 1, 1] = complex(np.inf, 3)
    found = sample_linear(image, (0.5, 0.5), 1, (3, 3))
    assert np.isinf(found.real).sum() == 4
    assert (found.imag == 3).all()
