"""Failures that are retried, with which resources, failures that are not, and the last lines."""

import json
import re
import shutil
from pathlib import Path

import pytest

soak = pytest.mark.soak


ONCE = {
    "memory": "exit 137",
    "down": "exit 104",
    "cancelled": "exit 143",
    "full": "exit 28",
    # On a completely full disk the wrapper cannot write messages, and exits with 1 instead of 28.
    "brim": "echo tee: No space left on device; exit 1",
    "wrapper": "kill -9 $$",
}
"""Shell code that ends the first attempt at STACK, by subject."""


def test_failures_that_a_retry_may_fix_are_retried(succeeding, phantom, tmp_path):
    faults = ", ".join(f"{name}: '{script}'" for name, script in ONCE.items())
    (tmp_path / "fault.config").write_text(
        "process { resourceLimits = [cpus: 2, memory: 2.GB]\n"
        "withName: STACK {\n"
        # A killed wrapper is retried although its memory cannot grow.
        "    memory = { meta.id == 'wrapper' ? 2.GB : 1.GB * task.attempt }\n"
        f"    beforeScript = {{ task.attempt == 1 ? [{faults}][meta.id] : '' }}\n"
        "} }\n",
        encoding="utf-8",
    )
    rows = "".join(f"{name},{phantom}/mosaics\n" for name in ONCE)
    (tmp_path / "sheet.csv").write_text(f"subject,input\n{rows}", encoding="utf-8")
    run = succeeding(
        *(tmp_path, "-stub", "-c", "fault.config", "--samplesheet", "sheet.csv"),
        *("--skip_n4", "--skip_pyramid", "--skip_report", "--scratch_dir", tmp_path),
    )
    for name in ONCE:
        first = "2 GB" if name == "wrapper" else "1 GB"
        tries = run.tries(f"STACK ({name})", "memory")
        assert tries == [("FAILED", first), ("COMPLETED", "2 GB")], name
        # Not in the scratch folder again.
        assert "NXF_SCRATCH=''" in run.wrapper(f"STACK ({name})")


STOPS = {
    "memory-limit": (
        *("PREFLIGHT", "exit 137", ["2 GB", "3 GB"]),
        "was killed (exit 137), by a user or for lack of memory; give it more, as in docs/hpc.md",
    ),
    "lost": (
        *("STACK", "exit 143", ["3 GB"] * 3),
        "STACK (mosaics) was terminated (exit 143), like a cancelled job; .command.log",
    ),
    "time": (
        *("STACK", "exit 140", ["3 GB"] * 3),
        "STACK (mosaics) exceeded its time limit (exit 140); give it",
    ),
    "other": (
        "STACK",
        'printf "%s\\n" "a.py:1: UserWarning: b" "error: all is lost." > .command.err; exit 3',
        ["3 GB"],
        "STACK (mosaics): all is lost.",
    ),
    "warned": (
        "STACK",
        'printf "%s\\n" "a.py:1: UserWarning: b" "  c = 1" > .command.err; exit 3',
        ["3 GB"],
        "STACK (mosaics): Process `OCTANE:STACK (mosaics)` terminated with an error exit "
        "status (3)",
    ),
    "no space": ("STACK", 'echo "error: no space." > .command.err; exit 28', ["3 GB"], "no space."),
}
"""Process, shell code that ends each attempt, memory of the attempts, and the run's last line."""


