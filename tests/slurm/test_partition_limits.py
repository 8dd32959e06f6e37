"""Jobs that ask for more than their partition has are named, at the launch and while they wait."""

import re

from runs import waited
from slurm_cluster import SlurmCluster


def test_a_job_that_its_partition_never_starts_is_named_at_the_launch_and_in_the_queue(
    cluster: SlurmCluster, on_slurm, phantom
):
    cluster.command("scontrol", "update", "PartitionName=cpu", "MaxTime=60")
    try:
        run = on_slurm.start(
            *("--input", phantom / "truth" / "tissue.ome.zarr", "--slurm_queue", "cpu"),
            *("--skip_n4", "--skip_report", "--skip_resample"),
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
