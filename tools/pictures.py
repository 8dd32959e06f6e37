#!/usr/bin/env python3
"""Draw all pictures of README.md and docs/*.md, from a phantom."""

import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

FONT = 9
"""Font size of all text, in points."""
DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path[1:1] = [str(DOCS.parent / "bin"), str(DOCS.parent / "benchmarks")]

from _common import scratch_folder  # noqa: E402
from _n4_truth import command, corrected, fifty, volume_of  # noqa: E402

from octane.layout.mosaic import MosaicGrid  # noqa: E402
from octane.pictures.charts import LIGHT_PALETTE  # noqa: E402
from octane.pictures.pictures import Slice, comparison, field_scale, grey_scale  # noqa: E402
from octane.processes.mosaic.orders import tile_at  # noqa: E402
from octane.processes.mosaic.parameters import TileOrder  # noqa: E402
from octane.store.image import open_image  # noqa: E402


def corrections(folder: Path) -> dict[str, bytes]:
    """Draw a volume before and after N4, the estimated field and the true one."""
    figures = corrected(folder, volume_of(folder), *fifty(2), "--n4_z_profile_gain")
    with np.load(folder / "n4.npz") as stored:
        shown = dict(stored)
    names = {"before": "before N4", "after": "after N4", "field": "field found by N4"}
    names["true_field"] = "true field"
    for name in ("field", "true_field"):
        # N4 does not determine the scale of the field; the picture shows its variation.
        mean = np.exp(np.mean([np.log(shown[f"{name}_{axis}"]).mean() for axis in "zy"]))
        shown.update({f"{name}_{axis}": shown[f"{name}_{axis}"] / mean for axis in "zy"})
    grey = grey_scale(shown[f"before_{axis}"] for axis in "zy")
    field = field_scale(shown[f"{n}_{a}"] for n in ("field", "true_field") for a in "zy")
    z, y, x = figures["preview_spacing"]

    def row(axis: str) -> list[Slice]:
        return [
            (title, shown[f"{name}_{axis}"], field if "field" in name else grey)
            for name, title in names.items()
        ]

    rows = [(row("z"), (y, x)), (row("y"), (z, x))]
    return {"n4.png": comparison(rows)}


def stitching(folder: Path) -> dict[str, bytes]:
    """Draw a section's tiles as stored, and the stitched section."""
    command("phantom", folder, "--sections", "1", "--shading", "0.25", "--bias", "0")
    (mosaic,) = (folder / "mosaics").glob("*.ome.zarr")
    command("stitch", mosaic, folder / "section.ome.zarr")
    stored, section = (open_image(path) for path in (mosaic, folder / "section.ome.zarr"))
    tile = MosaicGrid.of(stored).tile
    before, after = (image.array.opened[:].mean(axis=0) for image in (stored, section))
    grey = grey_scale([before, after])
    # A white line between tiles, 4 pixels wide.
    for axis, size in enumerate(tile[1:]):
        edges = range(size, before.shape[axis], size)
        before = np.insert(before, np.repeat(list(edges), 4), grey.high, axis=axis)
    titles = ("before: the tiles as they are stored", "after: the stitched section")
    slices = [(title, plane, grey) for title, plane in zip(titles, (before, after), strict=True)]
    return {"stitching.png": comparison([(slices, stored.grid.spacing[1:])])}


def flat_field(folder: Path) -> dict[str, bytes]:
    """Draw where four shaded tiles meet, before and after correction, and the flat field."""
    words = ("--sections", "1", "--shading", "0.5", "--bias", "0", "--speckle_looks", "100")
    command("phantom", folder, *words)
    (mosaic,) = (folder / "mosaics").glob("*.ome.zarr")
    shown = []
    for chosen in ("none", "estimate"):
        section, preview = folder / f"{chosen}.ome.zarr", folder / "preview.npz"
        command("stitch", mosaic, section, "--stitch_flat_field", chosen, "--preview", preview)
        # An area the size of a tile, around the corner where the first four meet.
        shown.append(open_image(section).array.opened[:, 51:179, 51:179].mean(axis=0))
    with np.load(preview) as stored:
        flat = stored["flat_field"]
    grey, light = grey_scale(shown), field_scale([flat])
    titles = ("before: where four tiles meet", "evened out", "flat field of a tile")
    scales = (grey, grey, light)
    slices = list(zip(titles, (*shown, flat), scales, strict=True))
    return {"flat_field.png": comparison([(slices, (4.0, 4.0))])}


def mosaic() -> dict[str, bytes]:
    """Draw a mosaic grid: the tiles as stored and as imaged, and the sections."""
    figure = Figure(figsize=(9.6, 3.6), dpi=120, layout="constrained")
    panels = figure.subplots(1, 3)
    titles = ("in the store: one chunk a tile", "in the tissue: tiles overlap", "sections along z")
    draw: list[Callable[[Axes], None]] = [_stored, _imaged, _sections]
    for axes, title, content in zip(panels, titles, draw, strict=True):
        content(axes)
        axes.set_title(title, fontsize=FONT)
        axes.set(aspect="equal", xlim=(-0.5, 3.1), ylim=(3.6, -0.5))
        axes.set_axis_off()
    stream = BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return {"mosaic.png": stream.getvalue()}


