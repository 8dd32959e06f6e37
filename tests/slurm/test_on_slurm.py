"""The workflow with the slurm profile: results, GPUs, lost and killed jobs, limits of jobs.

A run recovers by itself or with -resume; a job that exceeds its limits is retried.
"""

import re

import pytest
from runs import checksums

from octane.gpu.inventory import simulated_uuid

soak = pytest.mark.soak

SECTIONS = 5


@soak
def test_the_results_are_those_of_a_run_on_this_machine(cluster, on_slurm, succeeding, tmp_path):
    local = succeeding(tmp_path / "local", "-profile", "test")
    undisturbed = checksums(local.outdir)
    on_slurm.given = []
    run = on_slurm(
        *("--slurm_queue", "cpu"),
        *("--slurm_options=--account=lab --nice=1", "--backend", "auto"),
        config="""process { withLabel: gpu_slot {
            queue = { task.ext.onCpu ? 'cpu' : 'gpu' }
            accelerator = { task.ext.onCpu ? null : [request: 1, type: 'fake'] }
        } }""",
        profiles="test,slurm,gpu",
    )
    assert checksums(run.outdir) == undisturbed
    # PREFLIGHT runs where Nextflow does.
    submitted = [task for task in run.tasks("COMPLETED") if not task.startswith("PREFLIGHT")]
    assert len(cluster.completed()) >= len(submitted)
    assert len(run.tasks("COMPLETED")) == len(local.tasks())


def most_at_once(intervals):
    """Largest number of intervals that overlap; begin and end are their last two parts."""
    return max(sum(a[-2] <= b[-2] < a[-1] for a in intervals) for b in intervals)


@soak
def test_no_two_tasks_hold_one_gpu_and_leases_stay_within_what_slurm_gave(
    cluster, on_slurm, make_phantom, tmp_path, on_path
):
    subject = make_phantom(SECTIONS, tiles=1)
    # Each job takes a lease like any GPU step, and logs its GPU from Slurm and from the lease.
    on_path(
        "resample.py",
        f"""\
        now() {{ date +%s%N; }}
        note() {{ echo "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $2 $(now)" >> '{tmp_path}/'$1; }}
        export -f now note
        began=$(now)
        gpu_slot.py --memory 4GB --backend gpu --subject "$SLURM_JOB_ID" -- bash -c '
            began=$(now); sleep 1; "$@"; note leases.log $began' - REAL "$@"
        note jobs.log $began
        """,
    )
    run = on_slurm(
        *("--input", subject / "mosaics", "--stitch_flat_field", "none"),
        *("--skip_n4", "--skip_pyramid", "--skip_report"),
        *("--backend", "auto"),
        profiles="test,slurm,gpu",
        env={
            "OCTANE_SIMULATED_GPUS": "4x40GB",
            "OCTANE_GPU_LOCK_DIR": str(tmp_path / "leases"),
        },
    )
    assert "--gres=gpu:1" in run.wrapper("RESAMPLE")
    jobs, leases = (
        {
            job: (device, int(begin), int(end))
            for job, device, begin, end in map(
                str.split, (tmp_path / name).read_text().splitlines()
            )
        }
        for name in ("jobs.log", "leases.log")
    )
    assert len(jobs) == len(leases) == SECTIONS
    assert {device for device, _, _ in jobs.values()} == {"0", "1"}
    for device in ("0", "1"):
        assert most_at_once([use for use in jobs.values() if use[0] == device]) == 1
    assert most_at_once(jobs.values()) == 2
    # The node has four GPUs, of which octane may use only the one that Slurm allocated.
    for job, (device, begin, end) in jobs.items():
        leased, taken, given_back = leases[job]
        assert leased == simulated_uuid(int(device))
        assert begin <= taken <= given_back <= end


# Jobs cancelled, a node lost, Nextflow killed

SECTIONS_ALONE = ("--skip_n4", "--skip_pyramid", "--skip_report")
"""Options to stop after STACK: enough tasks, and short ones."""


@pytest.fixture(scope="module")
def stacked(succeeding, quick, phantom, tmp_path_factory):
    """Checksums of the stacked volume of an undisturbed run on this machine."""
    folder = tmp_path_factory.mktemp("stacked")
    run = succeeding(folder, *quick, "--input", phantom / "mosaics", *SECTIONS_ALONE)
    made = checksums(run.outdir)
    assert made
    return made


def ends(run, process):
    """Status and exit code of each attempt at the tasks of a process, sorted."""
    rows = [row for row in run.trace if f"{process} " in row["name"]]
    return sorted((row["status"], row["exit"]) for row in rows)


