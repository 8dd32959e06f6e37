"""Versions of octane, Python and the packages that results depend on."""

import os
import sys
from contextlib import suppress

from octane import __version__

PACKAGES = (
    "numpy",
    "numba",
    "zarr",
    "numcodecs",
    "SimpleITK",
    "pydantic",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def versions() -> dict[str, str]:
    """Versions of octane, of Python and of the packages above that are installed.

    Read from the names of the folders that every installed package has, ``numpy-2.4.6.dist-info``
    for one; importlib.metadata takes long to load.
    """
    installed: dict[str, str] = {}
    for folder in sys.path:
        # One that is not there, or that only its owner may list; Python passes over it too.
        with suppress(OSError):
            for entry in os.scandir(folder):
                stem, _, kind = entry.name.rpartition(".")
                if kind in ("dist-info", "egg-info"):
                    name, number, *_ = [*stem.split("-"), ""]
                    # The first folder of the path is the one that is imported from.
                    installed.setdefault(_written(name), number)
    found = {package: installed.get(_written(package)) for package in PACKAGES}
    own = {"octane": __version__, "python": sys.version.split()[0]}
    return own | {package: number for package, number in found.items() if number}


def _written(name: str) -> str:
    """Name of a package as folders spell it."""
    return name.lower().replace("-", "_")
