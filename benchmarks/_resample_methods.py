"""Resampling of one tile in memory by one method, run as a process of its own on one core.

``python _resample_methods.py REQUEST``, with JSON of: ``method``, ``tile`` and ``result`` (.npy),
``spacing``, ``target``, ``shape`` (of the result), ``runs``. Prints the seconds of the calls. Any
Python that has the method's packages will do.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
from _timing import timed

Tile = np.ndarray


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


def octane(tile: Tile, request: dict) -> Callable[[], Tile]:
    """What a worker of octane does with a tile: operators and buffers are there beforehand."""
    from octane.resample.cpu import CompiledResampler
    from octane.resample.operator import resampler

    operators = [resampler(n, request["spacing"], request["target"]) for n in tile.shape]
    worker = CompiledResampler()

    def work() -> Tile:
        worker.begin(operators, (tile.shape[1], tile.shape[2]), tile.dtype, tile.dtype)
        worker.push(tile)
        return worker.finish()

    return work


def octane_arrays(tile: Tile, request: dict) -> Callable[[], Tile]:
    """The array version of octane, the oracle of its tests."""
    from octane.resample.operator import resampler
    from octane.resample.resampler import resample_arrays

    operators = [resampler(n, request["spacing"], request["target"]) for n in tile.shape]
    return partial(resample_arrays, tile, operators)


def prepared(request: dict, tile: Tile) -> Callable[[], Tile]:
    """What is timed."""
    match request["method"]:
        case "octane":
            return octane(tile, request)
        case "octane, arrays":
            return octane_arrays(tile, request)
        case "sum":
            return lambda: tile.sum()
    method = {"zoom": zoomed, "affine": affine, "skimage": resized}[request["method"]]
    return lambda: method(tile, request)


def main() -> None:
    """Time what the request names, and store what it made."""
    request = json.loads(sys.argv[1])
    tile = np.load(request["tile"])
    result, seconds = timed(prepared(request, tile), request["runs"])
    np.save(request["result"], result)
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
