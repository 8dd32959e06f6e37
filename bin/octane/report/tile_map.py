"""Map of the tiles of a section: outlines, numbers and overlaps over a thumbnail, as SVG.

Lengths are in micrometres, pairs are (y, x), and y points down. The map is dark on every page,
because images are.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from octane.core.units import format_lengths
from octane.layout.mosaic import Position, Tile
from octane.report.charts import DARK
from octane.report.pictures import Scale, bar_of, grey_scale, rounded, uri

LONGEST = 640
"""Longest edge of the mapped area, pixels."""
LEFT, TOP, RIGHT, LINE = 40, 34, 14, 20
"""Margins around the area, and height of a line of the legend, pixels."""
NUMBERED = 34
"""Smallest edge of a tile that shows its own row and column, pixels."""
APART = (13, 22)
"""Smallest distance of row and of column numbers, pixels."""
MOVED = 1.0
"""Smallest move of a tile whose former outline is drawn, pixels."""
REACH = 0.4
"""Longest arrow, in lengths of a tile."""
HEAD = 4
"""Length of an arrow's head, pixels."""
THUMBNAIL = 384
"""Longest edge of an assembled thumbnail, pixels."""


class PlacedTile(NamedTuple):
    """A tile at its place: its first corner and its size, and its corner before refinement."""

    tile: Tile
    corner: Position
    extent: Position
    imaged: bool = True
    before: Position | None = None

    @property
    def end(self) -> Position:
        """The corner opposite to the first."""
        return self.corner[0] + self.extent[0], self.corner[1] + self.extent[1]

    @property
    def move(self) -> Position:
        """Displacement by refinement."""
        y, x = self.before or self.corner
        return self.corner[0] - y, self.corner[1] - x


class Thumbnail(NamedTuple):
    """A coarse image (y, x) of the section: its first corner, and its extent."""

    values: npt.NDArray
    corner: Position
    extent: Position
    scale: Scale


def placed_tiles(
    positions: Mapping[Tile, Position],
    tile_extent: Position,
    mosaic_extent: Position,
    *,
    not_imaged: Collection[Tile] = (),
    before: Mapping[Tile, Position] | None = None,
) -> list[PlacedTile]:
    """Tiles at their ``positions``, which were ``before`` their refinement elsewhere.

    ``tile_extent`` is the size of a full tile, and ``mosaic_extent`` that of all tiles side by
    side, whose last row and column may be cut.
    """

    def size(tile: Tile, axis: int) -> float:
        return min(tile_extent[axis], mosaic_extent[axis] - tile[axis] * tile_extent[axis])

    return [
        PlacedTile(
            tile,
            corner,
            (size(tile, 0), size(tile, 1)),
            tile not in not_imaged,
            (before or {}).get(tile),
        )
        for tile, corner in positions.items()
    ]


def assembled(tiles: Sequence[PlacedTile], image_of: Callable[[Tile], npt.NDArray]) -> Thumbnail:
    """Assemble a thumbnail of a section from its tiles, later ones on top.

    ``image_of`` returns a plane (y, x) of an imaged tile; one is kept in memory at a time.
    """
    low = np.min([own.corner for own in tiles], axis=0)
    extent = np.max([own.end for own in tiles], axis=0) - low
    pixel = float(extent.max()) / THUMBNAIL
    values = np.zeros(np.maximum(1, np.rint(extent / pixel).astype(int)), np.float32)
    for own in tiles:
        if not own.imaged:
            continue
        (top, left), (bottom, right) = (
            np.rint((np.array(corner) - low) / pixel).astype(int)
            for corner in (own.corner, own.end)
        )
        here = values[top:bottom, left:right]
        if here.size:
            image = Image.fromarray(np.abs(image_of(own.tile)).astype(np.float32))
            here[...] = image.resize(here.shape[::-1], Image.Resampling.HAMMING)
    y, x = low.tolist()
    height, width = extent.tolist()
    return Thumbnail(values, (y, x), (height, width), grey_scale([values]))


