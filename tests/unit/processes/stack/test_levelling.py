"""Planes along a tilted surface are interpolated as SciPy does it, and are 0 beyond the image."""

import numpy as np
import pytest
from scipy import ndimage

from octane.processes.stack.levelling import TiltedPlanes, level_linear

SHAPE = (20, 30, 40)
INSIDE = (-0.5, SHAPE[0] - 0.5)


def tilted(at, slope=(0.11, -0.07), *, surface=-9.0, rows=slice(None), columns=slice(None)):
    """Planes tilted about the middle of an image; the surface lies above it unless given."""
    down, across = (
        step * np.linspace((1 - n) / 2, (n - 1) / 2, n)
        for step, n in zip(slope, SHAPE[1:], strict=True)
    )
    return TiltedPlanes(np.asarray(at, float), down[rows], across[columns], surface, INSIDE)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_planes_are_scipys_inside_and_0_beyond(rng, dtype):
    factor = 1 + 2j if dtype == "complex64" else 1
    image = (factor * (1 + rng.random(SHAPE))).astype(dtype)
    own = tilted(np.arange(-2, 22) + 0.3137)
    z = own.at[:, None, None] + own.down[:, None] + own.across
    inside = (z >= INSIDE[0]) & (z <= INSIDE[1])
    assert 0.2 < inside.mean() < 0.9
    found = level_linear(image, 0, own)
    assert found.dtype == dtype
    places = [z, *np.broadcast_arrays(*np.ogrid[: z.shape[0], : z.shape[1], : z.shape[2]])[1:]]
    expected = ndimage.map_coordinates(image, places, order=1, mode="nearest")
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-5)
    assert (found[~inside] == 0).all()


@pytest.mark.parametrize("surface", [-0.5, 3.0, 3.4])
def test_nothing_above_the_surface_is_mixed_into_planes_below(rng, surface):
    own = tilted(surface + 0.5 + np.arange(8), surface=surface)
    deeper = own.down[:, None] + own.across
    z = np.arange(SHAPE[0])[:, None, None]
    # NaN where the centre of a voxel lies above the surface.
    image = np.where(z < surface + deeper - 1e-9, np.nan, 1 + rng.random(SHAPE)).astype(np.float32)
    found = level_linear(image, 0, own)
    assert np.isfinite(found).all()
    assert (found[:, surface + deeper > 0] > 0).all()


def test_places_that_meet_voxels_copy_them_whatever_lies_next_to_them(rng):
    image = rng.normal(size=SHAPE).astype(np.float32)
    image[8, 4, 5] = np.inf
    down, across = np.arange(SHAPE[1]) // 3 - 3.0, np.zeros(SHAPE[2])
    found = level_linear(image, 0, TiltedPlanes(np.array([7 + 1e-9]), down, across, -9.0, INSIDE))
    rows = np.arange(SHAPE[1])
    np.testing.assert_array_equal(found[0], image[rows // 3 + 4, rows])


def test_an_infinite_part_of_a_complex_voxel_leaves_the_other_as_it_is():
    image = np.full(SHAPE, 2 + 3j, np.complex64)
    image[8, 4, 5] = complex(2, np.inf)
    image[8, 20, 5] = complex(np.inf, 3)
    found = level_linear(image, 0, tilted(np.arange(4, 12) + 0.5, (0.0, 0.01)))
    assert np.isinf(found.imag).sum() == np.isinf(found.real).sum() == 2
    assert (found.real[:, :10] == 2).all()
    assert (found.imag[:, 10:] == 3).all()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_any_part_of_an_image_gives_the_same_bits(rng, dtype):
    image = rng.normal(size=SHAPE).astype(dtype)
    at = np.arange(-3, 23) * 0.93 + 0.1
    whole = level_linear(image, 0, tilted(at, surface=2.2))
    for _ in range(40):
        planes, rows, columns = (
            slice(*np.sort(rng.choice(n + 1, 2, replace=False))) for n in whole.shape
        )
        own = tilted(at[planes], surface=2.2, rows=rows, columns=columns)
        needed = own.source_planes(SHAPE[0])
        part = np.full((needed.stop - needed.start, *SHAPE[1:]), np.nan, dtype)
        part[:] = image[needed]
        found = level_linear(part[:, rows, columns], needed.start, own)
        np.testing.assert_array_equal(found, whole[planes, rows, columns])