def orders() -> dict[str, bytes]:
    """Draw the way of the stage in each of the sixteen orders, in a section of 3 x 4 tiles."""
    figure = Figure(figsize=(9.6, 7.6), dpi=100, layout="constrained")
    for axes, order in zip(figure.subplots(4, 4).flat, get_args(TileOrder), strict=True):
        places = [tile_at(n, order, 3, 4) for n in range(12)]
        for n, (row, column) in enumerate(places, start=1):
            axes.add_patch(
                Rectangle(
                    (column, row), 1, 1, facecolor=LIGHT_PALETTE["accent"], alpha=0.15, linewidth=0
                )
            )
            axes.add_patch(
                Rectangle((column, row), 1, 1, fill=False, edgecolor=LIGHT_PALETTE["ink"])
            )
            _text(axes, column + 0.25, row + 0.27, str(n))
        y, x = np.array(places).T + 0.5
        steps = zip(x[:-1], y[:-1], np.diff(x), np.diff(y), strict=True)
        for left, top, right, down in steps:
            arrow = {"arrowstyle": "->", "color": LIGHT_PALETTE["accent"], "linewidth": 1.2}
            axes.annotate("", (left + right, top + down), (left, top), arrowprops=arrow)
        axes.set_title(order, fontsize=FONT)
        axes.set(aspect="equal", xlim=(-0.1, 4.1), ylim=(3.1, -0.1))
        axes.set_axis_off()
    stream = BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return {"orders.png": stream.getvalue()}


def _text(axes: Axes, x: float, y: float, words: str, **more: str) -> None:
    axes.text(x, y, words, **{"ha": "center", "va": "center", "fontsize": FONT} | more)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], name: str) -> None:
    arrow = {"arrowstyle": "<-", "color": LIGHT_PALETTE["ink"]}
    axes.annotate(name, start, end, fontsize=FONT, ha="center", va="center", arrowprops=arrow)


def _grid(axes: Axes, pitch: float, *, alpha: float) -> None:
    """Draw 3 by 3 unit tiles, and the directions of y and x."""
    for row in range(3):
        for column in range(3):
            place = (column * pitch, row * pitch)
            axes.add_patch(
                Rectangle(place, 1, 1, facecolor=LIGHT_PALETTE["accent"], alpha=alpha, linewidth=0)
            )
            axes.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=LIGHT_PALETTE["ink"]))
            _text(axes, place[0] + 0.5, place[1] + 0.5, f"{row}, {column}")
    _arrow(axes, (-0.2, -0.2), (1.3, -0.2), "x, columns")
    _arrow(axes, (-0.2, -0.2), (-0.2, 1.0), "y,\nrows")


def _stored(axes: Axes) -> None:
    _grid(axes, 1, alpha=0.15)
    _text(axes, 1.5, 3.25, "row, column of each tile")


def _imaged(axes: Axes) -> None:
    _grid(axes, 0.8, alpha=0.15)
    axes.annotate(
        "", (0.75, 2.75), (1.05, 2.75), arrowprops={"arrowstyle": "|-|", "mutation_scale": 3}
    )
    _text(axes, 1.3, 2.95, "overlap 0.2: a fifth of a tile")


def _sections(axes: Axes) -> None:
    for k in range(3):
        top = [(0.6, 1.1 * k), (2.8, 1.1 * k), (2.2, 0.5 + 1.1 * k), (0, 0.5 + 1.1 * k)]
        front = [(0, 0.5), (2.2, 0.5), (2.2, 1.2), (0, 1.2)]
        front = [(x, y + 1.1 * k) for x, y in front]
        side = [(2.2, 0.5), (2.8, 0), (2.8, 0.7), (2.2, 1.2)]
        side = [(x, y + 1.1 * k) for x, y in side]
        for face, alpha in ((top, 0.15), (front, 0.3), (side, 0.4)):
            axes.add_patch(Polygon(face, facecolor="white"))
            axes.add_patch(
                Polygon(
                    face,
                    facecolor=LIGHT_PALETTE["accent"],
                    edgecolor=LIGHT_PALETTE["ink"],
                    alpha=alpha,
                )
            )
        _text(axes, 1.1, 0.85 + 1.1 * k, f"section_{k + 1:02d}.ome.zarr")
    _arrow(axes, (-0.2, 0.5), (-0.2, 1.5), "z")


def main() -> None:
    """Write all pictures into docs/."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folders = [Path(scratch) / name for name in ("n4", "stitching", "flat")]
        made = corrections(folders[0]) | stitching(folders[1]) | flat_field(folders[2])
        made |= mosaic() | orders()
    for name, content in made.items():
        (DOCS / name).write_bytes(content)
        sys.stdout.write(f"{DOCS / name}: {len(content) / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
