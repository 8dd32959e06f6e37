"""Records of measurements: figures with their commit and machine."""

import datetime
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from octane.core.arrays import processor
from octane.core.versions import versions
from octane.pipeline.workers import cores

PROJECT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """Return the project's commit, marked if the tree has changes.

    OCTANE_COMMIT overrides it, for machines without git.
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


# Read at the start: the tree may change during a run.
COMMIT = commit()


def stamped(figures: Mapping[str, object]) -> dict[str, object]:
    """Return the figures preceded by date, commit, processor, cores and versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": COMMIT,
        "processor": processor(),
        "cores": cores(),
        "versions": versions(),
        **figures,
    }
