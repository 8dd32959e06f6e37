"""Blending: the compiled loops give the bits of whole arrays, in any block."""

import numpy as np
import pytest

from octane.core.arrays import as_dtype
from octane.layout.placement import Placement
from octane.processes.stitch.blending import TilePart, accumulate, divide_by_weights, taper
from octane.resample.operator import interpolator, unchanged
from octane.resample.resampler import resample

SHAPE = (5, 40, 50)
PLACES = {
    "between voxels": (Placement(2.3, 30, 0.0, 8.4, 2, 33), Placement(-0.4, 37, 0.0, 9.0, 0, 37)),
    "between voxels of y": (Placement(9.6, 31, 8.4, 0, 9, 40), Placement(4.0, 36, 7.0, 0, 4, 40)),
    "on voxels": (Placement(8.0, 30, 8.4, 0.0, 8, 38), Placement(13.0, 37, 9.0, 0.0, 13, 50)),
    "one column": (Placement(1.5, 20, 0.0, 0.0, 1, 21), Placement(20.2, 1, 0.0, 0.0, 20, 21)),
}


def by_arrays(total, weights, tile, places, gain, dark):
    """Add a tile to a whole section."""
    area = tuple(slice(place.first, place.last) for place in places)
    y, x = (
        interpolator(np.arange(own.start, own.stop) - place.shift, place.count)
        for own, place in zip(area, places, strict=True)
    )
    weight = np.outer(
        *(taper(p, np.arange(own.start, own.stop)) for p, own in zip(places, area, strict=True))
    )
    values = resample(tile.astype(total.dtype), (unchanged(len(tile)), y, x))
    part = weight * resample(gain[None], (unchanged(1), y, x))[0]
    total[(slice(None), *area)] += values * part
    total[(slice(None), *area)] -= np.float32(dark) * part
    weights[area] += weight


def made(rng, shape, dtype):
    """Make values of any type, some of them not finite."""
    values = rng.normal(100, 60, shape)
    if np.dtype(dtype).kind not in "fc":
        return np.abs(values).astype(dtype)
    values.reshape(-1)[:60:20] = np.nan, np.inf, -np.inf
    return values.astype(dtype) + (1j * rng.normal(size=shape) if dtype == "complex64" else 0)


@pytest.mark.parametrize("dark", [0.0, 3.7])
@pytest.mark.parametrize("dtype", ["bool", "uint8", ">u2", "int32", "float16", "float32"])
def test_every_block_has_the_bits_of_whole_arrays(rng, dtype, dark):
    working = np.promote_types(dtype, np.float32).newbyteorder("=")
    total, weights = np.zeros(SHAPE, working), np.zeros(SHAPE[1:], np.float32)
    tiles = {}
    for name, places in PLACES.items():
        shape = SHAPE[0], *(place.count for place in places)
        tiles[name] = made(rng, shape, dtype), rng.uniform(0.5, 2, shape[1:]).astype(np.float32)
        by_arrays(total, weights, tiles[name][0], places, tiles[name][1], dark)
    with np.errstate(invalid="ignore"):
        whole = as_dtype(total / np.where(weights > 0, weights, 1), dtype)
    for rows, columns in ((slice(0, 23), slice(0, 31)), (slice(23, 40), slice(11, 50))):
        region = (slice(1, 4), rows, columns)
        own = np.zeros((3, rows.stop - rows.start, columns.stop - columns.start), working)
        sums = np.zeros(own.shape[1:], np.float32)
        out = np.empty(own.shape, np.dtype(dtype).newbyteorder("="))
        for name, (tile, gain) in tiles.items():
            # Within an array of several tiles.
            voxels = np.zeros(np.add(tile.shape, (0, 3, 2)), dtype)
            voxels[:, 3:, 2:] = tile
            seen = TilePart(voxels, (1, 3, 2))
            accumulate(own, sums, region, seen, PLACES[name], gain=gain, dark=dark)
        np.testing.assert_array_equal(own, total[region])
        with np.errstate(invalid="ignore"):
            found = divide_by_weights(own, sums, out)
        np.testing.assert_array_equal(found, whole[region])


def test_an_infinite_part_of_a_complex_value_stays_in_its_part(rng):
    places = PLACES["between voxels"]
    tile = made(rng, (2, 30, 37), "complex64")
    tile[0, 10, 10] = np.inf + 1j
    total = np.zeros((2, 40, 50), np.complex64)
    weights, region = np.zeros((40, 50), np.float32), (slice(0, 2), slice(0, 40), slice(0, 50))
    accumulate(total, weights, region, TilePart(tile, (0, 0, 0)), places, dark=2.0)
    for part, dark in (("real", 2.0), ("imag", 0.0)):
        alone, own = np.zeros(total.shape, np.float32), np.zeros_like(weights)
        real = np.ascontiguousarray(getattr(tile, part))
        accumulate(alone, own, region, TilePart(real, (0, 0, 0)), places, dark=dark)
        np.testing.assert_array_equal(getattr(total, part), alone)
