"""Seconds and peak memory of each step, and the time that a subject of 80 GB needs.

The requests for time and memory in conf/base.config follow from these.
"""

import logging
import statistics
import sys
import tempfile
from pathlib import Path

import SimpleITK as sitk
from _common import PROJECT, cores, scratch_folder, size
from _n4_agreement import tissue_volume
from _n4_speed import write_noise
from _processes import run

SUBJECT_BYTES = 80e9
"""The largest subject that the requests allow for."""
SECTIONS = 20
"""Fewest sections of a subject, which are then the largest."""
FILE_SYSTEM = 100e6
"""Bytes per second of a busy shared file system, reading and writing together."""
MARGIN = 4
"""Factor of the requested time: nodes and file systems are shared."""

RUNS = 5
"""Runs of a command, of which the median counts."""

MEMORY = {"resample": "8GB", "stitch": "8GB", "stack": "8GB", "n4": "16GB", "pyramid": "8GB"}
"""Memory that conf/base.config requests for each step."""


def step(name: str, bytes_in: int, *words: str | Path) -> dict[str, float]:
    """Run one command of the workflow on all cores."""
    command = [
        *(sys.executable, PROJECT / "bin" / f"{name}.py", *words, "--overwrite"),
        *("--workers", str(cores()), "--memory", MEMORY[name]),
    ]
    runs = [run(command) for _ in range(RUNS)]
    return {
        "bytes": bytes_in,
        "seconds": round(statistics.median(done.seconds for done in runs), 2),
        "peak_bytes": max(done.peak_bytes for done in runs),
    }


def measured(folder: Path, tiles: int, shape: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """Run all steps, with sections at full resolution as the largest possible input."""
    made = run(
        [
            *(sys.executable, PROJECT / "bin" / "phantom.py", folder / "phantom"),
            *("--sections", "2", "--tiles", str(tiles), str(tiles), "--edge_fraction", "0"),
            *("--tile_shape", "42", "256", "256"),
            *("--section_thickness", "150"),
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
    found["n4"] = step("n4", size(volume), volume, folder / "n4.ome.zarr", "--n4_mask", "none")
    found["pyramid"] = step("pyramid", size(volume), volume, folder / "p.ome.zarr")
    return found


def needed(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the time of each step for a subject of 80 GB: computing, reading and writing."""
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


def nifti() -> dict[str, float]:
    """Time N4's command on a small NIfTI file, and SimpleITK only reading and writing it."""
    copy = "import sys, SimpleITK as s; s.WriteImage(s.ReadImage(sys.argv[1]), sys.argv[2])"
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        files = [Path(folder) / "small.nii", Path(folder) / "made.nii"]
        sitk.WriteImage(sitk.GetImageFromArray(tissue_volume((128, 256, 256))), str(files[0]))
        n4 = [PROJECT / "bin" / "n4.py", *files, "--overwrite", "--workers", str(cores())]
        commands = {"n4": [*n4, "--n4_mask", "none"], "read_and_write": ["-c", copy, *files]}
        # Alternately; the first run fills the caches.
        runs = [
            {name: run([sys.executable, *words]).seconds for name, words in commands.items()}
            for _ in range(RUNS + 1)
        ]
    return {name: statistics.median(found[name] for found in runs[1:]) for name in commands}


def steps(quick: bool) -> dict[str, object]:
    """Measure all steps on small data, and scale to a subject of 80 GB."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        tiles, shape = (2, (256, 256, 512)) if quick else (5, (256, 1024, 1024))
        found = measured(Path(folder), tiles, shape)
    return {
        "steps": found,
        "subject_bytes": SUBJECT_BYTES,
        "subject_sections": SECTIONS,
        "file_system_bytes_per_second": FILE_SYSTEM,
        "margin": MARGIN,
        "subject": needed(found),
    }
