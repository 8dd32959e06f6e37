"""What the compression of the resampled mosaic costs, in RESAMPLE and in what reads it."""

import json
import statistics
import tempfile
import time
from pathlib import Path
from shutil import rmtree

from _common import cores, scratch_folder
from _processes import run
from _resample_end_to_end import command, warm_up
from _resample_scaling import SIDES
from _resample_stores import Mosaic, mosaic

from octane.pipeline.workers import run_tiles
from octane.store.image import open_image
from octane.store.mosaic_grid import MosaicGrid, Tile

__all__ = ["codecs"]

CODECS = ("zstd", "blosc-lz4", "none")


def codecs(quick: bool) -> dict[str, object]:
    """Resample a mosaic with every codec, and read the result, taking turns."""
    rounds = 2 if quick else 5
    tile, counts = ((256, 256, 256), (4, 4))
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        with warm_up(folder), mosaic(folder, "zstd", tile, counts) as source:
            source.warm()
            found = [
                {codec: once(folder, source, codec) for codec in CODECS} for _ in range(rounds)
            ]
    return {
        "tile": list(tile),
        "tiles": counts[0] * counts[1],
        "codecs": {
            codec: {
                name: statistics.median(figures[codec][name] for figures in found)
                for name in found[0][codec]
            }
            for codec in CODECS
        },
    }


def once(folder: Path, source: Mosaic, codec: str) -> dict[str, float]:
    """Seconds of the pipeline, of its writing and of reading the result, and its bytes."""
    destination, record = folder / "resampled.ome.zarr", folder / "resample.json"
    run(command(source.path, destination, record, cores(), codec))
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]["pipeline"]["RESAMPLE"]
    size = sum(file.stat().st_size for file in destination.rglob("*") if file.is_file())
    image = open_image(destination)
    tiling = MosaicGrid.of(image)

    def read(tile: Tile) -> None:
        image.read(tiling.region(tile))

    start = time.perf_counter()
    run_tiles(tiling.tiles, read, workers=cores())
    reading = time.perf_counter() - start
    rmtree(destination)
    return {
        "seconds": figures["seconds"],
        "write_seconds": sum(figures["lane_seconds"][stage] for stage in SIDES["write"]),
        "read_seconds": reading,
        "bytes": size,
    }
