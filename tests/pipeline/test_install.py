"""``pip install`` of a clone: the package with all its files, and the commands by their names."""

import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def test_the_package_and_its_commands_are_installed(environment, tmp_path):
    wheels, folder = tmp_path / "wheels", tmp_path / "installed"

    def call(*words):
        env = {**environment, "PYTHONPATH": str(folder)}
        return subprocess.check_output(
            [str(word) for word in words], env=env, cwd=tmp_path, text=True
        )

    # Without the network.
    call(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, PROJECT)
    call(*PIP, "install", "--no-deps", "--no-index", "--target", folder, *wheels.iterdir())
    package = PROJECT / "bin" / "octane"
    files = {
        path.relative_to(package)
        for kind in ("py", "cu", "j2")
        for path in package.rglob(f"*.{kind}")
    }
    assert [path for path in files if not (folder / "octane" / path).exists()] == []
    found = PathDistribution(next(folder.glob("octane-*.dist-info")))
    assert {"octane-n4", "octane-resample", "octane-gpu-slot"} <= found.entry_points.names
    for name in found.entry_points.names:
        module = f"{name.removeprefix('octane-').replace('-', '_')}.py"
        command = folder / "octane" / "commands" / module
        assert command.read_bytes() == (PROJECT / "bin" / module).read_bytes()
    commands = folder / "bin"
    assert call(commands / "octane-gpu-slot", "--version").strip() == found.version
    assert call(commands / "octane-n4", "--help").startswith("usage: octane-n4 ")
    call(commands / "octane-phantom", "p", "--sections", 1, "--tiles", 1, "--tile-shape", "8,16,16")
    assert (tmp_path / "p" / "mosaics" / "section_01.ome.zarr").exists()


def test_nextflow_starts_with_the_classes_that_the_set_up_prepared(environment, tmp_path):
    loaded = tmp_path / "loaded.txt"
    subprocess.run(
        [PROJECT / "tools" / "nextflow" / "nextflow", "-log", "log", "-version"],
        env={**environment, "NXF_OPTS": f"-Xlog:class+load:file={loaded}"},
        cwd=tmp_path,
        check=True,
    )
    launcher = next(line for line in loaded.read_text().splitlines() if "cli.Launcher " in line)
    assert "source: shared objects file" in launcher
