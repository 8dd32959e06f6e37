"""The data sets: what laboratories write, and what could mislead a measurement."""

from collections.abc import Sequence

import numpy as np
from _unstated_data import (
    WRITE_PITCH,
    Laboratory,
    Pattern,
    Plane,
    write_grid,
    write_one_set,
    write_placed_store,
)
from scipy import ndimage
from tile_writers import write_imagej, write_itk, write_planes, write_png, write_tiff

from octane.compare.orientation import Orientation

Y, X, BOTH = (Orientation(flip=flip) for flip in ("y", "x", "yx"))
SWAPPED = Orientation(transpose=True)
SWAPPED_Y = Orientation(transpose=True, flip="y")
SIZE = {"voxel_size": "10 5 5"}
STORES = {"tile_pattern": "section_{section}_r{row}_c{column}.ome.zarr"}


def _order(lab: str) -> dict[str, str]:
    return {"tile_order": f"rows-{lab}-top-left", "tile_rows": "3", "tile_columns": "3"}


def smooth(size: Sequence[int], sigma: float, seed: int) -> Plane:
    """Smooth noise of variance 1."""
    noise = np.random.default_rng(seed).normal(size=size)
    made = ndimage.gaussian_filter(noise, sigma, mode="wrap")
    return made / made.std()


def shading(size: Sequence[int]) -> Plane:
    """Light that falls to a third in the corners."""
    v, u = ((at + 0.5) / n - 0.5 for at, n in zip(np.indices(size), size, strict=True))
    return 1 - 1.3 * (v**2 + u**2)


def dust(size: Sequence[int]) -> Plane:
    """Dust of a camera."""
    made = np.zeros(size)
    at = np.random.default_rng(5).integers(0, size, (15, 2))
    made[at[:, 0], at[:, 1]] = 1
    made = ndimage.gaussian_filter(made, 3)
    return 1 - 0.5 * made / made.max()


def hot(size: Sequence[int]) -> Plane:
    """Hot pixels."""
    made = np.ones(size)
    at = np.random.default_rng(6).integers(0, size, (30, 2))
    made[at[:, 0], at[:, 1]] = 4
    return made


def fringes(strength: float) -> Pattern:
    """Fringes of interference, the same in all tiles."""

    def made(size: Sequence[int]) -> Plane:
        y, x = np.indices(size)
        return 1 + strength * np.cos(2 * np.pi * (y / 17 + x / 23))

    return made


def bordered(size: Sequence[int]) -> Plane:
    """A black border of 6 pixels."""
    made = np.zeros(size)
    made[6:-6, 6:-6] = 1
    return made


def agarose(size: Sequence[int]) -> Plane:
    """Nothing but the weak structure of agarose."""
    return 1 + 0.03 * smooth(size, 4, 7)


def stripes(size: Sequence[int]) -> Plane:
    """Fibres that repeat themselves."""
    y, x = np.indices(size)
    return 1 + 0.6 * np.cos(2 * np.pi * (y + x) / 25) + 0.05 * smooth(size, 3, 8)


FIRST = frozenset({1})

LABORATORIES = (
    Laboratory("OME-TIFF", rows=3, columns=4),
    Laboratory("OME-TIFF, places", places=True),
    Laboratory("OME-TIFF, places, y up", places=True, turn=Y),
    Laboratory("OME-TIFF, places, y up and x to the left", places=True, turn=BOTH, rows=4),
    Laboratory("OME-TIFF, places, y and x exchanged", places=True, turn=SWAPPED),
    Laboratory("OME-TIFF, rows upwards", turn=Y),
    Laboratory("OME-TIFF, columns leftwards", turn=X, columns=4),
    Laboratory("OME-TIFF, rows and columns exchanged", turn=SWAPPED, columns=4),
    Laboratory("OME-TIFF, exchanged, then upwards", turn=SWAPPED_Y, rows=4),
    Laboratory("OME-TIFF, numbered, places, y up", places=True, turn=Y, order="raster"),
    Laboratory("OME-TIFF, numbered in a snake", order="snake", remedies=_order("snake")),
    Laboratory("OME-TIFF sets, places", write_one_set, whole=True, places=True),
    Laboratory("OME-TIFF sets, places, y up", write_one_set, whole=True, places=True, turn=Y),
    Laboratory("ImageJ's TIFF, stage off by a voxel", write_imagej, stage=1),
    Laboratory("TIFF without a size", write_tiff, remedies=SIZE),
    Laboratory("planes as TIFF", write_planes, dtype="uint8", remedies=SIZE),
    Laboratory("planes as PNG, rows upwards", write_png, turn=Y, remedies=SIZE),
    Laboratory("NIfTI", write_itk(".nii.gz"), overlap=(0.25, 0.15)),
    Laboratory("MHA, float32, 40 %", write_itk(".mha"), dtype="float32", overlap=(0.4, 0.4)),
    Laboratory("NRRD, uint8, 1 look", write_itk(".nrrd"), dtype="uint8", looks=1.0),
    Laboratory("OME-Zarr tiles", write_placed_store, remedies=STORES),
    Laboratory(
        "OME-Zarr tiles, places, y up",
        write_placed_store,
        places=True,
        turn=Y,
        remedies=STORES,
    ),
    Laboratory("mosaic grids", write_grid, whole=True, overlap=(0.15, 0.3)),
    Laboratory("mosaic grids, pitch", WRITE_PITCH, whole=True),
    Laboratory("mosaic grids, rows upwards", write_grid, whole=True, turn=Y, table=True),
    Laboratory("tiles missing", gone=frozenset({(0, 0), (3, 3), (1, 2)}), rows=4, columns=4),
    Laboratory(
        "fewer tiles in other sections",
        fewer=frozenset({(0, 0), (0, 1), (0, 2)}),
        overlap=(0.25, 0.2),
        sections=3,
    ),
    Laboratory("1 x 1", rows=1, columns=1),
    Laboratory("1 x 7", rows=1, columns=7),
    Laboratory("2 x 2, one section", rows=2, columns=2, sections=1, overlap=(0.25, 0.25)),
    Laboratory("2 x 2, four sections", rows=2, columns=2, sections=4, overlap=(0.25, 0.25)),
    Laboratory("2 x 2, rows upwards", rows=2, columns=2, sections=4, turn=Y, overlap=(0.25, 0.25)),
    Laboratory("7 %", overlap=(0.07, 0.07)),
    Laboratory("7 %, large tiles", overlap=(0.07, 0.07), tile=(4, 240, 260), rows=2),
    Laboratory("first channel noise in overlaps", noisy=0, remedies={"channel": "1"}),
    Laboratory("second channel noise in overlaps", noisy=1, remedies={"channel": "0"}),
    Laboratory("first section without tissue", dark=FIRST, sections=3),
    Laboratory("four sections without tissue", dark=frozenset({1, 2, 3, 4}), sections=6),
    Laboratory("strong shading", pattern=shading),
    Laboratory("dust on the camera", pattern=dust),
    Laboratory("hot pixels", pattern=hot),
    Laboratory("weak fringes", pattern=fringes(0.1)),
    Laboratory("strong fringes", pattern=fringes(0.5)),
    Laboratory("black border", pattern=bordered),
    Laboratory("agarose", tissue=agarose),
    Laboratory("agarose, strong fringes", tissue=agarose, pattern=fringes(0.5), rows=1, columns=7),
    Laboratory("fibres that repeat", tissue=stripes),
)
