"""Where tasks run, and the files they leave there."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from octane.config.validation import OFF, ON, read_scratch

READINGS = [False, True, None, 0, 1, *OFF, *ON, *map(str.title, OFF + ON), *(" no ", " yes ")]


def closure(project, name):
    """Source of a process setting in ``conf/base.config``."""
    text = (project / "conf" / "base.config").read_text(encoding="utf-8")
    start = text.index(f"    {name} = {{") + len(f"    {name} = ")
    end = text.index("\n    }\n", start) + len("\n    }")
    return text[start:end]


def made_by(text, folder, env):
    """Make a task's folder by a scratch setting, as Nextflow's wrapper does."""
    command = 'nxf_mktemp() { mkdir -p "$1" && TMPDIR="$1" mktemp -d -t nxf.XXXXXXXXXX; }\nset -e\n'
    return subprocess.run(
        ["bash", "-uc", f'{command}made="$(set +u; nxf_mktemp {text})"\necho "$made"'],
        cwd=folder, env={"PATH": os.environ["PATH"], **env}, check=False, capture_output=True,
        text=True,
    )  # fmt: skip


def test_nextflow_and_python_read_scratch_dir_alike(project, environment, tmp_path):
    values = [*READINGS, f"{tmp_path}/disk/own/", "$DISK/own", "${DISK}/a-$DAY/x"]
    (tmp_path / "values.json").write_text(json.dumps(values), encoding="utf-8")
    (tmp_path / "main.nf").write_text(
        "workflow {\n"
        "    def values = new groovy.json.JsonSlurper().parse(file('values.json').toFile())\n"
        "    def found = [1, 2].collect { attempt -> values.collect { value ->\n"
        "        def (params, task) = [[scratch_dir: value], [attempt: attempt]]\n"
        f"        def moduleDir = file('{project}/modules')\n"
        f"        def read = {closure(project, 'scratch')}\n"
        "        read.call()\n"
        "    } }\n"
        "    file('found.json').text = groovy.json.JsonOutput.toJson(found)\n"
        "}\n",
        encoding="utf-8",
    )
    subprocess.run(
        ["nextflow", "run", "main.nf"], cwd=tmp_path, env=environment, check=True, timeout=120
    )
    first, second = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    given = {"TMPDIR": f"{tmp_path}/tmp", "DISK": f"{tmp_path}/disk", "DAY": "1"}
    for value, text in zip(values, first, strict=True):
        meant = read_scratch(value)
        if meant is False:
            assert text is False, value
            continue
        made = made_by(text, tmp_path, given)
        folder = "$TMPDIR" if meant is True else meant
        for name, content in given.items():
            folder = re.sub(rf"\$\{{?{name}\}}?", content, folder)
        assert made.returncode == 0, made.stderr
        assert Path(made.stdout.strip()).parent == Path(folder), value
    # A second attempt runs in the work directory.
    assert not any(second)


@pytest.mark.parametrize(
    ("place", "code", "named"),
    [
        ("${DISK}/own/", 1, "--scratch_dir names DISK"),
        ("/tmp/$EMPTY", 1, "--scratch_dir names EMPTY"),
        ("/tmp/$1x", 1, "--scratch_dir names 1x"),
        # ENOSPC, which the workflow tries again without scratch.
        ("/dev/null/own", 28, "no scratch folder"),
    ],
)
def test_a_folder_that_cannot_be_made_is_the_tasks_error(project, tmp_path, place, code, named):
    done = subprocess.run(
        ["bash", project / "lib" / "scratch_folder.sh", place],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "EMPTY": ""}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    words = (tmp_path / ".command.err").read_text(encoding="utf-8")
    assert words.startswith(f"error: {named}")
    assert words in done.stderr


@pytest.mark.soak
def test_a_variable_without_a_value_on_the_node_is_an_error(nextflow, phantom, tmp_path):
    # PREFLIGHT would report the missing variable before any other task: set it only there, as if
    # the other tasks ran on another node.
    (tmp_path / "node.config").write_text(
        "process { withName: PREFLIGHT { beforeScript = 'export NODE_DISK=/tmp' } }\n",
        encoding="utf-8",
    )
    run = nextflow(
        *(tmp_path, "-c", "node.config", "--input", f"{phantom}/mosaics"),
        *("--scratch_dir", "${NODE_DISK}/own/"),
    )
    assert run.code == 1
    assert run.processes("FAILED") == {"STITCH"}
    words = r"octane stopped: STITCH \(.+\): --scratch_dir names NODE_DISK, which is not set on "
    assert re.search(words, run.output)
    assert not Path("/own").exists()


@pytest.mark.soak
def test_inputs_are_links_and_outputs_are_written_twice_out_of_scratch(
    succeeding, phantom, quick, small_disk, tmp_path
):
    disk = small_disk("disk", "size=24m")
    run = succeeding(
        *(tmp_path, *quick, "--input", phantom / "mosaics", "--scratch_dir", disk),
        *("--resolution", "none", "--skip_n4", "--skip_report", "--publish_dir_mode", "copy"),
    )
    assert list(disk.iterdir()) == []
    staged = [line for line in run.wrapper("STACK").splitlines() if "input/section_01" in line]
    assert staged
    assert all("ln -s " in line or "rm -f " in line for line in staged)
    # Copies are not hard links to the previous step's volume.
    chunks = list((run.folder / "work").glob("*/*/mosaics*.ome.zarr/0/c/0/0/0"))
    assert len(chunks) == 2
    assert all(chunk.stat().st_nlink == 1 for chunk in chunks)
    assert "mosaics will write " in run.output


NSYS = """#!/bin/bash
# Runs the command, and writes a file of the given name, as nsys does.
[[ $1 == profile ]] || exit 2
shift
while [[ $1 == --* ]]; do
    case $1 in --output=*) name=${1#--output=} ;; --trace=*) trace=$1 ;; esac
    shift
done
echo "$trace ${1##*/}" > "$name.nsys-rep"
exec env NVTX_INJECTION64_PATH=/nonexistent/injection.so "$@"
"""


@pytest.mark.soak
def test_gpu_steps_are_profiled_and_their_files_published(
    succeeding, phantom, quick, environment, tmp_path
):
    folder = tmp_path / "nsight"
    folder.mkdir()
    (folder / "nsys").write_text(NSYS, encoding="utf-8")
    (folder / "nsys").chmod(0o755)
    run = succeeding(
        *(tmp_path, "-profile", "test,profile_gpu", *quick[2:], "--resolution", "20"),
        *("--input", phantom / "truth" / "tissue.ome.zarr", "--skip_pyramid", "--skip_report"),
        env={"PATH": f"{folder}:{environment['PATH']}"},
    )
    found = sorted(run.outdir.glob("*/profiles/*.nsys-rep"))
    assert [path.name.rpartition("_")[2] for path in found] == ["n4.nsys-rep", "resample.nsys-rep"]
    assert found[0].read_text() == "--trace=cuda,nvtx,osrt n4.py\n"
