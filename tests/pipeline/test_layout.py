"""Rules that every file keeps: flags mentioned, private interfaces, paths of machines."""

import json
import re
import runpy
import subprocess
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

from octane.config.flags import Parser
from octane.tools.watch.command import WATCH_FLAGS

PROJECT = Path(__file__).resolve().parents[2]

OTHERS_FLAGS = {
    "--account",
    *("--batch", "--comment", "--constraint", "--cpus-per-task", "--error-exitcode", "--format"),
    *("--gres", "--help", "--ignore", "--me", "--mem", "--no-deps", "--ome-zarr-version", "--qos"),
    *("--only-binary", "--output", "--plugin", "--require-hashes", "--signal", "--time", "--tool"),
    *("--daemon", "--now", "--read-only", "--recursive", "--secret", "--user", "--vfs-cache-mode"),
}
"""Other programs' flags that the documents mention: Slurm, Docker, systemd, pip, pytest, rclone."""


def texts():
    """Name and text of every file that is in the repository or not ignored by git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    made = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip("this folder is not a git repository, so its files cannot be listed")
    for name in filter(None, made.stdout.split("\0")):
        with suppress(UnicodeDecodeError, FileNotFoundError):
            yield Path(name), (PROJECT / name).read_text(encoding="utf-8")


def documents():
    """README and the files of docs/."""
    return [p for p in (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")) if p.exists()]


def test_the_repository_contains_no_path_of_a_machine():
    patterns = [
        r"/(?:home|Users)/\w",
        r"(?<![\w./}-])/root\b",
        r"(?<![\w./}-])" + re.escape(str(PROJECT)) + r"(?![\w.-])",
        # Private registries.
        r"\.pkg\.dev\b|jfrog|artifactory|nexus[.-]|index-url\s*=",
        r"https?://(?:\d{1,3}\.){3}\d{1,3}",
    ]
    found = [
        f"{name}: {match[0]}"
        for name, text in texts()
        for pattern in patterns
        for match in re.finditer(pattern, text)
        if name.name != Path(__file__).name
    ]
    assert found == []


@pytest.fixture(scope="module")
def flags():
    """Every flag that exists: of the workflow and of the commands."""
    schema = json.loads((PROJECT / "nextflow_schema.json").read_text(encoding="utf-8"))
    known = {f"--{name}" for group in schema["$defs"].values() for name in group["properties"]}
    for script in (PROJECT / "bin").glob("*.py"):
        # The help of a command lists its flags; in other scripts they are found in the text.
        main = runpy.run_path(str(script)).get("main")
        text = script.read_text(encoding="utf-8")
        if main and "from octane." in text:
            known |= set(re.findall(r"--[a-z][a-z0-9_]*", Parser(main).format_help()))
        known |= set(re.findall(r"--[a-z][a-z0-9_-]*", text))
    for script in chain(
        (PROJECT / "benchmarks").glob("[!_]*.py"), (PROJECT / "tools").glob("*.sh")
    ):
        known |= set(re.findall(r"--[a-z][a-z0-9_-]*", script.read_text(encoding="utf-8")))
    return known | {*WATCH_FLAGS} | OTHERS_FLAGS


@pytest.mark.parametrize("path", documents(), ids=lambda p: p.name)
def test_documents_mention_only_flags_that_exist(path, flags):
    text = path.read_text(encoding="utf-8")
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", text))
    assert sorted(mentioned - flags) == []


PRIVATE = {
    *("nextflow.Global", "logObserver", "ansiLogObserver", "ch.qos.logback", "nxf_"),
    *("inspect_llvm", "_nrt", "sys.modules[", "unraisablehook", "gc.get_objects", "parser._"),
}
"""Undocumented parts of Nextflow, numba and Python, which may change without notice."""

# Guards against a silent loss of data in Nextflow, until one of its releases fixes it.
ALLOWED = {"lib/scratch_copy_check.sh": {"nxf_"}}


def test_private_interfaces_of_other_projects_are_not_used():
    places = ("bin", "lib", "conf", "modules", "subworkflows", "main.nf", "tools", "benchmarks")
    found = {
        name.as_posix(): words
        for name, text in texts()
        if name.parts[0] in places and (words := {word for word in PRIVATE if word in text})
    }
    assert found == ALLOWED


def test_nothing_is_ignored_silently():
    files = chain(
        (PROJECT / "modules").glob("*.nf"),
        (PROJECT / "lib").glob("*.nf"),
        (PROJECT / "subworkflows").glob("*.nf"),
        (PROJECT / "conf").rglob("*.config"),
    )
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"errorStrategy\s*=?\s*\{?[^\n]*'ignore'", text), path
        assert not re.search(r"mode:\s*'move'", text), path


def test_every_fault_test_has_a_row_and_every_row_a_test():
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "fault", "tests/faults"],
        cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    page = PROJECT / "docs" / "reliability.md"
    named = re.findall(r"\| `(test_\w+)` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted({*re.findall(r"(?m)::(test_\w+)", collected)})
