"""Parameters in a params file, a config and on the command line reach the tasks (mostly stubs)."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from runs import voxels

GPU = ("RESAMPLE", "N4")
"""Processes labelled gpu_slot."""


def scratch_of(run, task="STACK"):
    """Scratch setting in Nextflow's wrapper of a task; empty without scratch."""
    (line,) = (line for line in run.wrapper(task).splitlines() if "NXF_SCRATCH=" in line)
    return line.strip().removeprefix("NXF_SCRATCH=").strip("'\"")


def before(run, task):
    """Command that Nextflow's wrapper of a task runs first, with the script's name."""
    text = run.wrapper(task).split("# beforeScript directive\n")[1].splitlines()[0]
    return text.replace('. "$script"', "before_task.sh").rstrip()


VALUES = {
    ("2", "slurm"): {"OCTANE_ATTEMPT": "2"},
    ("1", "slurm", "3", "null", ""): {"OCTANE_ATTEMPT": "1", "OCTANE_GPU_SLOTS": "3"},
    ("1", "slurm", "1", "0.5", "{}/a 'b'"): {
        "OCTANE_ATTEMPT": "1",
        "OCTANE_GPU_SLOTS": "1",
        "OCTANE_GPU_TIMEOUT": "0.5",
        "CUPY_CACHE_DIR": f"{{}}/a 'b'/cupy-{os.getuid()}",
    },
}
"""Variables of a task, by the arguments of its first command."""


@pytest.mark.parametrize("given", VALUES)
def test_variables_of_a_task(project, tmp_path, given):
    script = 'set -e\n. "$0"/lib/before_task.sh "$@"\nexec env -0'
    text = subprocess.run(
        ["bash", "-c", script, project, *(word.format(tmp_path) for word in given)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/stale", "PYTHONSAFEPATH": "1"},
    ).stdout  # fmt: skip
    found = dict(line.split("=", 1) for line in text.split("\0") if line)
    wanted = {name: value.format(tmp_path) for name, value in VALUES[given].items()}
    own = ("OCTANE_", "PYTHON", "CUPY_")
    assert {name: found[name] for name in found if name.startswith(own)} == wanted
    if cache := wanted.get("CUPY_CACHE_DIR"):
        assert stat.S_IMODE(Path(cache).stat().st_mode) == 0o700


def test_a_params_file(succeeding, phantom, tmp_path):
    (tmp_path / "params.yml").write_text(
        f"input: {phantom}/mosaics\n"
        f"outdir: {tmp_path}/from-file\n"
        "subject: sub-01\n"
        "resolution: 10\n"
        "publish_dir_mode: copy\n"
        f"scratch_dir: {tmp_path}/scratch/\n"
        "gpu_slots: 3\n"
        "gpu_timeout: 60\n",
        encoding="utf-8",
    )
    # Nextflow's local executor (26.10) would refuse a task that requests an accelerator; and a task
    # that waits for a GPU must not have a time limit.
    (tmp_path / "show.config").write_text(
        "process { resourceLimits = [cpus: 1, memory: 1.GB]\nwithName: 'N4|STACK' {\n"
        '    afterScript = { "# asked ${task.accelerator?.request}, ${task.time}" }\n} }\n'
    )
    run = succeeding(
        *(tmp_path, "-stub", "-params-file", "params.yml", "-profile", "gpu", "-c", "show.config"),
        outdir=tmp_path / "from-file",
        give_outdir=False,
    )
    result = run.outdir / "sub-01" / "sub-01.ome.zarr"
    assert result.is_dir()
    assert not result.is_symlink()
    assert f"scratch_folder.sh\" '{tmp_path}/scratch/'" in scratch_of(run)
    assert not scratch_of(run, "PREFLIGHT")
    # Because the path ends in a slash, tasks made the folder; they left it empty.
    assert not list((tmp_path / "scratch").iterdir())
    assert {row["cpus"] for row in run.trace} == {"1"}
    assert {row["memory"] for row in run.trace} == {"1 GB"}
    for process in GPU:
        assert "before_task.sh 1 local '3' '60' ''" in before(run, process)
    assert before(run, "STITCH").endswith("before_task.sh 1 local")
    for process in ("N4", "STACK"):
        assert "# asked null, null" in run.wrapper(process)


@pytest.mark.soak
def test_tasks_ignore_the_callers_python_path(succeeding, quick, phantom, tmp_path):
    # As after `module load` of another Python.
    stale = tmp_path / "stale"
    stale.mkdir()
    for name in ("json", "numpy"):
        (stale / f"{name}.py").write_text("raise SystemExit('stale')\n", encoding="utf-8")
    env = {"PYTHONPATH": str(stale), "PYTHONSAFEPATH": "1"}
    given = ("--input", phantom / "truth" / "tissue.ome.zarr", "--resolution", "none", "--skip_n4")
    run = succeeding(tmp_path, *quick, *given, "--skip_report", env=env)
    assert run.processes() == {"PREFLIGHT", "PYRAMID"}
    assert "WARN" not in run.output


@pytest.mark.soak
def test_a_config_of_the_subject_over_which_the_command_line_wins(
    succeeding, phantom, project, tmp_path
):
    text = (project / "conf" / "subjects" / "template.config").read_text(encoding="utf-8")
    assert text.count("includeConfig") == 1
    settings = f"""params {{
    subject = 'sub-02'
    input = '{phantom}/mosaics'
    outdir = '{tmp_path}/from-config'
    publish_dir_mode = 'copy'
    scratch_dir = true
    gpu_count = 1
}}
"""
    path = tmp_path / "sub-02.config"
    path.write_text(settings + text[text.index("includeConfig") :], encoding="utf-8")
    run = succeeding(
        *(tmp_path, "-stub", "-c", path, "--publish_dir_mode", "symlink"),
        outdir=tmp_path / "from-config",
        give_outdir=False,
    )
    assert (run.outdir / "sub-02" / "sub-02.ome.zarr").is_symlink()
    assert "nxf_mktemp" in scratch_of(run)
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".nextflow",
        "from-config",
        "work",
    ]


