"""Images of several channels and time points: one is read, and it is the one that was chosen."""

import itertools

import numpy as np
import pytest
from zarr.codecs import GzipCodec

from octane.config.params import InputParameters
from octane.core.errors import OctaneError
from octane.store.image import open_image
from octane.store.volumes import open_volume

SHAPE = (6, 10, 9)
WHOLE = tuple(slice(0, n) for n in SHAPE)
PART = (slice(1, 6), slice(3, 9), slice(4, 5))
LABELS = ["DAPI", "GFP", "488"]

STORES = {
    "0.4 .": {"version": "0.4", "chunks": (1, 1, 4, 4, 4)},
    "0.4 /": {"version": "0.4", "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "0.4 uncompressed": {"version": "0.4", "chunks": (2, 2, 4, 4, 4), "compressors": None},
    "0.5": {"chunks": (1, 1, 6, 5, 5)},
    "0.5 v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "channels together": {"chunks": (2, 3, 4, 4, 4)},
    "shards": {"chunks": (1, 1, 3, 4, 4), "shards": (1, 2, 6, 8, 8)},
    "channels together in shards": {"chunks": (1, 2, 3, 4, 4), "shards": (2, 4, 6, 8, 8)},
    "by zarr": {"chunks": (2, 2, 4, 4, 4), "compressors": GzipCodec()},
}
"""Two time points of three channels, by the way that they are stored."""


@pytest.fixture
def voxels(rng):
    return rng.random((2, 3, *SHAPE), np.float32)


@pytest.fixture
def write(write_foreign, voxels):
    """Write an image of two time points of three channels."""

    def write(name="a.zarr", **options):
        given = {"version": "0.5", "axes": "tczyx", "labels": LABELS, "chunks": (1, 1, 4, 4, 4)}
        return write_foreign(name, voxels, **{**given, **options})

    return write


def opened(path, channel=None, timepoint=None, missing="error"):
    reading = InputParameters(channel=channel, timepoint=timepoint, missing_chunks=missing)
    return open_volume(path, reading)


@pytest.mark.parametrize("options", STORES.values(), ids=STORES)
def test_each_channel_and_time_point_is_read_however_it_is_stored(write, voxels, options):
    path = write(**options)
    for t, c in itertools.product(range(2), range(3)):
        image = opened(path, str(c), t)
        assert image.grid.shape == SHAPE
        assert image.grid.spacing == (10.0, 10.0, 10.0)
        assert image.missing_chunks() == []
        np.testing.assert_array_equal(image.read(WHOLE), voxels[t, c])
        out = np.empty((5, 6, 1), np.float32)
        np.testing.assert_array_equal(image.read(PART, out), voxels[t, c][PART])


@pytest.mark.parametrize("name", ["0.5", "shards"])
def test_only_what_is_read_must_be_there(write, voxels, name):
    # It holds voxels of channel 1, in shards of channel 0 as well.
    path, chunk = write(**STORES[name]), "0/c/1/1/0/0/0" if name == "0.5" else "0/c/1/0/0/0/0"
    (path / chunk).unlink()
    for channel, t in (("1", 0), ("2", 1)):
        assert opened(path, channel, t).missing_chunks() == []
        np.testing.assert_array_equal(opened(path, channel, t).read(WHOLE), voxels[t, int(channel)])
    assert opened(path, "1", 1).missing_chunks() == [chunk]
    with pytest.raises(OctaneError, match=f"chunk {chunk} is missing"):
        opened(path, "1", 1).read(WHOLE)
    filled = opened(path, "1", 1, missing="fill").read(WHOLE)
    assert not filled[:4, :4, :4].any()
    assert filled[:, 8:, 8:].all()


@pytest.mark.parametrize("axes", ["tczyx", "czyx", "tzyx", "qczyx"])
@pytest.mark.parametrize("reading", [None, InputParameters(), InputParameters(channel="0")])
def test_axes_of_one_place_are_left_out(write_foreign, voxels, axes, reading):
    path = write_foreign("a.zarr", voxels[0, 0].reshape((1, 1, *SHAPE)[-len(axes) :]), axes=axes)
    np.testing.assert_array_equal(open_image(path, reading).read(WHOLE), voxels[0, 0])


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ("czyx", "300 channels: 0, 1, .* 15 and 284 more; give one"),
        ("qzyx", "300 qs: .*; write one of them alone"),
        *((axes, "has the axes") for axes in ("tcyx", "cczyx", "qtczyx", "zyxc")),
    ],
)
def test_other_axes_are_refused(write_foreign, axes, words):
    path = write_foreign("a.zarr", np.zeros((300, *[1] * (len(axes) - 1)), "u1"), axes=axes)
    with pytest.raises(OctaneError, match=words):
        opened(path)


def test_a_number_goes_before_a_name_of_digits(write, voxels):
    found = opened(write(labels=["1", "0", "c"]), "0", 0).read(WHOLE)
    np.testing.assert_array_equal(found, voxels[0, 0])
