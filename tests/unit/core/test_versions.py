"""Versions of what the numbers depend on."""

import platform
import tomllib
from importlib.metadata import PackageNotFoundError, version

from octane import __version__
from octane.core import versions as module
from octane.core.versions import versions


def test_what_is_not_installed_is_left_out(monkeypatch):
    def installed(package):
        if package != "zarr":
            raise PackageNotFoundError
        return "3.9"

    monkeypatch.setattr(module, "version", installed)
    assert list(versions()) == ["octane", "python", "zarr"]


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
