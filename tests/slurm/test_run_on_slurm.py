"""The workflow through the slurm profile: results, headers of the jobs, and GPUs."""

import re
from dataclasses import dataclass

import pytest
from runs import checksums

from octane.gpu.simulated import simulated_uuid

pytestmark = pytest.mark.soak

SECTIONS = 5


def headers(run, process):
    """Options of sbatch in the header of a task's script."""
    task = next(task for task in run.tasks() if task.startswith(f"{process} "))
    return " ".join(re.findall(r"^#SBATCH (.*)$", run.wrapper(task), flags=re.MULTILINE)).split()


def test_the_results_are_those_of_a_run_on_this_machine(
    cluster, on_slurm, nextflow, shown, tmp_path
):
    local = nextflow(tmp_path / "local", "-profile", "test")
    assert local.code == 0, local.output
    undisturbed = checksums(local.outdir)
    on_slurm.given = []
    run = on_slurm(
        *("--slurm_queue", "cpu", "--slurm_gpu_queue", "gpu", "--slurm_account", "lab"),
        *("--slurm_gpu_type", "fake", "--slurm_options=--nice=1", "--backend", "auto"),
        profiles="test,slurm,gpu",
    )
    assert run.code == 0, run.output
    assert checksums(run.outdir) == undisturbed
    assert len(cluster.completed()) >= len(run.tasks("COMPLETED")) == len(local.tasks())
    for process, queue in {
        "N4": "gpu",
        "RESAMPLE": "gpu",
        "STITCH": "cpu",
        "REPORT": "cpu",
    }.items():
        options = headers(run, process)
        assert options[options.index("-p") + 1] == queue
        assert {"--account=lab", "--nice=1", "--no-requeue"} <= set(options)
        assert ("--gres=gpu:fake:1" in options) == (queue == "gpu")
    shown(
        "the demo subject through `-profile test,slurm,gpu`, with queues, account and type of GPU",
        f"{len(run.tasks())} jobs; all {len(undisturbed)} levels of the volumes have the checksums "
        "of a run without Slurm; the headers of the scripts hold what was asked for",
    )


@dataclass(frozen=True)
class Use:
    """One job's time on a device."""

    job: str
    kind: str
    device: str
    start: int
    end: int


def uses(log):
    """What the tasks noted, as intervals."""
    started, found = {}, []
    for line in log.read_text().splitlines():
        job, kind, what, device, time = line.split()
        if what == "start":
            started[job, kind] = (device, int(time))
        else:
            assert started[job, kind][0] == device
            found.append(Use(job, kind, device, started.pop((job, kind))[1], int(time)))
    assert not started
    return found


def most_at_once(intervals):
    """The largest number of intervals that share a moment."""
    return max(sum(a.start <= b.start < a.end for a in intervals) for b in intervals)


def test_no_two_tasks_hold_one_gpu_and_leases_stay_within_what_slurm_gave(
    cluster, on_slurm, make_phantom, tmp_path, on_path, shown
):
    subject = make_phantom("--sections", SECTIONS, "--tiles", "1", "1")
    log = tmp_path / "devices.log"
    # Each notes what Slurm gave, takes a lease as any GPU step does, and notes what that gave.
    on_path(
        "resample.py",
        f"""\
        note() {{ echo "$SLURM_JOB_ID $1 $2 $CUDA_VISIBLE_DEVICES $(date +%s%N)" >> '{log}'; }}
        export -f note
        note job start
        gpu_slot.py --memory 4GB --backend gpu --subject "$SLURM_JOB_ID" -- bash -c '
            note lease start; sleep 1; "$@"; note lease end' - REAL "$@"
        note job end
        """,
    )
    run = on_slurm(
        *("--input", subject / "mosaics", "--skip_n4", "--skip_pyramid", "--skip_report"),
        *("--backend", "auto", "--gpu_lock_dir", tmp_path / "leases"),
        profiles="test,slurm,gpu",
        env={"OCTANE_SIMULATED_GPUS": "4x40GB"},
    )
    assert run.code == 0, run.output
    assert "--gres=gpu:1" in headers(run, "RESAMPLE")
    found = uses(log)
    jobs = [use for use in found if use.kind == "job"]
    leases = {use.job: use for use in found if use.kind == "lease"}
    assert len(jobs) == len(leases) == SECTIONS
    assert {use.device for use in jobs} == {"0", "1"}
    for device in ("0", "1"):
        assert most_at_once([use for use in jobs if use.device == device]) == 1
    assert most_at_once(jobs) == 2
    # Four GPUs are there, of which octane may see the one that Slurm gave.
    for use in jobs:
        lease = leases[use.job]
        assert lease.device == simulated_uuid(int(use.device))
        assert use.start <= lease.start <= lease.end <= use.end
    shown(
        f"{SECTIONS} GPU tasks, two GPUs",
        f"never more than {most_at_once(jobs)} at once, never two on one device; "
        f"{len(leases)} leases, each on the device that Slurm had given its job",
    )
