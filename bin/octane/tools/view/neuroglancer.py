"""Neuroglancer: its address and its state: layers for the channels of OME-Zarr images."""

import json
from collections.abc import Sequence
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote

import numpy as np

from octane.config.parameters import InputParameters
from octane.core.errors import InputError
from octane.store.channels import channel_names, is_nearest
from octane.store.formats.archive import is_archive
from octane.store.image import Image, open_image
from octane.store.ngff import Window, read_metadata
from octane.tools.view.server import HOST, name_port_errors

Json = dict[str, object]

DEMO = "https://neuroglancer-demo.appspot.com/"
"""Neuroglancer on the web: its program comes from there, the data do not go there."""

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
"""Types of voxels that neuroglancer shows."""
PANEL_PIXELS = 400
"""Pixels of a panel's edge, about, in which the volume should fit."""
SHADER = """\
#uicontrol invlerp brightness{limits}
#uicontrol vec3 color color(default="#{color}")
void main() {{ emitRGB(color * brightness({value})); }}
"""


class Source(NamedTuple):
    """An image, and its address for viewers."""

    path: Path
    address: str

    @property
    def url(self) -> str:
        """Neuroglancer's URL of the image."""
        return f"{self.address}|zip:|zarr:" if is_archive(self.path) else f"zarr://{self.address}/"


class Viewer(Protocol):
    """Part of a viewer of the Python package neuroglancer that octane uses."""

    def set_state(self, state: Json) -> object:
        """Set what the viewer shows."""
        ...

    def get_viewer_url(self) -> str:
        """Address of the viewer."""
        ...


def local_viewer(port: int = 0) -> Viewer | None:
    """Viewer of the Python package neuroglancer; None if that is not installed.

    The first one starts the package's server, at ``port`` or a free one (0), and an InputError says
    if the port cannot be opened. A viewer lives as long as the object.
    """
    try:
        import neuroglancer
    except ModuleNotFoundError:
        return None
    neuroglancer.set_server_bind_address(HOST, port)
    with name_port_errors(port):
        return neuroglancer.Viewer()


def show_state(viewer: Viewer | None, state: Json) -> str:
    """Address at which neuroglancer shows a state: the viewer's, or without one, on the web."""
    if viewer is None:
        return f"{DEMO}#!{quote(json.dumps(state, separators=(',', ':')))}"
    viewer.set_state(state)
    return viewer.get_viewer_url()


def state_of(sources: Sequence[Source]) -> Json:
    """Neuroglancer's state with the channels of the first image; those of others are hidden.

    Raises an InputError for an image that neuroglancer cannot show.
    """
    channels = [_open_channels(source.path) for source in sources]
    grid = channels[0][0].grid
    extent = max(n * s for n, s in zip(grid.shape, grid.spacing, strict=True)) / min(grid.spacing)
    axes = dict(zip("zyx", zip(grid.shape, grid.spacing, grid.origin, strict=True), strict=True))
    return {
        # In this order, the first panel shows x to the right and y down.
        "dimensions": {name: [axes[name][1], "um"] for name in "xyz"},
        "position": [o / s + (n - 1) / 2 for n, s, o in map(axes.__getitem__, "xyz")],
        "crossSectionScale": extent / PANEL_PIXELS,
        "projectionScale": 1.5 * extent,
        "crossSectionBackgroundColor": "#000000",
        "layout": "4panel",
        "layers": [
            layer
            for source, images in zip(sources, channels, strict=True)
            for layer in _layers(source, images, main=source is sources[0])
        ],
    }


def _open_channels(path: Path) -> list[Image]:
    """All channels of an image."""
    reading = InputParameters(channel="0", timepoint=0)
    first = open_image(path, reading)
    if first.dtype.name not in DTYPES:
        raise InputError(
            f"{path} holds {first.dtype.name}, which neuroglancer does not show; open it in "
            "napari, as docs/output.md says."
        )
    others = (str(index) for index in range(1, len(first.channels)))
    return [
        first,
        *(open_image(path, reading.model_copy(update={"channel": other})) for other in others),
    ]


def _layers(source: Source, channels: list[Image], *, main: bool) -> list[Json]:
    """One layer per channel; those of the main image are visible."""
    count = len(channels)
    metadata = read_metadata(source.path, None)
    windows = [*metadata.windows, *[None] * count]
    # Grey, if it is the only one.
    colors = [*(metadata.colors if count > 1 else []), *[None] * count]
    stem = source.path.name.split(".")[0]
    layers: list[Json] = []
    for index, name in enumerate(channel_names(channels[0].channels, count)):
        layer: Json = {
            "type": "image",
            "name": stem if count == 1 else name if main else f"{stem} {name}",
            "source": source.url,
            "shader": _shader(channels[index], windows[index], colors[index] or "FFFFFF"),
            "blend": "additive",
            "opacity": 1,
            "visible": main,
        }
        if count > 1:
            # Neuroglancer makes c an axis of the layer.
            layer["localPosition"] = [index]
        layers.append(layer)
    return layers


def _shader(image: Image, window: Window | None, color: str) -> str:
    return SHADER.format(
        limits=_limits(window, image.dtype),
        color=color,
        # Without an argument, neuroglancer interpolates.
        value="getDataValue()" if is_nearest(image.attributes) else "",
    )


def _limits(window: Window | None, dtype: np.dtype) -> str:
    """Parameters of the control of brightness; empty if only the type of voxels limits it."""
    if window is None:
        return ""
    start, end, low, high = window.start, window.end, window.min, window.max
    if dtype.kind != "f":
        # Neuroglancer refuses other values.
        start, low = floor(start), floor(low)
        end, high = max(ceil(end), start + 1), max(ceil(high), low + 1)
        info = np.iinfo(dtype)
        start, end, low, high = (min(max(v, info.min), info.max) for v in (start, end, low, high))
    return f"(range=[{start}, {end}], window=[{low}, {high}])"
