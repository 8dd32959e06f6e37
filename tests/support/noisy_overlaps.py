"""Noise in the overlaps of one channel of a phantom, where nothing can be measured."""

import csv
from pathlib import Path

import numpy as np
import zarr

from octane.config.parameters import InputParameters
from octane.core.geometry import shape_of
from octane.layout.mosaic import MosaicGrid
from octane.store.image import open_image


def fill_overlaps(phantom: Path, channel: int) -> None:
    """Replace a channel's voxels by noise wherever another tile shows the same place."""
    rng = np.random.default_rng(channel)
    with (phantom / "positions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for number, store in enumerate(sorted((phantom / "mosaics").iterdir()), start=1):
        grid = MosaicGrid.of(open_image(store, InputParameters(channel=str(channel))))
        edges = {
            (int(row["row"]), int(row["column"])): np.array([float(row["y"]), float(row["x"])])
            for row in rows
            if int(row["section"]) == number
        }
        shapes = {tile: shape_of(grid.region(tile)) for tile in grid.tiles}
        array = zarr.open_array(store / "0")
        for tile, edge in edges.items():
            voxels = np.asarray(array[(channel, *grid.region(tile))])
            for other in edges.keys() - {tile}:
                # Voxels of this tile, from the other's first to its last.
                first = (edges[other] - edge) / grid.spacing[1:]
                last = first + shapes[other][1:]
                begin, end = np.floor(first).clip(0), np.ceil(last).clip(0)
                shared = tuple(map(slice, begin.astype(int), end.astype(int)))
                part = voxels[:, *shared]
                part[...] = rng.uniform(0, voxels.max(), part.shape)
            array[(channel, *grid.region(tile))] = voxels
