"""The sixteen orders in which a stage visits the tiles of a section."""

from typing import cast

from octane.config.params import TileOrder
from octane.layout.mosaic import Tile


def tile_at(index: int, order: TileOrder, rows: int, columns: int) -> Tile:
    """Row and column of the tile that was imaged at ``index``, counted from 0.

    An order is named by what is imaged first (``rows``: a whole row before the next one), by
    ``snake`` (each second one in the opposite direction) or ``raster``, and by the first corner.
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


def changed_order(order: TileOrder, flip: str, *, transpose: bool) -> TileOrder:
    """Order after an exchange of rows and columns, and then of the ends of flipped axes."""
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
