"""Undisturbed runs, which the fault tests compare with."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from runs import checksums


@pytest.fixture(scope="session")
def volume(phantom: Path) -> list[object]:
    """Arguments of a run on one volume: only PREFLIGHT, N4 and PYRAMID."""
    return [
        *("-profile", "test", "--phantom", "false", "--resolution", "none", "--skip_report"),
        *("--n4_iterations", "3", "--input", phantom / "truth" / "tissue.ome.zarr"),
    ]


@pytest.fixture(scope="session")
def mosaics(phantom: Path) -> list[object]:
    """Arguments of a run on two mosaics: all steps except REPORT."""
    return [
        *("-profile", "test", "--phantom", "false", "--skip_report"),
        *("--n4_iterations", "3", "--input", phantom / "mosaics"),
    ]


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run: its launch folder, the checksums of its results, and N4's output."""

    folder: Path
    sums: dict[str, str]
    n4: Path


def _undisturbed(succeeding, folder, arguments):
    sums = checksums(succeeding(folder, *arguments).outdir)
    assert len({name.partition("/")[0] for name in sums}) == 2, sums
    (made,) = (p for p in folder.glob("work/??/*/*_n4.ome.zarr") if not p.is_symlink())
    return Undisturbed(folder, sums, made)


@pytest.fixture(scope="session")
def undisturbed(succeeding, volume, tmp_path_factory) -> Undisturbed:
    """The undisturbed run of :func:`volume`."""
    return _undisturbed(succeeding, tmp_path_factory.mktemp("undisturbed"), volume)


@pytest.fixture(scope="session")
def undisturbed_mosaics(succeeding, mosaics, tmp_path_factory) -> Undisturbed:
    """The undisturbed run of :func:`mosaics`."""
    return _undisturbed(succeeding, tmp_path_factory.mktemp("undisturbed"), mosaics)
