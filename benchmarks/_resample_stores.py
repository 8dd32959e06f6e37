"""Mosaic grids that the resampling benchmarks read: OCT-like speckle, in stores of five kinds."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Literal

import numpy as np
import numpy.typing as npt
import zarr
from _common import cores
from numcodecs import Blosc

Shape = tuple[int, int, int]

SPACING = 3.5
"""Voxel size of the mosaics, micrometres."""
RESOLUTION = 10.0
"""Voxel size of the resampled mosaics, micrometres."""

KINDS = {
    "zstd": 1,
    "zstd, shards of 2 x 2": 2,
    "zstd, shards of 4 x 4": 4,
    "uncompressed": 1,
    "blosc-lz4 (zarr v2)": 1,
}
"""Kinds of store, and the number of tiles per shard along y and x."""


@dataclass(frozen=True)
class Mosaic:
    """A mosaic grid on disk.

    Attributes
    ----------
    path
        The OME-Zarr store; its array is ``0``.
    tile
        Voxels of a tile.
    tiles
        Number of tiles.
    bytes, stored_bytes
        Size in memory and on disk.
    """

    path: Path
    tile: Shape
    tiles: int
    bytes: int
    stored_bytes: int

    @property
    def ratio(self) -> float:
        """Bytes in memory over bytes on disk."""
        return self.bytes / self.stored_bytes

    def warm(self) -> None:
        """Read every file once, into the page cache."""
        for file in _files(self.path):
            with file.open("rb") as stream:
                while stream.read(1 << 24):
                    pass


def speckle(shape: Shape) -> npt.NDArray[np.float32]:
    """Intensity of four looks that decays with depth: float32, (z, y, x)."""
    values = np.random.default_rng(0).standard_gamma(4, shape, dtype=np.float32)
    values *= 250 * np.exp(-np.linspace(0, 2, shape[0], dtype=np.float32))[:, None, None]
    return values


@contextmanager
def mosaic(
    folder: Path,
    kind: str,
    tile: Shape,
    counts: tuple[int, int],
    name: str = "mosaic",
    *,
    dtype: npt.DTypeLike = np.float32,
    chunks: Shape | None = None,
) -> Generator[Mosaic]:
    """Write a mosaic grid of ``counts`` tiles along y and x, and remove it at the end.

    A tile is one chunk, or a shard of smaller ``chunks``. All tiles have the same speckle, rolled
    by different distances: for a codec that is as hard as independent speckle.
    """
    path = folder / f"{name}.ome.zarr"
    version = 2 if "v2" in kind else 3
    rows, columns = counts
    shape = (tile[0], tile[1] * rows, tile[2] * columns)
    per_shard = min(KINDS[kind], *counts)
    shard = (tile[0], tile[1] * per_shard, tile[2] * per_shard)
    chunks = tile if chunks is None else chunks
    group = zarr.open_group(path, mode="w", zarr_format=version)
    array = group.create_array(
        "0",
        shape=shape,
        chunks=chunks,
        shards=shard if shard != chunks else None,
        dtype=np.dtype(dtype),
        compressors=_compressors(kind),
    )
    noise = speckle(tile).astype(dtype)

    def write(corner: tuple[int, int]) -> None:
        block = np.empty(shard, dtype)
        for row in range(per_shard):
            for column in range(per_shard):
                number = (corner[0] + row) * columns + corner[1] + column
                block[
                    :,
                    row * tile[1] : (row + 1) * tile[1],
                    column * tile[2] : (column + 1) * tile[2],
                ] = np.roll(noise, (7 * number, 11 * number), (1, 2))
        y, x = corner[0] * tile[1], corner[1] * tile[2]
        array[:, y : y + block.shape[1], x : x + block.shape[2]] = block

    try:
        corners = [(r, c) for r in range(0, rows, per_shard) for c in range(0, columns, per_shard)]
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(write, corners))
        group.attrs.update(_attributes(version))
        stored = sum(file.stat().st_size for file in _files(path))
        size = int(np.prod(shape)) * array.dtype.itemsize
        yield Mosaic(path, tile, rows * columns, size, stored)
    finally:
        rmtree(path)


def _compressors(kind: str) -> Blosc | Literal["auto"] | None:
    if kind.startswith("zstd"):
        return "auto"
    if kind == "uncompressed":
        return None
    return Blosc(cname="lz4")


def _attributes(version: int) -> dict:
    multiscale = {
        "axes": [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"],
        "datasets": [
            {
                "path": "0",
                "coordinateTransformations": [{"type": "scale", "scale": [SPACING] * 3}],
            }
        ],
    }
    if version == 2:
        return {"multiscales": [{**multiscale, "version": "0.4"}]}
    return {"ome": {"version": "0.5", "multiscales": [multiscale]}}


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]
