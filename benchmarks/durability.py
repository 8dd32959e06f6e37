"""What it costs to bring a store to the disk (fsync) before it gets its name.

The files are those of a volume in shards of 256 x 256 x 256 voxels, of data that does not compress.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from _common import save, scratch_folder

SHARD = 16_000_000


def written(folder: Path, files: int, *, flushed: bool) -> float:
    """Seconds to write a store and rename it."""
    content = os.urandom(SHARD)
    partial = folder / ".partial-store"
    partial.mkdir()
    start = time.perf_counter()
    for number in range(files):
        (partial / str(number)).write_bytes(content)
    if flushed:
        for path in [*partial.iterdir(), partial]:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    partial.rename(folder / "store")
    return time.perf_counter() - start


def main() -> None:
    """Measure and write benchmarks/results/durability.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer files")
    quick = parser.parse_args().quick
    files, rounds = (8, 3) if quick else (64, 5)
    seconds: dict[str, list[float]] = {"left": [], "flushed": []}
    for _ in range(rounds):
        for name, times in seconds.items():
            os.sync()
            with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
                times.append(written(Path(folder), files, flushed=name == "flushed"))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    save(
        "durability",
        {
            "bytes": files * SHARD,
            "files": files,
            "rounds": rounds,
            "seconds": {name: round(median, 3) for name, median in medians.items()},
            "ratio": round(medians["flushed"] / medians["left"], 1),
        },
        quick=quick,
    )


if __name__ == "__main__":
    main()
