"""The workflow through the slurm profile: results and GPUs."""

import pytest
from runs import checksums

from octane.gpu.inventory import simulated_uuid

pytestmark = pytest.mark.soak

SECTIONS = 5


def test_the_results_are_those_of_a_run_on_this_machine(cluster, on_slurm, succeeding, tmp_path):
    local = succeeding(tmp_path / "local", "-profile", "test")
    undisturbed = checksums(local.outdir)
    on_slurm.given = []
    run = on_slurm(
        *("--slurm_queue", "cpu", "--slurm_gpu_queue", "gpu", "--slurm_account", "lab"),
        *("--slurm_gpu_type", "fake", "--slurm_options=--nice=1", "--backend", "auto"),
        profiles="test,slurm,gpu",
    )
    assert checksums(run.outdir) == undisturbed
    assert len(cluster.completed()) >= len(run.tasks("COMPLETED")) == len(local.tasks())


def most_at_once(intervals):
    """The largest number of intervals, whose last two parts are times, that share a moment."""
    return max(sum(a[-2] <= b[-2] < a[-1] for a in intervals) for b in intervals)


def test_no_two_tasks_hold_one_gpu_and_leases_stay_within_what_slurm_gave(
    cluster, on_slurm, make_phantom, tmp_path, on_path
):
    subject = make_phantom(SECTIONS, tiles=1)
    # Each takes a lease as any GPU step does, and notes what Slurm and what the lease gave.
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
        *("--backend", "auto", "--gpu_lock_dir", tmp_path / "leases"),
        profiles="test,slurm,gpu",
        env={"OCTANE_SIMULATED_GPUS": "4x40GB"},
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
    # Four GPUs are there, of which octane may see the one that Slurm gave.
    for job, (device, begin, end) in jobs.items():
        leased, taken, given_back = leases[job]
        assert leased == simulated_uuid(int(device))
        assert begin <= taken <= given_back <= end
