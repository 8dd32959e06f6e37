"""Jobs cancelled, a node lost, Nextflow killed: the run goes on, or is gone on with."""

import pytest
from runs import checksums

soak = pytest.mark.soak

SECTIONS_ALONE = ("--skip_n4", "--skip_pyramid", "--skip_report")
"""Up to the stacked volume: enough tasks, and short ones."""


@pytest.fixture(scope="module")
def stacked(succeeding, quick, phantom, tmp_path_factory):
    """Checksums of the stacked volume that an undisturbed run on this machine gives."""
    folder = tmp_path_factory.mktemp("stacked")
    run = succeeding(folder, *quick, "--input", phantom / "mosaics", *SECTIONS_ALONE)
    made = checksums(run.outdir)
    assert made
    return made


def ends(run, process):
    """How often the tasks of a process ended with which status and exit code."""
    rows = [row for row in run.trace if f"{process} " in row["name"]]
    return sorted((row["status"], row["exit"]) for row in rows)


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
    # One ends by itself, with nobody to see it; both tasks start again, in their old folders.
    held.let_one_go(finished)
    on_slurm.gone(finished)
    started = on_slurm.start(*SECTIONS_ALONE, "-resume")
    held.jobs(4)
    assert orphan not in cluster.jobs()
    held.let_go()
    run = started.wait()
    assert run.code == 0, run.output
    assert "1 jobs were left by this run's last start" in run.output
    assert run.processes("CACHED") == {"PREFLIGHT", "RESAMPLE"}
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
