"""Places that are not writable, or that another run writes to, are refused before any work."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from runs import contents, last_words

pytestmark = pytest.mark.fault

NOBODY = 65534


@contextmanager
def read_only(place):
    """Make a folder read-only within the block."""
    # Permissions do not stop root; a read-only mount does.
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


@pytest.mark.soak
# The second is as if another user had made it.
@pytest.mark.parametrize("place", ["output", "out/tissue/metrics", "scratch", "work"])
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


@pytest.fixture
def another_user(environment, tmp_path):
    """Another user's folder, and the environment in which Nextflow starts as that user.

    The user may also read files that only root may, such as the tests' own folders.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can start a run as another user")
    home = tmp_path / "another"
    (home / "bin").mkdir(parents=True)
    for folder in (home, home / "bin"):
        os.chown(folder, NOBODY, NOBODY)
    path = environment["PATH"]
    # Without these bits access(2) ignores the capabilities.
    words = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
    words += " --securebits +no_setuid_fixup --inh-caps +dac_read_search"
    words += " --ambient-caps +dac_read_search -- nextflow"
    launcher = home / "bin" / "nextflow"
    launcher.write_text(f'#!/bin/sh\nPATH="{path}" {words} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    path = f"{launcher.parent}{os.pathsep}{path}"
    return home, {"PATH": path, "HOME": str(home), "NXF_HOME": str(home / "nxf")}


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ([], "pipeline_info"),
        pytest.param(["pipeline_info"], "pipeline_info/.lock", marks=pytest.mark.soak),
        pytest.param(["", "pipeline_info"], "tissue", marks=pytest.mark.soak),
    ],
)
def test_the_results_are_another_users(
    nextflow, succeeding, another_user, volume, tmp_path, opened, closed
):
    out = succeeding(tmp_path, *volume, "-stub").outdir
    before = contents(out / "tissue")
    for name in opened:
        (out / name).chmod(0o777)
    if closed == "tissue":
        shutil.rmtree(out / "pipeline_info")
    home, env = another_user
    run = nextflow(home, *volume, "-stub", outdir=out, env=env)
    assert run.code == 1
    (words,) = last_words(run.output).splitlines()
    assert words.startswith(f"{out}/{closed} cannot be written; ")
    assert words.endswith("another --outdir or --subject." if closed == "tissue" else "--outdir.")
    # Not from the trace, which may be the first run's.
    assert "N4 (tissue)" not in run.output
    assert contents(out / "tissue") == before


@pytest.mark.soak
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
    # The entire trace is the first run's.
    trace = (out / "pipeline_info" / "trace.txt").read_text(encoding="utf-8")
    assert trace.startswith("task_id\t")
    assert trace.count("COMPLETED") == 3
