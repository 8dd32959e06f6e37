"""Results in neuroglancer in a real browser: volumes drawn in the right place and colours."""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import pack

from octane.core.geometry import Grid
from octane.store.writer import Level, create_image
from octane.tools.view.neuroglancer import Source, local_viewer, show_state, state_of
from octane.tools.view.server import ResultsServer

PACKAGE = Path(__file__).resolve().parents[2] / ".tools" / "view"
"""Where tools/setup.sh installs neuroglancer."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless=new", "--no-first-run", "--remote-debugging-port=0", "--window-size=1000,900"),
    # WebGL without a GPU.
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    # The tests may run as root, and open only their own pages.
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

GRID = Grid((40, 60, 80), (20.0, 10.0, 10.0), (1000.0, 200.0, 300.0))
BOXES = (
    (slice(10, 26), slice(10, 30), slice(10, 50)),
    (slice(10, 26), slice(20, 50), slice(30, 70)),
)
"""Bright boxes, one per channel, which overlap."""


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw a store in a browser; return the pixels of neuroglancer's four panels of 400 each."""
    monkeypatch.syspath_prepend(PACKAGE)
    pytest.importorskip("neuroglancer", reason="neuroglancer is not installed; run make setup-test")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")

    def draw(path):
        viewer: Any = local_viewer()
        name = f"s/{path.name}"
        with ResultsServer({name: path}) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            server.redirects["s"] = show_state(
                viewer, state_of([Source(path, server.address(name))])
            )
            browser = subprocess.Popen(
                [program, *OPTIONS, f"--user-data-dir={tmp_path / 'browser'}", server.address("s")],
                env={**os.environ, "HOME": str(tmp_path)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                # Neuroglancer answers when all visible chunks are drawn.
                return viewer.screenshot(size=[800, 800]).screenshot.image_pixels[..., :3]
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()
                thread.join()

    return draw


def write(path, values, dtype, channels=()):
    """Write boxes of these values, in a channel of its own each, or in one image without."""
    level = Level(GRID, (16, 16, 16), (32, 32, 32))
    shape = (len(channels),) * bool(channels) + GRID.shape
    voxels = np.zeros(shape, dtype)
    for at, (box, value) in enumerate(zip(BOXES, values, strict=False)):
        voxels[(at, *box) if channels else box] = value
    with create_image(path, [level], dtype, channels=channels) as (writer,):
        writer[tuple(slice(0, n) for n in shape)] = voxels
    return path


def panel(pixels, row, column, axes):
    """Colours at the voxels of a panel's plane, by their index along its (vertical, horizontal).

    The volume's longest side, 800 um, fills a panel of 400 pixels; the middle is in its middle.
    """
    (height, tall), (width, wide) = ((GRID.shape[a], GRID.spacing[a]) for a in axes)
    y = 200 + (np.arange(height) + 0.5 - height / 2) * tall / 2
    x = 200 + (np.arange(width) + 0.5 - width / 2) * wide / 2
    return pixels[400 * row : 400 * row + 400, 400 * column : 400 * column + 400][
        np.ix_(y.astype(int), x.astype(int))
    ]


def assert_drawn(found, boxes, colors, axes):
    """Compare all voxels of a plane but those below the lines of the axes and the frame."""
    expected = np.zeros(found.shape, int)
    for box, color in zip(boxes, colors, strict=True):
        expected[tuple(box[a] for a in axes)] += color
    wrong = np.abs(found.astype(int) - expected).max(axis=2) > 8
    # Two lines from the middle, and the frame.
    assert wrong.mean() < 0.05
    assert not wrong[2 : wrong.shape[0] // 2 - 1, 2:-2].any()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_channels_are_drawn_in_their_colours_where_they_are(drawn, tmp_path):
    path = write(tmp_path / "a.ome.zarr", (1000, 2000), "uint16", ("OCT", "GFP"))
    pixels = drawn(path)
    colors = ((0, 255, 0), (255, 0, 255))
    assert_drawn(panel(pixels, 0, 0, (1, 2)), BOXES, colors, (1, 2))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_one_channel_in_one_file_is_drawn_in_grey_where_it_is(drawn, tmp_path):
    pixels = drawn(pack(write(tmp_path / "a.ome.zarr", (5.0,), "float32")))
    assert_drawn(panel(pixels, 0, 0, (1, 2)), BOXES[:1], [(255, 255, 255)], (1, 2))