class _Area(NamedTuple):
    """The mapped area: its first corner, its extent, and pixels per micrometre."""

    corner: Position
    extent: Position
    zoom: float

    @classmethod
    def around(cls, tiles: Sequence[PlacedTile], thumbnail: Thumbnail | None) -> "_Area":
        boxes = [(own.corner, own.extent) for own in tiles]
        boxes += [(own.before, own.extent) for own in tiles if own.before is not None]
        if thumbnail is not None:
            boxes.append((thumbnail.corner, thumbnail.extent))
        low = np.min([corner for corner, _ in boxes], axis=0)
        extent = np.max([np.add(*box) for box in boxes], axis=0) - low
        (y, x), (height, width) = low.tolist(), extent.tolist()
        return cls((y, x), (height, width), LONGEST / max(height, width))

    def at(self, place: Position) -> Position:
        """Map a place to pixels, (y, x)."""
        y, x = ((p - c) * self.zoom for p, c in zip(place, self.corner, strict=True))
        return TOP + y, LEFT + x

    def box(self, corner: Position, extent: Position) -> str:
        """Draw a rectangle as a path."""
        (y, x), (height, width) = self.at(corner), (n * self.zoom for n in extent)
        return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"

    def cross(self, own: PlacedTile) -> str:
        """Draw the diagonals of a tile."""
        (y, x), (height, width) = self.at(own.corner), (n * self.zoom for n in own.extent)
        return (
            f"M{x:.1f} {y:.1f}l{width:.1f} {height:.1f}m0 {-height:.1f}l{-width:.1f} {height:.1f}"
        )

    def arrow(self, own: PlacedTile, times: float) -> str:
        """Draw the move of a tile from its former centre, ``times`` as long."""
        first, extent = own.before or own.corner, own.extent
        start = self.at((first[0] + extent[0] / 2, first[1] + extent[1] / 2))
        y, x = (start[k] + own.move[k] * times * self.zoom for k in (0, 1))
        angle = np.arctan2(y - start[0], x - start[1])
        sides = (angle + turn for turn in (np.pi - 0.5, np.pi + 0.5))
        head = "".join(
            f"M{x:.1f} {y:.1f}l{HEAD * np.cos(side):.1f} {HEAD * np.sin(side):.1f}"
            for side in sides
        )
        return f"M{start[1]:.1f} {start[0]:.1f}L{x:.1f} {y:.1f}{head}"


def overlaps(tiles: Sequence[PlacedTile]) -> list[tuple[Position, Position]]:
    """Corner and extent of what each tile shares with those next to it, diagonal ones included."""
    at, found = {own.tile: own for own in tiles}, []
    for own in tiles:
        row, column = own.tile
        for down, across in ((0, 1), (1, -1), (1, 0), (1, 1)):
            other = at.get((row + down, column + across))
            if other is None or not (own.imaged and other.imaged):
                continue
            low = np.maximum(own.corner, other.corner)
            extent = np.minimum(own.end, other.end) - low
            if (extent > 0).all():
                (y, x), (height, width) = low.tolist(), extent.tolist()
                found.append(((y, x), (height, width)))
    return found


def _numbers(area: _Area, tiles: Sequence[PlacedTile], axis: int) -> list[tuple[float, int]]:
    """Place of each row's (axis 0) or column's number in the margin, but for crowded ones."""
    centres: dict[int, list[float]] = {}
    for own in tiles:
        centre = area.at((own.corner[0] + own.extent[0] / 2, own.corner[1] + own.extent[1] / 2))
        centres.setdefault(own.tile[axis], []).append(centre[axis])
    shown: list[tuple[float, int]] = []
    for number in sorted(centres):
        place = float(np.median(centres[number]))
        if all(abs(place - other) >= APART[axis] for other, _ in shown[-1:]):
            shown.append((place, number))
    return shown


def _text(x: float, y: float, text: object, anchor: str = "middle", size: float = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:.0f}">{text}</text>'
    )


def _path(marks: Iterable[str], colour: str, width: float, more: str = "") -> str:
    drawn = "".join(marks)
    if not drawn:
        return ""
    return f'<path d="{drawn}" stroke="{DARK[colour]}" stroke-width="{width}" {more}/>'


def arrow_scale(tiles: Sequence[PlacedTile]) -> float:
    """Factor by which arrows are longer than the moves of tiles; 1, 2 or 5 times a power of ten."""
    moves = [float(np.hypot(*own.move)) for own in tiles]
    if not any(moves):
        return 1.0
    return max(1.0, rounded(REACH * min(map(min, (own.extent for own in tiles))) / max(moves)))


