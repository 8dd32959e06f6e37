"""``pip install`` from a clone, and the Nextflow that the set-up prepares."""

import runpy
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import ZipFile

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
    call(commands / "octane-phantom", "p", "--sections", 1, "--tiles", 1, "--tile_shape", "8,16,16")
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


def test_one_jar_has_the_services_of_all_libraries_and_no_index_of_one(tmp_path):
    for name in ("one", "two", "nextflow-1"):
        with ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr("META-INF/INDEX.LIST", f"{name}.jar")
            jar.writestr("META-INF/services/Service", f"service.{name}\n")
            jar.writestr("same.class", name)
    runpy.run_path(str(PROJECT / "tools/nextflow/merge_jars.py"))["merge"](tmp_path)
    assert {jar.name for jar in tmp_path.iterdir()} == {"libraries.jar", "nextflow-1.jar"}
    with ZipFile(tmp_path / "libraries.jar") as merged:
        assert "META-INF/INDEX.LIST" not in merged.namelist()
        assert merged.read("META-INF/services/Service").split() == [b"service.one", b"service.two"]
        assert merged.read("same.class") == b"one"
