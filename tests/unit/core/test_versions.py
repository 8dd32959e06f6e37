"""Versions of what the numbers depend on."""

import os
import platform
import sys
import tomllib
from importlib.metadata import version

from octane import __version__
from octane.core.versions import versions


def test_what_is_not_installed_is_left_out(monkeypatch, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (
        first / "zarr-3.9.dist-info",
        second / "zarr-2.0.dist-info",
        second / "cupy_cuda12x-14.2.0.dist-info",
        second / "numba-0.60-py3.11.egg-info",
        second / "numpy",
    ):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), str(first), str(second)])
    found = dict([*versions().items()][2:])
    assert found == {"numba": "0.60", "zarr": "3.9", "cupy-cuda12x": "14.2.0"}


def test_a_folder_that_may_not_be_listed_is_passed_over(monkeypatch, tmp_path):
    locked, scan = str(tmp_path), os.scandir

    def scandir(folder):
        if folder == locked:
            raise PermissionError
        return scan(folder)

    expected = versions()
    monkeypatch.setattr(sys, "path", [locked, *sys.path])
    monkeypatch.setattr(os, "scandir", scandir)
    assert versions() == expected


def test_the_version_is_the_projects(project):
    stated = tomllib.loads((project / "pyproject.toml").read_text())
    assert stated["project"]["version"] == __version__


def test_the_command_prints_them_as_yaml(command):
    done = command("versions", "OCTANE:N4")
    assert done.returncode == 0
    assert done.stderr == ""
    head, *lines = done.stdout.splitlines()
    assert head == '"OCTANE:N4":'
    found = dict(line.strip().split(": ") for line in lines)
    assert found == versions()
    assert found["numpy"] == version("numpy")
    assert found["python"] == platform.python_version()
