"""Positions of tiles that fit the displacements measured in their overlaps best."""

from collections.abc import Mapping

import numpy as np

from octane.compare.correlation import TilePair
from octane.layout.mosaic import Position, Tile


def solve_positions(
    nominal: Mapping[Tile, Position],
    pairs: list[TilePair],
    max_shift: tuple[float, float],
    trust: float = 0.01,
) -> dict[Tile, Position]:
    """Positions in pixels that best fit all measured pairs, by weighted least squares.

    ``pairs`` were measured at the ``nominal`` positions, whose weight is ``trust``: it fixes tiles
    that no pair reaches, and the common offset, which pairs leave open. Corrections are clipped to
    ``max_shift`` in y and x.
    """
    tiles = list(nominal)
    column = {tile: i for i, tile in enumerate(tiles)}
    matrix = np.zeros((len(pairs) + len(tiles), len(tiles)))
    measured = np.zeros((len(pairs) + len(tiles), 2))
    for row, pair in enumerate(pairs):
        matrix[row, column[pair.second]] = pair.weight
        matrix[row, column[pair.first]] = -pair.weight
        # Content that appears displaced by +d in the second tile means the tile lies at -d.
        measured[row] = [-pair.weight * s for s in pair.shift]
    matrix[len(pairs) :] = np.eye(len(tiles)) * trust
    moves = np.linalg.lstsq(matrix, measured, rcond=None)[0].clip(
        [-m for m in max_shift], max_shift
    )
    return {
        tile: (nominal[tile][0] + float(dy), nominal[tile][1] + float(dx))
        for tile, (dy, dx) in zip(tiles, moves, strict=True)
    }
