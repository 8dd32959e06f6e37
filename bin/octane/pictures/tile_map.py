"""Map of the tiles of a section: outlines, numbers and overlaps over a thumbnail, as SVG.

Lengths are in micrometres, pairs are (y, x), and y points down. The map is dark on every page,
because images are.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import atan2, cos, hypot, pi, sin
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from octane.core.errors import InputError
from octane.core.units import counted, format_lengths
from octane.pictures.charts import BOX, DARK_PALETTE, Mark
from octane.pictures.pictures import Scale, bar_of, grey_scale, in_mm, round_length, uri

logger = logging.getLogger(__name__)

Tile = tuple[int, int]
"""Row and column."""
Pair = tuple[float, float]
"""Along y and along x."""

MAP_EDGE = 640
"""Longest edge of the mapped area, pixels."""
LEFT, TOP, RIGHT, LINE = 40, 34, 14, 20
"""Margins around the area, and height of a line of the legend, pixels."""
NUMBERED_EDGE = 50
"""Smallest edge of a tile that shows its own row and column, pixels."""
NUMBER_DISTANCES = (13, 22)
"""Smallest distance of row and of column numbers, pixels."""
OUTLINE_MOVE = 1.0
"""Smallest move of a tile whose former outline is drawn, pixels."""
LONGEST_ARROW = 0.2
"""Longest arrow, in lengths of a tile."""
ARROW_HEAD = 4
"""Length of an arrow's head, pixels."""
ASSEMBLY_EDGE = 384
"""Longest edge of an assembled thumbnail, pixels."""
PREVIEWED_BYTES = 8e9
"""Most bytes of tiles that are read for a thumbnail."""
CROSSED, ARROW = f"{BOX}m0 0l24 10m0 -10l-24 10", "h24m-4 -2l4 2l-4 2"
"""Legend samples of a tile that was not imaged and of a move, drawn from the left end."""


def require_svg(preview: Path) -> None:
    """Raise an InputError unless a map's file ends in .svg."""
    if preview.suffix.lower() != ".svg":
        raise InputError(f"{preview} does not end in .svg; give --preview a name that does.")


class PlacedTile(NamedTuple):
    """A tile at its place: its first corner and its size, and its corner before refinement.

    ``fits`` is False for a tile that does not fit its neighbours.
    """

    tile: Tile
    corner: Pair
    extent: Pair
    imaged: bool = True
    before: Pair | None = None
    fits: bool = True

    @property
    def end(self) -> Pair:
        """The corner opposite to the first."""
        return self.corner[0] + self.extent[0], self.corner[1] + self.extent[1]

    @property
    def move(self) -> Pair:
        """Displacement by refinement."""
        y, x = self.before or self.corner
        return self.corner[0] - y, self.corner[1] - x


class Thumbnail(NamedTuple):
    """A coarse image (y, x) of the section: its first corner, and its extent."""

    values: npt.NDArray
    corner: Pair
    extent: Pair
    scale: Scale

    @classmethod
    def over(cls, tiles: Sequence[PlacedTile], values: npt.NDArray, scale: Scale) -> "Thumbnail":
        """Image of the area that the ``tiles`` cover."""
        corner, extent = _around([(placed.corner, placed.extent) for placed in tiles])
        return cls(values, corner, extent, scale)


def _around(boxes: Iterable[tuple[Pair, Pair]]) -> tuple[Pair, Pair]:
    """Corner and extent of the smallest box around ``boxes``, each a corner and an extent."""
    first, last = zip(*((corner, np.add(corner, extent)) for corner, extent in boxes), strict=True)
    low, high = np.min(first, axis=0), np.max(last, axis=0)
    (y, x), (height, width) = low.tolist(), (high - low).tolist()
    return (y, x), (height, width)


