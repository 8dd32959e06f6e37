"""Resampling and reading by octane and by others, each run in a separate process.

``python _resample_peers.py REQUEST``: the request is JSON with one of three keys. It needs a Python
with the packages of the requested method. The last line of output is JSON with the seconds.

``method``
    Resampling of one tile in memory; with ``tile`` and ``result`` (.npy), ``spacing``, ``target``,
    ``shape`` (of the result), ``runs``.
``reader``
    Reading and decoding of all tiles of a mosaic, one tile at a time per thread; with ``source``
    (the OME-Zarr image), ``tile`` (its voxels), ``threads``, ``runs``.
``program``
    Resampling of a mosaic from store to store; with ``source`` (the array), ``destination``,
    ``small`` (the array of a small mosaic, which is resampled first so that all code is loaded),
    ``factor`` (target over source spacing), ``cores``.

All programs write one chunk per tile with zarr's default compression. Their results differ:
linumpy's ``zoom`` is aligned with the corners, ngff-zarr smooths across the tiles,
ngff-zarr and tensorstore shrink by an integer, and a mean is less work than a Gaussian.
"""

import itertools
import json
import math
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from threading import local

import numpy as np
from _timing import timed

Region = tuple[slice, ...]
Tile = np.ndarray


def tile_regions(shape: tuple[int, ...], tile: tuple[int, ...]) -> list[Region]:
    """Regions of all tiles in raster order."""
    starts = itertools.product(*(range(0, n, t) for n, t in zip(shape, tile, strict=True)))
    return [
        (slice(z, z + tile[0]), slice(y, y + tile[1]), slice(x, x + tile[2])) for z, y, x in starts
    ]


def zoomed(tile: Tile, request: dict) -> Tile:
    """The method of linumpy: scipy's Gaussian, and its zoom, which is aligned with the corners."""
    from scipy.ndimage import gaussian_filter, zoom

    smooth = gaussian_filter(tile, sigma=(request["target"] / request["spacing"] - 1) / 2)
    factors = [m / n for m, n in zip(request["shape"], tile.shape, strict=True)]
    return zoom(smooth, factors, order=1)


def affine(tile: Tile, request: dict) -> Tile:
    """The Gaussian of scipy, and its affine map at pixel-centred positions."""
    from scipy.ndimage import affine_transform, gaussian_filter

    factor = request["target"] / request["spacing"]
    smooth = gaussian_filter(tile, sigma=(factor - 1) / 2)
    offset = [
        (n - 1) / 2 - (m - 1) / 2 * factor
        for n, m in zip(tile.shape, request["shape"], strict=True)
    ]
    return affine_transform(
        smooth, [factor] * 3, offset, tuple(request["shape"]), order=1, mode="reflect"
    )


def resized(tile: Tile, request: dict) -> Tile:
    """scikit-image's anti-aliased resize, whose step is the ratio of the numbers of voxels."""
    from skimage.transform import resize

    return resize(tile, tuple(request["shape"]), order=1, anti_aliasing=True, preserve_range=True)


def octane_tile(tile: Tile, request: dict) -> Callable[[], Tile]:
    """Resample as a worker of octane does; operators and buffers exist beforehand."""
    from octane.resample.cpu import CompiledResampler
    from octane.resample.operator import resampler

    operators = [resampler(n, request["spacing"], request["target"]) for n in tile.shape]
    worker = CompiledResampler()

    def work() -> Tile:
        worker.begin(operators, (tile.shape[1], tile.shape[2]), tile.dtype, tile.dtype)
        worker.push(tile)
        return worker.finish()

    return work


METHODS: dict[str, Callable[[Tile, dict], Callable[[], Tile]]] = {
    "octane": octane_tile,
    "zoom": lambda tile, request: partial(zoomed, tile, request),
    "affine": lambda tile, request: partial(affine, tile, request),
    "skimage": lambda tile, request: partial(resized, tile, request),
}


def time_method(request: dict) -> dict:
    """Time the calls of a method, and store its result."""
    tile = np.load(request["tile"])
    result, seconds = timed(METHODS[request["method"]](tile, request), request["runs"])
    np.save(request["result"], result)
    return seconds


