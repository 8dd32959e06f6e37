"""``pip install`` of a clone: the package with all its files, and the commands by their names."""

import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def installed(environment, tmp_path_factory):
    """Install a wheel built without the network; gives its folder and a function that calls it."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")

    def call(*words, env=environment):
        words = [str(word) for word in words]
        made = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        return made.stdout

    call(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, PROJECT)
    (wheel,) = wheels.iterdir()
    call(*PIP, "install", "--no-deps", "--no-index", "--target", folder, wheel)
    env = {**environment, "PYTHONPATH": str(folder)}
    return folder, lambda name, *words: call(folder / "bin" / name, *words, env=env)


def test_all_files_and_commands_are_installed(installed):
    folder, call = installed
    package = PROJECT / "bin" / "octane"
    files = {
        path.relative_to(package)
        for path in package.rglob("*")
        if path.suffix in (".py", ".cu", ".j2")
    }
    assert {path.suffix for path in files} == {".py", ".cu", ".j2"}
    assert [path for path in files if not (folder / "octane" / path).exists()] == []
    found: Distribution = PathDistribution(next(folder.glob("octane-*.dist-info")))
    for script in found.entry_points:
        name = script.name.removeprefix("octane-").replace("-", "_")
        command = (PROJECT / "bin" / f"{name}.py").read_text(encoding="utf-8")
        assert (folder / "octane" / "commands" / f"{name}.py").read_text("utf-8") == command
    assert {"octane-n4", "octane-resample", "octane-gpu-slot"} <= found.entry_points.names
    assert call("octane-gpu-slot", "--version").strip() == found.version


def test_an_installed_command_works(installed):
    folder, call = installed
    call("octane-phantom", "p", "--sections", 1, "--tiles", 1, "--tile-shape", "8,16,16")
    words = ("--resolution", "z=7,y=8,x=8")
    call("octane-resample", "p/mosaics/section_01.ome.zarr", "made.ome.zarr", *words)
    assert (folder / "made.ome.zarr" / "zarr.json").exists()
    assert call("octane-n4", "--help").startswith("Usage: octane-n4 ")
