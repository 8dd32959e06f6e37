"""Speed of writing tiles in files as mosaic grids, and of copying the files.

Stored in benchmarks/results/mosaic.json. ``--quick`` takes fewer tiles and rounds, and writes to
the scratch folder (OCTANE_BENCH_DIR, else work/bench) instead. Tiles, up to 3 GB with their copies,
are written to the scratch folder too, and removed. They are read from the system's cache.
"""

import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import PROJECT, command_line, cores, run_parts, scratch_folder
from _processes import run
from _resample_stores import speckle
from _timing import median_ratio
from tifffile import imwrite

logger = logging.getLogger(__name__)

PARTS = ("copying",)
TILE = (64, 512, 512)
ROWS, COLUMNS = 4, 6
CASES = (("uncompressed", None), ("deflate", "zlib"))
"""Compression of the TIFFs, as the table and as tifffile name it."""


def write_tiles(folder: Path, compression: str | None, columns: int) -> int:
    """Write tiles of uint16 speckle, all the same, and return the bytes of the files."""
    folder.mkdir()
    voxels = speckle(TILE).clip(0, 65535).astype(np.uint16)
    names = [folder / f"tile_r{r}_c{c}.tif" for r in range(ROWS) for c in range(columns)]
    imwrite(names[0], voxels, compression=compression, photometric="minisblack")
    for name in names[1:]:
        shutil.copyfile(names[0], name)
    return sum(name.stat().st_size for name in names)


def copying(quick: bool) -> dict[str, object]:
    """Write mosaics and copy the files, alternately."""
    columns, rounds = (2, 1) if quick else (COLUMNS, 3)
    voxels = ROWS * columns * int(np.prod(TILE)) * 2
    cases = []
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        for kind, compression in CASES:
            tiles, made, record = (Path(scratch) / n for n in ("tiles", "made", "record.json"))
            size = write_tiles(tiles, compression, columns)
            seconds: dict[str, list[float]] = {"copy": [], "command": [], "work": []}
            for _ in range(rounds):
                start = time.perf_counter()
                shutil.copytree(tiles, made)
                seconds["copy"].append(time.perf_counter() - start)
                shutil.rmtree(made)
                found = run(
                    [
                        *(sys.executable, PROJECT / "bin" / "mosaic.py", tiles, made),
                        *("--voxel_size", "3.5", "--overlap", "0.2"),
                        *("--workers", str(cores()), "--memory", "4GB"),
                        *("--metrics", record),
                    ]
                )
                seconds["command"].append(found.seconds)
                own = json.loads(record.read_text(encoding="utf-8"))["seconds"]["total"]
                seconds["work"].append(own)
                shutil.rmtree(made)
                logger.info("%s: %s", kind, {k: v[-1] for k, v in seconds.items()})
            shutil.rmtree(tiles)
            cases.append(
                {
                    "tiles": kind,
                    "voxel_bytes": voxels,
                    "file_bytes": size,
                    "seconds": {name: statistics.median(own) for name, own in seconds.items()},
                    "rounds": seconds,
                    "speed_over_copy": median_ratio(seconds["copy"], seconds["work"]),
                    "peak_bytes": found.peak_bytes,
                }
            )
    return {"tile": TILE, "cases": cases}


def main() -> None:
    """Run the benchmark."""
    chosen = command_line(__doc__, PARTS).parse_args()
    run_parts("mosaic", {"copying": lambda: copying(chosen.quick)}, chosen)


if __name__ == "__main__":
    main()