BATCH_BYTES = 1 << 20
"""Bytes of planes that are decoded at once, as by octane's workers."""

Reader = tuple[tuple[int, ...], tuple[int, ...], Callable[[Region], Tile | None]]
"""The shape of the array, the shape of each read, and a function that reads a region."""


def octane_whole(request: dict) -> Reader:
    """Read with octane, tile by tile."""
    from octane.store.image import open_image

    image = open_image(Path(request["source"]))
    return image.grid.shape, tuple(request["tile"]), image.read


def octane_streamed(request: dict) -> Reader:
    """Read with octane a few planes at a time into one buffer, as its workers do."""
    from octane.store.image import open_image

    image = open_image(Path(request["source"]))
    reader = image.reader
    if reader is None:
        raise RuntimeError(f"{image.path} is read through zarr, because {image.array.why_zarr}")
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

    return image.array.shape, image.array.chunks, read


def zarr_reader(request: dict) -> Reader:
    """Read with zarr, tile by tile."""
    import zarr

    zarr.config.set({"threading.max_workers": request["threads"]})
    array = zarr.open_array(f"{request['source']}/0", mode="r")
    return array.shape, tuple(request["tile"]), lambda region: np.asarray(array[region])


def zarrs_reader(request: dict) -> Reader:
    """Read with zarr and the codecs of zarrs, tile by tile."""
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return zarr_reader(request)


def tensorstore_reader(request: dict) -> Reader:
    """Read with tensorstore, tile by tile."""
    import tensorstore as ts

    limits = {"limit": request["threads"]}
    context = ts.Context({"data_copy_concurrency": limits, "file_io_concurrency": limits})
    place = {"driver": "file", "path": f"{request['source']}/0"}
    source = ts.open({"driver": "zarr3", "kvstore": place}, context=context, read=True).result()
    return source.shape, tuple(request["tile"]), lambda region: source[region].read().result()


READERS: dict[str, tuple[Callable[[dict], Reader], tuple[str, ...]]] = {
    "octane, streamed": (octane_streamed, ()),
    "octane": (octane_whole, ()),
    "zarr": (zarr_reader, ("zarr",)),
    "zarrs": (zarrs_reader, ("zarrs",)),
    "tensorstore": (tensorstore_reader, ("tensorstore",)),
}
"""Readers, and the packages whose versions are recorded."""


def time_reader(request: dict) -> dict:
    """Time a reader over all tiles, with a checksum of the first if it returns voxels."""
    make, packages = READERS[request["reader"]]
    shape, tile, read = make(request)
    regions, spent = tile_regions(shape, tile), []
    with ThreadPoolExecutor(request["threads"]) as pool:

        def read_all() -> None:
            start = time.process_time()
            for _ in pool.map(lambda region: read(region) is None, regions):
                pass
            spent.append(time.process_time() - start)

        _, seconds = timed(read_all, request["runs"])
    first = read(regions[0])
    return {
        **seconds,
        "cpu_seconds": statistics.median(spent[1:]),
        "checksum": None if first is None else zlib.crc32(np.ascontiguousarray(first).data),
        "versions": {name: version(name) for name in packages},
    }


