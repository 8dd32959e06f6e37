"""What each step of the workflow takes: seconds and peak memory, and what a subject of 80 GB needs.

The requests for time and memory in conf/base.config follow from these; docs/hpc.md shows how.
Writes benchmarks/results/steps.json.
"""

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, cores, save, scratch_folder
from _n4_memory import write_noise
from _processes import run

from octane.config.params import PhantomParameters

SUBJECT_BYTES = 80e9
"""The largest subject that the requests are made for."""
SUBJECT_SHAPE = (4000, 2048, 2440)
"""80 GB of float32."""
SECTIONS = 20
"""Fewest sections of a subject, hence the largest."""
FILE_SYSTEM = 100e6
"""Bytes per second to and from a shared file system in bad hours, reading and writing together."""
MARGIN = 4
"""How many times the time that follows is asked for: nodes and file systems are shared."""

MEMORY = {"resample": "8GB", "stitch": "8GB", "stack": "8GB", "n4": "16GB", "pyramid": "8GB"}
"""What conf/base.config gives each step."""


def step(name: str, bytes_in: int, *words: str | Path) -> dict[str, float]:
    """Run one command of the workflow's, on all cores."""
    done = run(
        [
            *(sys.executable, PROJECT / "bin" / f"{name}.py", *words),
            *("--workers", str(cores()), "--memory", MEMORY[name]),
        ]
    )
    return {"bytes": bytes_in, "seconds": round(done.seconds, 2), "peak_bytes": done.peak_bytes}


def size(path: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def steps(folder: Path, tiles: int, shape: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """All steps; the sections at full resolution, so that each step has as much as it may get."""
    made = run(
        [
            *(sys.executable, PROJECT / "bin" / "phantom.py", folder / "phantom"),
            *("--sections", "2", "--tiles", str(tiles), str(tiles), "--edge-fraction", "0"),
            *("--tile-shape", *map(str, PhantomParameters().tile_shape[:1]), "256", "256"),
            *("--section-thickness", "150"),
        ]
    )
    logging.info("phantom: %.0f s", made.seconds)
    mosaics = sorted((folder / "phantom" / "mosaics").glob("*.ome.zarr"))
    sections = [folder / path.name for path in mosaics]
    found = {
        "resample": step(
            "resample", size(mosaics[0]), mosaics[0], folder / "r.ome.zarr", "--resolution", "10"
        )
    }
    for mosaic, section in zip(mosaics, sections, strict=True):
        found["stitch"] = step("stitch", size(mosaic), mosaic, section)
    stack = folder / "stack.ome.zarr"
    found["stack"] = step("stack", sum(map(size, sections)), stack, *sections)
    volume = folder / "noise.ome.zarr"
    write_noise(volume, shape)
    found["n4"] = step("n4", size(volume), volume, folder / "n4.ome.zarr", "--mask", "none")
    found["pyramid"] = step("pyramid", size(volume), volume, folder / "p.ome.zarr")
    return found


def needed(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What each step needs for a subject of 80 GB: its input once, read and written."""
    made = {}
    for name, figures in found.items():
        whole = SUBJECT_BYTES / (SECTIONS if name in ("resample", "stitch") else 1)
        # N4 reads twice: to fit, and to correct.
        passes = 3 if name == "n4" else 2
        computing = figures["seconds"] * whole / figures["bytes"]
        moving = passes * whole / FILE_SYSTEM
        made[name] = {
            "bytes": whole,
            "computing_seconds": round(computing),
            "moving_seconds": round(moving),
            "asked_hours": round(MARGIN * max(computing, moving) / 3600, 2),
        }
    return made


def n4_plan(folder: Path) -> str:
    """How N4 would fit a volume of 80 GB with what it is given; nothing of it is read."""
    volume = folder / "large.ome.zarr"
    write_noise(volume, (256, 256, 256))
    described = volume / "0" / "zarr.json"
    array = json.loads(described.read_text(encoding="utf-8"))
    described.write_text(json.dumps(array | {"shape": SUBJECT_SHAPE}), encoding="utf-8")
    return run(
        [
            *(sys.executable, PROJECT / "bin" / "n4.py", volume, folder / "never.ome.zarr"),
            *("--mask", "none", "--shrink-factor", "auto", "--iterations", "auto"),
            *("--memory", MEMORY["n4"], "--workers", "8", "--dry-run"),
        ]
    ).output.replace(f"{volume}: ", "")


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller mosaics and volumes")
    quick = parser.parse_args().quick
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        tiles, shape = (2, (256, 256, 512)) if quick else (5, (256, 1024, 1024))
        found = steps(Path(folder), tiles, shape)
        save(
            "steps",
            {
                "steps": found,
                "subject_bytes": SUBJECT_BYTES,
                "subject_sections": SECTIONS,
                "file_system_bytes_per_second": FILE_SYSTEM,
                "margin": MARGIN,
                "subject": needed(found),
                "n4_plan": n4_plan(Path(folder)),
            },
            quick=quick,
        )


if __name__ == "__main__":
    main()
