"""What is tried again, with what, and what is not."""

import os
import re
import stat
import subprocess

import pytest


def tries(run, *processes):
    """(process, status, memory) of each attempt of some processes, in their order."""
    return [
        (name, row["status"], row["memory"])
        for row in run.trace
        if (name := row["name"].split(":")[-1].split(" ")[0]) in processes
    ]


@pytest.fixture
def stubs(nextflow, phantom, tmp_path):
    """Run stubs on a subject, with something done before the script of some process."""

    def run(process, before, *arguments, **more):
        (tmp_path / "fault.config").write_text(
            f"process {{ withName: {process} {{\n    beforeScript = {{ {before} }}\n}} }}\n",
            encoding="utf-8",
        )
        return nextflow(
            *(tmp_path, "-stub", "-c", "fault.config", "--input", f"{phantom}/mosaics"),
            *("--skip_n4", "--skip_report", *arguments),
            **more,
        )

    return run


def once(what):
    """A closure's text that does something at the first attempt."""
    return f"task.attempt == 1 ? '{what}' : ''"


def test_a_task_killed_for_its_memory_gets_more_as_far_as_there_is(stubs):
    run = stubs("PREFLIGHT", once("exit 137"), "--max_memory", "3 GB")
    assert run.code == 0, run.output
    assert tries(run, "PREFLIGHT") == [
        ("PREFLIGHT", "FAILED", "2 GB"),
        ("PREFLIGHT", "COMPLETED", "3 GB"),
    ]


def test_where_memory_cannot_grow_it_is_not_tried_in_vain_and_said(stubs):
    run = stubs("STACK", "'exit 137'", "--max_memory", "3 GB")
    assert run.code == 1
    # It asks for 8 GB, and got all there is at once.
    assert tries(run, "STACK") == [("STACK", "FAILED", "3 GB")]
    assert "octane stopped: STACK (mosaics) was killed (exit 137), most likely" in run.output
    assert "raise --max_memory" in run.output


def test_the_memory_grows_until_the_limit_and_then_it_stops(stubs):
    run = stubs("PREFLIGHT", "'exit 137'", "--max_memory", "3 GB")
    assert run.code == 1
    assert [memory for _, _, memory in tries(run, "PREFLIGHT")] == ["2 GB", "3 GB"]


@pytest.mark.parametrize("code", [104, 143])
def test_a_task_that_was_terminated_is_tried_again(stubs, code):
    run = stubs("STACK", once(f"exit {code}"), "--max_memory", "2 GB")
    assert run.code == 0, run.output
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED", "COMPLETED"]


def test_a_killed_wrapper_is_tried_again_though_memory_cannot_grow(stubs):
    run = stubs("STACK", once("kill -9 $$"), "--max_memory", "2 GB")
    assert run.code == 0, run.output
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED", "COMPLETED"]


def test_all_other_errors_stop_at_once_and_say_how_to_go_on(stubs, tmp_path):
    run = stubs("STACK", "'echo \"error: all is lost.\" > .command.err; exit 3'")
    assert run.code == 1
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED"]
    assert "octane stopped: all is lost." in run.output
    place = run.task_file("STACK", ".exitcode").parent
    assert f"STACK (mosaics) failed in {place}" in run.output
    # Nextflow may warn after the workflow's last words.
    assert re.search(r"^  nextflow run .* -resume$", run.output, re.MULTILINE)


def test_a_lost_task_stops_after_the_third_try(stubs):
    run = stubs("STACK", "'exit 143'")
    assert run.code == 1
    assert len(tries(run, "STACK")) == 3
    ended = "ended from outside (exit 143), as a cancelled job is; .command.log in its folder"
    assert f"octane stopped: STACK (mosaics) was {ended} may say why." in run.output


def test_a_task_that_is_out_of_time_each_time_says_so(stubs):
    run = stubs("STACK", "'exit 140'")
    assert run.code == 1
    assert "octane stopped: STACK (mosaics) was out of its time (exit 140); give it" in run.output


def test_a_task_on_this_machine_has_no_limit_of_time(stubs):
    run = stubs("STACK", '"echo ${task.time} > time.txt"')
    assert run.code == 0, run.output
    assert run.task_file("STACK", "time.txt").read_text(encoding="utf-8") == "null\n"


