"""Blocks of a section, blended from its tiles.

A block is cut into slabs of planes that the same tiles show, each with its own weights (y, x): one
slab, unless tiles are moved along z.
"""

from collections.abc import Collection
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from octane.core.geometry import Region, place_in, shape_of
from octane.layout.mosaic import Tile
from octane.layout.placement import TilePlacement, shown_planes
from octane.pipeline.lanes import Lane
from octane.processes.stitch.blending import TilePart, accumulate, choose, divide_by_weights
from octane.processes.stitch.flat_field import FlatField
from octane.processes.stitch.gains import Gains
from octane.processes.stitch.measurement import Mosaic


def blend_block(
    mosaic: Mosaic,
    placement: TilePlacement,
    empty: Collection[Tile],
    flat: FlatField | None,
    gains: Gains,
    region: Region,
    lane: Lane,
) -> npt.NDArray:
    """Blend one block of the section from its tiles, or choose its voxels, without empty tiles."""
    image, shape = mosaic.image, shape_of(region)
    total = lane.buffer("total", shape, mosaic.working)
    total[...] = 0
    tiles = _tiles_in(placement, empty, region)
    slabs = _slabs(region[0], tiles.values())
    weights = np.zeros((len(slabs), *shape[1:]), np.float32)
    dark = flat.dark if flat else 0.0
    for tile, planes in tiles.items():
        depth, places = placement.depth(tile), placement.places[tile]
        _, rows, columns = mosaic.tiling.region(tile)
        part = slice(planes.start - depth, planes.stop - depth), rows, columns
        if mosaic.voxels is not None:
            voxels, corner = mosaic.voxels, (part[0].start, rows.start, columns.start)
        else:
            with lane.timed("read"):
                voxels = image.read(part, lane.buffer("tile", shape_of(part), image.dtype))
            lane.metrics.count("read", voxels.nbytes)
            corner = 0, 0, 0
        with lane.timed("compute"):
            for slab, weight in zip(slabs, weights, strict=True):
                if not planes.start <= slab.start < planes.stop:
                    continue
                sums, place = total[place_in(region[:1], (slab,))], (slab, *region[1:])
                seen = TilePart(voxels, (corner[0] + slab.start - planes.start, *corner[1:]))
                if mosaic.nearest:
                    choose(sums, weight, place, seen, places)
                else:
                    gain = _gain(flat, gains.get(tile, 1.0))
                    accumulate(sums, weight, place, seen, places, gain=gain, dark=dark)
    if mosaic.nearest:
        return total
    with lane.timed("compute"):
        out = lane.buffer("blended", shape, image.dtype.newbyteorder("="))
        if len(slabs) == 1:
            return divide_by_weights(total, weights[0], out)
        for slab, weight in zip(slabs, weights, strict=True):
            here = place_in(region[:1], (slab,))
            out[here] = divide_by_weights(total[here], weight, out[here])
        return out


def _tiles_in(
    placement: TilePlacement, empty: Collection[Tile], region: Region
) -> dict[Tile, slice]:
    """Tiles in a block of the section, without empty ones, and those of its planes they show."""
    shown_slices = {}
    for tile, places in placement.places.items():
        spans = zip(places, region[1:], strict=True)
        if tile in empty or not all(p.first < r.stop and p.last > r.start for p, r in spans):
            continue
        planes = shown_planes(placement.grid.shape[0], placement.depth(tile))
        shown = slice(max(planes.start, region[0].start), min(planes.stop, region[0].stop))
        if shown.start < shown.stop:
            shown_slices[tile] = shown
    return shown_slices


def _slabs(planes: slice, shown: Collection[slice]) -> list[slice]:
    """Parts of a block's planes, in each of which every tile shows all planes or none."""
    ends = {planes.start, planes.stop, *(end for part in shown for end in (part.start, part.stop))}
    return [slice(*pair) for pair in pairwise(sorted(ends))]


def _gain(flat: FlatField | None, gain: float) -> npt.NDArray[np.float32] | np.float32 | None:
    """Factors that even out a tile of this gain, as :func:`accumulate` takes them."""
    factor = np.float32(1 / gain)
    if gain == 1:
        return flat.gain if flat else None
    return factor * flat.gain if flat else factor
