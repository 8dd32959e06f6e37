"""SIGKILL of a part of a run, a step or a command at any moment leaves nothing incomplete."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import checksums, contents, last_words, partial_files, waited, whole

pytestmark = pytest.mark.fault

BEGUN = re.compile("(?:Submitted|Cached) process >")
LONG = ("--n4_iterations", "500000", "--n4_convergence_threshold", "1e-30")
"""Arguments that keep N4 running for the entire test."""

PARTS = {"python": "resample.py", ".command.sh": "stack.py", ".command.run": "n4.py"}
"""The part of a task that is killed, and the step."""


@pytest.mark.soak
def test_each_part_of_a_task(start_nextflow, mosaics, undisturbed_mosaics, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = start_nextflow(tmp_path, *mosaics, "--scratch_dir", scratch)
    for count, (part, script) in enumerate(PARTS.items(), 1):
        os.kill(run.of_task(part, script), signal.SIGKILL)
        waited(lambda count=count: run.output.count("Execution is retried") >= count, part)
    assert run.wait().code == 0, run.output
    retried = [line for line in run.output.splitlines() if "Execution is retried" in line]
    assert len(retried) == 3, run.output
    assert all("error exit status (137)" in line for line in retried)
    assert checksums(tmp_path / "out") == undisturbed_mosaics.sums
    assert partial_files(tmp_path) == []
    # Also of the killed wrapper, which could not remove its folder itself.
    waited(lambda: not list(scratch.iterdir()), "the end of the last task's folder in scratch")
    waited(lambda: not run.orphans(), "the end of what Nextflow left running")


@pytest.fixture
def little_memory():
    """A control group limited to 50 MB, and the file in which the kernel counts its OOM kills."""
    kinds = [("memory", "memory.limit_in_bytes", "memory.oom_control")]
    kinds += [("", "memory.max", "memory.events")]
    for place, limit, events in kinds:
        group = Path("/sys/fs/cgroup", place, f"octane-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text("50000000")
                yield group, group / events
                return
        finally:
            group.rmdir()
    pytest.skip("no control group with a limit of memory can be made here")


@pytest.mark.soak
def test_the_kernel_kills_a_task_for_its_memory(
    nextflow, succeeding, volume, undisturbed, little_memory, tmp_path
):
    group, counts = little_memory
    (tmp_path / "group.config").write_text(
        f"process {{ withName: N4 {{\n    beforeScript = 'echo $$ > {group}/cgroup.procs'\n}} }}\n",
        encoding="utf-8",
    )
    run = nextflow(tmp_path, *volume, "-c", "group.config")
    assert "\noom_kill 1\n" in counts.read_text(encoding="utf-8")
    assert run.code == 1
    assert run.tries("N4", "exit") == [("FAILED", "137")]
    assert last_words(run.output).startswith(
        "N4 (tissue) was killed (exit 137), by a user or for lack of memory; give it more"
    )
    assert whole(tmp_path / "work") == []
    assert checksums(run.outdir) == {}
    again = succeeding(tmp_path, *volume, "-resume")
    assert checksums(again.outdir) == undisturbed.sums


@pytest.mark.soak
@pytest.mark.parametrize("keeping", ["true", "false"])
def test_nextflow_at_random_points(
    start_nextflow, succeeding, mosaics, undisturbed_mosaics, keeping, tmp_path
):
    chosen = random.Random(7)
    mosaics = (*mosaics, "--keep_intermediates", keeping)
    for number in range(3):
        run = start_nextflow(tmp_path, *mosaics, "-resume")
        # There are eight tasks: each kill comes when more of them are done.
        tasks, moment = chosen.randint(2, 3) + 2 * number, round(chosen.uniform(0, 1.5), 2)
        waited(lambda run=run, tasks=tasks: len(BEGUN.findall(run.output)) >= tasks, "a task")
        time.sleep(moment)
        assert run.process.poll() is None, f"it was over {moment} s after task {tasks}"
        run.kill()
        waited(lambda run=run: not run.orphans(), "the end of what Nextflow left running")
        # Outputs with a final name are complete, whenever the kill came.
        whole(tmp_path / "work")
    again = succeeding(tmp_path, *mosaics, "-resume")
    # Six or more tasks had begun before the last kill, so at least three had finished.
    assert len(again.tasks("CACHED")) >= 3
    assert checksums(again.outdir) == undisturbed_mosaics.sums


@pytest.mark.soak
def test_orphans_end_and_give_back_what_they_hold(
    start_nextflow, succeeding, volume, undisturbed, tmp_path
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    given = (*volume, "--scratch_dir", scratch)
    run = start_nextflow(tmp_path, *given, *LONG)
    run.of_task("python", "n4.py")
    assert list(scratch.iterdir())
    run.kill()
    waited(lambda: not run.orphans(), "the end of what Nextflow left running")
    assert list(scratch.iterdir()) == []
    assert whole(tmp_path / "work") == []
    assert partial_files(tmp_path) == []
    again = succeeding(tmp_path, *given, "-resume")
    assert checksums(again.outdir) == undisturbed.sums


def test_a_step_is_killed_while_it_writes_an_output_again(project, phantom, tmp_path):
    given = [sys.executable, project / "bin" / "pyramid.py", phantom / "truth" / "tissue.ome.zarr"]
    given += [tmp_path / "out" / "a.ome.zarr", "--overwrite"]
    subprocess.run(given, check=True, capture_output=True)
    before = checksums(tmp_path)

    def unfinished():
        return {*(tmp_path / "out").glob(".partial-*")}

    def killed() -> bool:
        """Kill the step while it writes; False if it finished first."""
        old = unfinished()
        with subprocess.Popen(given, stderr=subprocess.DEVNULL) as step:
            while step.poll() is None and unfinished() <= old:
                time.sleep(0.001)
            step.kill()
        return not unfinished() <= old

    for _ in range(2):
        waited(killed, "an unfinished output of a killed step")
        assert checksums(tmp_path) == before
    subprocess.run(given, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.ome.zarr"]
    assert checksums(tmp_path) == before


def published(folder):
    """Make two stores, published as links into a work directory."""
    task = folder / "work" / "ab" / "0123456789abcdef0123456789abcd"
    (folder / "out").mkdir()
    for name in ("a.ome.zarr", "b.ome.zarr"):
        store = task / name
        (store / "0" / "c").mkdir(parents=True)
        (store / "zarr.json").write_text("{}")
        for number in range(300):
            (store / "0" / "c" / str(number)).write_bytes(random.Random(number).randbytes(20_000))
        (folder / "out" / name).symlink_to(store)
    return folder / "out"


@pytest.mark.soak
def test_killed_again_and_again_nothing_is_lost_or_half_made(project, tmp_path):
    outdir = published(tmp_path)
    command = [sys.executable, project / "bin" / "materialize.py", outdir]
    expected, chance, kills = {p: contents(p) for p in outdir.iterdir()}, random.Random(5), 0
    while kills < 6:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as call:
            while call.poll() is None and not list(outdir.glob(".partial-*")):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.1))
            ended = call.poll() is not None
            call.send_signal(signal.SIGKILL)
        if ended:
            break
        kills += 1
        assert all(contents(p) == expected[p] for p in outdir.glob("[ab].ome.zarr"))
    assert kills
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert {*outdir.iterdir()} == expected.keys()
    assert not any(path.is_symlink() for path in expected)
    assert {p: contents(p) for p in expected} == expected
