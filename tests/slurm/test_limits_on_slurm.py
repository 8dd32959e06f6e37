"""Jobs over their memory or time are tried again with more of it, up to what a site allows."""

import re

import pytest

GREEDY = """\
process {{
    resourceLimits = [memory: 500.MB, time: 2.min]
    withName: PYRAMID {{
        {directive}
    }}
}}
"""
ONE_STEP = ("--skip_n4", "--skip_report", "--skip_resample")


@pytest.fixture
def volume(phantom):
    """A volume, so that one step is all there is to do."""
    return phantom / "truth" / "tissue.ome.zarr"


def asked(run, option):
    """What each attempt at PYRAMID asked Slurm for, in their order."""
    found = []
    for row in sorted(run.trace, key=lambda row: int(row["task_id"])):
        if "PYRAMID" in row["name"]:
            (script,) = (run.folder / "work").glob(f"{row['hash']}*/.command.run")
            options = re.findall(rf"^#SBATCH {option}[ =](\S+)$", script.read_text(), re.MULTILINE)
            found.append((row["status"], *options))
    return found


def test_a_job_over_its_memory_is_tried_again_with_more(cluster, on_slurm, on_path, volume, shown):
    # As much as the second attempt has and the first has not.
    on_path(
        "pyramid.py",
        """\
        python3 -c 'import time; taken = bytearray(300_000_000); time.sleep(3)'
        exec REAL "$@"
        """,
    )
    run = on_slurm(
        *("--input", volume, *ONE_STEP),
        config=GREEDY.format(directive="memory = { 200.MB * task.attempt }"),
    )
    assert run.code == 0, run.output
    print(
        asked(run, "--mem"),
        run.output,
        [(r["name"], r["exit"]) for r in run.trace],
        cluster.completed(),
    )
    (first, second) = asked(run, "--mem")
    assert first == ("FAILED", "200M")
    assert second == ("COMPLETED", "400M")


def test_a_job_over_its_time_is_tried_again_with_more(cluster, on_slurm, on_path, volume, shown):
    # Slurm counts in minutes and looks every half a minute.
    on_path(
        "pyramid.py",
        """[ -e ../../../once ] || { touch ../../../once; sleep 200; }; exec REAL "$@"\n""",
    )
    run = on_slurm(
        *("--input", volume, *ONE_STEP),
        config=GREEDY.format(directive="time = { 1.min * task.attempt }"),
    )
    assert run.code == 0, run.output
    print(
        asked(run, "-t"),
        run.output,
        [(r["name"], r["exit"]) for r in run.trace],
        cluster.completed(),
    )
