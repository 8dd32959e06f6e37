"""Jobs cancelled, a node drained and lost, Nextflow killed: the run goes on, or is gone on with."""

import pytest

SECTIONS_ALONE = ("--skip_n4", "--skip_pyramid", "--skip_report")
"""Up to the stacked volume: enough tasks, and short ones."""


@pytest.fixture(scope="module")
def stacked(nextflow, quick, phantom, checksums, tmp_path_factory):
    """Checksums of the stacked volume that an undisturbed run on this machine gives."""
    folder = tmp_path_factory.mktemp("stacked")
    run = nextflow(folder, *quick, "--input", phantom / "mosaics", *SECTIONS_ALONE)
    assert run.code == 0, run.output
    return checksums(run.outdir)


def statuses(run, process):
    """How the attempts of a process ended, in their order."""
    rows = [row for row in run.trace if f"{process} " in row["name"]]
    return [(row["status"], row["exit"]) for row in sorted(rows, key=lambda row: row["task_id"])]


def test_a_cancelled_job_is_tried_again(cluster, on_slurm, hold, stacked, checksums, shown):
    held = hold("stitch.py")
    run = on_slurm.start(*SECTIONS_ALONE)
    cluster.command("scancel", held.jobs(2)[0])
    held.jobs(3)
    held.let_go()
    run = run.wait()
    assert run.code == 0, run.output
    print(statuses(run, "STITCH"))
    assert checksums(run.outdir) == stacked


def test_a_job_cancelled_again_and_again(cluster, on_slurm, hold, stacked, checksums, shown):
    held = hold("stack.py")
    run = on_slurm.start(*SECTIONS_ALONE)
    for attempt in (1, 2, 3):
        cluster.command("scancel", held.jobs(attempt)[-1])
    run = run.wait()
    assert run.code == 1
    print(run.output)
    print(statuses(run, "STACK"))
    held.let_go()
    run = on_slurm(*SECTIONS_ALONE, "-resume")
    assert run.code == 0, run.output
    assert run.processes("COMPLETED") == {"STACK"}
    assert checksums(run.outdir) == stacked


def test_a_drained_node(cluster, on_slurm, hold, stacked, checksums, shown):
    held = hold("stitch.py")
    run = on_slurm.start(*SECTIONS_ALONE)
    held.jobs(2)
    cluster.set_state("drain")
    held.let_go()
    on_slurm.waits("STACK")
    assert not cluster.jobs("RUNNING")
    cluster.set_state("resume")
    run = run.wait()
    assert run.code == 0, run.output
    assert checksums(run.outdir) == stacked


def test_a_lost_node(cluster, on_slurm, hold, stacked, checksums, shown):
    held = hold("stitch.py")
    run = on_slurm.start(*SECTIONS_ALONE)
    held.jobs(2)
    cluster.lose_node()
    held.let_go()
    cluster.bring_node_back()
    run = run.wait()
    print(run.output)
    print(statuses(run, "STITCH"))
    assert run.code == 0, run.output
    assert checksums(run.outdir) == stacked


def test_nextflow_killed(cluster, on_slurm, hold, stacked, checksums, shown):
    held = hold("stitch.py")
    killed = on_slurm.start(*SECTIONS_ALONE)
    orphans = held.jobs(2)
    killed.process.kill()
    killed.wait()
    assert sorted(cluster.jobs("RUNNING")) == orphans
    again = on_slurm.start(*SECTIONS_ALONE, "-resume")
    held.jobs(4)
    print(orphans, cluster.jobs())
    held.let_go()
    run = again.wait()
    print(run.output)
    assert run.code == 0, run.output
    assert checksums(run.outdir) == stacked
