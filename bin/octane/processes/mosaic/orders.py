"""Orders in which a stage visits the tiles of a section, and flips of its rows and columns."""

from typing import cast

from octane.compare.orientation import Orientation
from octane.layout.mosaic import Tile
from octane.processes.mosaic.parameters import TRANSPOSE, TileFlip, TileOrder, TileParameters


def tile_at(index: int, order: TileOrder, rows: int, columns: int) -> Tile:
    """Row and column of the tile that was imaged at ``index``, counted from 0.

    The parts of an order are ``rows`` or ``columns``, whichever is completed first; ``snake``
    (every other one reversed) or ``raster``; and the corner of the first tile.
    """
    along, way, side, start = order.split("-")
    outer, inner = divmod(index, columns if along == "rows" else rows)
    if way == "snake" and outer % 2:
        inner = (columns if along == "rows" else rows) - 1 - inner
    row, column = (outer, inner) if along == "rows" else (inner, outer)
    return (
        rows - 1 - row if side == "bottom" else row,
        columns - 1 - column if start == "right" else column,
    )


def other_way(order: TileOrder) -> TileOrder:
    """The order with every other row or column reversed, or no longer."""
    along, way, side, start = order.split("-")
    way = "raster" if way == "snake" else "snake"
    return cast("TileOrder", f"{along}-{way}-{side}-{start}")


def changed_flip(p: TileParameters, change: Orientation) -> TileFlip:
    """Value of --tile_flip after a further change of the orientation."""
    before = p.flip_axes.translate(str.maketrans("yx", "xy")) if change.transpose else p.flip_axes
    flip = "".join(axis for axis in "yx" if (axis in before) != (axis in change.flip))
    words = [TRANSPOSE] * (p.transpose != change.transpose) + [flip] * bool(flip)
    return cast("TileFlip", "-".join(words))


def changed_order(order: TileOrder, flip: str, *, transpose: bool) -> TileOrder:
    """Order after rows and columns are exchanged, and then the axes in ``flip`` reversed."""
    along, way, side, start = order.split("-")
    if transpose:
        along = "columns" if along == "rows" else "rows"
        side, start = (
            "bottom" if start == "right" else "top",
            "right" if side == "bottom" else "left",
        )
    if "y" in flip:
        side = "top" if side == "bottom" else "bottom"
    if "x" in flip:
        start = "left" if start == "right" else "right"
    return cast("TileOrder", f"{along}-{way}-{side}-{start}")
