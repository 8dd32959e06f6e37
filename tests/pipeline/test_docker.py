"""The workflow in real containers, on a Docker daemon of the tests' own with a freshly built image.

`make test-containers` runs these tests. The daemon and all that it keeps are gone afterwards.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from docker_daemon import DockerDaemon, why_not
from runs import checksums, partial_files, waited, whole

from octane import __version__
from octane.gpu.inventory import VARIABLE

# The first waits for the image.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

PROJECT = Path(__file__).resolve().parents[2]
IMAGE = f"octane:{__version__}"
USER = 65534
"""A user who is not root and has no home: nobody."""

LONG = ("--n4_iterations", "500000", "--n4_convergence_threshold", "1e-30")
"""Arguments that keep N4 running for the entire test."""


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerDaemon]:
    """A daemon that has the image."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    daemon = DockerDaemon()
    try:
        daemon.start()
        try:
            daemon.make_base()
        except RuntimeError as error:
            pytest.skip(f"debootstrap failed, perhaps without a network: {str(error)[-300:]}")
        daemon.make_image()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that shares no parent with the launch folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        # Other users may enter it.
        Path(folder).chmod(0o755)
        yield Path(folder)


def of_step(docker: DockerDaemon, script: str) -> str:
    """Wait for a container in which a step's Python works, and return its ID."""

    def found() -> str | None:
        return next((c for c in docker.running() if f"/{script} " in docker.processes(c)), None)

    container = waited(found, f"a container with {script}")
    assert isinstance(container, str)
    return container


def belong_to(user: int, folder: Path) -> bool:
    """Whether all files below a folder belong to a user."""
    return {p.lstat().st_uid for p in folder.rglob("*")} == {user}


def test_the_image_has_what_tasks_need_and_nothing_of_the_machine_that_built_it(docker):
    def inside(user: int, script: str) -> str:
        return docker("run", "--rm", "--user", f"{user}:{user}", IMAGE, "bash", "-ec", script)

    imports = (
        "SimpleITK, imagecodecs._jpeg2k, jinja2, nibabel, numba, numcodecs.blosc, pynvml, "
        "tifffile, zarr, zstandard"
    )
    assert inside(USER, f"ps -o pid= -p 1; python -c 'import {imports}'").split() == ["1"]
    left = "/etc/pip.conf /etc/ssl/certs/ca-certificates.crt /requirements ~/.cache"
    assert inside(0, f"ls -d {left} 2>/dev/null || find /opt -name tests") == ""
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE)
    assert "--secret" not in history
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    assert docker("image", "inspect", "--format", label, IMAGE).strip() == __version__
    # docs/benchmarks.md states 686 MB, measured before imagecodecs was added, which takes 43 MB.
    size = int(docker("image", "inspect", "--format", "{{.Size}}", IMAGE))
    assert size < 760e6


@pytest.fixture
def as_nobody(docker, environment, elsewhere) -> Iterator[dict[str, str]]:
    """Variables with which a run, Nextflow included, is another user's; Docker allows him."""
    real = shutil.which("nextflow", path=environment["PATH"])
    folder = elsewhere / "bin"
    folder.mkdir()
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    if subprocess.run([*as_user, "test", "-x", str(real)], check=False).returncode:
        pytest.skip(f"{real} is in a folder that other users cannot enter")
    (folder / "nextflow").write_text(f'#!/bin/bash\nexec {" ".join(as_user)} {real} "$@"\n')
    (folder / "nextflow").chmod(0o755)
    os.chown(docker.socket, USER, USER)
    path = f"{folder}{os.pathsep}{docker.environment['PATH']}"
    yield {**docker.environment, "PATH": path, "HOME": "/nowhere", "NXF_HOME": f"{elsewhere}/nxf"}
    os.chown(docker.socket, 0, 0)


def test_a_user_without_a_home_runs_the_demo_and_resumes_it(
    docker, as_nobody, elsewhere, project, succeeding
):
    launch, code = elsewhere / "launch", shutil.copytree(project, elsewhere / "project")
    for folder in (launch, elsewhere / "nxf"):
        folder.mkdir()
        os.chown(folder, USER, USER)
    first = succeeding(launch, "-profile", "test,docker", env=as_nobody, code=code)
    made, done = checksums(first.outdir), first.tasks("COMPLETED")
    assert {name.partition(" ")[0] for name in done} >= {"RESAMPLE", "STACK", "N4", "REPORT"}
    assert {name.partition("/")[2] for name in made} >= {"0", "1"}
    assert belong_to(USER, launch)
    # The trace's figures come from ps in the container.
    assert all(row["peak_rss"] not in ("", "-", "0") for row in first.trace), first.trace
    again = succeeding(launch, "-profile", "test,docker", "-resume", env=as_nobody, code=code)
    assert again.tasks() == done
    assert again.processes("COMPLETED") == {"PREFLIGHT"}
    assert checksums(again.outdir) == made
    assert docker("ps", "--all", "--quiet") == ""


