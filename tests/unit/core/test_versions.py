"""Versions of what the numbers depend on."""

import os
import platform
import sys
import tomllib
from importlib.metadata import version

from octane import __version__
from octane.core.versions import versions


def test_what_is_not_installed_or_may_not_be_listed_is_left_out(monkeypatch, tmp_path, denied):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (
        tmp_path / "locked" / "numpy-2.0.dist-info",
        first / "zarr-3.9.dist-info",
        second / "zarr-2.0.dist-info",
        second / "cupy_cuda12x-14.2.0.dist-info",
        second / "numba-0.60-py3.11.egg-info",
        second / "numpy",
    ):
        folder.mkdir(parents=True)
    folders = (tmp_path / "gone", tmp_path / "locked", first, second)
    monkeypatch.setattr(sys, "path", list(map(str, folders)))
    with denied(os, "scandir", "locked"):
        found = dict([*versions().items()][2:])
    assert found == {"numba": "0.60", "zarr": "3.9", "cupy-cuda12x": "14.2.0"}


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
