"""What the benchmarks share: where a result goes and what is noted beside its figures."""

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from octane.versions import versions

__all__ = ["save", "scratch_folder"]

PROJECT = Path(__file__).resolve().parents[1]


def processor() -> str:
    """The processor's name as Linux knows it, or the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """The commit that was measured, marked when the tree has changes."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def scratch_folder() -> Path:
    """Where benchmark data goes: OCTANE_BENCH_DIR, else work/bench in the project."""
    folder = Path(os.environ.get("OCTANE_BENCH_DIR", PROJECT / "work" / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save(name: str, figures: dict[str, object]) -> Path:
    """Write ``benchmarks/results/{name}.json`` and show it."""
    record = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
        **figures,
    }
    text = json.dumps(record, indent=2) + "\n"
    path = PROJECT / "benchmarks" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return path
