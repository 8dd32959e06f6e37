"""Versions of octane, Python and the packages that results depend on."""

import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

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
    """Versions of octane, Python and the installed ones of :data:`PACKAGES`."""
    found = {"octane": __version__, "python": sys.version.split()[0]}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
