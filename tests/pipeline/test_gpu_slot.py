"""The label gpu_slot: what reaches the tasks on this machine and on a cluster."""

import stat

import pytest

LABELLED = ("RESAMPLE", "N4")


def wrapper(run, process):
    """What Nextflow starts for a task of a process."""
    task = next(task for task in run.tasks() if task.startswith(f"{process} "))
    return run.task_file(task, ".command.run").read_text(encoding="utf-8")


def test_how_to_wait_for_a_gpu_reaches_the_tasks_and_runs_nothing_again(
    nextflow, quick, tmp_path, phantom
):
    given = (tmp_path, *quick, "-stub", "--input", f"{phantom}/mosaics")
    first = nextflow(
        *(*given, "--gpu_slots", "3", "--gpu_timeout", "60", "--gpu_lock_dir", "it's here")
    )
    assert first.code == 0, first.output
    for process in LABELLED:
        for line in (
            "export OCTANE_GPU_SLOTS='3'",
            "export OCTANE_GPU_TIMEOUT='60'",
            r"export OCTANE_GPU_LOCK_DIR='it'\''s here'",
        ):
            assert line in wrapper(first, process)
    assert "OCTANE_GPU_SLOTS" not in wrapper(first, "STITCH")
    again = nextflow(*given, "-resume")
    assert again.code == 0, again.output
    assert set(LABELLED) <= again.processes("CACHED")


@pytest.fixture
def cluster(tmp_path, environment):
    """A sbatch that runs what it is given at once, and a squeue that knows of nothing."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, script in {
        "sbatch": 'bash "$1" > .command.log 2>&1\necho "Submitted batch job $$"',
        "squeue": "exit 0",
        "scancel": "exit 0",
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)
    (tmp_path / "quick.config").write_text(
        "executor { pollInterval = '300 ms'\n queueStatInterval = '1 s' }\n"
    )
    return {"PATH": f"{folder}:{environment['PATH']}"}


def test_on_slurm_the_gpu_tasks_alone_ask_for_a_gpu_and_get_the_defaults(
    nextflow, cluster, tmp_path, phantom
):
    run = nextflow(
        *(tmp_path, "-profile", "test,slurm,gpu", "-c", tmp_path / "quick.config", "-stub"),
        *("--phantom", "false", "--input", f"{phantom}/mosaics"),
        *("--slurm_options=--account=lab", "--backend", "auto"),
        env=cluster,
    )
    assert run.code == 0, run.output
    for process in (*LABELLED, "STITCH", "PYRAMID"):
        options = [
            line for line in wrapper(run, process).splitlines() if line.startswith("#SBATCH")
        ]
        asked = any("--gres=gpu:1" in line for line in options)
        assert asked == (process in LABELLED), process
        assert any("--account=lab" in line for line in options), process
    for process in LABELLED:
        started = wrapper(run, process)
        assert "export OCTANE_GPU_SLOTS='1'\n" in started
        assert "export OCTANE_AUTO_TIMEOUT='300.0'\n" in started
        assert "OCTANE_GPU_TIMEOUT" not in started


def test_on_this_machine_nextflow_is_asked_for_no_accelerator(nextflow, tmp_path, phantom):
    # Its local executor (26.10) would refuse the task unless CUDA_VISIBLE_DEVICES is set.
    config = tmp_path / "show.config"
    config.write_text(
        'process { withName: N4 { beforeScript = { "# asked ${task.accelerator?.request}" } } }\n'
    )
    run = nextflow(
        *(tmp_path, "-profile", "test,gpu", "-c", config, "-stub"),
        *("--phantom", "false", "--input", f"{phantom}/mosaics", "--backend", "auto"),
    )
    assert run.code == 0, run.output
    assert "# asked null" in wrapper(run, "N4")
