"""Neuroglancer's state: places, and layers with the names, colours and windows of channels."""

import json
from urllib.parse import unquote

import numpy as np
import pytest
from archives import pack
from refusals import refused

from octane.core.errors import InputError
from octane.core.geometry import Grid
from octane.store.ngff import ShownChannel, Window
from octane.store.writer import Level, create_image
from octane.tools.view import neuroglancer
from octane.tools.view.neuroglancer import DEMO, Source, show_state

GRID = Grid((4, 6, 8), (20.0, 10.0, 5.0), (1000.0, 200.0, -30.0))


def window(start, end, low, high):
    return Window(start=start, end=end, min=low, max=high)


def state_of(sources):
    """State as the viewer gets it."""
    return json.loads(json.dumps(neuroglancer.state_of(sources)))


@pytest.fixture
def source(tmp_path):
    """Write an image of zeros; return it with an address."""

    def write(name, dtype, channels=(), windows=()):
        path = tmp_path / f"{name}.ome.zarr"
        shape = (len(channels),) * bool(channels) + GRID.shape
        names = [channel["name"] for channel in channels]
        shown = [ShownChannel(window=window) for window in windows]
        noted, level = {"channels": channels}, Level(GRID, GRID.shape)
        with create_image(path, [level], dtype, attributes=noted, channels=names, shown=shown) as (
            writer,
        ):
            writer[tuple(slice(0, n) for n in shape)] = np.zeros(shape, dtype)
        return Source(path, f"http://localhost:1/{name}")

    return write


def test_a_volume_is_one_grey_layer_at_its_place(source):
    state = state_of([source("brain", "float32", windows=[window(0.5, 2.5, -1.0, 9.0)])])
    assert state["dimensions"] == {"x": [5.0, "um"], "y": [10.0, "um"], "z": [20.0, "um"]}
    # The middle between the centres of the first and the last voxel, in voxels.
    assert state["position"] == [-30 / 5 + 3.5, 200 / 10 + 2.5, 1000 / 20 + 1.5]
    (layer,) = state["layers"]
    assert (layer["name"], layer["visible"]) == ("brain", True)
    assert layer["source"] == "zarr://http://localhost:1/brain/"
    assert "brightness(range=[0.5, 2.5], window=[-1.0, 9.0])" in layer["shader"]
    assert 'color(default="#FFFFFF")' in layer["shader"]
    assert "localPosition" not in layer


def test_a_volume_in_one_file_has_the_url_of_its_archive(source):
    own = source("brain", "uint8")
    (layer,) = state_of([Source(pack(own.path), own.address)])["layers"]
    assert layer["source"] == "http://localhost:1/brain|zip:|zarr:"


def test_each_channel_is_a_layer_and_other_images_are_hidden(source):
    channels = [{"name": "OCT"}, {"name": "angle", "kind": "nearest"}]
    windows = [window(0.2, 0.4, 0.0, 7.5), window(3, 70000, -5, 70000)]
    own = source("brain", "uint16", channels, windows)
    state = state_of([own, source("brain_bias", "float32")])
    first, second, _ = state["layers"]
    assert [layer["name"] for layer in state["layers"]] == ["OCT", "angle", "brain_bias"]
    assert [layer["visible"] for layer in state["layers"]] == [True, True, False]
    assert {layer["blend"] for layer in state["layers"]} == {"additive"}
    assert (first["localPosition"], second["localPosition"]) == ([0], [1])
    # Integers within the type, and a range that is not empty.
    assert "range=[0, 1], window=[0, 8]" in first["shader"]
    assert "range=[3, 65535], window=[0, 65535]" in second["shader"]
    assert '"#00FF00"' in first["shader"]
    assert '"#FF00FF"' in second["shader"]
    # Angles are not averaged, either by the viewer.
    assert "brightness(getDataValue())" in second["shader"]
    assert "brightness())" in first["shader"]


def test_without_the_package_the_address_is_that_of_the_web_with_the_state(source):
    state = state_of([source("brain", "uint8")])
    site, _, shown = show_state(None, state).partition("#!")
    assert site == DEMO
    assert json.loads(unquote(shown)) == state


def test_a_viewer_gets_the_state(source):
    class Viewer:
        def set_state(self, state):
            self.state = state

        def get_viewer_url(self):
            return "http://localhost:2/v/0/"

    viewer, state = Viewer(), state_of([source("brain", "uint8")])
    assert show_state(viewer, state) == "http://localhost:2/v/0/"
    assert viewer.state == state


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_a_type_that_neuroglancer_does_not_show_is_named(source, dtype):
    with refused("brain.ome.zarr", dtype, error=InputError):
        state_of([source("brain", dtype)])