def placed_tiles(
    positions: Mapping[Tile, Pair],
    tile_extent: Pair,
    mosaic_extent: Pair,
    *,
    not_imaged: Collection[Tile] = (),
    before: Mapping[Tile, Pair] | None = None,
    misplaced: Collection[Tile] = (),
) -> list[PlacedTile]:
    """Tiles at their ``positions``, and at those ``before`` refinement.

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
            tile not in misplaced,
        )
        for tile, corner in positions.items()
    ]


def assemble_thumbnail(
    tiles: Sequence[PlacedTile], image_of: Callable[[Tile], npt.NDArray]
) -> Thumbnail:
    """Assemble a thumbnail of a section from its tiles, later ones on top.

    ``image_of`` returns a plane (y, x) of an imaged tile; one is kept in memory at a time.
    """
    low, extent = _around([(placed.corner, placed.extent) for placed in tiles])
    pixel = max(extent) / ASSEMBLY_EDGE
    values = np.zeros([max(1, round(n / pixel)) for n in extent], np.float32)
    for placed in tiles:
        if not placed.imaged:
            continue
        (top, left), (bottom, right) = (
            np.rint(np.subtract(corner, low) / pixel).astype(int)
            for corner in (placed.corner, placed.end)
        )
        here = values[top:bottom, left:right]
        if here.size:
            image = Image.fromarray(np.abs(image_of(placed.tile)).astype(np.float32))
            here[...] = image.resize(here.shape[::-1], Image.Resampling.HAMMING)
    return Thumbnail(values, low, extent, grey_scale([values]))


class _Area(NamedTuple):
    """The mapped area: its first corner, its extent, and pixels per micrometre."""

    corner: Pair
    extent: Pair
    zoom: float

    @classmethod
    def around(cls, tiles: Sequence[PlacedTile], thumbnail: Thumbnail | None) -> "_Area":
        boxes = [(placed.corner, placed.extent) for placed in tiles]
        boxes += [(placed.before, placed.extent) for placed in tiles if placed.before is not None]
        if thumbnail is not None:
            boxes.append((thumbnail.corner, thumbnail.extent))
        corner, extent = _around(boxes)
        return cls(corner, extent, MAP_EDGE / max(extent))

    def at(self, place: Pair) -> Pair:
        """Map a place to pixels, (y, x)."""
        y, x = ((p - c) * self.zoom for p, c in zip(place, self.corner, strict=True))
        return TOP + y, LEFT + x

    def box(self, corner: Pair, extent: Pair) -> str:
        """Draw a rectangle as a path."""
        (y, x), (height, width) = self.at(corner), (n * self.zoom for n in extent)
        return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"

    def cross(self, placed: PlacedTile) -> str:
        """Draw the diagonals of a tile."""
        (y, x), (height, width) = self.at(placed.corner), (n * self.zoom for n in placed.extent)
        return (
            f"M{x:.1f} {y:.1f}l{width:.1f} {height:.1f}m0 {-height:.1f}l{-width:.1f} {height:.1f}"
        )

    def arrow(self, placed: PlacedTile, times: float) -> str:
        """Draw the move of a tile from its former centre, enlarged by a factor."""
        (y, x), (height, width) = placed.before or placed.corner, placed.extent
        y, x = self.at((y + height / 2, x + width / 2))
        down, across = (n * times * self.zoom for n in placed.move)
        angle, length = atan2(down, across), min(ARROW_HEAD, hypot(down, across))
        head = "".join(
            f"M{x + across:.1f} {y + down:.1f}l{length * cos(side):.1f} {length * sin(side):.1f}"
            for side in (angle + pi - 0.5, angle + pi + 0.5)
        )
        return f"M{x:.1f} {y:.1f}L{x + across:.1f} {y + down:.1f}{head}"


def overlaps(tiles: Sequence[PlacedTile]) -> list[tuple[Pair, Pair]]:
    """Corner and extent of each overlap of neighbouring tiles, diagonal neighbours included."""
    at, corners = {placed.tile: placed for placed in tiles}, []
    for placed in tiles:
        row, column = placed.tile
        for down, across in ((0, 1), (1, -1), (1, 0), (1, 1)):
            other = at.get((row + down, column + across))
            if other is None or not (placed.imaged and other.imaged):
                continue
            top, left = map(max, placed.corner, other.corner)
            bottom, right = map(min, placed.end, other.end)
            if bottom > top and right > left:
                corners.append(((top, left), (bottom - top, right - left)))
    return corners


def _numbers(area: _Area, tiles: Sequence[PlacedTile], axis: int) -> list[tuple[float, int]]:
    """Place of each row's (axis 0) or column's number in the margin, except crowded ones."""
    centres: dict[int, list[float]] = {}
    for placed in tiles:
        centre = area.at(
            (placed.corner[0] + placed.extent[0] / 2, placed.corner[1] + placed.extent[1] / 2)
        )
        centres.setdefault(placed.tile[axis], []).append(centre[axis])
    shown: list[tuple[float, int]] = []
    for number in sorted(centres):
        place = float(np.median(centres[number]))
        if all(abs(place - other) >= NUMBER_DISTANCES[axis] for other, _ in shown[-1:]):
            shown.append((place, number))
    return shown


def arrow_scale(tiles: Sequence[PlacedTile]) -> float:
    """Factor by which arrows are longer than moves: 1, or 2, 5 or 10 times a power of ten."""
    largest = max((hypot(*placed.move) for placed in tiles), default=0.0)
    if largest == 0:
        return 1.0
    return max(
        1.0, round_length(LONGEST_ARROW * min(min(placed.extent) for placed in tiles) / largest)
    )


class Arrows(NamedTuple):
    """Arrows are ``times`` as long as moves; those below ``least`` micrometres have none."""

    times: float
    least: float


ALL_MOVES = Arrows(1.0, 0.0)
"""Arrows as long as the moves."""


def _marks(area: _Area, tiles: Sequence[PlacedTile], drawn: Arrows) -> list[Mark]:
    """Outlines and overlaps of tiles, and the moves of refined ones."""
    seen, lost = ([placed for placed in tiles if placed.imaged is kind] for kind in (True, False))
    refined = [placed for placed in seen if placed.before is not None]
    former = [placed for placed in refined if hypot(*placed.move) * area.zoom >= OUTLINE_MOVE]
    arrows, moves = "", ""
    if refined:
        largest = max(hypot(*placed.move) for placed in refined)
        moves = f"moved by refinement by up to {format_lengths([largest])}"
        if largest < drawn.least:
            moves += ", too little for arrows"
        elif drawn.times > 1:
            moves += f", arrows {drawn.times:g} times as long"
        moved = [
            placed for placed in refined if any(placed.move) and hypot(*placed.move) >= drawn.least
        ]
        arrows = "".join(area.arrow(placed, drawn.times) for placed in moved)
    astray = [placed for placed in seen if not placed.fits]
    odd = f"does not fit its neighbours: {len(astray)} of {counted(len(tiles), 'tile')}"
    gone = f"not imaged: {len(lost)} of {counted(len(tiles), 'tile')}" if lost else ""

    def outlines(shown: Iterable[PlacedTile]) -> str:
        return "".join(area.box(placed.corner, placed.extent) for placed in shown)

    return [
        Mark("".join(area.box(*box) for box in overlaps(tiles)), "accent", opacity=0.3),
        Mark(outlines(placed._replace(corner=placed.before) for placed in former if placed.before),
             "before", 0.8, dash="4 3"),
        Mark(outlines(seen), "accent", 1.2, "tile (row,column), overlaps shaded", sample=BOX),
        Mark(outlines(astray), "alarm", 2.4, odd * bool(astray), sample=BOX),
        Mark(outlines(lost) + "".join(map(area.cross, lost)), "alarm", 1.2, gone, sample=CROSSED),
        Mark(arrows, "card", 5),
        Mark(arrows, "before", 2, moves, sample=ARROW if arrows else ""),
    ]  # fmt: skip


def _words(area: _Area, tiles: Sequence[PlacedTile]) -> list[str]:
    """Names of the axes, and numbers of rows, columns and large enough tiles."""
    words = [
        _text(LEFT + 24, 13, "x →, column", "start", 11),
        _text(4, 13, "y ↓, row", "start", 11),
    ]
    words += [_text(LEFT - 8, y + 4, row, "end") for y, row in _numbers(area, tiles, 0)]
    words += [_text(x, TOP - 7, column) for x, column in _numbers(area, tiles, 1)]
    if min(min(placed.extent) for placed in tiles) * area.zoom >= NUMBERED_EDGE:
        for placed in tiles:
            # Above the arrow, which begins at the centre.
            (y, x), (height, width) = placed.corner, placed.extent
            down, across = area.at((y + 0.29 * height, x + 0.5 * width))
            words.append(_text(across, down, ",".join(map(str, placed.tile)), size=11))
    return words


def _text(x: float, y: float, text: object, anchor: str = "middle", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{text}</text>"


def _path(mark: Mark, path: str) -> str:
    colour = DARK_PALETTE[mark.colour]
    look = f'fill="{colour}" fill-opacity="{mark.opacity}"'
    if mark.width:
        look = f'stroke="{colour}" stroke-width="{mark.width}" stroke-dasharray="{mark.dash}"'
    return f'<path d="{path}" {look}/>'


def _image(area: _Area, thumbnail: Thumbnail) -> str:
    (y, x), (height, width) = area.at(thumbnail.corner), (n * area.zoom for n in thumbnail.extent)
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    picture = uri(thumbnail.scale.image(thumbnail.values))
    return f'<image {place} preserveAspectRatio="none" href="{picture}"/>'


def tile_map(
    tiles: Sequence[PlacedTile],
    thumbnail: Thumbnail | None = None,
    arrows: Arrows = ALL_MOVES,
    bar: bool | float = True,
) -> str:
    """Draw the tiles of a section as they are placed, with x to the right and y down, as SVG.

    Tiles that were not imaged are crossed out, and those that do not fit their neighbours have
    thick outlines. If any has a place ``before`` its refinement, ``arrows`` show the moves, and
    dashed outlines the former places. ``bar`` is the length of the scale bar in micrometres, or
    True for one that suits the picture.
    """
    area = _Area.around(tiles, thumbnail)
    marks, words = _marks(area, tiles, arrows), _words(area, tiles)
    drawn = [] if thumbnail is None else [_image(area, thumbnail)]
    drawn += [_path(mark, mark.path) for mark in marks if mark.path]
    y, length = (
        TOP + area.extent[0] * area.zoom + LINE,
        bar_of(max(area.extent)) if bar is True else float(bar),
    )
    line = Mark(f"M{LEFT} {y:.1f}h{length * area.zoom:.1f}", "ink", 3)
    drawn.append(_path(line, line.path))
    words.append(_text(LEFT + length * area.zoom + 8, y + 4, in_mm(length), "start"))
    for mark in marks:
        if mark.label:
            y += LINE
            if mark.sample:
                drawn.append(_path(mark, f"M{LEFT} {y:.1f}{mark.sample}"))
            words.append(_text(LEFT + 32, y + 4, mark.label, "start"))
    width, height = LEFT + MAP_EDGE + RIGHT, y + LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="octane" '
            f'viewBox="0 0 {width} {height:.0f}" '
            'font-family="system-ui,sans-serif" fill="none" stroke-linejoin="round" '
            f'stroke-linecap="round" style="background:{DARK_PALETTE["card"]}">',
            *drawn,
            f'<g fill="currentColor" color="{DARK_PALETTE["ink"]}" stroke="{DARK_PALETTE["card"]}" '
            'stroke-width="3" paint-order="stroke">',
            *words,
            "</g>",
            "</svg>\n",
        ]
    )


def preview_map(
    tiles: Sequence[PlacedTile], size: int, image_of: Callable[[Tile], npt.NDArray]
) -> str:
    """Map the tiles over a thumbnail of their planes, or alone if their ``size`` is too large.

    ``size`` is that of all voxels, bytes, and ``image_of`` returns a plane (y, x) of an imaged
    tile.
    """
    if size <= PREVIEWED_BYTES:
        return tile_map(tiles, assemble_thumbnail(tiles, image_of))
    logger.info("preview: the section is large, so its tiles are drawn without a thumbnail")
    return tile_map(tiles)
