"""Reading and decoding a mosaic's tiles by one reader, run as a process of its own.

``python _resample_readers.py REQUEST``, with JSON of: ``reader``, ``source`` (the OME-Zarr image),
``threads``, ``runs``. Prints the seconds that all tiles take, one tile a thread at a time, and
their number. Any Python that has the reader's packages will do.
"""

import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING

import numpy as np
from _resample_programs import Region, tile_regions
from _timing import timed

if TYPE_CHECKING:
    from octane.store.image import Image

__all__ = ["streamed"]

BATCH_BYTES = 1 << 20
"""Planes decoded at once, as by octane's workers."""

Reader = tuple[tuple[int, ...], tuple[int, ...], Callable[[Region], object]]
"""The array's shape, a tile's, and what reads a region."""


def zarr_python(request: dict) -> Reader:
    """Read by zarr-python as it comes."""
    import zarr

    array = zarr.open_array(f"{request['source']}/0", mode="r")
    return array.shape, array.chunks, array.__getitem__


def zarrs(request: dict) -> Reader:
    """Read by zarr-python with the codec pipeline of zarrs."""
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return zarr_python(request)


def tensorstore(request: dict) -> Reader:
    """Read by tensorstore, with as many threads as asked for."""
    import tensorstore as ts

    path = Path(request["source"]) / "0"
    driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
    limits = {"limit": request["threads"]}
    context = ts.Context({"data_copy_concurrency": limits, "file_io_concurrency": limits})
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    array = ts.open(spec, context=context, read=True).result()
    return (
        tuple(array.shape),
        tuple(array.chunk_layout.read_chunk.shape),
        lambda region: array[region].read().result(),
    )


def octane(request: dict) -> Reader:
    """Read by octane, every thread into a tile of its own that it uses again."""
    from octane.store.image import open_image

    image = open_image(Path(request["source"]))
    kept = local()

    def read(region: Region) -> object:
        if not hasattr(kept, "tile"):
            kept.tile = np.empty(image.array.chunks, image.dtype)
        return image.read(region, kept.tile)

    return image.array.shape, image.array.chunks, read


def octane_streamed(request: dict) -> Reader:
    """Read by octane a few planes at a time, as its workers do."""
    from octane.store.image import open_image

    image = open_image(Path(request["source"]))
    return image.array.shape, image.array.chunks, streamed(image)


def streamed(image: "Image") -> Callable[[Region], None]:
    """What reads a tile a few planes at a time, each over the ones before."""
    reader = image.reader
    if reader is None:
        raise RuntimeError(f"{image.path} is read through zarr, because {image.why_zarr}")
    depth, *plane = image.array.chunks
    planes = max(1, BATCH_BYTES // (math.prod(plane) * image.dtype.itemsize))
    kept = local()

    def read(region: Region) -> None:
        if not hasattr(kept, "batch"):
            kept.batch = np.empty((planes, *plane), image.dtype)
        position = tuple(r.start // n for r, n in zip(region, image.array.chunks, strict=True))
        with reader.stream(position) as stream:
            for first in range(0, depth, planes):
                stream.read_into(kept.batch[: depth - first])
            stream.drain()

    return read


READERS = {
    "octane": octane,
    "octane, streamed": octane_streamed,
    "zarr-python": zarr_python,
    "zarrs": zarrs,
    "tensorstore": tensorstore,
}


def main() -> None:
    """Time what the request names."""
    request = json.loads(sys.argv[1])
    shape, tile, read = READERS[request["reader"]](request)
    tiles = tile_regions(shape, tile)

    def work(region: Region) -> None:
        read(region)

    with ThreadPoolExecutor(request["threads"]) as pool:
        _, seconds = timed(lambda: list(pool.map(work, tiles)), request["runs"])
    sys.stdout.write(json.dumps({**seconds, "tiles": len(tiles)}) + "\n")


if __name__ == "__main__":
    main()
