"""Versions of the software that results depend on."""

import platform
import re
import sys

import pytest

from octane import __version__
from octane.core.versions import versions


def test_packages_that_are_not_installed_are_left_out(monkeypatch, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name, number in (
        (first, "zarr", "3.9"),
        (second, "zarr", "2.0"),
        (second, "cupy_cuda12x", "14.2.0"),
    ):
        metadata = folder / f"{name}-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    assert versions() == {
        "octane": __version__,
        "python": platform.python_version(),
        "zarr": "3.9",
        "cupy-cuda12x": "14.2.0",
    }


def test_all_that_numbers_depend_on_is_named():
    found = versions()
    found.pop("cupy-cuda12x", None)
    found.pop("cupy-cuda13x", None)
    packages = ["numpy", "numba", "zarr", "numcodecs", "SimpleITK", "pydantic"]
    assert list(found) == ["octane", "python", *packages]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("nextflow.config", r"(?m)^    version = '(.*)'$"),
        ("docs/hpc.md", r"octane:(\d[^ ]*) "),
        ("docs/hpc.md", r"octane-(\d.*)\.sif "),
    ],
)
def test_files_that_repeat_the_version_agree(project, name, pattern):
    """``make generate`` writes them, from octane/__init__.py."""
    assert re.findall(pattern, (project / name).read_text(encoding="utf-8")) == [__version__]


def test_the_changelog_begins_with_this_version_and_the_citation_is_of_its_last_release(project):
    changes = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"(?m)^## (\S+)(?:, not released yet| - \d{4}-\d\d-\d\d)$", changes)[0]
    assert newest == __version__
    version, date = re.findall(r"(?m)^## (\S+) - (\S+)$", changes)[0]
    citation = (project / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
