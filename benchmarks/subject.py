"""A whole subject, from mosaics to the report: its time, reading, writing and memory by process.

Stored in benchmarks/results/subject.json, from which `make generate` writes the table of
docs/benchmarks.md. ``--quick`` runs a small subject once, and writes to the scratch folder
(OCTANE_BENCH_DIR, else work/bench) instead. ``--against FOLDER`` runs another checkout alternately
with this one; both must be set up (``make setup``). The subject, its results and a copy, up to
15 GB, are written to the scratch folder too, and removed. A GPU is not needed.

Seconds, CPU seconds, bytes and memory of processes are Nextflow's own. Bytes are those of the
system calls, from whatever cache, so that a process's bytes read over its input's are how often it
reads and decodes each chunk.
"""

import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping
from csv import DictReader
from pathlib import Path

from _common import PROJECT, command_line, run_parts, scratch_folder, size
from _processes import Run, run, run_workflow

logger = logging.getLogger(__name__)

PARTS = ("whole",)
ROUNDS = 3
SECTIONS = 4
SMALL, FULL = ("24", "96", "96"), ("128", "512", "512")
"""Voxels of a tile."""
THICKNESS = {SMALL: "70", FULL: "400"}
"""Thickness of a cut, micrometres: nine tenths of what is imaged."""
VOXEL = ("3.5", "4", "4")
SETTINGS = "trace.raw = true\n"
"""Nextflow's settings: bytes, milliseconds and percent in the trace, without units."""
SECONDS = ("seconds", "cpu_seconds")

Figures = dict[str, float]


def make_subject(folder: Path, tile: tuple[str, str, str]) -> Path:
    """Make mosaics of 3 x 3 tiles of uint16, and return their folder."""
    made, mosaics = folder / "phantom", folder / "subject"
    run(
        [
            *(sys.executable, PROJECT / "bin" / "phantom.py", made, "--sections", str(SECTIONS)),
            *("--tiles", "3", "3", "--edge_fraction", "0", "--tile_shape", *tile),
            *("--section_thickness", THICKNESS[tile], "--voxel_size", *VOXEL),
        ]
    )
    mosaics.mkdir()
    for mosaic in sorted((made / "mosaics").iterdir()):
        command = [sys.executable, PROJECT / "bin" / "resample.py", mosaic, mosaics / mosaic.name]
        # The same voxels as integers.
        run([*command, "--resolution", *VOXEL, "--resample_dtype", "uint16"])
    shutil.rmtree(made)
    return mosaics


def processes(trace: Path) -> dict[str, Figures]:
    """Sum the figures of each process over its tasks, from a raw trace; of memory, the most."""
    found: dict[str, Figures] = {}
    with trace.open(newline="", encoding="utf-8") as stream:
        for row in sorted(DictReader(stream, delimiter="\t"), key=lambda row: int(row["submit"])):
            seconds = int(row["realtime"]) / 1000
            links = (link for link in Path(row["workdir"]).rglob("*") if link.is_symlink())
            summed = {
                "tasks": 1,
                "seconds": seconds,
                "cpu_seconds": seconds * float(row["%cpu"]) / 100,
                "input_bytes": sum(size(link.resolve()) for link in links),
                "read_bytes": int(row["rchar"]),
                "written_bytes": int(row["wchar"]),
            }
            own = found.setdefault(row["name"].split(" ")[0].split(":")[-1], {"peak_bytes": 0})
            own |= {name: own.get(name, 0) + value for name, value in summed.items()}
            own["peak_bytes"] = max(own["peak_bytes"], int(row["peak_rss"]))
    return found


def idle_seconds(trace: Path, whole: float) -> float:
    """Return the seconds of a run in which no task is running, Nextflow's start among them."""
    busy, end = 0, 0
    with trace.open(newline="", encoding="utf-8") as stream:
        rows = [*DictReader(stream, delimiter="\t")]
    for submit, duration in sorted((int(row["submit"]), int(row["duration"])) for row in rows):
        busy += max(0, submit + duration - max(submit, end))
        end = max(end, submit + duration)
    return whole - busy / 1000


def figures_of(done: Run) -> Figures:
    """Return the seconds of a program."""
    return {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds}


def once(checkout: Path, mosaics: Path) -> dict[str, object]:
    """Run the workflow of a checkout on mosaics, without resampling."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        folder = Path(scratch)
        (folder / "raw.config").write_text(SETTINGS, encoding="utf-8")
        flags = f"-ansi-log false -c raw.config --input {mosaics} --outdir out --overlap 0.2"
        done = run_workflow(checkout, flags, folder)
        trace = folder / "out" / "pipeline_info" / "trace.txt"
        return {
            **figures_of(done),
            "idle_seconds": idle_seconds(trace, done.seconds),
            "processes": processes(trace),
        }


def copied(mosaics: Path) -> Figures:
    """Copy mosaics with ``cp -r``."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        return figures_of(run(["cp", "-r", mosaics, Path(scratch) / "copy"]))


def fastest(runs: list[dict]) -> dict:
    """Return the run of the least CPU seconds, and the seconds of all."""
    least = min(runs, key=lambda own: own["cpu_seconds"])
    return least | {"rounds": [{name: own[name] for name in SECONDS} for own in runs]}


def whole(quick: bool, checkouts: Mapping[str, Path]) -> dict[str, object]:
    """Run the workflow of each checkout and copy the mosaics, alternately."""
    runs: dict[str, list[dict]] = {name: [] for name in (*checkouts, "copy")}
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        tile = SMALL if quick else FULL
        mosaics = make_subject(Path(scratch), tile)
        for _ in range(1 if quick else ROUNDS):
            for name, checkout in checkouts.items():
                runs[name].append(once(checkout, mosaics))
                logger.info("%s: %s", name, {key: runs[name][-1][key] for key in SECONDS})
            runs["copy"].append(dict(copied(mosaics)))
        voxels = 2 * SECTIONS * 9 * int(tile[0]) * int(tile[1]) * int(tile[2])
        return {
            "tile": [*map(int, tile)],
            "voxel_bytes": voxels,
            "file_bytes": size(mosaics),
            **{name: fastest(own) for name, own in runs.items()},
        }


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of octane")
    chosen = parser.parse_args()
    checkouts = {"new": PROJECT} | ({"old": chosen.against.resolve()} if chosen.against else {})
    run_parts("subject", {"whole": lambda: whole(chosen.quick, checkouts)}, chosen)


if __name__ == "__main__":
    main()
