"""Jobs over their memory or time are tried again with more of it; those that never start, named."""

import re

import pytest
from runs import waited

ONE_STEP = ("--skip_n4", "--skip_report", "--skip_resample")


@pytest.fixture
def volume(phantom):
    """A volume, so that one step is all there is to do."""
    return phantom / "truth" / "tissue.ome.zarr"


def asked(run, option):
    """How each attempt at PYRAMID ended, and what it had asked Slurm for, in their order."""
    found = []
    for status, code, digest in run.tries("PYRAMID", "exit", "hash"):
        (script,) = (run.folder / "work").glob(f"{digest}*/.command.run")
        header = script.read_text(encoding="utf-8")
        (value,) = re.findall(rf"^#SBATCH {option}[ =](\S+)$", header, re.MULTILINE)
        found.append((status, code, value))
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("before", "limits", "option", "tries"),
    [
        # More than the first attempt has and less than the second.
        (
            "python3 -c 'import time; taken = bytearray(300_000_000); time.sleep(3)'",
            ("memory: 500.MB", "memory = { 280.MB * task.attempt }"),
            "--mem",
            [("FAILED", "-", "280M"), ("COMPLETED", "0", "500M")],
        ),
        # Slurm sends the signal that Nextflow asks for up to a minute early: a limit of less than
        # two minutes could be over before the task begins.
        (
            "if mkdir '{folder}/slow' 2>/dev/null; then sleep 200; fi",
            ("memory: 2.GB, time: 3.min", "time = { 2.min * task.attempt }"),
            "-t",
            [("FAILED", "140", "00:02:00"), ("COMPLETED", "0", "00:03:00")],
        ),
    ],
    ids=["memory", "time"],
)
def test_a_job_over_its_limit_is_tried_again_with_more_up_to_the_sites_limit(
    cluster, on_slurm, on_path, volume, before, limits, option, tries
):
    on_path("pyramid.py", f'{before.format(folder=on_slurm.folder)}\nexec REAL "$@"\n')
    run = on_slurm(
        *("--input", volume, *ONE_STEP),
        config=f"""process {{
            resourceLimits = [cpus: 1, {limits[0]}]
            withName: PYRAMID {{ {limits[1]} }}
        }}""",
    )
    assert asked(run, option) == tries


@pytest.mark.soak
def test_time_and_memory_that_the_workflow_itself_asks_for_grow_with_the_attempts(
    cluster, on_slurm, on_path, volume
):
    # Two attempts of three are killed at once.
    on_path(
        "pyramid.py",
        f"""\
        for n in 1 2; do
            if mkdir '{on_slurm.folder}/'$n 2>/dev/null; then kill -KILL $$; fi
        done
        exec REAL "$@"
        """,
    )
    run = on_slurm("--input", volume, *ONE_STEP, "--max_memory", "20 GB", profiles="slurm")
    assert asked(run, "-t") == [
        ("FAILED", "137", "05:00:00"),
        ("FAILED", "137", "10:00:00"),
        ("COMPLETED", "0", "15:00:00"),
    ]
    assert [row[2] for row in asked(run, "--mem")] == ["8192M", "16384M", "20480M"]
    assert [row[2] for row in asked(run, "-c")] == ["4", "4", "4"]


def test_a_job_that_its_partition_never_starts_is_named_at_the_launch_and_in_the_queue(
    cluster, on_slurm, volume
):
    cluster.command("scontrol", "update", "PartitionName=cpu", "MaxTime=60")
    try:
        run = on_slurm.start(
            *("--input", volume, "--slurm_queue", "cpu", *ONE_STEP),
            config="process { withName: PYRAMID { time = 2.h } }",
        )
        log = run.folder / ".nextflow.log"
        waited(lambda: log.exists() and "does not pass" in log.read_text(), "the warning")
    finally:
        cluster.command("scontrol", "update", "PartitionName=cpu", "MaxTime=INFINITE")
    done = run.wait()
    assert done.code == 0, done.output
    at_launch, waiting = (
        [line for line in re.findall(r"WARN: (.+)", done.output) if part in line]
        for part in ("will not start", "does not pass")
    )
    (default,) = [line for line in at_launch if "jobs of withName:PYRAMID" in line]
    assert "they ask for 120 minutes, and partition cpu allows 1:00:00; set process" in default
    (job,) = waiting
    assert re.search(r"PYRAMID.+, Partition\w+: it asks for 2:00:00 of time, 1 CPUs", job)