@pytest.mark.soak
def test_a_cancelled_job_is_tried_again(cluster, on_slurm, hold, stacked):
    held = hold("stitch.py")
    started = on_slurm.start(*SECTIONS_ALONE)
    cluster.command("scancel", held.jobs(2)[0])
    held.jobs(3)
    held.let_go()
    run = started.wait()
    assert run.code == 0, run.output
    assert ends(run, "STITCH") == [("COMPLETED", "0"), ("COMPLETED", "0"), ("FAILED", "143")]
    assert checksums(run.outdir) == stacked


@soak
def test_jobs_of_a_lost_node_are_tried_again(cluster, on_slurm, hold, stacked):
    held = hold("stitch.py")
    started = on_slurm.start(*SECTIONS_ALONE)
    lost = held.jobs(2)
    cluster.lose_node()
    held.let_go()
    cluster.bring_node_back()
    run = started.wait()
    assert run.code == 0, run.output
    assert ends(run, "STITCH") == [("COMPLETED", "0")] * 2 + [("FAILED", "-")] * 2
    states = {job["JobId"]: job["JobState"] for job in cluster.completed()}
    assert {states[job] for job in lost} == {"NODE_FAIL"}
    assert checksums(run.outdir) == stacked


def test_jobs_of_a_killed_nextflow_are_cancelled_by_the_run_that_goes_on(
    cluster, on_slurm, hold, stacked
):
    held = hold("stitch.py")
    killed = on_slurm.start(*SECTIONS_ALONE)
    finished, orphan = held.jobs(2)
    killed.process.kill()
    killed.wait()
    assert sorted(cluster.jobs("RUNNING"), key=int) == [finished, orphan]
    # One job finishes without Nextflow noticing; both tasks start again, in their old folders.
    held.let_one_go(finished)
    on_slurm.gone(finished)
    started = on_slurm.start(*SECTIONS_ALONE, "-resume")
    held.jobs(4)
    assert orphan not in cluster.jobs()
    held.let_go()
    run = started.wait()
    assert run.code == 0, run.output
    assert "1 jobs were left by this run's last start" in run.output
    assert run.processes("CACHED") == {"RESAMPLE"}
    assert checksums(run.outdir) == stacked


@soak
def test_nextflow_that_is_told_to_stop_cancels_its_jobs(cluster, on_slurm, hold):
    held = hold("stitch.py")
    started = on_slurm.start(*SECTIONS_ALONE)
    jobs = held.jobs(2)
    started.process.terminate()
    assert started.wait().code != 0
    for job in jobs:
        on_slurm.gone(job)


# Memory and time

ONE_STEP = ("--skip_n4", "--skip_report", "--resolution", "none")


@pytest.fixture
def volume(phantom):
    """A volume, for a run of a single step."""
    return phantom / "truth" / "tissue.ome.zarr"


def asked(run, option):
    """Status, exit code and requested value of an sbatch option for each attempt at PYRAMID."""
    found = []
    for status, code, digest in run.tries("PYRAMID", "exit", "hash"):
        (script,) = (run.folder / "work").glob(f"{digest}*/.command.run")
        header = script.read_text(encoding="utf-8")
        (value,) = re.findall(rf"^#SBATCH {option}[ =](\S+)$", header, re.MULTILINE)
        found.append((status, code, value))
    return found


@soak
@pytest.mark.parametrize(
    ("before", "limits", "option", "tries"),
    [
        # More memory than the first attempt has, and less than the second.
        (
            "python3 -c 'import time; taken = bytearray(300_000_000); time.sleep(3)'",
            ("memory: 500.MB", "memory = { 280.MB * task.attempt }"),
            "--mem",
            [("FAILED", "-", "280M"), ("COMPLETED", "0", "500M")],
        ),
        # Slurm may send the signal that Nextflow requests up to a minute early, so a limit below
        # two minutes could pass before the task begins.
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


@soak
def test_time_and_memory_that_the_workflow_itself_asks_for_grow_with_the_attempts(
    cluster, on_slurm, on_path, volume
):
    # The first two of three attempts are killed at once.
    on_path(
        "pyramid.py",
        f"""\
        for n in 1 2; do
            if mkdir '{on_slurm.folder}/'$n 2>/dev/null; then kill -KILL $$; fi
        done
        exec REAL "$@"
        """,
    )
    limit = "process.resourceLimits = [memory: 20.GB]"
    run = on_slurm("--input", volume, *ONE_STEP, config=limit, profiles="slurm")
    assert asked(run, "-t") == [
        ("FAILED", "137", "05:00:00"),
        ("FAILED", "137", "10:00:00"),
        ("COMPLETED", "0", "15:00:00"),
    ]
    assert [row[2] for row in asked(run, "--mem")] == ["8192M", "16384M", "20480M"]
    assert [row[2] for row in asked(run, "-c")] == ["4", "4", "4"]