@pytest.fixture
def cohort(elsewhere, phantom, tmp_path) -> list[object]:
    """Arguments of a run on two subjects, whose files lie scattered and behind links."""
    for name in ("mosaics", "table", "image", "mask"):
        (elsewhere / name).mkdir()
    (tmp_path / "linked").mkdir()
    for store in (phantom / "mosaics").iterdir():
        shutil.copytree(store, elsewhere / "mosaics" / store.name)
        (tmp_path / "linked" / store.name).symlink_to(elsewhere / "mosaics" / store.name)
    shutil.copy(phantom / "positions.csv", elsewhere / "table")
    for folder, file in (("image", "brain.mhd"), ("mask", "mask.nhdr")):
        voxels = np.random.default_rng(1).gamma(9.0, 10.0, (16, 24, 24)).astype(np.float32)
        content = voxels if folder == "image" else np.ones_like(voxels, np.uint8)
        image = sitk.GetImageFromArray(content)
        image.SetSpacing([0.01] * 3)
        sitk.WriteImage(image, elsewhere / folder / file)
    for file in ("brain.mhd", "brain.raw"):
        (tmp_path / file).symlink_to(elsewhere / "image" / file)
    (tmp_path / "cohort.csv").write_text(
        "subject,input,positions,n4_mask\n"
        f"tiles,linked,{elsewhere}/table/positions.csv,\n"
        f"brain,brain.mhd,,{elsewhere}/mask/mask.nhdr\n",
        encoding="utf-8",
    )
    return [
        *("--phantom", "false", "--samplesheet", tmp_path / "cohort.csv", "--skip_report"),
        *("--n4_iterations", "3", "--n4_shrink_factor", "1"),
    ]


def test_a_cohort_whose_container_is_killed_equals_one_without_containers(
    docker, cohort, elsewhere, start_nextflow, succeeding, tmp_path
):
    scratch = elsewhere / "scratch"
    scratch.mkdir()
    expected = checksums(succeeding(tmp_path / "plain", "-profile", "test", *cohort).outdir)
    given = ("-profile", "test,docker", *cohort, "--scratch_dir", scratch)
    started = start_nextflow(tmp_path, *given, env=docker.environment)
    docker("kill", of_step(docker, "stack.py"))
    run = started.wait()
    assert run.code == 0, run.output
    assert run.tries("STACK", "exit") == [("FAILED", "137"), ("COMPLETED", "0")]
    assert len(expected) >= 4
    assert checksums(run.outdir) == expected
    assert whole(tmp_path / "work")
    assert partial_files(tmp_path, elsewhere) == []
    assert list(scratch.iterdir()) == []
    assert docker("ps", "--all", "--quiet") == ""


@pytest.mark.parametrize("end", ["Ctrl-C", "Nextflow is killed", "the wrapper is killed"])
def test_no_container_outlives_what_started_it(docker, phantom, start_nextflow, tmp_path, end):
    started = start_nextflow(
        *(tmp_path, "-profile", "test,docker", "--phantom", "false", "--resolution", "none", *LONG),
        *("--input", phantom / "truth" / "tissue.ome.zarr", "--skip_report"),
        env=docker.environment,
    )
    container = of_step(docker, "n4.py")
    if end == "Ctrl-C":
        os.kill(started.launcher(), signal.SIGINT)
    elif end == "Nextflow is killed":
        started.kill()
    else:
        # It has children of the same command line.
        wrapper = min(pid for pid, words in started.processes() if words[-1].endswith(".run"))
        os.kill(wrapper, signal.SIGKILL)
        waited(lambda: container not in docker.running(), "the container's end")
        # The task is tried again.
        started.kill()
    waited(lambda: not docker.running(), "the container's end")
    waited(lambda: not started.orphans(), "the end of what Nextflow left running")
    assert whole(tmp_path / "work") == []
    assert partial_files(tmp_path) == []


def test_a_missing_scratch_folder_is_refused_and_not_made(docker, nextflow, phantom, tmp_path):
    wanted = tmp_path / "disk" / "scrtach"
    wanted.parent.mkdir()
    given = ("-profile", "docker", "--input", phantom / "mosaics", "--scratch_dir", wanted)
    run = nextflow(tmp_path, *given, env=docker.environment)
    assert run.code == 1
    assert f"--scratch_dir {wanted} does not exist; create it, or " in run.output
    assert not wanted.exists()


def test_containers_share_the_leases_of_a_node(docker, elsewhere):
    def lease(*words: str, detached: bool = False, check: bool = True) -> str:
        return docker(
            *("run", "--detach" if detached else "--rm", "--user", "1234:1234"),
            *("--env", f"{VARIABLE}=1x4GB", "--env", f"OCTANE_GPU_LOCK_DIR={elsewhere}"),
            *("--volume", f"{elsewhere}:{elsewhere}", "--volume", f"{PROJECT}/bin:{PROJECT}/bin"),
            *(IMAGE, f"{PROJECT}/bin/gpu_slot.py", *words),
            check=check,
        ).strip()

    elsewhere.chmod(0o1777)
    request = ("--memory", "3GB", "--backend", "gpu", "--gpu_timeout", "1", "--")
    holder = lease("--subject", "first", *request, "sleep", "600", detached=True)
    waited(lambda: "first" in lease("--status"), "the first container's lease")
    refused = lease(*request, "true", check=False)
    assert "sleep" not in refused
    assert "GPU" in refused
    assert "error" in refused
    docker("kill", holder)
    assert lease(*request, "echo", "granted").endswith("granted")
    docker("rm", holder)
