"""The container's recipe, and the profiles docker and apptainer with a stand-in for each engine.

The tests need neither a daemon nor an image: a stand-in runs the command in a mount namespace that
hides the tests' folders except the mounts, and passes only the variables given to it. Real Docker,
where it can run, is in test_docker.py; Apptainer and the options of a GPU have only the stand-in.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from docker_daemon import DockerDaemon

from octane import __version__

PROJECT = Path(__file__).resolve().parents[2]
STAND_IN = """\
#!{python}
import json, os, subprocess, sys, tempfile

words = sys.argv[1:]
if words[0] not in ("run", "exec"):
    sys.exit(0)
given, mounts, kept, folder = list(words), [], {{}}, None
while words and words[0] != {image!r}:
    word = words.pop(0)
    if word in ("-v", "-B"):
        mounts.append(words.pop(0).split(":")[0])
        # Docker creates a missing mount source; for Apptainer the mount below fails.
        if word == "-v" and not os.path.exists(mounts[-1]):
            os.makedirs(mounts[-1])
    elif word in ("-e", "--env"):
        name, sign, value = words.pop(0).partition("=")
        if sign or name in os.environ:
            kept[name] = value if sign else os.environ[name]
    elif word == "-w":
        folder = words.pop(0)
folder = folder or os.getcwd()
for name, value in os.environ.items():
    if name.startswith("APPTAINERENV_"):
        kept[name.removeprefix("APPTAINERENV_")] = value
with open({log!r}, "a") as log:
    log.write(json.dumps([given, kept]) + "\\n")
kept.update(PATH={path!r}, HOME="/tmp")

def sh(*command):
    subprocess.run(command, check=True)

stash = tempfile.mkdtemp(dir="/tmp")
sh("mount", "-t", "tmpfs", "tmpfs", stash)
for number, mount in enumerate(mounts):
    os.mkdir(f"{{stash}}/{{number}}")
    sh("mount", "--bind", mount, f"{{stash}}/{{number}}")
for place in {hidden!r}:
    sh("mount", "-t", "tmpfs", "tmpfs", place)
for number, mount in enumerate(mounts):
    os.makedirs(mount, exist_ok=True)
    sh("mount", "--bind", f"{{stash}}/{{number}}", mount)
