"""Records of measurements: the commit and the machine beside the figures."""

import datetime
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from octane.core.arrays import processor
from octane.core.versions import versions

PROJECT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """Return the commit of the project, marked when the tree has changes.

    Where there is no git, OCTANE_COMMIT names it.
    """
    named = os.environ.get("OCTANE_COMMIT")
    if named or shutil.which("git") is None:
        return named or "unknown"
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


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def stamped(figures: Mapping[str, object]) -> dict[str, object]:
    """Return the figures with date, commit, processor, cores and versions before them."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": COMMIT,
        "processor": processor(),
        "cores": cores(),
        "versions": versions(),
        **figures,
    }


def write(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