def tile_map(tiles: Sequence[PlacedTile], thumbnail: Thumbnail | None = None) -> str:
    """Draw the tiles of a section as they are placed, with x to the right and y down, as SVG.

    Tiles that were not imaged are crossed out. If any has a place ``before`` its refinement,
    arrows show its move.
    """
    area = _Area.around(tiles, thumbnail)
    height, width = (n * area.zoom for n in area.extent)
    lost = [own for own in tiles if not own.imaged]
    refined = [own for own in tiles if own.before is not None and own.imaged]
    times = arrow_scale(refined)
    former = [own for own in refined if np.hypot(*own.move) * area.zoom >= MOVED]
    edges = [min(own.extent) * area.zoom for own in tiles]
    drawn = []
    if thumbnail is not None:
        (y, x), (high, wide) = area.at(thumbnail.corner), thumbnail.extent
        drawn.append(
            f'<image x="{x:.1f}" y="{y:.1f}" width="{wide * area.zoom:.1f}" '
            f'height="{high * area.zoom:.1f}" preserveAspectRatio="none" '
            f'href="{uri(thumbnail.scale.image(thumbnail.values))}"/>'
        )
    shared = "".join(area.box(*box) for box in overlaps(tiles))
    drawn += [
        f'<path class="overlap" d="{shared}" fill="{DARK["accent"]}" fill-opacity=".3"/>'
        * bool(shared),
        _path(
            (area.box(own.before or own.corner, own.extent) for own in former),
            "before",
            0.8,
            'class="before" stroke-dasharray="4 3"',
        ),
        _path(
            (area.box(own.corner, own.extent) for own in tiles if own.imaged),
            "accent",
            1.2,
            'class="tile"',
        ),
        _path(
            (area.box(own.corner, own.extent) + area.cross(own) for own in lost),
            "alarm",
            1.2,
            'class="lost"',
        ),
        _path(
            (area.arrow(own, times) for own in refined if any(own.move)),
            "before",
            2,
            'class="arrow"',
        ),
    ]
    words = [
        _text(LEFT - 8, place + 4, number, "end") for place, number in _numbers(area, tiles, 0)
    ]
    words += [_text(place, TOP - 7, number) for place, number in _numbers(area, tiles, 1)]
    words += [_text(LEFT, 13, "x →, column", "start", 11), _text(4, TOP - 3, "y ↓", "start", 11)]
    if min(edges) >= NUMBERED:
        for own in tiles:
            y, x = area.at(own.corner)
            words.append(_text(x + 4, y + 13, ",".join(map(str, own.tile)), "start", 11))
    legend = _legend(area, tiles, lost, refined, times)
    whole = (LEFT + max(width, 320) + RIGHT, TOP + height + LINE * (len(legend) + 1))
    lines = [
        f'<g transform="translate({LEFT} {TOP + height + LINE * (k + 1):.1f})">{line}</g>'
        for k, line in enumerate(legend)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]:.0f} {whole[1]:.0f}" '
        f'font-family="system-ui,sans-serif" fill="none" stroke-linejoin="round" '
        f'stroke-linecap="round" style="background:{DARK["card"]}">\n'
        + "\n".join(filter(None, drawn))
        + f'\n<g fill="currentColor" color="{DARK["ink"]}" stroke="{DARK["card"]}" '
        + 'stroke-width="3" paint-order="stroke">\n'
        + "\n".join([*words, *lines])
        + "\n</g>\n</svg>\n"
    )


def _legend(
    area: _Area,
    tiles: Sequence[PlacedTile],
    lost: Sequence[PlacedTile],
    refined: Sequence[PlacedTile],
    times: float,
) -> list[str]:
    """Lines below the map: its scale, and what its marks mean."""
    length = bar_of(max(area.extent))
    bar = length * area.zoom

    def sample(path: str, colour: str, text: str, more: str = "") -> str:
        return f'<path d="{path}" stroke="{DARK[colour]}" {more}/>' + _text(32, 4, text, "start")

    lines = [
        f'<path d="M0 0h{bar:.1f}" stroke="{DARK["ink"]}" stroke-width="3"/>'
        + _text(bar + 10, 4, format_lengths([length]), "start"),
        sample("M0 -6h24v12h-24z", "accent", "tile (row,column), overlaps shaded"),
    ]
    if lost:
        lines.append(
            sample(
                "M0 -6h24v12h-24zl24 12M0 6l24 -12",
                "alarm",
                f"not imaged: {len(lost)} of {len(tiles)} tiles",
            )
        )
    if refined:
        largest = max(float(np.hypot(*own.move)) for own in refined)
        scale = f", arrows {times:g} times as long" if times > 1 else ""
        text = f"moved by refinement by up to {format_lengths([largest])}{scale}"
        lines.append(sample("M0 0h24M24 0l-4 -2M24 0l-4 2", "before", text, 'stroke-width="2"'))
    return lines
