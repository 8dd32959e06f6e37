"""The container's recipe: Python and its packages are pinned, and the profiles ask for it."""

import re
from pathlib import Path

import pytest

from octane.gpu.admission import HELD

PROJECT = Path(__file__).resolve().parents[2]
ENGINES = ("docker", "apptainer")
DOCKERFILE = (PROJECT / "Dockerfile").read_text(encoding="utf-8")


def pinned(name):
    """Packages of a set, with version and hashes."""
    text = (PROJECT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    return {
        entry.split("==")[0]: (
            entry.split("==")[1].split()[0],
            frozenset(re.findall(r"sha256:\w{64}", entry)),
        )
        for entry in entries
    }


def test_all_that_is_built_on_is_pinned_and_reaches_the_build():
    assert DOCKERFILE.count("FROM ") == 1
    assert re.search(r"^FROM python:3\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)
    (sources,) = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((PROJECT / source).is_file() for source in sources.split())
    ignored = (PROJECT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored == ["*", "!requirements"]
    (line,) = re.findall(r"pip install (?:.*\\\n)*.*", DOCKERFILE)
    assert "--require-hashes" in line
    assert "--only-binary :all:" in line


@pytest.mark.parametrize("cuda", ["cuda12", "cuda13"])
def test_with_cuda_the_image_has_the_same_packages_and_cupy(cuda):
    plain, more = pinned("run"), pinned(cuda)
    assert {name: more[name] for name in plain} == plain
    added = more.keys() - plain.keys()
    assert f"cupy-{cuda}x" in added
    assert all(hashes for _, hashes in more.values())


def test_the_profiles_ask_for_the_version_that_the_makefile_builds():
    config = (PROJECT / "nextflow.config").read_text(encoding="utf-8")
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^    version = '\d+\.\d+\.\d+'$", config, re.MULTILINE)
    assert "--tag octane:$(VERSION)" in makefile
    for name in ENGINES:
        profile = (PROJECT / "conf" / f"{name}.config").read_text(encoding="utf-8")
        assert re.search(r"octane[:-]\$\{workflow\.manifest\.version\}", profile)


def test_what_is_set_on_the_node_reaches_the_tasks_of_every_engine():
    config = (PROJECT / "nextflow.config").read_text(encoding="utf-8")
    profiles = [(PROJECT / "conf" / f"{name}.config").read_text() for name in ENGINES]
    lists = [re.findall(r"envWhitelist = '(.*)'", text) for text in (config, *profiles)]
    assert lists == [lists[0]] * 3
    ((handed,),) = {tuple(found) for found in lists}
    base = (PROJECT / "conf" / "base.config").read_text(encoding="utf-8")
    exported = set(re.findall(r"\b(OCTANE_[A-Z_]+)[:=]", base))
    assert exported
    outer = {HELD, "CUDA_VISIBLE_DEVICES"}  # of a lease that the workflow itself runs under
    assert exported | outer | {"CUPY_CACHE_DIR"} <= set(handed.split(","))
