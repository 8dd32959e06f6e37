"""Where tasks run and what they write there: bounds of PREFLIGHT, and counted after a real run."""

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from octane.config.scratch import OFF, ON, read_scratch
from octane.steps.space import LEAST, TASK

READINGS = [False, True, None, 0, 1, "/fast/own", "$DISK/own", *OFF, *ON, *map(str.title, OFF + ON)]


def closure(project, name):
    """Text of a process setting in ``conf/base.config``."""
    text = (project / "conf" / "base.config").read_text(encoding="utf-8")
    start = text.index(f"    {name} = {{") + len(f"    {name} = ")
    end = text.index("\n    }\n", start) + len("\n    }")
    return text[start:end]


@pytest.fixture(scope="module")
def in_nextflow(project, environment, tmp_path_factory):
    """What ``conf/base.config`` makes of values of ``scratch_dir``, read by the real Nextflow."""

    def evaluate(values, attempt=1):
        folder = tmp_path_factory.mktemp("closure")
        (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
        (folder / "main.nf").write_text(
            "workflow {\n"
            "    def values = new groovy.json.JsonSlurper().parse(file('values.json').toFile())\n"
            "    def found = values.collect { value ->\n"
            f"        def (params, task) = [[scratch_dir: value], [attempt: {attempt}]]\n"
            f"        def read = {closure(project, 'scratch')}\n"
            "        read.call()\n"
            "    }\n"
            "    file('found.json').text = groovy.json.JsonOutput.toJson(found)\n"
            "}\n",
            encoding="utf-8",
        )
        made = subprocess.run(
            ["nextflow", "run", "main.nf"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        return json.loads((folder / "found.json").read_text(encoding="utf-8"))

    return evaluate


def test_nextflow_and_python_read_scratch_dir_alike(in_nextflow):
    for value, place in zip(READINGS, in_nextflow(READINGS), strict=True):
        meant = read_scratch(value)
        if meant is False:
            assert place is False, value
        elif meant is True:
            assert place.startswith("${TMPDIR:-/tmp} || "), value
        else:
            named = re.sub(r"\$\{(\w+):\?.*?\| tee .command.err\)\}", r"$\1", place)
            assert named.startswith(f"{meant} || "), value


def test_a_second_attempt_is_made_in_the_work_directory(in_nextflow):
    assert in_nextflow([True, "/fast", "$DISK"], attempt=2) == [False] * 3


def test_a_variable_without_a_value_on_the_node_is_an_error(nextflow, phantom, tmp_path):
    # PREFLIGHT is a task as the others, and looks before there is a second one: the variable is
    # taken away from the tasks behind it, as on another node.
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
    assert "octane stopped: --scratch_dir names NODE_DISK, which has no value on " in run.output
    assert not Path("/own").exists()


def test_a_folder_that_is_to_be_made_is_made_and_left_empty(nextflow, phantom, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "--input", f"{phantom}/mosaics"),
        *("--scratch_dir", f"{tmp_path}/new/"),
    )
    assert run.code == 0, run.output
    assert list((tmp_path / "new").iterdir()) == []


def held(folder):
    """Bytes that a file system allocates for a folder, links left out."""
    found = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    return sum(4096 if p.is_dir() else -(-p.stat().st_size // 4096) * 4096 for p in found)


@pytest.fixture(scope="module")
def other_disk(tmp_path_factory):
    """A small file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_inputs_are_links_and_outputs_are_written_twice_out_of_scratch(
    nextflow, phantom, quick, other_disk, tmp_path
):
    run = nextflow(
        *(tmp_path, *quick, "--input", phantom / "mosaics", "--scratch_dir", other_disk),
        *("--skip_resample", "--skip_n4", "--publish_dir_mode", "copy"),
    )
    assert run.code == 0, run.output
    assert list(other_disk.iterdir()) == []
    wrapper = run.task_file("STACK", ".command.run").read_text(encoding="utf-8")
    staged = [line for line in wrapper.splitlines() if "input/section_01.ome.zarr" in line]
    assert staged
    assert all("ln -s " in line or "rm -f " in line for line in staged)
    # The link to the volume of the step before does not survive the copy.
    chunks = list((run.folder / "work").glob("*/*/mosaics*.ome.zarr/0/c/0/0/0"))
    assert len(chunks) == 2
    assert all(chunk.stat().st_nlink == 1 for chunk in chunks)
    plans = json.loads(run.task_file("PREFLIGHT", "plans.json").read_text(encoding="utf-8"))
    with (run.outdir / "pipeline_info" / "trace.txt").open(encoding="utf-8") as stream:
        tasks = list(csv.DictReader(stream, delimiter="\t"))
    steps = plans["plans"][0]["steps"]
    assert [step["name"] for step in steps] == ["STITCH", "STACK", "PYRAMID", "REPORT"]
    for step in steps:
        name, least = step["name"], LEAST * (step["voxels"] + step["linked"])
        folders = [
            next((run.folder / "work").glob(f"{task['hash']}*"))
            for task in tasks
            if task["name"].removeprefix("OCTANE:").startswith(f"{name} ")
        ]
        assert len(folders) == step["tasks"]
        most = step["voxels"] + step["linked"] + step["tasks"] * TASK
        assert least <= sum(map(held, folders)) <= most, name
    published = sum(step["published"] for step in steps)
    most = published + TASK * sum(step["tasks"] for step in steps)
    assert LEAST * published <= held(run.outdir / "mosaics") <= most
    assert "mosaics will write " in run.output


def test_what_cannot_fit_stops_before_work_with_the_figures(
    nextflow, phantom, other_disk, tmp_path
):
    arguments = ("--input", phantom / "mosaics", "--publish_dir_mode", "copy")
    outdir = other_disk / "out"
    filler = other_disk / "filler"
    filler.write_bytes(bytes(24 * 2**20 - 200_000))
    try:
        run = nextflow(tmp_path, *arguments, "--trace_report", "false", outdir=outdir)
        assert run.code == 1
        assert "octane stopped: mosaics does not fit: output (" in run.output
        assert "--publish_dir_mode symlink" in run.output
        assert "RESAMPLE (" not in run.output
        assert [file.name for file in outdir.rglob("*") if file.is_file()] == [".lock"]
    finally:
        filler.unlink()


def test_hard_links_to_another_file_system_are_refused(nextflow, phantom, other_disk, tmp_path):
    run = nextflow(
        *(tmp_path, "--input", f"{phantom}/mosaics", "--publish_dir_mode", "link"),
        *("--trace_report", "false"),
        outdir=other_disk / "linked",
    )
    assert run.code == 1
    assert "octane stopped: --publish_dir_mode link: no hard link can lead from" in run.output
    assert "RESAMPLE (" not in run.output


@pytest.mark.parametrize("way", ["command line", "params file", "config"])
def test_moving_results_is_refused_whichever_way_it_is_asked_for(nextflow, phantom, way, tmp_path):
    (tmp_path / "p.yml").write_text("publish_dir_mode: move\n", encoding="utf-8")
    (tmp_path / "c.config").write_text("params.publish_dir_mode = 'move'\n", encoding="utf-8")
    asked = {
        "command line": ("--publish_dir_mode", "move"),
        "params file": ("-params-file", "p.yml"),
        "config": ("-c", "c.config"),
    }
    run = nextflow(tmp_path, "--input", f"{phantom}/mosaics", *asked[way])
    assert run.code == 1
    assert "--publish_dir_mode is 'move': input should be 'symlink'" in run.output
    assert run.processes() == {"PREFLIGHT"}
