"""octane's stages each alone over all tiles, and the whole, run as a process of its own.

``python _resample_stages.py REQUEST``, with JSON of: ``source`` (the OME-Zarr image), ``scratch``,
``resolution``, ``workers``, ``runs``. Prints the seconds of every run of reading, computing,
writing and the whole, one after the other in every round, so that what else the machine does falls
on all alike. A first round, in which compiled loops are loaded, is not counted.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from threading import local

import numpy as np
import numpy.typing as npt
from _resample_readers import streamed

from octane.config.params import ExecutionParameters, InputParameters, ResampleParameters
from octane.core.geometry import Grid, vector
from octane.pipeline.workers import run_tiles
from octane.resample.cpu import CompiledResampler
from octane.resample.operator import resampler
from octane.resample.resampler import resample
from octane.steps.resample import resample_image
from octane.store.image import Image, open_image
from octane.store.mosaic_grid import MosaicGrid, Tile
from octane.store.writer import Level, create_image


class Stages:
    """The stages over one mosaic grid whose tiles are all whole."""

    def __init__(self, image: Image, scratch: Path, resolution: float, workers: int) -> None:
        self.image, self.scratch, self.workers = image, scratch, workers
        self.resolution = resolution
        self.tiling = MosaicGrid.of(image)
        self.operators = [
            resampler(n, spacing, resolution)
            for n, spacing in zip(self.tiling.tile, image.grid.spacing, strict=True)
        ]
        # One for every worker, so that they do not share what is in the caches.
        self.voxels = [self.image.read(self.tiling.region(t)) for t in self.tiling.tiles[:workers]]
        self.results = [resample(voxels, self.operators) for voxels in self.voxels]
        self.reader = streamed(image)
        self.kept = local()

    def each(self, work: Callable[[Tile], object]) -> None:
        """Do it for every tile, one a worker at a time."""
        run_tiles(self.tiling.tiles, work, workers=self.workers)

    def number(self, tile: Tile) -> int:
        """Which of the tiles that are held stands for this one."""
        return (tile[0] * self.tiling.columns + tile[1]) % len(self.voxels)

    def read(self) -> None:
        """Read and decode, and let go."""
        self.each(lambda tile: self.reader(self.tiling.region(tile)))

    def compute(self) -> None:
        """Resample tiles that are in memory."""

        def work(tile: Tile) -> None:
            if not hasattr(self.kept, "resampler"):
                self.kept.resampler = CompiledResampler()
            voxels = self.voxels[self.number(tile)]
            plane = (voxels.shape[1], voxels.shape[2])
            self.kept.resampler.begin(self.operators, plane, voxels.dtype, voxels.dtype)
            self.kept.resampler.push(voxels)
            self.kept.resampler.finish()

        self.each(work)

    def write(self) -> None:
        """Encode and write results that are in memory."""
        small: npt.NDArray = self.results[0]
        nz, ny, nx = small.shape
        grid = Grid(
            (nz, ny * self.tiling.rows, nx * self.tiling.columns),
            vector(*(self.resolution,) * 3),
        )
        destination = self.scratch / "written.ome.zarr"
        level = Level(grid, (nz, ny, nx))
        codec = ResampleParameters().codec
        with create_image(destination, [level], np.float32, codec=codec) as (writer,):

            def work(tile: Tile) -> None:
                y, x = tile[0] * ny, tile[1] * nx
                writer[slice(0, nz), slice(y, y + ny), slice(x, x + nx)] = self.results[
                    self.number(tile)
                ]

            self.each(work)

    def total(self) -> None:
        """Resample the image as the step does."""
        resample_image(
            self.image.path,
            self.scratch / "written.ome.zarr",
            ResampleParameters.model_validate({"resolution": self.resolution}),
            InputParameters(),
            ExecutionParameters(backend="cpu", workers=self.workers),
        )


def main() -> None:
    """Time what the request names."""
    request = json.loads(sys.argv[1])
    stages = Stages(
        open_image(Path(request["source"])),
        Path(request["scratch"]),
        request["resolution"],
        request["workers"],
    )
    seconds: dict[str, list[float]] = {"read": [], "compute": [], "write": [], "total": []}
    for number in range(1 + request["runs"]):
        for name, found in seconds.items():
            start = time.perf_counter()
            getattr(stages, name)()
            spent = time.perf_counter() - start
            if number:
                found.append(spent)
            rmtree(stages.scratch / "written.ome.zarr", ignore_errors=True)
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
