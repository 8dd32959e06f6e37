"""Finds the project's own environment when a command is started with another Python.

A person calls ``bin/n4.py`` from any shell; the packages are in the project's ``.venv``. Where the
environment is on the PATH, in a container or under Nextflow, nothing here runs.
"""

import os
import sys
from pathlib import Path

__all__ = ["enter"]

PROJECT = Path(__file__).resolve().parents[3]


def enter(missing: str) -> None:
    """Start the running command again with the project's Python, or say how to get one.

    Parameters
    ----------
    missing
        Name of the package that could not be imported.
    """
    python = PROJECT / ".venv" / "bin" / "python"
    # The prefix tells the environment; the executable would be the same file behind a link.
    if python.exists() and Path(sys.prefix) != PROJECT / ".venv":
        os.execv(python, [str(python), *sys.argv])
    sys.stderr.write(
        f"error: {sys.executable} has no package {missing}; run `make setup` in {PROJECT}, or "
        "`source tools/env.sh` where that is done.\n"
    )
    raise SystemExit(1)
