"""Stubs need neither Python nor data, so that the wiring can be tried anywhere."""

import shutil

import pytest

STEPS = {"PREFLIGHT", "RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", "REPORT"}


@pytest.fixture(scope="module")
def bare(environment, tmp_path_factory):
    """An environment whose Python has nothing and fails when it is asked."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("python", "python3"):
        shim = folder / name
        shim.write_text("#!/bin/sh\necho 'no Python here' >&2\nexit 1\n", encoding="utf-8")
        shim.chmod(0o755)
    launcher = shutil.which("nextflow", path=environment["PATH"])
    assert launcher is not None
    (folder / "nextflow").symlink_to(launcher)
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}


def test_the_demo_without_python(nextflow, bare, tmp_path):
    run = nextflow(tmp_path, "-profile", "test", "-stub", env=bare)
    assert run.code == 0, run.output
    assert run.processes() == {"PHANTOM", *STEPS}
    assert len([task for task in run.tasks() if task.startswith("STITCH")]) == 2


@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param({"RESAMPLE", "REPORT"}, id="resample-report"),
        pytest.param({"STITCH", "N4"}, id="stitch-n4"),
        pytest.param({"PYRAMID"}, id="pyramid"),
    ],
)
def test_steps_that_are_switched_off_are_passed_through(
    nextflow, bare, phantom, quick, skipped, tmp_path
):
    flags = [f"--skip_{step.lower()}" for step in sorted(skipped)]
    run = nextflow(*(tmp_path, *quick, "-stub", "--input", f"{phantom}/mosaics", *flags), env=bare)
    assert run.code == 0, run.output
    assert run.processes() == STEPS - skipped
    result = "mosaics_n4.ome.zarr" if "PYRAMID" in skipped else "mosaics.ome.zarr"
    assert (run.outdir / "mosaics" / result).exists()
    assert (run.outdir / "mosaics" / "mosaics_report.html").exists() == ("REPORT" not in skipped)