def scaled(region: Region, tile: tuple[int, ...], small: tuple[int, ...]) -> Region:
    """Return the region of the resampled tile."""
    z, y, x = (
        slice(part.start // t * s, part.start // t * s + s)
        for part, t, s in zip(region, tile, small, strict=True)
    )
    return z, y, x


def linumpy(request: dict) -> None:
    """Scipy's Gaussian and linear zoom, tile by tile, while a thread reads the next one."""
    import zarr
    from scipy.ndimage import gaussian_filter, zoom

    factor = request["factor"]
    source = zarr.open_array(request["source"], mode="r")
    tile = source.chunks
    small = tuple(round(n / factor) for n in tile)
    regions = tile_regions(source.shape, tile)
    destination = zarr.create_array(
        request["destination"],
        shape=tuple(n // t * s for n, t, s in zip(source.shape, tile, small, strict=True)),
        chunks=small,
        dtype=source.dtype,
    )

    def read(region: Region) -> np.ndarray:
        return np.asarray(source[region])

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(read, regions[0])
        for region, following in itertools.zip_longest(regions, regions[1:]):
            voxels = coming.result()
            if following is not None:
                coming = pool.submit(read, following)
            smooth = gaussian_filter(voxels, sigma=(factor - 1) / 2)
            result = zoom(smooth, [s / t for s, t in zip(small, tile, strict=True)], order=1)
            destination[scaled(region, tile, small)] = result


def octane(request: dict) -> None:
    """Run octane's step as its command does."""
    from octane.config.parameters import ExecutionParameters, InputParameters
    from octane.processes.resample.parameters import ResampleParameters
    from octane.processes.resample.step import resample_image
    from octane.store.image import open_image

    source = Path(request["source"]).parent
    target = [spacing * request["factor"] for spacing in open_image(source).grid.spacing]
    resample_image(
        source,
        Path(request["destination"]),
        ResampleParameters.model_validate({"resolution": target, "codec": "zstd"}),
        InputParameters(),
        ExecutionParameters(backend="cpu", workers=request["cores"]),
    )


def ngff_zarr(request: dict) -> None:
    """The first smaller scale of ngff-zarr, with the nearest integer factor and ITK's Gaussian."""
    import dask
    import dask.array as da
    from ngff_zarr import Methods, to_multiscales, to_ngff_image

    factor = round(request["factor"])
    image = to_ngff_image(da.from_zarr(request["source"]), dims=("z", "y", "x"))
    with dask.config.set(scheduler="threads", num_workers=request["cores"]):
        made = to_multiscales(
            image,
            scale_factors=[dict.fromkeys("zyx", factor)],
            method=Methods.ITK_GAUSSIAN,
            cache=False,
        )
        made.images[1].data.to_zarr(request["destination"])


def tensorstore(request: dict) -> None:
    """The mean of cubes of voxels, with the nearest integer factor, tile by tile."""
    import tensorstore as ts

    factor = round(request["factor"])
    driver = "zarr3" if (Path(request["source"]) / "zarr.json").exists() else "zarr"
    limits = {"limit": request["cores"]}
    context = ts.Context({"data_copy_concurrency": limits, "file_io_concurrency": limits})
    source = ts.open(
        {"driver": driver, "kvstore": {"driver": "file", "path": request["source"]}},
        context=context,
        read=True,
    ).result()
    tile = source.chunk_layout.read_chunk.shape
    small = tuple(-(-n // factor) for n in tile)
    shape = [n // t * s for n, t, s in zip(source.shape, tile, small, strict=True)]
    destination = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": request["destination"]},
            "metadata": {
                "shape": shape,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": small}},
                "codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
                ],
                "data_type": source.dtype.name,
            },
        },
        context=context,
        create=True,
    ).result()

    def work(region: Region) -> None:
        one = source[region].translate_to[0]
        shrunk = ts.downsample(one, [factor] * 3, "mean").read().result()
        destination[scaled(region, tile, small)].write(shrunk).result()

    with ThreadPoolExecutor(request["cores"]) as pool:
        list(pool.map(work, tile_regions(source.shape, tile)))


PROGRAMS: dict[str, tuple[Callable[[dict], None], tuple[str, ...]]] = {
    "octane": (octane, ("numba", "zarr")),
    "linumpy": (linumpy, ("scipy", "zarr")),
    "ngff-zarr": (ngff_zarr, ("ngff-zarr", "dask", "zarr")),
    "tensorstore": (tensorstore, ("tensorstore",)),
}
"""Programs, and the packages whose versions are recorded."""


def time_program(request: dict) -> dict:
    """Time a program, which resamples the small mosaic first."""
    program, packages = PROGRAMS[request["program"]]
    small = f"{request['destination'].removesuffix('.zarr')}_small.zarr"
    program({**request, "source": request["small"], "destination": small})
    rmtree(small)
    start = time.perf_counter()
    program(request)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "versions": {name: version(name) for name in packages}}


def main() -> None:
    """Run the requested measurement."""
    request = json.loads(sys.argv[1])
    kinds = {"method": time_method, "reader": time_reader, "program": time_program}
    (work,) = (kind for key, kind in kinds.items() if key in request)
    sys.stdout.write(json.dumps(work(request)) + "\n")


if __name__ == "__main__":
    main()
