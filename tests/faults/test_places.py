"""Places that cannot be written, or that another run writes: refused before any work."""

import os
import subprocess
from contextlib import contextmanager

import pytest
from runs import last_words

pytestmark = pytest.mark.fault


@contextmanager
def read_only(place):
    """A folder that is read-only for as long as a block lasts."""
    # The rights of a folder do not hold root back: for root the file system says no.
    root = os.geteuid() == 0
    if root:
        for command in (["--bind", str(place), str(place)], ["-o", "remount,bind,ro", str(place)]):
            done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    else:
        place.chmod(0o555)
    try:
        yield
    finally:
        if root:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
        else:
            place.chmod(0o755)


@pytest.mark.parametrize(
    "place",
    [
        "output",
        # Made by another user.
        pytest.param("out/tissue/metrics", marks=pytest.mark.soak),
        pytest.param("scratch", marks=pytest.mark.soak),
        pytest.param("work", marks=pytest.mark.soak),
    ],
)
def test_a_place_is_read_only(nextflow, volume, tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    option = {"scratch": "--scratch_dir", "work": "-work-dir"}.get(place, "--outdir")
    outdir = folder if place == "output" else None
    with read_only(folder):
        given = () if option == "--outdir" else (option, folder)
        run = nextflow(tmp_path, *volume, *given, outdir=outdir)
    assert run.code == 1
    words = last_words(run.output)
    assert str(folder) in words
    assert option in words
    assert run.processes("COMPLETED") <= {"PREFLIGHT"}
    assert list(folder.iterdir()) == []


def test_into_one_output(start_nextflow, nextflow, volume, tmp_path):
    out = tmp_path / "out"
    run = start_nextflow(tmp_path / "first", *volume, "-stub", outdir=out)
    run.says("Submitted process")
    with run.paused():
        second = nextflow(tmp_path / "second", *volume, outdir=out)
    assert second.code == 1
    words = last_words(second.output)
    assert f"{out} is being written by the run" in words
    assert f"launched in {tmp_path / 'first'}" in words
    assert "--outdir" in words
    assert "Submitted" not in second.output
    assert run.wait().code == 0, run.output
    # The records are those of the first run, from their first line on.
    trace = (out / "pipeline_info" / "trace.txt").read_text(encoding="utf-8")
    assert trace.startswith("task_id\t")
    assert trace.count("COMPLETED") == 3
    # Its name, process and host change from run to run.
