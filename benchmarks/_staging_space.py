"""What PREFLIGHT predicted that each step would write, beside what it wrote."""

import csv
import json
from pathlib import Path

__all__ = ["held_blocks", "predicted_and_written"]

BLOCK = 4096


def held_blocks(folder: Path) -> int:
    """Bytes that a file system gives out for a folder; links and what is linked left out."""
    found = [folder, *(p for p in folder.rglob("*") if not p.is_symlink())]
    return sum(
        BLOCK if p.is_dir() else -(-p.stat().st_size // BLOCK) * BLOCK * (p.stat().st_nlink == 1)
        for p in found
    )


def predicted_and_written(work: Path, trace: Path) -> dict[str, tuple[int, int]]:
    """For each step of a run on one subject, in bytes in the work directory.

    Parameters
    ----------
    work
        The run's work directory.
    trace
        Nextflow's record of its tasks.
    """
    with trace.open(newline="", encoding="utf-8") as stream:
        tasks = [
            (row["name"].removeprefix("OCTANE:").split(" ")[0], next(work.glob(f"{row['hash']}*")))
            for row in csv.DictReader(stream, delimiter="\t")
        ]
    (preflight,) = (folder for name, folder in tasks if name == "PREFLIGHT")
    plan = json.loads((preflight / "plans.json").read_text(encoding="utf-8"))
    scratch = "scratch" in plan["space"]["need_bytes"]
    found = {}
    for step in plan["space"]["steps"]:
        folders = [folder for name, folder in tasks if name == step["name"]]
        written = sum(held_blocks(folder) for folder in folders)
        # N4's volume, which PYRAMID's finest level is a link to, is N4's.
        for folder in folders if step["name"] == "N4" else []:
            chunks = (p.stat() for p in folder.glob("*_n4.ome.zarr/0/c/**/*") if p.is_file())
            written += sum(s.st_size for s in chunks if s.st_nlink == 2)
        # A link does not survive the copy out of a scratch folder.
        found[step["name"]] = (step["bytes"] + step["linked"] * scratch, written)
    return found
