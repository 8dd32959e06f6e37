"""The profiles docker and apptainer, with stand-ins that see no more than what is mounted.

No daemon and no image are needed: the stand-in runs what it is told to in a mount namespace where
the tests' own folders are hidden but for the mounts, and with no variables but those handed over.
"""

import json
import os
import re
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

STAND_IN = """\
#!{python}
import json, os, subprocess, sys, tempfile

words = sys.argv[1:]
if words[0] not in ("run", "exec"):
    sys.exit(0)
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
mounts, kept, folder = [], {{}}, None
while words and words[0] != {image!r}:
    word = words.pop(0)
    if word in ("-v", "-B"):
        mounts.append(words.pop(0).split(":")[0])
        # As Docker does, whereas the mount below fails as Apptainer's.
        if word == "-v" and not os.path.exists(mounts[-1]):
            os.makedirs(mounts[-1])
    elif word in ("-e", "--env"):
        name, given, value = words.pop(0).partition("=")
        if given or name in os.environ:
            kept[name] = value if given else os.environ[name]
    elif word == "-w":
        folder = words.pop(0)
folder = folder or os.getcwd()
for name, value in os.environ.items():
    if name.startswith("APPTAINERENV_"):
        kept[name.removeprefix("APPTAINERENV_")] = value
kept.update(PATH={path!r}, HOME="/tmp")

def sh(*command):
    subprocess.run(command, check=True)

stash = tempfile.mkdtemp(dir="/tmp")
sh("mount", "-t", "tmpfs", "tmpfs", stash)
for number, mount in enumerate(mounts):
    os.mkdir(f"{{stash}}/{{number}}")
    sh("mount", "--bind", mount, f"{{stash}}/{{number}}")
sh("mount", "-t", "tmpfs", "tmpfs", {hidden!r})
for number, mount in enumerate(mounts):
    os.makedirs(mount, exist_ok=True)
    sh("mount", "--bind", f"{{stash}}/{{number}}", mount)
os.chdir(folder)
os.execvpe(words[1], words[1:], kept)
"""


@pytest.fixture
def engine(tmp_path, tmp_path_factory, environment):
    """Put a stand-in on the PATH; gives the environment and the log of its calls."""
    namespace = ["unshare", "--mount", "--map-root-user"]
    if not sys.platform.startswith("linux"):
        pytest.skip("mount namespaces are Linux's")
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")

    def put(name, image):
        folder = tmp_path / "engine"
        folder.mkdir()
        log = folder / "calls.log"
        inner = folder / "inner.py"
        inner.write_text(
            STAND_IN.format(
                python=sys.executable,
                log=str(log),
                image=image,
                path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
                hidden=str(tmp_path_factory.getbasetemp()),
            ),
            encoding="utf-8",
        )
        tool = folder / name
        tool.write_text(f'#!/bin/bash\nexec {" ".join(namespace)} {sys.executable} {inner} "$@"\n')
        tool.chmod(stat.S_IRWXU)
        return {"PATH": f"{folder}{os.pathsep}{environment['PATH']}"}, log

    return put


def calls(log, command):
    """The calls that ran a task of one of the workflow's commands."""
    found = []
    for words in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
        line = " ".join(words)
        script = re.search(r"\S+/\.command\.(?:run|sh)", line)
        if script and command in Path(script[0]).with_name(".command.sh").read_text():
            found.append(line)
    return found


CASES = {
    "docker": (None, "octane:0.1.0", "--gpus all", "-v"),
    "docker, own image": ("lab/octane:7", "lab/octane:7", "--gpus all", "-v"),
    "apptainer": (None, "{project}/octane-0.1.0.sif", "--nv", "-B"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_tasks_find_all_they_need_in_their_containers(
    case, engine, nextflow, project, quick, phantom, tmp_path
):
    asked, image, gpu, mount = CASES[case]
    name, image = case.split(",")[0], image.format(project=project)
    env, log = engine(name, image)
    profiles = f"test,{name}"
    given = [*quick[2:], "--input", phantom / "mosaics", "--skip_n4"]
    given += ["--container", asked] if asked else []
    given += ["--gpu_count", "2", "--gpu_slots", "3", "--gpu_lock_dir", "/var/tmp"]
    run = nextflow(tmp_path, "-profile", profiles, *given, env=env)
    assert run.code == 0, run.output
    assert "WARN" not in run.output
    assert (run.outdir / "mosaics" / "mosaics.ome.zarr" / "zarr.json").exists()
    # Compiled code outlives a container.
    assert any((tmp_path / "work" / "numba").iterdir())
    resampled, stitched = calls(log, "resample.py"), calls(log, "stitch.py")
    assert len(resampled) == len(stitched) == 2
    crate = json.loads((run.outdir / "mosaics" / "ro-crate-metadata.json").read_text("utf-8"))
    (named,) = (entity for entity in crate["@graph"] if entity["@id"] == "#container")
    assert ":".join(filter(None, (named["name"], named.get("tag")))) == image
    assert all(gpu in call and f"{mount} /var/tmp" in call for call in resampled)
    assert not any(gpu in call or "/var/tmp" in call for call in stitched)
    again = nextflow(*(tmp_path, "-profile", profiles, *given, "-resume"), env=env)
    assert again.code == 0, again.output
    assert again.tasks("CACHED") == again.tasks()


@pytest.mark.parametrize("name", ["docker", "apptainer"])
def test_a_scratch_folder_that_is_not_there_is_refused_and_not_made(
    name, engine, nextflow, project, phantom, tmp_path
):
    env, _ = engine(name, CASES[name][1].format(project=project))
    wanted = tmp_path / "disk" / "scrtach"
    wanted.parent.mkdir()
    run = nextflow(
        *(tmp_path, "-profile", name, "--input", phantom / "mosaics", "--scratch_dir", wanted),
        env=env,
    )
    assert run.code == 1
    assert f"octane stopped: --scratch_dir {wanted} does not exist; make it, or " in run.output
    assert run.processes() == {"PREFLIGHT"}
    assert not wanted.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docker", "apptainer"])
def test_a_scratch_folder_that_is_to_be_made_is_made_outside(
    name, engine, nextflow, project, quick, phantom, tmp_path
):
    env, log = engine(name, CASES[name][1].format(project=project))
    wanted = tmp_path / "disk" / "new"
    wanted.parent.mkdir()
    run = nextflow(
        *(tmp_path, "-profile", f"test,{name}", *quick[2:], "--input", phantom / "mosaics"),
        *("--scratch_dir", f"{wanted}/", "--skip_resample", "--skip_n4", "--skip_report"),
        env=env,
    )
    assert run.code == 0, run.output
    assert list(wanted.iterdir()) == []
    words = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    mounted = [
        {place.split(":")[0].rstrip("/") for way, place in pairwise(call) if way in ("-v", "-B")}
        for call in words
    ]
    # PREFLIGHT comes first, and looks at the folder that is to hold it.
    assert [str(wanted.parent) in places for places in mounted] == [True, *[False] * 4]
    assert [str(wanted) in places for places in mounted] == [False, *[True] * 4]