@pytest.mark.parametrize(
    ("process", "script", "memory", "words"),
    [
        pytest.param(*case, id=name, marks=() if name == "memory-limit" else soak)
        for name, case in STOPS.items()
    ],
)
def test_failures_that_retries_cannot_fix_stop_the_run(
    nextflow, phantom, tmp_path, process, script, memory, words
):
    (tmp_path / "fault.config").write_text(
        "process { resourceLimits = [cpus: 2, memory: 3.GB]\n"
        f"withName: {process} {{ beforeScript = {{ '{script}' }} }} }}\n",
        encoding="utf-8",
    )
    run = nextflow(
        *(tmp_path, "-stub", "-c", "fault.config", "--input", f"{phantom}/mosaics"),
        *("--skip_n4", "--skip_report"),
    )
    assert run.code == 1
    assert run.tries(process, "memory") == [("FAILED", given) for given in memory]
    assert re.search(rf"{process} \((run|mosaics)\) failed in ", run.output)
    assert Path(run.task_file(process, ".command.log")).is_file()
    # Nextflow may add warnings between the workflow's last lines, and after them.
    (last,) = re.findall(r"run again with -resume\.\n(?:.+\n)?octane stopped: (.+)", run.output)
    assert words in last


@soak
def test_a_retry_avoids_a_scratch_disk_without_inodes(succeeding, phantom, small_disk, tmp_path):
    # The only inode is the file system's root.
    run = succeeding(
        *(tmp_path, "-stub", "--input", f"{phantom}/mosaics", "--skip_n4", "--skip_report"),
        *("--scratch_dir", small_disk("disk", "nr_inodes=1")),
    )
    assert [status for (status,) in run.tries("STACK")] == ["FAILED", "COMPLETED"]


@soak
def test_a_gap_and_a_second_try_are_named_at_the_end_and_in_the_report(
    succeeding, make_phantom, tmp_path
):
    mosaics = make_phantom(sections=3) / "mosaics"
    shutil.rmtree(mosaics / "section_02.ome.zarr")
    (tmp_path / "fault.config").write_text(
        "process { withName: STITCH { beforeScript = {\n"
        "    def ended = task.attempt == 1 && meta.section == 'section_03'\n"
        "    \"export OCTANE_ATTEMPT=${task.attempt}${ended ? '; exit 143' : ''}\"\n"
        "} } }\n",
        encoding="utf-8",
    )
    run = succeeding(
        *(tmp_path, "-c", "fault.config", "--input", mosaics, "--allow_missing_sections", "1"),
        *("--skip_n4", "--skip_pyramid"),
    )
    gap = "mosaics: Section 2: missing and left blank, "
    gap += "as --allow_missing_sections permits."
    end = run.output.partition("Results:\n")[2]
    assert gap in end
    # The two checks: the missing section, and the shading of the phantom's tiles.
    assert "mosaics: Look at 2 of " in end
    assert run.tasks("FAILED") == ["STITCH (mosaics:section_03)"]
    folder = run.outdir / "mosaics"
    records = json.loads((folder / "mosaics_report.json").read_text(encoding="utf-8"))["records"]
    (stack,) = (record for record in records if record["step"] == "stack")
    assert stack["figures"]["missing_sections"] == [2]
    attempts = [(r["step"], r["attempt"]) for r in records if r["attempt"] != 1]
    assert attempts == [("stitch", 2)]
    page = (folder / "mosaics_report.html").read_text(encoding="utf-8")
    for words in ("2 of 3", "1 missing", "succeeded at attempt 2; ", "(attempt 2)"):
        assert words in page


@soak
def test_a_subject_whose_report_fails_is_incomplete_on_the_page_of_all(nextflow, phantom, tmp_path):
    (tmp_path / "fault.config").write_text(
        "process { withName: REPORT { beforeScript = { meta.id == 'b' ? 'exit 3' : '' } } }\n",
        encoding="utf-8",
    )
    rows = "".join(f"{name},{phantom}/mosaics\n" for name in "ab")
    (tmp_path / "sheet.csv").write_text(f"subject,input\n{rows}", encoding="utf-8")
    given = ("-stub", "-c", "fault.config", "--samplesheet", "sheet.csv", "--keep_going")
    run = nextflow(tmp_path, *given)
    assert run.code == 1
    assert "b: Incomplete: REPORT failed (exit 3), see " in run.output
    assert "2 subjects: 1 incomplete, 1 done.\nFinished work is kept" in run.output
    assert "COHORT_REPORT (2 subjects)" in run.tasks("COMPLETED")
