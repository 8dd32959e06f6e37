"""What is written, and where, with each scratch folder and each way to publish the demo's subject.

Counted are the bytes that the steps write (Nextflow's ``wchar``), what is copied out of the scratch
folder, and what a file system holds in the end. The other file system is /dev/shm.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, save, scratch_folder

OTHER = Path("/dev/shm")
UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3}


def counted(size: str) -> int:
    """Bytes in a size as the trace writes it."""
    number, _, unit = size.partition(" ")
    return round(float(number) * 1024 ** UNITS[unit or "B"])


def held(folder: Path, *, before: frozenset[int] = frozenset()) -> int:
    """Bytes of the files below a folder; links left out, and of hard links all but one."""
    found = (p.lstat() for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    sizes = {s.st_ino: s.st_size for s in found}
    return sum(size for inode, size in sizes.items() if inode not in before)


def inodes(folder: Path) -> frozenset[int]:
    """Of all files below a folder."""
    return frozenset(p.lstat().st_ino for p in folder.rglob("*") if not p.is_symlink())


def run(folder: Path, mosaics: Path, out: str, *arguments: str, env: dict[str, str]) -> None:
    """Run the demo's subject from PREFLIGHT on, in ``folder``."""
    command = [
        *("nextflow", "run", str(PROJECT / "main.nf"), "-profile", "test", "--phantom", "false"),
        *("--input", str(mosaics), "--outdir", str(folder / out), "--n4_iterations", "3"),
    ]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, "NXF_ANSI_LOG": "false", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)


def written(folder: Path, mosaics: Path, scratch: str, env: dict[str, str]) -> dict[str, int]:
    """Bytes of a run with one scratch setting."""
    folder.mkdir()
    run(folder, mosaics, "out", "--scratch_dir", scratch, env=env)
    with (folder / "out" / "pipeline_info" / "trace.txt").open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    steps = sum(counted(row["wchar"]) for row in rows if "PREFLIGHT" not in row["name"])
    work = held(folder / "work")
    return {
        "written_by_steps": steps,
        "copied_out": 0 if scratch == "false" else work,
        "held_in_work": work,
        "written_in_all": steps if scratch == "false" else steps + work,
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller subject")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as here,
        tempfile.TemporaryDirectory(dir=OTHER) as there,
    ):
        folder = Path(here)
        small = ["--sections", "2", "--tiles", "2", "2"] if quick else []
        phantom = [sys.executable, str(PROJECT / "bin" / "phantom.py"), str(folder / "p"), *small]
        subprocess.run(phantom, check=True)
        mosaics = folder / "p" / "mosaics"
        (folder / "tmp").mkdir()
        same = {"TMPDIR": str(folder / "tmp")}
        settings = {
            "false": ("false", {}),
            "true (TMPDIR on the work directory's disk)": ("true", same),
            "a path on another file system": (there, {}),
        }
        scratch = {
            name: written(folder / f"run{index}", mosaics, *setting)
            for index, (name, setting) in enumerate(settings.items())
        }
        first = folder / "run0"
        published = {}
        for mode in ("symlink", "rellink", "link", "copy"):
            before = inodes(first / "work")
            more = ("-resume", "--trace_report", "false", "--publish_dir_mode", mode)
            run(first, mosaics, mode, *more, env={})
            published[mode] = held(first / mode, before=before | inodes(first / "work"))
        save(
            "staging",
            {
                "one_file_system": OTHER.stat().st_dev == folder.stat().st_dev,
                "input_bytes": held(mosaics),
                "scratch": scratch,
                "published": published,
            },
            quick=quick,
        )


if __name__ == "__main__":
    main()
