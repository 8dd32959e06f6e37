"""A simulated microscope, which writes a phantom's tiles or mosaics as one does over weeks.

Files grow in steps, get their names at last or at once, and come in the order of a stage. Faults
can be planted: what a test expects of them is named by the section.
"""

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copy2

import numpy as np
import numpy.typing as npt
from tile_writers import tiles_of, write_ome_tiff

from octane.layout.mosaic import Tile
from octane.store.image import open_image

Change = Callable[[Tile, npt.NDArray], npt.NDArray]
"""A fault of the images: it gets a tile and its voxels."""


def laser_off(_: Tile, voxels: npt.NDArray) -> npt.NDArray:
    """What a detector shows without light."""
    noise = np.random.default_rng(voxels.size).normal(8, 2, voxels.shape)
    return np.abs(noise).astype(voxels.dtype)


def stage_slip(pixels: int) -> Change:
    """A stage that slipped before the second row of tiles, which show the tissue beside."""

    def change(tile: Tile, voxels: npt.NDArray) -> npt.NDArray:
        if tile[0] != 1:
            return voxels
        beside = np.pad(voxels, [(0, 0), (0, 0), (0, pixels)], "reflect")
        return np.ascontiguousarray(beside[:, :, pixels:])

    return change


@dataclass
class Microscope:
    """A microscope that writes into a folder.

    Attributes
    ----------
    mosaics
        Folder of the phantom's mosaics.
    folder
        Where to write.
    are_stores
        Write mosaics, not tiles in files.
    pause, cut
        Seconds between files, and between sections.
    faults
        Changes of a section's images, by its number.
    short
        Sections of which one file is cut short, by number.
    late
        Sections of which one tile comes when the next section has begun.
    rng
        Decides how files are written.
    """

    mosaics: Path
    folder: Path
    are_stores: bool = False
    pause: float = 0.0
    cut: float = 0.0
    faults: Mapping[int, Change] = field(default_factory=dict)
    short: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    ended: dict[int, float] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the sections."""
        return sorted(int(own.name[8:10]) for own in self.mosaics.glob("section_*.ome.zarr"))

    def write(self, numbers: list[int] | None = None) -> None:
        """Write sections; ``ended`` has the time of the last byte of each, by time.time."""
        self.folder.mkdir(exist_ok=True)
        kept: list[tuple[Path, bytes]] = []
        for number in numbers or self.numbers:
            files = self.files_of(number)
            if number in self.late:
                later, files = [files[-1]], files[:-1]
            else:
                later = []
            for place, (name, content) in enumerate(files):
                self.put(name, content)
                if place == 0:
                    for late in kept:
                        self.put(*late)
                time.sleep(self.pause)
            kept = later
            self.ended[number] = time.time()
            time.sleep(self.cut)
        for late in kept:
            self.put(*late)

    def files_of(self, number: int) -> list[tuple[Path, bytes]]:
        """Files of a section, in the order in which they come."""
        source = self.mosaics / f"section_{number:02d}.ome.zarr"
        if self.are_stores:
            found = sorted(path for path in source.rglob("*") if path.is_file())
            own = [(self.folder / p.relative_to(self.mosaics), p.read_bytes()) for p in found]
        else:
            own = self._tiles(number, source)
        if number in self.short:
            own[1] = (own[1][0], own[1][1][: len(own[1][1]) // 2])
        return own

    def _tiles(self, number: int, source: Path) -> list[tuple[Path, bytes]]:
        image = open_image(source)
        change = self.faults.get(number, lambda _, voxels: voxels)
        own = []
        scratch = self.folder.parent / f".{self.folder.name}_scratch"
        scratch.mkdir(exist_ok=True)
        for tile, voxels in sorted(tiles_of(image).items()):
            name = f"section_{number:02d}_y{tile[0]}_x{tile[1]}"
            made = write_ome_tiff(scratch / name, change(tile, voxels), image.grid.spacing)
            own.append((self.folder / made.name, made.read_bytes()))
            made.unlink()
        scratch.rmdir()
        return own

    def put(self, path: Path, content: bytes) -> None:
        """Write a file as some program does: at once, in pieces, or under another name first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        way = self.rng.choice(("once", "pieces", "renamed"))
        if way == "once":
            path.write_bytes(content)
            return
        place = path if way == "pieces" else path.with_name(f"{path.name}.part")
        step = max(1, len(content) // 3)
        with place.open("wb") as stream:
            for start in range(0, len(content), step):
                stream.write(content[start : start + step])
                stream.flush()
                time.sleep(self.pause / 10)
        if place != path:
            place.rename(path)


def rewrite(path: Path) -> None:
    """Replace a file by its copy, of another time."""
    own = path.stat()
    copy = path.with_name(f"{path.name}.part")
    copy2(path, copy)
    os.utime(copy, ns=(own.st_atime_ns, own.st_mtime_ns + 10**9))
    copy.rename(path)
