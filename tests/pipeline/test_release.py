"""``make release`` stops before the tests, or builds what is published and prints how."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octane import __version__

PROJECT = Path(__file__).resolve().parents[2]
FILES = (
    *("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"),
    *("bin/octane/__init__.py", "tools/completion.sh", "tools/release.sh"),
)
STAND_IN = """#!/bin/bash
echo "${0##*/} $*" >> "$NOTED"
[[ $1 != save ]] || touch "${@: -1}"
"""


@pytest.fixture
def clone(tmp_path):
    """A commit of what the release reads, with stand-ins for make and docker."""
    folder = tmp_path / "clone"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, folder / name)
    changes = folder / "CHANGELOG.md"
    changes.write_text(
        f"# Changelog\n\n## {__version__} - 2026-12-01\n\nFirst.\n\n## 0.0.1 - 2026-11-01\n"
    )
    for name in ("make", "docker"):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(STAND_IN)
        program.chmod(0o755)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *author, *words], cwd=folder, check=True)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Change")


def release(clone):
    """Run it, with the programs of the fixture and the tests' Python first on the PATH."""
    places = (clone.parent / "programs", Path(sys.executable).parent, os.environ["PATH"])
    path = os.pathsep.join(map(str, places))
    env = {**os.environ, "PATH": path, "NOTED": str(clone.parent / "noted")}
    return subprocess.run(
        ["tools/release.sh"], cwd=clone, env=env, capture_output=True, text=True, check=False
    )


def change_a_file(clone):
    (clone / "README.md").write_text("changed")


def tag_the_version(clone):
    git(clone, "tag", f"v{__version__}")


def undate_the_changelog(clone):
    (clone / "CHANGELOG.md").write_text(f"## {__version__}, not released yet\n")
    commit(clone)


def stop_docker(clone):
    (clone.parent / "programs" / "docker").write_text("#!/bin/sh\nexit 1\n")


@pytest.mark.parametrize(
    ("disturb", "named"),
    [
        (change_a_file, "git status"),
        (tag_the_version, "__version__"),
        (undate_the_changelog, "CHANGELOG.md"),
        (stop_docker, "Docker"),
    ],
)
def test_a_release_that_cannot_be_is_refused_before_the_tests(clone, disturb, named):
    disturb(clone)
    done = release(clone)
    assert done.returncode == 1
    assert re.fullmatch(rf"release: .*{re.escape(named)}.*\n", done.stderr)
    noted = clone.parent / "noted"
    assert not noted.exists() or "make" not in noted.read_text()
    assert not (clone / "dist").exists()


def test_a_release_tests_builds_and_prints_what_publishes_it(clone):
    done = release(clone)
    assert done.returncode == 0, done.stderr
    noted = (clone.parent / "noted").read_text().splitlines()
    assert [line for line in noted if line.startswith("make ")] == [
        "make soak PYTEST=",
        "make image CUDA=",
    ]
    name = f"octane_microscopy-{__version__}"
    image = f"octane-{__version__}-image.tar"
    built = {f"{name}.tar.gz", f"{name}-py3-none-any.whl", image}
    assert {path.name for path in (clone / "dist").iterdir()} == {*built, "SHA256SUMS", "notes.md"}
    sums = (clone / "dist" / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in sums} == built
    assert (clone / "dist" / "notes.md").read_text().strip() == "First."
    for words in ("git tag", "git push", "twine upload", "gh release create", "docker push"):
        assert words in done.stdout
    tags = subprocess.check_output(["git", "tag"], cwd=clone, text=True)
    assert tags == ""