def test_a_users_config_still_decides(stubs, tmp_path):
    (tmp_path / "own.config").write_text(
        "process.errorStrategy = 'terminate'\nprocess.scratch = false\n", encoding="utf-8"
    )
    run = stubs("STACK", once("exit 143"), "-c", "own.config", "--scratch_dir", "true")
    assert run.code == 1
    assert len(tries(run, "STACK")) == 1
    assert "NXF_SCRATCH=''" in run.task_file("STACK", ".command.run").read_text(encoding="utf-8")


def test_no_space_without_a_scratch_folder_stops_at_once(stubs):
    run = stubs("STACK", "'echo \"error: out.ome.zarr: no space left.\" > .command.err; exit 28'")
    assert run.code == 1
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED"]
    assert "octane stopped: out.ome.zarr: no space left." in run.output


@pytest.fixture
def small_disk(tmp_path):
    """Mount file systems of a given size or number of files."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    mounted = []

    def mount(options):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_scratch_disk_that_takes_no_folder_is_left_for_the_work_directory(
    nextflow, phantom, small_disk, tmp_path
):
    # As many files as are there already: the disk's own root.
    full = small_disk("nr_inodes=1")
    run = nextflow(
        *(tmp_path, "-stub", "--input", f"{phantom}/mosaics", "--scratch_dir", full),
        *("--skip_n4", "--skip_report", "--skip_stitch"),
    )
    assert run.code == 0, run.output
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED", "COMPLETED"]


@pytest.mark.parametrize(("left", "code_left"), [("rm filler;", "28"), ("", "1")])
def test_no_space_in_scratch_is_tried_again_in_the_work_directory(
    nextflow, phantom, quick, copy_project, small_disk, tmp_path, left, code_left
):
    code = copy_project("filling")
    quiet = "2> /dev/null" if left else ""
    stack = code / "bin" / "stack.py"
    real = stack.rename(stack.with_name("real_stack.py"))
    # Takes more than the disk holds, and ends as octane's commands do without space. Once it leaves
    # the disk full, so that the wrapper cannot write the messages, and makes 1 of the 28.
    stack.write_text(
        "#!/bin/bash\n"
        f"head -c 8M /dev/zero > filler {quiet} || {{ {left} exit 28; }}\n"
        f'rm filler\nexec {real} "$@"\n',
        encoding="utf-8",
    )
    stack.chmod(stack.stat().st_mode | stat.S_IXUSR)
    disk = small_disk("size=4m")
    run = nextflow(
        *(tmp_path, *quick, "--input", phantom / "mosaics", "--scratch_dir", disk),
        *("--skip_n4", "--skip_pyramid"),
        code=code,
    )
    assert run.code == 0, run.output
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED", "COMPLETED"]
    assert f"error exit status ({code_left}) -- Execution is retried (1)" in run.output
    wrapper = (run.folder / "work").glob("*/*/.command.run")
    texts = [w.read_text(encoding="utf-8") for w in wrapper]
    stacks = [t for t in texts if "STACK (mosaics)" in t]
    assert sorted("NXF_SCRATCH=''" in text for text in stacks) == [False, True]
    assert list(disk.iterdir()) == []


@pytest.fixture
def losing_slurm(stand_in_slurm, tmp_path):
    """A Slurm whose node is lost while STACK runs for the first time."""
    return stand_in_slurm(
        f'if grep -q STACK "${{@: -1}}" && mkdir {tmp_path}/lost 2> /dev/null; then\n'
        '    touch "$(dirname "${@: -1}")/.command.begin"\nelse\n'
        '    bash "${@: -1}" > /dev/null 2>&1 || true\nfi\n'
        'echo "Submitted batch job $$"',
        "exitReadTimeout = '1s'",
    )


def test_a_job_of_a_lost_node_is_tried_again(nextflow, phantom, losing_slurm, tmp_path):
    run = nextflow(
        *(tmp_path, "-stub", "-profile", "slurm", "-c", "fast.config"),
        *("--input", f"{phantom}/mosaics", "--skip_n4", "--skip_report"),
        env=losing_slurm,
    )
    assert run.code == 0, run.output
    assert (tmp_path / "lost").is_dir()
    assert [status for _, status, _ in tries(run, "STACK")] == ["FAILED", "COMPLETED"]
