"""Records of measurements: the commit and the machine beside the figures."""

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
