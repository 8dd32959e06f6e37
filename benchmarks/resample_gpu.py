"""Resampling on a GPU: the kernel, tiles from memory, and whole mosaics, each against its floor.

Writes benchmarks/results/resample_gpu.json. ``--quick`` takes the small tile, and mosaics of 16
tiles at most. Without a GPU it says so, writes nothing and exits with 3.

The floors are measured in the same run: a copy on the device for the bytes that the kernel must
move, a copy from page-locked memory for what goes over PCIe, and reading and decoding alone for a
store. Whole mosaics are what ``bin/resample.py`` does with them, on the GPU and on the CPU.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
from _common import PROJECT, cores, save, scratch_folder
from _gpu import DIRECTIONS, bandwidth, copy_rate, device_or_exit
from _processes import run, run_script
from _resample_stores import RESOLUTION, SPACING, Mosaic, mosaic, speckle

from octane.gpu.device import describe
from octane.gpu.pinned import HostMemory
from octane.resample.gpu import BATCH_BYTES, CudaResampler
from octane.resample.operator import AxisOperator, resampler
from octane.resample.resampler import resample

logger = logging.getLogger("resample_gpu")

Shape = tuple[int, int, int]

TILES: tuple[Shape, ...] = ((256, 256, 256), (400, 512, 512))
KINDS = ("uncompressed", "zstd")
COUNTS, QUICK_COUNTS = ((4, 4), (12, 12)), ((2, 2), (4, 4))
REPEATS = 20
PER_WORKER = 8


def operators_of(shape: Shape) -> list[AxisOperator]:
    """From the mosaics' voxels to the target's."""
    return [resampler(n, SPACING, RESOLUTION) for n in shape]


def passed_bytes(shape: Shape, operators: list[AxisOperator]) -> int:
    """Bytes that the passes y, z and x read and write, in float32, nothing kept in a cache."""
    (nz, ny, nx), (mz, my, mx) = shape, (axis.size for axis in operators)
    read = nz * ny * nx + nz * my * nx + mz * my * nx
    written = nz * my * nx + mz * my * nx + mz * my * mx
    return 4 * (read + written)


def kernel(xp: ModuleType, memory: HostMemory, shape: Shape, ceiling: float) -> dict[str, object]:
    """The three passes over a tile that is on the device, and how far its result is off."""
    tile, operators = speckle(shape), operators_of(shape)
    own = CudaResampler(xp, memory)
    own.begin(operators, shape[1:], tile.dtype, tile.dtype)
    own.push(tile)
    result = own.finish().copy()
    expected = resample(tile, operators)
    passes = {
        "y": lambda: own.along_y(0, shape[0]),
        "z": own.along_z,
        "x": own.along_x,
    }
    found: dict[str, list[float]] = {name: [] for name in passes}
    with own.stream:
        for _ in range(REPEATS):
            for name, launch in passes.items():
                begin, end = xp.cuda.Event(), xp.cuda.Event()
                begin.record(own.stream)
                launch()
                end.record(own.stream)
                end.synchronize()
                found[name].append(xp.cuda.get_elapsed_time(begin, end))
    own.close()
    medians = {name: statistics.median(values) for name, values in found.items()}
    moved = passed_bytes(shape, operators)
    figures: dict[str, object] = {
        "tile": shape,
        "tile_bytes": tile.nbytes,
        "taps": [axis.taps for axis in operators],
        "ms": {**medians, "all": sum(medians.values())},
        "counted_bytes": moved,
        "floor_ms": {"bytes": moved / ceiling * 1e3, "tile_once": tile.nbytes / ceiling * 1e3},
        "largest_difference_from_cpu": float(np.abs(result - expected).max()),
        "largest_value": float(np.abs(expected).max()),
    }
    logger.info("kernel: %s", figures)
    return figures


def from_memory(
    xp: ModuleType, memory: HostMemory, shape: Shape, workers: int
) -> dict[str, object]:
    """Tiles that lie in the host's memory, to results there: copies and kernels of all workers."""
    tile, operators = speckle(shape), operators_of(shape)
    batch = max(1, BATCH_BYTES // tile[0].nbytes)
    owners = [CudaResampler(xp, memory) for _ in range(workers)]

    def one(own: CudaResampler) -> None:
        own.begin(operators, shape[1:], tile.dtype, tile.dtype)
        for first in range(0, shape[0], batch):
            planes = tile[first : first + batch]
            buffer = own.buffer(len(planes))
            np.copyto(buffer, planes)
            own.push(buffer)
        own.finish()

    def several(own: CudaResampler) -> None:
        for _ in range(PER_WORKER):
            one(own)

    with ThreadPoolExecutor(workers) as pool:
        # Buffers are made by the first tiles.
        list(pool.map(one, owners))
        start = time.perf_counter()
        list(pool.map(several, owners))
        spent = time.perf_counter() - start
    for own in owners:
        own.close()
    return {
        "tile": shape,
        "workers": workers,
        "ms_per_tile": spent / (workers * PER_WORKER) * 1e3,
    }


def whole(source: Mosaic, folder: Path, device: str) -> dict:
    """What bin/resample.py needs for a mosaic, and what it says of its stages."""
    record, destination = folder / f"{device}.json", folder / f"{device}.ome.zarr"
    run(
        [
            *(sys.executable, PROJECT / "bin" / "resample.py", source.path, destination),
            *("--resolution", str(RESOLUTION), "--backend", device),
            *("--workers", str(cores()), "--memory", "64GB"),
            *("--metrics", record, "--overwrite"),
        ]
    )
    found = json.loads(record.read_text(encoding="utf-8"))
    return {name: found[name] for name in ("seconds", "figures", "peak_memory_bytes", "warnings")}


def one_mosaic(kind: str, shape: Shape, counts: tuple[int, int]) -> dict:
    """One mosaic by GPU and CPU, and reading and decoding it alone."""
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as name,
        mosaic(Path(name), kind, shape, counts) as source,
    ):
        source.warm()
        request = {
            "reader": "octane, streamed",
            "source": str(source.path),
            "threads": cores(),
            "runs": 3,
        }
        reading, _ = run_script("_resample_readers.py", request, cores=cores())
        # The first run of each compiles or loads its kernels.
        runs = {
            device: [whole(source, Path(name), device) for _ in range(4)][1:]
            for device in ("gpu", "cpu")
        }
        return {
            "tiles": source.tiles,
            "bytes": source.bytes,
            "compression_ratio": source.ratio,
            "read_and_decode_s": reading["median"],
            **{f"{d}_s": statistics.median(r["seconds"]["total"] for r in runs[d]) for d in runs},
            "runs": runs,
        }


