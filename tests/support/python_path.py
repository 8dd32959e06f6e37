"""PYTHONPATH for a process that a test or a benchmark starts."""

import os
from pathlib import Path


def python_path(*folders: Path) -> dict[str, str]:
    """Return PYTHONPATH with folders before those that it already names.

    These may hold the packages of this Python, as on a machine where nothing can be installed.
    """
    present = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *([present] if present else [])])}
