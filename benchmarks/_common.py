"""What the benchmarks share: where a result goes and what is noted beside its figures."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# A benchmark is started by its path, as any script; octane lies in bin/ and is not installed.
# Last on the path, because commands in bin/ have the names of benchmarks.
sys.path.append(str(PROJECT / "bin"))

from octane.core.arrays import processor  # noqa: E402
from octane.core.versions import versions  # noqa: E402

__all__ = ["PROJECT", "cores", "save", "scratch_folder"]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


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


# Noted at the start: a run may take longer than the tree stays as it is.
COMMIT = commit()


def scratch_folder() -> Path:
    """Where benchmark data goes: OCTANE_BENCH_DIR, else work/bench in the project."""
    folder = Path(os.environ.get("OCTANE_BENCH_DIR", PROJECT / "work" / "bench"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save(name: str, figures: dict[str, object], *, quick: bool = False) -> Path:
    """Write ``benchmarks/results/{name}.json`` and show it.

    A quick run's figures go to the scratch folder, so that they never stand in for the full ones
    that the documentation quotes.
    """
    record = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": COMMIT,
        "processor": processor(),
        "cores": cores(),
        "versions": versions(),
        **figures,
    }
    text = json.dumps(record, indent=2) + "\n"
    folder = scratch_folder() if quick else PROJECT / "benchmarks" / "results"
    path = folder / f"{name}{'_quick' if quick else ''}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return path
