"""Microscope images with several channels, cut into overlapping tiles whose places are known."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import pytest
from tifffile import TiffFile, xml2dict
from tile_writers import Spacing, Tile, write_ome_tiff

PROJECT = Path(__file__).resolve().parents[2]
Offset = tuple[int, int]


@dataclass(frozen=True)
class CutImage:
    """An image (c, y, x), the names of its channels, and the pixels at which its tiles begin.

    ``overlap`` is the fraction of a tile by which neighbours would overlap on an exact stage.
    """

    voxels: npt.NDArray[np.uint16]
    channels: list[str]
    tile: tuple[int, int]
    overlap: float
    offsets: dict[Tile, Offset]

    def tile_voxels(self, tile: Tile) -> npt.NDArray[np.uint16]:
        """Voxels (c, z, y, x) of a tile."""
        (y, x), (height, width) = self.offsets[tile], self.tile
        return self.voxels[:, None, y : y + height, x : x + width]

    def single_pixels(self) -> npt.NDArray[np.bool_]:
        """Pixels (y, x) that exactly one tile shows."""
        count = np.zeros(self.voxels.shape[1:], int)
        for y, x in self.offsets.values():
            count[y : y + self.tile[0], x : x + self.tile[1]] += 1
        return count == 1

    def write(self, folder: Path, spacing: Spacing, *, one_file: bool) -> None:
        """Write OME-TIFFs: one per tile, or one per tile and channel."""
        folder.mkdir()
        for row, column in self.offsets:
            voxels, name = self.tile_voxels((row, column)), f"s1_r{row}_c{column}"
            if one_file:
                write_ome_tiff(folder / name, voxels, spacing, channels=self.channels)
                continue
            for channel, own in zip(self.channels, voxels, strict=True):
                write_ome_tiff(folder / f"{name}_{channel}", own, spacing)


def cut_image(name: str, tiles: tuple[int, int], *, error: int = 0) -> CutImage:
    """Cut an image of ndev-sampledata; ``error`` is the largest error of the stage in pixels."""
    archives = [*(PROJECT / ".tools" / "tiles").glob("ndev_sampledata-*.whl")]
    if not archives:
        pytest.skip(
            "the images of requirements/tiles.txt were not fetched: run tools/setup.sh test"
        )
    content = ZipFile(archives[0]).read(f"ndev_sampledata/samples/{name}.tiff")
    with TiffFile(BytesIO(content)) as file:
        voxels = file.asarray()
        noted = xml2dict(file.ome_metadata or "")["OME"]["Image"]["Pixels"]["Channel"]
    # Of four pixels, one overlaps: tiles and their pitch are whole pixels.
    sizes = zip(voxels.shape[1:], tiles, strict=True)
    height, width = (4 * int((n - 2 * error) / (3 * k + 1)) for n, k in sizes)
    rng, offsets = np.random.default_rng(1), {}
    for row in range(tiles[0]):
        for column in range(tiles[1]):
            moved = rng.integers(-error, error + 1, 2) if offsets else np.zeros(2, int)
            y, x = error + moved + (row * height * 3 // 4, column * width * 3 // 4)
            offsets[row, column] = (int(y), int(x))
    names = [str(channel["Name"]) for channel in noted]
    return CutImage(voxels, names, (height, width), 0.25, offsets)