def end_to_end(
    kind: str, shape: Shape, counts: tuple[tuple[int, int], tuple[int, int]], rate: float
) -> dict[str, object]:
    """A small and a large mosaic, and what one more tile takes.

    A GPU has a mosaic of a gigabyte in a few hundredths of a second, beside which starting the
    process and CUDA would be all that is seen.
    """
    small, large = (one_mosaic(kind, shape, count) for count in counts)
    more = large["tiles"] - small["tiles"]
    figures: dict[str, object] = {
        "store": kind,
        "tile": shape,
        "ms_per_tile": {
            "pcie_floor": int(np.prod(shape)) * 4 / rate * 1e3,
            **{
                name.removesuffix("_s"): (large[name] - small[name]) / more * 1e3
                for name in ("read_and_decode_s", "gpu_s", "cpu_s")
            },
        },
        "mosaics": [small, large],
    }
    logger.info("end to end, %s, ms a tile: %s", kind, figures["ms_per_tile"])
    return figures


def main() -> None:
    """Run on a GPU, or say that there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small tile, and 16 of them")
    quick = parser.parse_args().quick
    xp = device_or_exit("resample_gpu")
    ceiling = bandwidth(xp)
    rate = copy_rate(xp, int(np.prod(TILES[0])) * 4, DIRECTIONS[:1], pinned=True)
    shapes = TILES[:1] if quick else TILES
    workers = sorted({1, 2, min(4, cores()), cores()})
    with HostMemory(xp) as memory:
        kernels = [kernel(xp, memory, shape, ceiling) for shape in shapes]
        memories = [from_memory(xp, memory, shape, n) for shape in shapes for n in workers]
    counts = QUICK_COUNTS if quick else COUNTS
    save(
        "resample_gpu",
        {
            "device": describe(xp),
            "device_copy_bytes_per_s": ceiling,
            "pinned_bytes_per_s_to_device": rate,
            "kernel": kernels,
            "from_memory": memories,
            "end_to_end": [end_to_end(kind, TILES[0], counts, rate) for kind in KINDS],
        },
        quick=quick,
    )


if __name__ == "__main__":
    main()
