"""Figures of MOSAIC that the report reads."""

from octane.core.records import Figures


class MosaicFigures(Figures):
    """Tiles that were written as mosaic grids: their files, and those that were not imaged."""

    files: int
    tiles: int
    not_imaged: int