def test_the_config_of_a_new_subject_runs_as_it_is_written(
    succeeding, command, project, phantom, tmp_path
):
    name, data = "two (b) é", tmp_path / "it's the data é"
    section = phantom / "mosaics" / "section_01.ome.zarr"
    shutil.copytree(section, data / section.name)
    done = command("new_subject", data, "--name", name, cwd=tmp_path, code=project)
    assert done.returncode == 0, done.stderr
    assert f"nextflow run {project}/main.nf -c " in done.stdout.splitlines()[-1]
    run = succeeding(
        *(tmp_path, "-c", project / "conf" / "subjects" / f"{name}.config"),
        *("--skip_n4", "--skip_report", "--skip_pyramid"),
        outdir=tmp_path / "results",
        give_outdir=False,
    )
    # A section of 70 micrometres, from the data, at the suggested voxel size of 10.
    assert voxels(run.outdir / name / f"{name}_stack.ome.zarr").shape[0] == 7
    assert (run.outdir / "pipeline_info" / "report.html").is_file()
    assert f"STACK ({name})" in run.tasks("COMPLETED")


@pytest.mark.soak
def test_slurm_gets_the_options_of_every_job_and_a_lost_one_is_tried_again(
    succeeding, phantom, environment, tmp_path
):
    # Runs each job at once, but pretends to lose the node of the first STACK.
    submit = f"""if grep -q STACK "${{@: -1}}" && mkdir {tmp_path}/lost 2> /dev/null; then
        touch "$(dirname "${{@: -1}}")/.command.begin"
    else
        bash "${{@: -1}}" > /dev/null 2>&1 || true
    fi
    echo "Submitted batch job $$"
    """
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    for name, script in (("sbatch", submit), ("squeue", "true"), ("scancel", "true")):
        (slurm / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (slurm / name).chmod(0o755)
    (tmp_path / "fast.config").write_text(
        "executor { pollInterval = '200ms'\nqueueStatInterval = '200ms'\n"
        "exitReadTimeout = '1s' }\n"
        "process { withLabel: gpu_slot {\n"
        "    queue = { task.ext.onCpu ? 'cpu' : 'gpu' }\n"
        "    accelerator = { task.ext.onCpu ? null : [request: 1, type: 'fake'] }\n} }\n",
        encoding="utf-8",
    )
    run = succeeding(
        *(tmp_path, "-stub", "-profile", "slurm,gpu", "-c", "fast.config"),
        *("--slurm_queue", "cpu"),
        "--slurm_options=--account=lab --qos=low --nice=1",
        *("--input", f"{phantom}/mosaics", "--resolution", "10"),
        env={"PATH": f"{slurm}:{environment['PATH']}"},
    )
    assert (tmp_path / "lost").is_dir()
    assert [status for (status,) in run.tries("STACK")] == ["FAILED", "COMPLETED"]
    # PREFLIGHT runs where Nextflow runs.
    for task in {name for name in run.tasks() if not name.startswith("PREFLIGHT")}:
        wrapper, on_gpu = run.wrapper(task), task.startswith(GPU)
        options = " ".join(re.findall(r"^#SBATCH (.*)$", wrapper, re.MULTILINE)).split()
        assert options[options.index("-p") + 1] == ("gpu" if on_gpu else "cpu")
        assert {"--account=lab", "--qos=low", "--nice=1", "--no-requeue"} <= set(options)
        assert ("--gres=gpu:fake:1" in options) == on_gpu
        assert ("slurm '1' 'null' ''" in before(run, task)) == on_gpu


def test_on_slurm_jobs_ask_for_no_more_time_than_the_partition_allows(
    succeeding, phantom, environment, tmp_path
):
    # The first job is not taken while squeue says that jobs stay pending or wait their turn.
    submit = f"""grep -o -m1 'octane:[-0-9a-f]*' "${{@: -1}}" > {tmp_path}/mark
    mkdir {tmp_path}/first 2> /dev/null && sleep 7
    bash "${{@: -1}}" > /dev/null 2>&1 || true
    echo "Submitted batch job $$"
    """
    queue = f"""[[ $* == *PENDING* && -s {tmp_path}/mark ]] || exit 0
    for job in "7 PartitionTimeLimit" "8 PartitionTimeLimit" "9 AssocMaxJobsLimit" \\
        "10 Priority" "12 AssocGrpCPUMinutesLimit" "13 JobHeldUser"; do
        echo "$job $(cat {tmp_path}/mark)"
    done
    echo "11 QOSMaxWallDurationPerJobLimit octane:another"
    """
    partitions = 'printf "short* 1:30:00\\nlong infinite\\ngpu 1-00:00:00\\n"'
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    commands = {"sbatch": submit, "squeue": queue, "scancel": "true", "sinfo": partitions}
    for name, script in commands.items():
        (slurm / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (slurm / name).chmod(0o755)
    (tmp_path / "fast.config").write_text(
        "executor { pollInterval = '200ms'\nqueueStatInterval = '200ms' }\n"
        "process { withName: PYRAMID { queue = 'long,gpu' } }\n",
        encoding="utf-8",
    )
    run = succeeding(
        *(tmp_path, "-stub", "-profile", "slurm", "-c", "fast.config"),
        *("--input", f"{phantom}/mosaics"),
        env={"PATH": f"{slurm}:{environment['PATH']}"},
    )
    asked = {
        task: re.findall(r"^#SBATCH -t (.*)$", run.wrapper(task), re.MULTILINE)
        for task in ("REPORT", "STACK", "PYRAMID")
    }
    assert asked == {"REPORT": ["01:00:00"], "STACK": ["01:30:00"], "PYRAMID": ["05:00:00"]}
    warnings = [line for line in run.output.splitlines() if "stays pending" in line]
    jobs = [re.findall(r"job (\d+) stays pending \((\w+)\)", line)[0] for line in warnings]
    assert jobs == [
        ("7", "PartitionTimeLimit"), ("12", "AssocGrpCPUMinutesLimit"), ("13", "JobHeldUser"),
    ]  # fmt: skip
    remedies = ("--slurm_queue", "--account", "scontrol release 13")
    assert all(own in line for own, line in zip(remedies, warnings, strict=True))
