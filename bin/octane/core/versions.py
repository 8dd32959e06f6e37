"""Versions of octane, Python and the packages that results depend on."""

import platform
from importlib.metadata import PackageNotFoundError, version

from octane import __version__

PACKAGES = (
    "numpy",
    "numba",
    "scipy",
    "zarr",
    "numcodecs",
    "SimpleITK",
    "pydantic",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def versions() -> dict[str, str]:
    """Versions of octane, of Python and of the packages above that are installed."""
    found = {"octane": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
