"""Resampling of a mosaic grid by octane and by others, each run as a process of its own.

``python _resample_programs.py REQUEST``, with JSON of: ``program``, ``source`` (the array),
``destination``, ``small`` (the array of a small mosaic, to begin with), ``factor`` (target over
source spacing), ``cores``, and ``together`` where several are to begin at once (files by which they
know of each other, the own one first). Prints the seconds once all code is loaded, and the
versions. Any Python that has the program's packages will do.

All write one chunk a tile with zarr's default compression. What they compute is not the same:
linumpy's ``zoom`` is aligned with the corners, dask-image and ngff-zarr smooth across the tiles,
ngff-zarr and tensorstore shrink by a whole number, and a mean is less work than a Gaussian.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

import numpy as np

__all__ = ["Region", "tile_regions"]

Region = tuple[slice, ...]


def tile_regions(shape: tuple[int, ...], tile: tuple[int, ...]) -> list[Region]:
    """Regions of all tiles in raster order."""
    starts = itertools.product(*(range(0, n, t) for n, t in zip(shape, tile, strict=True)))
    return [
        (slice(z, z + tile[0]), slice(y, y + tile[1]), slice(x, x + tile[2])) for z, y, x in starts
    ]


def scaled(region: Region, tile: tuple[int, ...], small: tuple[int, ...]) -> Region:
    """Where the resampled tile goes."""
    z, y, x = (
        slice(part.start // t * s, part.start // t * s + s)
        for part, t, s in zip(region, tile, small, strict=True)
    )
    return z, y, x


def scipy_loop(request: dict, workers: int) -> None:
    """The method of linumpy: scipy's Gaussian and linear zoom, tile by tile.

    With one worker, a thread reads the next tile meanwhile, as linumpy does.
    """
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

    def finish(region: Region, voxels: np.ndarray) -> None:
        smooth = gaussian_filter(voxels, sigma=(factor - 1) / 2)
        result = zoom(smooth, [s / t for s, t in zip(small, tile, strict=True)], order=1)
        destination[scaled(region, tile, small)] = result

    with ThreadPoolExecutor(workers) as pool:
        if workers > 1:
            list(pool.map(lambda region: finish(region, read(region)), regions))
            return
        coming = pool.submit(read, regions[0])
        for region, following in itertools.zip_longest(regions, regions[1:]):
            voxels = coming.result()
            if following is not None:
                coming = pool.submit(read, following)
            finish(region, voxels)


def octane(request: dict) -> dict:
    """Run the step as its command does; gives the seconds of its stages."""
    from octane.config.params import ExecutionParameters, InputParameters, ResampleParameters
    from octane.steps.resample import resample_image
    from octane.store.image import open_image

    source = Path(request["source"]).parent
    target = [spacing * request["factor"] for spacing in open_image(source).grid.spacing]
    metrics = resample_image(
        source,
        Path(request["destination"]),
        ResampleParameters.model_validate({"resolution": target, "codec": "zstd"}),
        InputParameters(),
        ExecutionParameters(backend="cpu", workers=request["cores"]),
    )
    return {"stages": metrics.seconds}


def linumpy(request: dict) -> None:
    """One tile at a time."""
    scipy_loop(request, 1)


def scipy_workers(request: dict) -> None:
    """One tile a core."""
    scipy_loop(request, request["cores"])


def dask_image(request: dict) -> None:
    """The Gaussian and the affine map of dask-image, pixel-centred, on the whole mosaic."""
    import dask
    import dask.array as da
    from dask_image.ndfilters import gaussian_filter
    from dask_image.ndinterp import affine_transform

    factor = request["factor"]
    source = da.from_zarr(request["source"])
    tile = source.chunksize
    small = tuple(round(n / factor) for n in tile)
    smooth = gaussian_filter(source, sigma=(factor - 1) / 2, mode="reflect")
    ratio = np.divide(tile, small)
    result = affine_transform(
        smooth,
        np.diag(ratio),
        offset=(ratio - 1) / 2,
        order=1,
        output_shape=tuple(n // t * s for n, t, s in zip(source.shape, tile, small, strict=True)),
        output_chunks=small,
    )
    with dask.config.set(scheduler="threads", num_workers=request["cores"]):
        result.astype(source.dtype).to_zarr(request["destination"])


def ngff_zarr(request: dict) -> None:
    """The first smaller scale of ngff-zarr, by the nearest whole factor; the full one not copied.

    By ITK's Gaussian where that is installed, which is the faster one, else by dask-image's.
    """
    import dask
    import dask.array as da
    from ngff_zarr import Methods, to_multiscales, to_ngff_image

    method = Methods.ITK_GAUSSIAN if find_spec("itk") else Methods.DASK_IMAGE_GAUSSIAN
    factor = round(request["factor"])
    image = to_ngff_image(da.from_zarr(request["source"]), dims=("z", "y", "x"))
    with dask.config.set(scheduler="threads", num_workers=request["cores"]):
        made = to_multiscales(
            image,
            scale_factors=[dict.fromkeys("zyx", factor)],
            method=method,
            cache=False,
        )
        made.images[1].data.to_zarr(request["destination"])


def tensorstore(request: dict) -> None:
    """The mean of cubes of voxels, by the nearest whole factor, tile by tile."""
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


def wait(own: str, *others: str) -> None:
    """Say that this process is ready, and wait until the others are."""
    Path(own).touch()
    while not all(Path(other).exists() for other in others):
        time.sleep(0.002)


PROGRAMS: dict[str, tuple[Callable[[dict], dict | None], tuple[str, ...]]] = {
    "octane": (octane, ("numba", "zarr")),
    "linumpy": (linumpy, ("scipy", "zarr")),
    "scipy-workers": (scipy_workers, ("scipy", "zarr")),
    "dask-image": (dask_image, ("dask-image", "dask", "zarr")),
    "ngff-zarr": (ngff_zarr, ("ngff-zarr", "dask", "zarr")),
    "tensorstore": (tensorstore, ("tensorstore",)),
}
"""What runs, and the packages whose versions are noted."""


def main() -> None:
    """Run what the request names, first on the small mosaic, so that all code is loaded by then."""
    request = json.loads(sys.argv[1])
    program, packages = PROGRAMS[request["program"]]
    small = f"{request['destination'].removesuffix('.zarr')}_small.zarr"
    program({**request, "source": request["small"], "destination": small})
    rmtree(small)
    if "together" in request:
        wait(*request["together"])
    start = time.perf_counter()
    figures = program(request) or {}
    seconds = time.perf_counter() - start
    versions = {name: version(name) for name in packages}
    sys.stdout.write(json.dumps({"seconds": seconds, "versions": versions, **figures}) + "\n")


if __name__ == "__main__":
    main()
