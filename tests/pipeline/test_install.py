"""``pip install`` from a clone, and the Nextflow that the set-up prepares."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version

from octane import __version__

PROJECT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
FIRST, AFTER = map(int, re.findall(r"3\.(\d+)", PYPROJECT["requires-python"]))
MINORS = range(FIRST, AFTER)
"""The N of each Python 3.N that octane supports."""

# Not the last words of a run, which take no arguments.
COMMANDS = [path for path in (PROJECT / "bin").glob("*.py") if path.stem != "summary"]
# The others serve the workflow only.
INSTALLED = [path for path in COMMANDS if path.stem not in ("new_subject", "preflight", "watch")]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def installed(command):
    """Name under which pip installs a command of ``bin/``."""
    return f"octane-{command.stem.replace('_', '-')}"


def build_wheel(source, folder):
    """The wheel of a folder or source archive, built without the network."""
    words = (*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source)
    subprocess.run([str(word) for word in words], check=True)
    return next(folder.glob("*.whl"))


def test_the_source_archive_is_complete_and_makes_the_same_wheel(tmp_path):
    if not (PROJECT / ".git").exists():
        pytest.skip("not a clone")
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    files = subprocess.check_output(listed, cwd=PROJECT, text=True).splitlines()
    # A copy, as for `make release`: below a folder /work, hatchling disregards .gitignore.
    clone = tmp_path / "clone"
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, clone / name)
    build = (sys.executable, "-m", "hatchling", "build", "--target", "sdist")
    subprocess.run([*build, "--directory", tmp_path], cwd=clone, check=True)
    source = next(tmp_path.glob("octane_microscopy-*.tar.gz"))
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed == {*files, "PKG-INFO"}
    # RECORD has the checksums of all other files.
    record = f"octane_microscopy-{__version__}.dist-info/RECORD"
    first, second = (
        ZipFile(build_wheel(given, tmp_path / name)).read(record)
        for name, given in (("first", PROJECT), ("second", source))
    )
    assert first == second


def test_the_package_and_its_commands_are_installed(environment, tmp_path):
    folder = tmp_path / "installed"

    def call(*words):
        env = {**environment, "PYTHONPATH": str(folder)}
        return subprocess.check_output(
            [str(word) for word in words], env=env, cwd=tmp_path, text=True
        )

    wheel = build_wheel(PROJECT, tmp_path)
    call(*PIP, "install", "--no-deps", "--no-index", "--target", folder, wheel)
    package = PROJECT / "bin" / "octane"
    files = {
        path.relative_to(package)
        for kind in ("py", "cu", "j2")
        for path in package.rglob(f"*.{kind}")
    }
    assert [path for path in files if not (folder / "octane" / path).exists()] == []
    found = PathDistribution(next(folder.glob("octane_microscopy-*.dist-info")))
    assert found.entry_points.names == {installed(path) for path in INSTALLED}
    # Those that the scripts of bin/ call.
    called = {f"{entry.module}" for entry in found.entry_points}
    assert called == {
        re.findall(r"from (octane\S+) import main", p.read_text())[0] for p in INSTALLED
    }
    assert found.version == __version__
    assert "\n\n# octane\n" in (found.read_text("METADATA") or "")
    assert found.read_text("licenses/LICENSE") == (PROJECT / "LICENSE").read_text()
    commands = folder / "bin"
    assert call(commands / "octane-gpu-slot", "--version").strip() == found.version
    assert call(commands / "octane-n4", "--help").startswith("usage: octane-n4 ")
    call(commands / "octane-phantom", "p", "--sections", 1, "--tiles", 1, "--tile_shape", "8,16,16")
    assert (tmp_path / "p" / "mosaics" / "section_01.ome.zarr").exists()
    script = f"PATH={commands}:$PATH; source octane-completion\n{TAB}"
    tabs = call("bash", "-c", script, "bash", "octane-n4", "--n4_m")
    assert tabs.split() == ["--n4_mask", "--n4_mode"]


def test_every_page_and_script_allows_the_same_pythons():
    classified = [c.rpartition("3.")[2] for c in PYPROJECT["classifiers"] if ":: 3." in c]
    assert classified == [*map(str, MINORS)]
    words = f"Python 3.{MINORS[0]} to 3.{MINORS[-1]}"
    setup = (PROJECT / "tools/setup.sh").read_text()
    assert words in setup
    assert f"(3, {MINORS[0]}) <= sys.version_info[:2] <= (3, {MINORS[-1]})" in setup
    assert words in (PROJECT / "README.md").read_text()


def python_of(minor):
    """The newest Python 3.``minor`` on this machine that has venv; of pyenv's too."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python3.{minor}")
    versions = {}
    for path in [*filter(None, [named]), *root.glob(f"versions/3.{minor}.*/bin/python3")]:
        told = subprocess.run(
            [path, "-c", "import ensurepip, platform; print(platform.python_version())"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not told.returncode:
            versions[Version(told.stdout.strip())] = path
    if not versions:
        pytest.skip(f"no Python 3.{minor} with venv")
    return versions[max(versions)]


HASHES = """
import hashlib, sys, zarr
from pathlib import Path
for path in sorted(Path(sys.argv[1]).rglob("*.ome.zarr")):
    # zarr lists them in the order of the file system.
    for name, array in sorted(zarr.open_group(path, mode="r").arrays()):
        print(path.relative_to(sys.argv[1]), name, hashlib.sha256(array[...]).hexdigest())
"""
"""Prints a checksum of each level of each store, as zarr reads it."""


LINES = (
    "phantom p --sections 2 --tiles 2 --tile_shape 12,64,64 --bias 0.4",
    "resample p/mosaics/section_01.ome.zarr 1.ome.zarr --scale 0.5 --codec blosc-lz4",
    "resample p/mosaics/section_02.ome.zarr 2.ome.zarr --scale 0.5 --codec none",
    "stitch 1.ome.zarr section_01.ome.zarr --stitch_refine",
    "stitch 2.ome.zarr section_02.ome.zarr",
    "stack stack.ome.zarr section_01.ome.zarr section_02.ome.zarr",
    "n4 stack.ome.zarr n4.ome.zarr",
    "pyramid n4.ome.zarr brain.ome.zarr --pyramid_resolutions 20 40",
    "export brain.ome.zarr brain.ome.tif",
    "export brain.ome.zarr brain.nii.gz",
    "export brain.ome.zarr old.ome.zarr --ome_zarr_version 0.4",
    "pyramid brain.ome.tif tif.ome.zarr --pyramid_resolutions 20",
    "pyramid brain.nii.gz nii.ome.zarr --pyramid_resolutions 20",
    "export brain.ome.zarr tiles/tile_x0_y0.nii.gz",
    "export brain.ome.zarr tiles/tile_x1_y0.nii.gz",
    "mosaic tiles --dry_run",
)
"""A small subject, command by command."""


def run_lines(folder, python, environment, programs):
    """Checksums of what LINES make in ``folder``; ``programs`` gives the words of a command."""
    folder.mkdir()
    for command, *words in map(str.split, LINES):
        subprocess.run([*programs(command), *words], env=environment, cwd=folder, check=True)
    return subprocess.check_output(
        [python, "-c", HASHES, folder], env=environment, text=True
    ).splitlines()


@pytest.fixture(scope="module")
def hashes_here(environment, tmp_path_factory):
    """Checksums of what the commands of ``bin/`` make, with the tests' Python."""
    folder = tmp_path_factory.mktemp("here") / "made"
    return run_lines(
        folder, sys.executable, environment, lambda c: (sys.executable, PROJECT / f"bin/{c}.py")
    )


# It downloads hundreds of megabytes, and compiles twice.
@pytest.mark.timeout(1800)
@pytest.mark.soak
@pytest.mark.parametrize("minor", MINORS)
def test_the_newest_versions_on_every_python_make_the_same(
    environment, hashes_here, minor, tmp_path
):
    """What pip installs today, at the upper ends of pyproject's bounds."""
    subprocess.run([python_of(minor), "-m", "venv", tmp_path / "venv"], check=True)
    commands = tmp_path / "venv" / "bin"
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    subprocess.run([commands / "python", *pip, build_wheel(PROJECT, tmp_path)], check=True)

    def told(name, flag):
        words = [commands / name, flag]
        return subprocess.check_output(words, env=environment, cwd=tmp_path, text=True)

    for name in map(installed, INSTALLED):
        assert told(name, "--version") == f"{__version__}\n"
        assert told(name, "--help").startswith(f"usage: {name} ")
    made = run_lines(
        tmp_path / "made", commands / "python", environment, lambda c: (commands / f"octane-{c}",)
    )
    assert len(hashes_here) == 16
    assert made == hashes_here


TAB = """
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_octane "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Presses Tab after a script's arguments, as bash does, and prints the completions."""


@pytest.fixture
def completed(tmp_path, environment):
    """Completions of words in an interactive shell that has sourced ``tools/env.sh``."""

    def complete(*words):
        script = f"source {PROJECT / 'tools' / 'completion.sh'}\n{TAB}"
        made = subprocess.run(
            ["bash", "-c", script, "bash", *map(str, words)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert made.stderr == ""
        return made.stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["--stat"], ["--status"]),
        (["--status", "t"], ["true"]),
        (["--backend", ""], ["auto", "gpu", "cpu"]),
        # Files, which bash itself completes.
        (["--status", "true", ""], []),
    ],
)
def test_tab_completes_flags_and_words(completed, words, completions):
    assert completed(PROJECT / "bin" / "gpu_slot.py", *words) == completions


def test_tab_does_not_run_another_projects_script_of_the_same_name(completed, tmp_path):
    script = tmp_path / "report.py"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'run'}\n")
    script.chmod(0o755)
    assert completed(script, "-") == []
    assert not (tmp_path / "run").exists()


def test_env_sh_has_interactive_shells_complete_all_commands():
    shown = {
        flags: subprocess.run(
            ["bash", "--norc", flags, "source tools/env.sh; complete -W a b; complete -p"],
            cwd=PROJECT, capture_output=True, text=True, check=False,
        ).stdout
        for flags in ("-ic", "-c")
    }  # fmt: skip
    words = re.findall(r"complete -o default -F _octane (\S+)", shown["-ic"])
    assert sorted(words) == sorted([*map(installed, COMMANDS), *(p.name for p in COMMANDS)])
    assert shown["-c"] == "complete -W 'a' b\n"


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