os.chdir(folder)
os.execvpe(words[1], words[1:], kept)
"""


CASES = {
    "docker": ("process.container = 'lab/octane:7'", "lab/octane:7", "--gpus all"),
    "apptainer": ("", f"{{project}}/octane-{__version__}.sif", "--nv"),
}
"""Config, image, and GPU option of each engine."""


EVERY = ["docker", pytest.param("apptainer", marks=pytest.mark.soak)]


@pytest.fixture
def engine(request, project, tmp_path, tmp_path_factory, environment):
    """Put a stand-in on the PATH; return its name, environment, log of calls, and a folder.

    The folder is hidden as well, and shares no parent with the tests' own folders.
    """
    namespace = ["unshare", "--mount", "--map-root-user"]
    if not sys.platform.startswith("linux"):
        pytest.skip("mount namespaces need Linux")
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    # The workers' common copy of the project is one level above their own folders.
    hidden = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        hidden = hidden.parent
    elsewhere = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder = tmp_path / "engine"
    folder.mkdir()
    log, inner, tool = (folder / name for name in ("calls.log", "inner.py", request.param))
    inner.write_text(
        STAND_IN.format(
            python=sys.executable,
            log=str(log),
            image=CASES[request.param][1].format(project=project),
            path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            hidden=[str(hidden), str(elsewhere)],
        ),
        encoding="utf-8",
    )
    tool.write_text(f'#!/bin/bash\nexec {" ".join(namespace)} {sys.executable} {inner} "$@"\n')
    tool.chmod(stat.S_IRWXU)
    path = f"{folder}{os.pathsep}{environment['PATH']}"
    yield request.param, {"PATH": path}, log, elsewhere
    shutil.rmtree(elsewhere)


@pytest.mark.parametrize("engine", EVERY, indirect=True)
def test_the_tasks_find_all_they_need_in_their_containers(
    engine, succeeding, quick, phantom, tmp_path
):
    name, env, log, elsewhere = engine
    config, _, gpu = CASES[name]
    (tmp_path / "image.config").write_text(config, encoding="utf-8")
    wanted = tmp_path / "disk" / "new"
    wanted.parent.mkdir()
    linked = tmp_path / "linked" / "section_01.ome.zarr"
    linked.parent.mkdir()
    linked.symlink_to(shutil.copytree(phantom / "mosaics" / linked.name, elsewhere / linked.name))
    run = succeeding(
        *(tmp_path, "-profile", f"test,{name}", *quick[2:], "-c", "image.config"),
        *("--input", linked.parent, "--subject", "sub-01"),
        *("--skip_n4", "--skip_pyramid", "--skip_report", "--scratch_dir", f"{wanted}/"),
        *("--gpu_count", "2", "--gpu_slots", "3"),
        env={**env, "OCTANE_GPU_LOCK_DIR": "/var/tmp"},
    )
    # PREFLIGHT warns that scratch and work folder are on one disk here.
    warnings = [line for line in run.output.splitlines() if "WARN" in line]
    assert [line for line in warnings if "The scratch folder " not in line] == []
    assert (run.outdir / "sub-01" / "sub-01_stack.ome.zarr" / "zarr.json").exists()
    # Compiled code outlives its container.
    assert any((tmp_path / "work" / "numba").iterdir())
    assert list(wanted.iterdir()) == []
    # CuPy runs what it finds in its cache: only the user who runs the tasks may write there.
    cache = tmp_path / "work" / f"cupy-{os.getuid()}"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    calls = {}
    for words, variables in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
        (script,) = re.findall(r"\S+/\.command\.(?:run|sh)", " ".join(words))
        text = Path(script).with_name(".command.sh").read_text(encoding="utf-8")
        (command,) = re.findall(r"(preflight|resample|stitch|stack)\.py", text)
        places = {p.split(":")[0].rstrip("/") for way, p in pairwise(words) if way in ("-v", "-B")}
        calls[command] = " ".join(words)
        assert variables.get("CUPY_CACHE_DIR") == (str(cache) if command == "resample" else None)
        assert ("/var/tmp" in places) == (command == "resample")
        # Tasks create the scratch folder; PREFLIGHT only checks its parent.
        assert (str(wanted.parent) in places) == (command == "preflight")
        assert (str(wanted) in places) == (command != "preflight")
    assert list(calls) == ["preflight", "resample", "stitch", "stack"]
    for command, call in calls.items():
        assert (gpu in call) == (command == "resample")


@pytest.mark.soak
def test_a_subject_gets_gpus_by_its_own_backend(succeeding, quick, phantom, environment, tmp_path):
    # Runs a task's script without a container.
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/bash\n[[ $1 == run ]] || exit 0\n"
        'while [[ $1 && $1 != octane:* ]]; do shift; done\nshift\nexec "$@"\n',
        encoding="utf-8",
    )
    tool.chmod(0o755)
    volume = phantom / "truth" / "tissue.ome.zarr"
    (tmp_path / "cohort.csv").write_text(
        f"subject,input,backend\nwith,{volume},auto\nwithout,{volume},cpu\nunset,{volume},\n",
        encoding="utf-8",
    )
    run = succeeding(
        *(tmp_path, *quick[2:], "-profile", "test,docker", "--samplesheet", "cohort.csv"),
        *("--skip_n4", "--skip_pyramid", "--skip_report", "--resolution", "20"),
        *("--backend", "cpu", "--gpu_count", "1"),
        env={"PATH": f"{tool.parent}{os.pathsep}{environment['PATH']}"},
    )
    wrappers = {name: run.wrapper(f"RESAMPLE ({name}:") for name in ("with", "without", "unset")}
    assert [name for name, text in wrappers.items() if "--gpus all" in text] == ["with"]


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["apptainer"], indirect=True)
def test_the_voxels_of_a_header_are_seen_wherever_they_lie(engine, succeeding, quick, tmp_path):
    name, env, _, elsewhere = engine
    given, _, _ = CASES[name]
    for folder, file in (("image", "brain.mhd"), ("mask", "mask.nhdr")):
        (elsewhere / folder).mkdir()
        voxels = np.random.default_rng(1).gamma(9.0, 10.0, (16, 24, 24)).astype(np.float32)
        content = voxels if folder == "image" else np.ones_like(voxels, np.uint8)
        image = sitk.GetImageFromArray(content)
        image.SetSpacing([0.01] * 3)
        sitk.WriteImage(image, elsewhere / folder / file)
    (tmp_path / "linked").mkdir()
    for file in ("brain.mhd", "brain.raw"):
        (tmp_path / "linked" / file).symlink_to(elsewhere / "image" / file)
    run = succeeding(
        *(tmp_path, "-profile", f"test,{name}", *quick[2:], *given, "--subject", "s"),
        *("--input", "linked/brain.mhd", "--n4_mask", elsewhere / "mask" / "mask.nhdr"),
        *("--n4_shrink_factor", "1", "--skip_pyramid", "--skip_report"),
        env=env,
    )
    assert (run.outdir / "s" / "s_n4.ome.zarr" / "zarr.json").exists()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["apptainer"], indirect=True)
def test_a_missing_scratch_folder_is_refused_and_not_made(engine, nextflow, phantom, tmp_path):
    name, env, *_ = engine
    wanted = tmp_path / "disk" / "scrtach"
    wanted.parent.mkdir()
    given = (*CASES[name][0], "--input", phantom / "mosaics", "--scratch_dir", wanted)
    run = nextflow(tmp_path, "-profile", name, *given, env=env)
    assert run.code == 1
    assert f"--scratch_dir {wanted} does not exist; create it, or " in run.output
    assert run.processes() == {"PREFLIGHT"}
    assert not wanted.exists()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["apptainer"], indirect=True)
def test_a_link_to_nothing_is_named_by_preflight(engine, nextflow, phantom, tmp_path):
    name, env, *_ = engine
    (tmp_path / "in").mkdir()
    for section in (phantom / "mosaics").iterdir():
        (tmp_path / "in" / section.name).symlink_to(section)
    link = tmp_path / "in" / "section_03.ome.zarr"
    link.symlink_to(tmp_path / "gone.ome.zarr")
    run = nextflow(tmp_path, "-profile", name, *CASES[name][0], "--input", "in", env=env)
    assert run.code == 1
    assert str(link) in run.output.splitlines()[-1]
    assert run.processes() == {"PREFLIGHT"}


# The recipe

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


def test_the_image_is_built_only_from_pinned_parts_that_the_build_sees():
    bases = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE)
    assert bases == [("debian:bookworm-slim", "system"), ("system", "packages"), ("system", "")]
    (sources,) = re.findall(r"^COPY (requirements.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((PROJECT / source).is_file() for source in sources.split())
    ignored = (PROJECT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored == ["*", "!requirements"]
    (line,) = re.findall(r" install --no-cache-dir (?:.*\\\n)*.*", DOCKERFILE)
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
    for name in CASES:
        profile = (PROJECT / "conf" / f"{name}.config").read_text(encoding="utf-8")
        assert re.search(r"octane[:-]\$\{workflow\.manifest\.version\}", profile)


def test_variables_of_the_node_reach_the_tasks_of_every_engine():
    config = (PROJECT / "nextflow.config").read_text(encoding="utf-8")
    profiles = [(PROJECT / "conf" / f"{name}.config").read_text() for name in CASES]
    joined = [re.sub(r"' \+\n *'", "", text) for text in (config, *profiles)]
    lists = [re.findall(r"envWhitelist =\s+'(.*)'", text) for text in joined]
    assert lists == [lists[0]] * 3
    ((handed,),) = {tuple(found) for found in lists}
    scripts = [PROJECT / "lib" / name for name in ("before_task.sh", "end_orphans.sh")]
    exported = {v for path in scripts for v in re.findall(r"\bexport (\w+)=", path.read_text())}
    assert "OCTANE_TASK" in exported
    assert exported | {"CUDA_VISIBLE_DEVICES"} <= set(handed.split(","))


def test_warnings_of_docker_are_no_output_and_its_errors_are_said(tmp_path):
    daemon = object.__new__(DockerDaemon)
    daemon.folder, daemon.socket = tmp_path, tmp_path / "docker.sock"
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "docker"
    client.write_text(
        '#!/bin/sh\necho "WARNING: IPv4 forwarding is disabled." >&2\necho 5\nexit $1'
    )
    client.chmod(0o755)
    assert daemon("0") == "5\n"
    assert daemon("3", check=False) == "5\nWARNING: IPv4 forwarding is disabled.\n"
    with pytest.raises(RuntimeError):
        daemon("3")
